"""The small pure parts: tables, paths, selectors, protobuf, rules, patches."""

import struct
from typing import Any

import pytest

from slipway.local.apiserver import patch, registry, table, wire
from slipway.local.apiserver.fields.shapes import ANY, builtin_shapes
from slipway.local.apiserver.selectors import selector
from slipway.local.apiserver.status import StatusError
from slipway.local.apiserver.structural import RuleTwin, compile_schema, validate

POD = builtin_shapes().of_kind("v1", "Pod") or ANY

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (599, "9m59s"), (600, "10m"), (10_799, "179m"),
        (10_800, "3h"), (28_799, "7h59m"), (28_800, "8h"), (172_800, "2d"), (180_000, "2d2h"), (691_200, "8d"),
        (63_072_000, "2y"),
    ],
)  # fmt: skip
def test_ages_are_abbreviated_as_kubectl_does(seconds: int, text: str) -> None:
    """Ages have the form of k8s.io/apimachinery/pkg/util/duration HumanDuration."""
    assert table.age(seconds) == text


DOCUMENT: Json = {
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Done", "status": "False"}]},
    "metadata": {"labels": {"a.b/c": "x"}},
    "list": [1, 2, 3],
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".status.conditions[0].type", ["Ready"]),
        ('.status.conditions[?(@.type=="Done")].status', ["False"]),
        (".status.conditions[*].type", ["Ready", "Done"]),
        (".metadata.labels['a.b/c']", ["x"]),
        (r".metadata.labels.a\.b/c", ["x"]),
        ("{.list[-1]}", [3]),
        (".nothing.here", []),
    ],
)
def test_json_paths(path: str, found: list[Any]) -> None:
    """The JSON paths that printer columns use are supported."""
    assert registry.find_path(DOCUMENT, registry.parse_path(path)) == found


def test_bad_json_path_is_an_error() -> None:
    """A bad JSON path is a parse error, not an empty result."""
    with pytest.raises(ValueError, match="not a JSONPath"):
        registry.parse_path(".a[?(broken")


def test_selectors_join_labels_and_fields() -> None:
    """A label selector and a field selector must both match."""
    matches = selector("a=1", "phase!=Done", {"phase": ("status", "phase")})
    assert matches is not None
    assert matches({"metadata": {"labels": {"a": "1"}}, "status": {"phase": "New"}})
    assert not matches({"metadata": {"labels": {"a": "1"}}, "status": {"phase": "Done"}})
    assert not matches({"metadata": {}, "status": {"phase": "New"}})


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def _envelope(kind: str, content: bytes) -> bytes:
    identity = _field(1, b"v1") + _field(2, kind.encode())
    return wire.MAGIC + _field(1, identity) + _field(2, content)


def test_protobuf_config_map() -> None:
    """Metadata and data of a ConfigMap as kubectl sends it."""
    entry = _field(1, b"key") + _field(2, b"value")
    body = _envelope("ConfigMap", _field(1, _field(1, b"name")) + _field(2, entry))
    assert wire.decode(body) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "name"},
        "data": {"key": "value"},
    }


def test_protobuf_integers_and_flags() -> None:
    """Varints, booleans and repeated strings of protobuf are decoded."""
    options = bytes([1 << 3, 30]) + bytes([3 << 3, 1]) + _field(5, b"All")
    found = wire.decode(_envelope("DeleteOptions", options))
    assert (found["gracePeriodSeconds"], found["orphanDependents"], found["dryRun"]) == (30, True, ["All"])


def test_protobuf_fixed_width_fields_are_stepped_over() -> None:
    """Fields that are not in the table are skipped, with any wire type."""
    content = bytes([15 << 3 | 1]) + struct.pack("<q", 5) + bytes([14 << 3 | 5]) + struct.pack("<i", 5)
    found = wire.decode(_envelope("Namespace", content + _field(1, _field(1, b"n"))))
    assert found["metadata"] == {"name": "n"}


@pytest.mark.parametrize("body", [b"{}", wire.MAGIC + b"\x0a\xff", _envelope("Namespace", b"\x0a\x7f")])
def test_broken_protobuf_is_a_bad_request(body: bytes) -> None:
    """Broken protobuf is refused with 400."""
    with pytest.raises(StatusError) as refused:
        wire.decode(body)
    assert refused.value.code == 400


def test_unknown_protobuf_kind_is_an_unsupported_media_type() -> None:
    """An unknown protobuf kind gets 415, so that the client may send JSON instead."""
    with pytest.raises(StatusError) as refused:
        wire.decode(_envelope("Deployment", b""))
    assert refused.value.code == 415


SCHEMA: Json = {
    "type": "object",
    "properties": {
        "ranks": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
            "items": {
                "type": "object",
                "properties": {"id": {"type": "integer"}, "code": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": "self.code == oldSelf.code", "message": "codes are final"}],
            },
        },
        "name": {"type": "string", "x-kubernetes-validations": [{"rule": "self != 'x'", "message": "no x"}]},
    },
}
TWINS: dict[str, RuleTwin] = {
    "self.code == oldSelf.code": lambda now, old: now["code"] == old["code"],
    "self != 'x'": lambda now, _: now != "x",
}


def test_items_of_a_list_map_are_compared_by_key() -> None:
    """A transition rule compares an item with the old item of the same key, at any position."""
    schema = compile_schema(SCHEMA)
    old: Json = {"ranks": [{"id": 1, "code": 5}, {"id": 2, "code": 6}]}
    moved: Json = {"ranks": [{"id": 2, "code": 6}, {"id": 1, "code": 5}, {"id": 3, "code": 0}]}
    changed: Json = {"ranks": [{"id": 1, "code": 6}]}
    assert validate(schema, moved, old, TWINS) == []
    assert [cause.field for cause in validate(schema, changed, old, TWINS)] == ["ranks[0]"]


def test_rule_that_meets_a_missing_field_refuses() -> None:
    """A rule that reads a missing field refuses, as in CEL, where `no such key` is a failure."""
    schema = compile_schema(SCHEMA)
    causes = validate(schema, {"ranks": [{"id": 1}]}, {"ranks": [{"id": 1, "code": 5}]}, TWINS)
    assert [cause.field for cause in causes] == ["ranks[0]"]


def test_rule_of_a_scalar_is_worded_with_its_type() -> None:
    """The message of a rule on a scalar has its type: `Invalid value: "string": message`."""
    (cause,) = validate(compile_schema(SCHEMA), {"name": "x"}, None, TWINS)
    assert str(cause) == 'name: Invalid value: "string": no x'


def test_rules_wait_for_a_valid_structure() -> None:
    """Rules run only for a valid structure: with a wrong type elsewhere none runs."""
    causes = validate(compile_schema(SCHEMA), {"name": "x", "ranks": 1}, None, TWINS)
    assert "no x" not in " ".join(str(cause) for cause in causes)


def test_strategic_merge_deletes_and_replaces_by_directive() -> None:
    """A strategic merge patch deletes by `$patch: delete` and replaces by `$patch: replace`."""
    current: Json = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}
    dropped = patch.merge(POD, current, {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}})
    assert dropped == {"spec": {"containers": [{"name": "b", "image": "2"}]}}
    replaced = patch.merge(POD, current, {"spec": {"$patch": "replace", "containers": []}})
    assert replaced == {"spec": {"containers": []}}
    assert len(current["spec"]["containers"]) == 2
