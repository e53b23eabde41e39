"""A volume claim as the planner sees it: from which nodes its volume can be reached, or why it waits."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import pytest

from slipway.errors import DeniedError, NotFoundError
from slipway.facts.volumes import read_volume, unreadable
from slipway.kube.resources import Resource
from slipway.model.facts import VolumeFact
from tests.support.virtual_time import run_virtual

T = TypeVar("T")
Json = dict[str, Any]
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BOUND: Json = {"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}


class FakeObjects:
    """Objects by kind and name."""

    def __init__(self, objects: Mapping[str, Json]) -> None:
        self.objects = objects
        self.asked: list[str] = []

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        self.asked.append(f"{resource.plural} {name}")
        if name not in self.objects:
            raise NotFoundError(f"{resource.plural} {name} not found")
        found = self.objects[name]
        metadata = {"name": name, "namespace": namespace or "", **found.get("metadata", {})}
        return msgspec.convert({**found, "metadata": metadata}, resource.struct)


def read(**objects: Json) -> VolumeFact:
    """The claim `data` of workspace `team`, beside these objects."""

    async def main() -> VolumeFact:
        return await read_volume(FakeObjects(objects), "team", "data")

    return run_virtual(main)


def test_a_bound_claim_is_reached_as_the_node_affinity_of_its_volume_says() -> None:
    """A bound claim keeps the node affinity terms of its volume unchanged: the planner reads them like those of a
    pod."""
    terms = [
        {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    ]
    found = read(data=BOUND, pv={"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}})
    assert found == VolumeFact(namespace="team", name="data", volume="pv", terms=tuple(terms))


def test_zone_labels_of_a_volume_name_its_zones() -> None:
    """The zone labels of a volume name its zones, joined by `__` when there are several. Other labels are ignored."""
    labels = {ZONE: "b__a", REGION: "eu-1", "disk": "fast"}
    found = read(data=BOUND, pv={"metadata": {"labels": labels}})
    assert found.zones == {ZONE: ("a", "b"), REGION: ("eu-1",)}


def test_a_volume_without_either_is_reached_from_everywhere() -> None:
    """A volume without node affinity and zones is reached from everywhere; so is a volume without an object, as on a
    local cluster."""
    everywhere = VolumeFact(namespace="team", name="data", volume="pv")
    assert read(data=BOUND, pv={"spec": {"nodeAffinity": None}}) == everywhere
    assert read(data=BOUND) == everywhere


def test_a_claim_that_waits_for_its_first_consumer_is_left_to_kube_scheduler() -> None:
    """A claim that waits for its first consumer is left to kube-scheduler: its place is unknown, and the launch does
    not wait for it."""
    claim: Json = {"spec": {"storageClassName": "slow"}, "status": {"phase": "Pending"}}
    found = read(data=claim, slow={"volumeBindingMode": "WaitForFirstConsumer"})
    assert found == VolumeFact(namespace="team", name="data")


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({}, "does not exist in namespace team; create it or correct the name"),
        ({"data": {"metadata": {"deletionTimestamp": "2026-11-29T10:00:00Z"}, **BOUND}}, "is being deleted"),
        ({"data": {**BOUND, "status": {"phase": "Lost"}}}, "has lost its volume pv"),
        ({"data": {"status": {"phase": "Pending"}}}, "is not bound to a volume yet"),
        ({"data": {"spec": {"storageClassName": "gone"}}}, "is not bound to a volume yet"),
        (
            {"data": {"spec": {"storageClassName": "c"}}, "c": {"volumeBindingMode": "Immediate"}},
            "is not bound to a volume yet",
        ),
        (
            {
                "data": {"spec": {"storageClassName": "c", "volumeName": "pv"}, "status": {"phase": "Pending"}},
                "c": {"volumeBindingMode": "WaitForFirstConsumer"},
            },
            "is not bound to a volume yet",
        ),
    ],
)
def test_a_claim_that_nothing_can_mount_says_why(objects: dict[str, Json], words: str) -> None:
    """Each reason names the claim."""
    assert read(**objects).waits.startswith(f"volume claim data {words}")


def test_a_claim_that_our_account_may_not_read_names_the_rights() -> None:
    """A claim that our account may not read names the missing rights, so that an administrator can grant them."""
    fact = unreadable("team", "data", DeniedError("forbidden"))
    assert "cannot be read: forbidden; let the account get persistentvolumeclaims, persistentvolumes" in fact.waits
