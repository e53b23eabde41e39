"""Our own definitions on the core: they register with their twins, and the rules hold."""

from typing import Any

import pytest

from slipway.crd import rules, schema
from slipway.local.apiserver.core import ClusterCore, StatusError
from tests.unit.local.apiserver.support import DEFINITIONS, HandClock

ALLOCATIONS = "allocations.slipway.dev"
Json = dict[str, Any]


@pytest.fixture
def core() -> ClusterCore:
    uids = iter(range(1, 1000))
    core = ClusterCore(clock=HandClock(), new_uid=lambda: f"{next(uids):08x}-0000", twins=rules.TWINS)
    core.bootstrap()
    for manifest in schema.crd_manifests():
        core.create(DEFINITIONS, "", manifest)
    return core


@pytest.fixture
def allocation(core: ClusterCore) -> Json:
    body = {"metadata": {"name": "a", "finalizers": ["slipway.dev/teardown"]}, "spec": {"kind": "command"}}
    return core.create(ALLOCATIONS, "default", body)


def _refused(core: ClusterCore, change: Json, subresource: str = "") -> str:
    with pytest.raises(StatusError) as refused:
        core.patch(ALLOCATIONS, "default", "a", change, subresource=subresource)
    assert (refused.value.code, refused.value.reason) == (422, "Invalid")
    return refused.value.message


def test_new_allocation_has_a_selectable_phase(core: ClusterCore, allocation: Json) -> None:
    """A new allocation is stored with the defaults of spec and status, so that selectors and watches see its phase."""
    assert allocation["status"]["phase"] == "Pending"
    assert allocation["spec"]["desired"] == "Running"


@pytest.mark.usefixtures("allocation")
def test_stopped_is_final(core: ClusterCore) -> None:
    """`desired` cannot change from Stopped back to Running."""
    core.patch(ALLOCATIONS, "default", "a", {"spec": {"desired": "Stopped"}})
    assert "spec" in _refused(core, {"spec": {"desired": "Running"}})


@pytest.mark.usefixtures("allocation")
def test_spec_is_immutable(core: ClusterCore) -> None:
    """The spec is immutable, except the fields that are documented as mutable."""
    _refused(core, {"spec": {"pool": "other"}})
    core.patch(ALLOCATIONS, "default", "a", {"spec": {"priority": 70}})


@pytest.mark.usefixtures("allocation")
def test_sequence_and_attempt_never_fall(core: ClusterCore) -> None:
    """`seq` and `attempt` never decrease: a stale writer cannot reset them, with or without a fence."""
    core.patch(ALLOCATIONS, "default", "a", {"status": {"seq": 3, "attempt": 2}}, subresource="status")
    _refused(core, {"status": {"seq": 2}}, "status")
    _refused(core, {"status": {"attempt": 1}}, "status")


@pytest.mark.usefixtures("allocation")
def test_release_needs_desire(core: ClusterCore) -> None:
    """After a committed cancel a release is refused, so the allocation never starts."""
    core.patch(ALLOCATIONS, "default", "a", {"spec": {"desired": "Stopped"}})
    release = {"release": {"attempt": 1, "podUIDs": ["u"]}}
    _refused(core, {"status": release}, "status")


def test_long_names_are_refused(core: ClusterCore) -> None:
    """Names of more than 40 characters are refused."""
    with pytest.raises(StatusError) as refused:
        core.create(ALLOCATIONS, "default", {"metadata": {"name": "a" * 41}, "spec": {"kind": "command"}})
    assert refused.value.code == 422
