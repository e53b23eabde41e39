"""Where the volumes of claims can be reached from: which nodes are left out, which work waits, and with what
message."""

from typing import Any

import pytest

from slipway.facts.volumes import being_read
from slipway.model.facts import NodeFact, PoolFact, QueueFact, VolumeFact
from slipway.model.reasons import Gate
from slipway.scheduler.plan.placement.filters.volume_zone import reached_from, reaching
from slipway.scheduler.plan.state.nodes import NodeTable
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.pool_state import PoolState
from tests.support.planner import NAMESPACE, a_node, a_role, an_allocation, places, planned, running

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


def a_volume(*terms: dict[str, Any], **more: Any) -> VolumeFact:
    return VolumeFact(namespace=NAMESPACE, name="data", terms=terms, **more)


def where(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def term(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)}


def hosts() -> list[NodeFact]:
    """One node in zone a, two in zone b, one without a zone."""
    zones = {"n0": "a", "n1": "b", "n2": "b"}
    made = [a_node(name, gpus=8, labels={HOST: name, ZONE: zone, "disks": name[1]}) for name, zone in zones.items()]
    return [*made, a_node("bare", gpus=8)]


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([term(where(ZONE, "In", "b"))], ["n1", "n2"]),
        ([term(where(ZONE, "In", "a")), term(where(HOST, "In", "n2"))], ["n0", "n2"]),
        ([term(where(ZONE, "In", "b"), where(HOST, "NotIn", "n1"))], ["n2"]),
        ([term(where(ZONE, "Exists"))], ["n0", "n1", "n2"]),
        ([term(where(ZONE, "DoesNotExist"))], ["bare"]),
        ([term(where("disks", "Gt", "0"))], ["n1", "n2"]),
        ([term(where("disks", "Lt", "1"))], ["n0"]),
        ([{"matchFields": [where("metadata.name", "In", "bare")]}], ["bare"]),
        ([term()], []),
    ],
)
def test_a_node_reaches_a_volume_when_it_matches_one_term(terms: list[dict[str, Any]], expected: list[str]) -> None:
    """Every operator of a term, all expressions of it; a node without the label matches `In` of none."""
    table = NodeTable(hosts())
    found = reaching(a_volume(*terms), table)
    assert sorted(name for name, fits in zip(table.names, found, strict=True) if fits) == sorted(expected)


def test_zone_labels_and_node_affinity_both_have_to_hold() -> None:
    """A node without zones passes the labels, not the affinity."""
    table = NodeTable(hosts())
    found = reaching(a_volume(term(where(HOST, "In", "n0", "n1")), zones={ZONE: ("b",)}), table)
    assert [name for name, fits in zip(table.names, found, strict=True) if fits] == ["n1"]


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        (a_volume(term(where(ZONE, "In", "eu-1b"))), "zone eu-1b"),
        (a_volume(term(where("topology.example.org/zone", "In", "b", "a"))), "zone a or b"),
        (a_volume(term(where(HOST, "In", "n1"))), "node n1"),
        (a_volume(term(where("disk", "In", "fast"))), "disk=fast"),
        (a_volume(term(where(ZONE, "In", *"abcde"))), "zone a or b or c or 2 more"),
        (a_volume(zones={ZONE: ("a",)}), "zone a"),
        (a_volume(term(where(ZONE, "NotIn", "a"))), ""),
        (a_volume(term(where(ZONE, "In", "a")), term(where(HOST, "In", "n1"))), ""),
    ],
)
def test_where_a_volume_is_has_words(volume: VolumeFact, words: str) -> None:
    """The words name the place as a user knows it; "" where a sentence would be too long."""
    assert reached_from(volume) == words


def plan_with(volume: VolumeFact, *facts: Any) -> Plan:
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(hosts())
    columns.set_queues([QueueFact(name="default")])
    columns.set_workspaces(frozenset({NAMESPACE}))
    columns.set_volumes([volume])
    for fact in facts:
        columns.set_allocation(fact)
    return planned(columns.snapshot())


def a_job(name: str, *, gpus: int = 8, claims: tuple[str, ...] = ("data",), count: int = 1) -> Any:
    return an_allocation(name, a_role(count, gpus=gpus, namespace=NAMESPACE, claims=claims))


def said(plan: Plan, name: str) -> Any:
    return plan.explanations.get(f"{NAMESPACE}/{name}")


def test_a_gang_goes_where_all_its_ranks_reach_the_volume() -> None:
    """The other nodes are as free, but do not reach the volume."""
    made = plan_with(a_volume(term(where(ZONE, "In", "b"))), a_job("train", count=2))
    assert places(made) == {"train": ["n1", "n2"]}


def test_what_waits_for_nodes_of_its_volume_says_so() -> None:
    """The message names the claim, the zone, and what the nodes of that zone lack."""
    holder = running(an_allocation("holder", a_role(gpus=4, namespace=NAMESPACE)), {0: "n0"})
    made = plan_with(a_volume(term(where(ZONE, "In", "a"))), holder, a_job("train"))
    message = said(made, "train").message
    assert "3 cannot reach the volume of claim data (only zone a can)" in message
    assert "1 lacks 8 nvidia.com/gpu free" in message


def test_a_claim_that_cannot_be_mounted_is_waited_for_before_any_node_is_looked_at() -> None:
    """Work with such a claim takes no room from other work; its message is that of the claim."""
    volume = VolumeFact(namespace=NAMESPACE, name="data", waits="volume claim data does not exist in namespace default")
    made = plan_with(volume, a_job("train"), a_job("other", claims=()))
    assert list(places(made)) == ["other"]
    why = said(made, "train")
    assert (why.gate.value, why.message) == ("WaitingForVolume", volume.waits)


def test_a_claim_that_is_being_read_is_not_told_of() -> None:
    """Work that waits for the claim counts as not yet considered, so no reason is written to its object."""
    made = plan_with(being_read(NAMESPACE, "data"), a_job("train"))
    assert (places(made), said(made, "train").gate) == ({}, Gate.NOT_YET_CONSIDERED)
