"""Volume claims of launches that the pod worker binds itself, and which of them need kube-scheduler."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from slipway.errors import ClaimPendingError, NotFoundError
from slipway.kube.ports import Listed
from slipway.kube.resources import Resource
from slipway.podworker.created_objects import WAITS, needs_scheduler
from tests.support.virtual_time import run_virtual

T = TypeVar("T")
Json = dict[str, Any]


class FakeObjects:
    """Objects by kind and name; counts the reads."""

    def __init__(self, **objects: Json) -> None:
        self.objects = objects
        self.looks = 0

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        self.looks += 1
        if name not in self.objects:
            raise NotFoundError(f"{resource.plural} {name} not found")
        return msgspec.convert({"metadata": {"name": name}, **self.objects[name]}, resource.struct)

    async def list(self, resource: Resource[T], **_: Any) -> Listed[T]:
        self.looks += 1
        items = [await self.get(resource, name) for name, item in self.objects.items() if "volumeBindingMode" in item]
        return Listed(items=items, resource_version="1")


def _pod(*volumes: Json) -> Json:
    return {"spec": {"volumes": list(volumes)}}


def _claimed(name: str = "data") -> Json:
    return _pod({"name": "v", "persistentVolumeClaim": {"claimName": name}})


def _ephemeral(**spec: str) -> Json:
    return _pod({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})


def _a_class(mode: str, *, is_default: bool = False) -> Json:
    mark = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    return {"metadata": {"name": "c", "annotations": mark}, "volumeBindingMode": mode}


WAITING: Mapping[str, tuple[Json, Json]] = {
    "the claim's class waits": ({"slow": _a_class(WAITS), "data": {"spec": {"storageClassName": "slow"}}}, _claimed()),
    "the default class waits": ({"c": _a_class(WAITS, is_default=True), "data": {}}, _claimed()),
    "a node is chosen, and the volume is not made yet": (
        {
            "slow": _a_class(WAITS),
            "data": {
                "metadata": {"name": "data", "annotations": {"volume.kubernetes.io/selected-node": "n1"}},
                "spec": {"storageClassName": "slow"},
            },
        },
        _claimed(),
    ),
    "an ephemeral volume's class waits": ({"slow": _a_class(WAITS)}, _ephemeral(storageClassName="slow")),
    "an ephemeral volume of the default class": ({"c": _a_class(WAITS, is_default=True)}, _ephemeral()),
}
PENDING: Mapping[str, Json] = {
    "there is no claim": {},
    "bound soon": {"fast": _a_class("Immediate"), "data": {"spec": {"storageClassName": "fast"}}},
    "the class is not an object": {"data": {"spec": {"storageClassName": "by-hand"}}},
    "no class at all": {"c": _a_class(WAITS, is_default=True), "data": {"spec": {"storageClassName": ""}}},
}
FINE: Mapping[str, tuple[Json, Json]] = {
    "bound": ({"data": {"spec": {"storageClassName": "slow", "volumeName": "pv"}}}, _claimed()),
    "an ephemeral volume that is bound at once": ({"fast": _a_class("Immediate")}, _ephemeral(storageClassName="fast")),
    "an ephemeral volume without any class": ({}, _ephemeral()),
}


def _check(objects: Json, pod: Json) -> tuple[FakeObjects, bool]:
    fake_objects: Any = FakeObjects(**objects)
    return fake_objects, run_virtual(lambda: needs_scheduler(fake_objects, "default", [pod, pod]))


@pytest.mark.parametrize("case", WAITING)
def test_what_waits_for_its_first_consumer_needs_the_scheduler(case: str) -> None:
    """A claim that waits for its first consumer needs kube-scheduler, which chooses the node of such a volume."""
    assert _check(*WAITING[case])[1]


@pytest.mark.parametrize("case", PENDING)
def test_what_will_be_bound_is_waited_for(case: str) -> None:
    """A claim that will be bound is waited for and read again, without a failure."""
    with pytest.raises(ClaimPendingError, match="volume claim data"):
        _check(PENDING[case], _claimed())


@pytest.mark.parametrize("case", FINE)
def test_what_is_bound_passes(case: str) -> None:
    """A bound claim passes: the pod worker binds its pod itself."""
    assert not _check(*FINE[case])[1]


def test_launch_without_claims_costs_nothing() -> None:
    """A launch without claims costs no read."""
    assert _check({}, _pod({"name": "v", "emptyDir": {}}))[0].looks == 0


def test_claim_of_many_ranks_is_looked_at_once() -> None:
    """A claim that many ranks share is read once."""
    assert _check({"data": {"spec": {"volumeName": "pv"}}}, _claimed())[0].looks == 1
