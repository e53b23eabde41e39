"""Gangs: all or nothing, minima and surplus, domains."""

import numpy as np
import pytest

from slipway.model.facts import NodeFact, RoleFact, TopologyFact
from slipway.scheduler.plan.placement.gang import PlacedGang, PlacementFailure, extend, place, withdraw
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.rank_request import next_role, targets
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, nodes, places, planned

RACK = TopologyFact("rack")
NEAR = TopologyFact("rack", "preferred")


def a_whatif(*node_facts: NodeFact) -> WhatIf:
    snapshot = a_snapshot(node_facts)
    return WhatIf(snapshot.usage, policy_of(snapshot.pool))


def racks(**sizes: int) -> list[NodeFact]:
    """Nodes of one cpu each, `size` per rack."""
    names = [(rack, index) for rack, size in sizes.items() for index in range(size)]
    return [a_node(f"{rack}-{index}", cpu=1, labels={"rack": rack}) for rack, index in names]


@pytest.mark.parametrize(
    ("roles", "minimum", "expected"),
    [
        ((a_role(4),), 4, [4]),
        ((a_role(4, 1),), 1, [1]),
        ((a_role(4, 0), a_role(2, 0)), 3, [2, 1]),
        ((a_role(4, 0), a_role(4, 2)), 5, [2, 3]),
        ((a_role(1), a_role(8, 2)), 1, [1, 2]),
    ],
)
def test_the_smallest_gang(roles: tuple[RoleFact, ...], minimum: int, expected: list[int]) -> None:
    """The smallest gang has the minimum of each role; ranks up to the gang's minimum are the same part of each role's
    range."""
    assert targets(an_allocation("g", *roles, minimum=minimum)) == expected


def test_surplus_goes_to_the_role_that_is_most_behind() -> None:
    roles = (a_role(2, 0), a_role(8, 0))
    order: list[int] = []
    counts = [0, 0]
    while (chosen := next_role(roles, counts)) is not None:
        counts[chosen] += 1
        order.append(chosen)
    assert counts == [2, 8]
    assert order[:5] == [0, 1, 1, 1, 1]


def test_nothing_is_left_taken_of_a_gang_that_does_not_fit() -> None:
    """A gang that does not fit takes nothing, also when its first role had places already."""
    whatif = a_whatif(*nodes(2, cpu=2))
    before = whatif.usage.used.copy()
    found = place(whatif, an_allocation("g", a_role(2, name="a"), a_role(3, name="b")))
    assert isinstance(found, PlacementFailure)
    assert (found.role.name, found.needed, found.found) == ("b", 3, 2)
    assert np.array_equal(whatif.usage.used, before)


def test_withdrawing_gives_all_back() -> None:
    whatif = a_whatif(*nodes(2, cpu=2))
    before = whatif.usage.used.copy()
    found = place(whatif, an_allocation("g", a_role(3)))
    assert isinstance(found, PlacedGang)
    assert not np.array_equal(whatif.usage.used, before)
    withdraw(whatif, found.parts)
    assert np.array_equal(whatif.usage.used, before)


def test_a_role_with_room_stands_in_for_one_without() -> None:
    """The gang needs three in all; the GPU role finds one place, the other makes up for it."""
    whatif = a_whatif(a_node("g", cpu=1, gpus=1), a_node("c", cpu=4))
    found = place(whatif, an_allocation("g", a_role(4, 0, name="gpu", gpus=1), a_role(4, 0, name="cpu"), minimum=4))
    assert isinstance(found, PlacedGang)
    assert [len(part.nodes) for part in found.parts] == [1, 3]
    assert not found.is_as_wanted


def test_ranks_are_numbered_over_the_roles() -> None:
    """A role that got less than its count leaves its last ranks out."""
    made = planned(a_snapshot(nodes(1, cpu=3), [an_allocation("g", a_role(4, 1, name="a"), a_role(1, name="b"))]))
    assert list(made.admits[0].placements) == [0, 1, 4]


def test_avoided_nodes_are_used_only_when_nothing_else_is_left() -> None:
    both = a_snapshot(nodes(2, cpu=1), [an_allocation("g", avoid_nodes=("n0",))])
    only = a_snapshot(nodes(1, cpu=1), [an_allocation("g", avoid_nodes=("n0",))])
    assert places(planned(both)) == {"g": ["n1"]}
    assert places(planned(only)) == {"g": ["n0"]}


def test_required_takes_the_tightest_domain_that_holds_all() -> None:
    snapshot = a_snapshot(racks(big=4, fit=3, small=2), [an_allocation("g", a_role(3, topology=RACK))])
    assert {node.partition("-")[0] for node in places(planned(snapshot))["g"]} == {"fit"}


def test_required_surplus_stays_in_the_domain() -> None:
    """An elastic gang takes the roomiest domain if none holds all of it, and no rank outside."""
    snapshot = a_snapshot(racks(a=2, b=3), [an_allocation("g", a_role(6, 2, topology=RACK))])
    assert {node.partition("-")[0] for node in places(planned(snapshot))["g"]} == {"b"}


def test_required_without_a_domain_that_large_is_a_topology_matter() -> None:
    found = place(a_whatif(*racks(a=2, b=2)), an_allocation("g", a_role(3, topology=RACK)))
    assert isinstance(found, PlacementFailure)
    assert found.is_topology
    assert isinstance(place(a_whatif(*racks(a=1, b=1)), an_allocation("g", a_role(3, topology=RACK))), PlacementFailure)


def test_a_node_without_the_label_is_in_no_domain() -> None:
    found = place(a_whatif(*nodes(3)), an_allocation("g", a_role(2, topology=RACK)))
    assert isinstance(found, PlacementFailure)


def test_preferred_takes_the_fewest_domains_and_overflows() -> None:
    """Largest domain first, the rest where it fits tightest; unlabelled nodes last."""
    snapshot = a_snapshot([*racks(a=1, b=3, c=2), a_node("x", cpu=9)], [an_allocation("g", a_role(7, topology=NEAR))])
    made = places(planned(snapshot))["g"]
    assert [node.partition("-")[0] for node in made] == ["b", "b", "b", "c", "c", "a", "x"]


@pytest.mark.parametrize("topology", [None, RACK, NEAR])
def test_a_gang_stays_within_the_nodes_that_may_be_used(topology: TopologyFact | None) -> None:
    """The minimum, the surplus, and the number of ranks with a place use only the nodes of `within`."""
    whatif = a_whatif(*racks(r1=3, r2=3))
    within = np.array([False, True, True, False, False, False])
    placed = place(whatif, an_allocation("g", a_role(3, 1, topology=topology), minimum=1), within)
    assert isinstance(placed, PlacedGang)
    part = placed.parts[0]
    assert extend(whatif, part)
    assert not extend(whatif, part)
    assert sorted(part.nodes) == [1, 2]
    withdraw(whatif, placed.parts)
    blocked = place(whatif, an_allocation("g", a_role(3, topology=topology)), within)
    assert isinstance(blocked, PlacementFailure)
    assert (blocked.found, blocked.is_topology) == (2, False)
