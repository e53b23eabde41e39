"""Canonical JSON, hashes and names that follow from keys."""

import re

import msgspec
import pytest

from slipway.crd.hashing import (
    canonical_json,
    key_hash,
    name_from_bytes,
    name_from_key,
    object_hash,
    request_hash,
    spec_hash,
)
from slipway.crd.v1alpha1 import Signals
from slipway.model.ids import is_name
from slipway.model.lifecycle import Kind
from tests.support.allocations import an_allocation


def test_the_order_of_keys_does_not_matter() -> None:
    """The order of keys does not change the hash."""
    assert canonical_json({"b": {"d": 1, "c": 2}, "a": [1]}) == b'{"a":[1],"b":{"c":2,"d":1}}'
    assert request_hash({"a": 1, "b": 2}) == request_hash({"b": 2, "a": 1})
    assert request_hash({"a": 1}) != request_hash({"a": 2})


def test_a_request_hash_fits_its_field() -> None:
    """A request hash fits into `requestHash`, which has 64 characters."""
    assert re.fullmatch("[0-9a-f]{64}", request_hash({}))
    assert re.fullmatch("[0-9a-f]{64}", key_hash("k"))


@pytest.mark.parametrize(
    "change",
    [
        {"desired": "Stopped"},
        {"hold": True},
        {"priority": 1},
        {"queue": "b"},
        {"queue_position": "m"},
        {"signals": Signals(ready=True)},
        {"request_hash": "x"},
    ],
)
def test_what_may_change_is_not_in_the_spec_hash(change: dict[str, object]) -> None:
    """Mutable fields are not in the spec hash: an admission stores the hash, and a new priority must not invalidate
    it."""
    spec = an_allocation().spec
    assert spec_hash(msgspec.structs.replace(spec, **change)) == spec_hash(spec)


@pytest.mark.parametrize("change", [{"env": {"A": "1"}}, {"pool": "b"}, {"template": {"spec": {}}}])
def test_what_runs_is_in_the_spec_hash(change: dict[str, object]) -> None:
    """Fields that affect the program are in the spec hash: another program has another hash."""
    spec = an_allocation().spec
    assert spec_hash(msgspec.structs.replace(spec, **change)) != spec_hash(spec)


def test_an_object_keeps_its_hash_on_the_server() -> None:
    """What the server adds, and the annotation that holds the hash, are not hashed."""
    wanted = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a", "labels": {"x": "y"}},
        "data": {"k": "v"},
    }
    stored = {
        **wanted,
        "metadata": {
            "name": "a",
            "labels": {"x": "y"},
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"slipway.dev/spec-hash": "h"},
        },
        "status": {},
    }
    assert object_hash(stored) == object_hash(wanted)
    assert object_hash({**wanted, "data": {"k": "w"}}) != object_hash(wanted)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_key_names_an_allocation_of_its_kind(kind: Kind) -> None:
    """The name is readable, legal and the same on every replica."""
    name = name_from_key("default", "ada", "key-1", kind)
    assert is_name(name)
    assert name == name_from_key("default", "ada", "key-1", kind)
    prefix = "run-" if kind is Kind.TRAINING else f"{kind}-"
    assert re.fullmatch(f"{prefix}[a-z2-7]{{10}}", name)


def test_workspace_user_and_key_all_count_and_do_not_run_together() -> None:
    """Workspace, user and key all affect the name and cannot be confused: (`a`, `bc`) differs from (`ab`, `c`)."""
    names = {
        name_from_key(workspace, user, key, Kind.COMMAND)
        for workspace, user, key in [("a", "bc", "k"), ("ab", "c", "k"), ("a", "b", "ck"), ("a", "bc", "l")]
    }
    assert len(names) == 4


def test_random_names_are_as_long_as_asked() -> None:
    """Random names have the requested length: six characters for a launch without a key."""
    assert re.fullmatch("shell-[a-z2-7]{6}", name_from_bytes(Kind.SHELL, b"12345", characters=6))
