"""Topology levels: which racks in which blocks, for one role and for several."""

from typing import Any

import pytest

from slipway.model.facts import AllocationFact, NodeFact, PoolFact, RoleFact, TopologyFact
from slipway.scheduler.plan.placement.gang import PlacedGang, PlacementFailure, extend, place
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.whatif import WhatIf
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, gates, places, planned

LEVELS = PoolFact(name="default", topology=("block", "rack"))
Blocks = dict[str, dict[str, int]]


def cluster(blocks: Blocks) -> list[NodeFact]:
    """One node for each rack, with as many cpus as the rack has room: {block: {rack: room}}; "" for a missing label."""
    return [
        a_node(f"{block}-{rack}", cpu=room, labels={k: v for k, v in (("block", block), ("rack", rack)) if v})
        for block, racks in blocks.items()
        for rack, room in racks.items()
    ]


def racks_of(blocks: Blocks, *roles: RoleFact, pool: PoolFact = LEVELS, **more: Any) -> dict[str, int]:
    """{node: ranks} of a gang of these roles."""
    decided = planned(a_snapshot(cluster(blocks), [an_allocation("g", *roles, **more)], pool=pool))
    found = places(decided).get("g", [])
    return {node: found.count(node) for node in sorted(set(found))}


def want(count: int, key: str, mode: str, least: int | None = None, **more: Any) -> RoleFact:
    return a_role(count, least, topology=TopologyFact(key, mode), **more)


@pytest.mark.parametrize(
    ("blocks", "role", "expected"),
    [
        # the rack with the least room that is enough, wherever it is
        ({"b1": {"r1": 8, "r2": 5}, "b2": {"r3": 4, "r4": 9}}, want(4, "rack", "required"), {"b2-r3": 4}),
        # of racks with equal room, the one in the block with the least room
        ({"b1": {"r1": 4, "r2": 8}, "b2": {"r3": 4, "r4": 1}}, want(4, "rack", "required"), {"b2-r3": 4}),
        # of equal blocks too, the first rack by name
        ({"b1": {"r1": 4, "r2": 1}, "b2": {"r3": 4, "r4": 1}}, want(4, "rack", "required"), {"b1-r1": 4}),
        # a preferred rack is chosen in the same way if one rack is enough
        ({"b1": {"r1": 8}, "b2": {"r3": 4, "r4": 9}}, want(4, "rack", "preferred"), {"b2-r3": 4}),
        # if it takes several racks: those of one block, although the largest racks are in two blocks
        (
            {"b1": {"r1": 4, "r2": 1}, "b2": {"r3": 4, "r4": 0}, "b3": {"r5": 3, "r6": 3}},
            want(6, "rack", "preferred"),
            {"b3-r5": 3, "b3-r6": 3},
        ),
        # of blocks with enough room, the one in which the fewest racks are needed
        (
            {"b1": {"r1": 2, "r2": 2, "r3": 2}, "b2": {"r4": 3, "r5": 4}},
            want(6, "rack", "preferred"),
            {"b2-r4": 2, "b2-r5": 4},
        ),
        # if no block has enough room: the fewest blocks, and in each the fewest racks
        (
            {"b1": {"r1": 1, "r2": 4}, "b2": {"r3": 2, "r4": 2}, "b3": {"r5": 1, "r6": 1}},
            want(8, "rack", "preferred"),
            {"b1-r1": 1, "b1-r2": 4, "b2-r3": 2, "b2-r4": 1},
        ),
        # in a required block, as few racks as possible
        (
            {"b1": {"r1": 9}, "b2": {"r3": 1, "r4": 1, "r5": 4, "r6": 2}},
            want(6, "block", "required"),
            {"b2-r5": 4, "b2-r6": 2},
        ),
        # in a preferred block, the same
        (
            {"b1": {"r1": 9}, "b2": {"r3": 1, "r4": 1, "r5": 4, "r6": 2}},
            want(6, "block", "preferred"),
            {"b2-r5": 4, "b2-r6": 2},
        ),
        # a gang that may be smaller takes a rack with room for all of it
        ({"b1": {"r1": 2, "r2": 5, "r3": 4}}, want(4, "rack", "required", 2), {"b1-r3": 4}),
        # else the rack with the most room
        ({"b1": {"r1": 2, "r2": 3}}, want(4, "rack", "required", 2), {"b1-r2": 3}),
        # nodes without the label are used last, and only if the topology is preferred
        ({"": {"": 4}, "b1": {"r1": 2}}, want(4, "rack", "preferred"), {"-": 2, "b1-r1": 2}),
        ({"": {"": 9}, "b1": {"r1": 2}}, want(3, "rack", "required"), {}),
    ],
)
def test_levels(blocks: Blocks, role: RoleFact, expected: dict[str, int]) -> None:
    """The fewest domains are used, then those that fit best, then the first by name; all levels count, not only the
    role's."""
    minimum = role.minimum if role.minimum < role.count else role.count
    assert racks_of(blocks, role, minimum=minimum) == expected


def test_a_label_that_the_pool_does_not_name_stands_alone() -> None:
    """Without levels the fewest racks count, and blocks do not."""
    blocks: Blocks = {"b1": {"r1": 4, "r2": 1}, "b2": {"r3": 4}, "b3": {"r5": 3, "r6": 3}}
    found = racks_of(blocks, want(6, "rack", "preferred"), pool=PoolFact(name="default"))
    assert found == {"b1-r1": 4, "b3-r5": 2}


def test_later_ranks_stay_near() -> None:
    """Surplus of a gang that prefers racks goes to its own rack, then to its block, then anywhere."""
    blocks: Blocks = {"b1": {"r1": 9}, "b2": {"r2": 3, "r3": 2}}
    whatif = WhatIf(a_snapshot(cluster(blocks), pool=LEVELS).usage, policy_of(LEVELS))
    placed = place(whatif, an_allocation("g", want(3, "rack", "preferred")))
    assert isinstance(placed, PlacedGang)
    part = placed.parts[0]
    assert part.nodes == [1, 1, 1]
    assert [extend(whatif, part) for _ in range(4)] == [True] * 4
    assert part.nodes == [1, 1, 1, 2, 2, 0, 0]


def test_roles_that_require_a_rack_share_one_if_one_has_room() -> None:
    """Each role alone would go to a tighter rack."""
    pair = (want(2, "rack", "required", name="a"), want(3, "rack", "required", name="b"))
    assert racks_of({"b1": {"r1": 2, "r2": 3, "r3": 6}}, *pair) == {"b1-r3": 5}


def test_roles_that_require_a_rack_go_to_one_each_otherwise() -> None:
    pair = (want(2, "rack", "required", name="a"), want(3, "rack", "required", name="b"))
    assert racks_of({"b1": {"r1": 2, "r2": 3, "r3": 4}}, *pair) == {"b1-r1": 2, "b1-r2": 3}


def test_the_sentence_names_the_largest_domain() -> None:
    decided = planned(
        a_snapshot(cluster({"b1": {"r1": 3, "r2": 2}}), [an_allocation("g", want(4, "rack", "required"))])
    )
    assert gates(decided) == {"g": "TopologyTooSmall"}
    assert "the largest rack has room for 3 of 4 ranks of role worker" in decided.explanations["default/g"].message


def a_pair(first: RoleFact, second: RoleFact) -> AllocationFact:
    return an_allocation("g", first, second)


def test_roles_are_tried_in_another_order() -> None:
    """The first role alone would take the only node that the second can use; in either order of writing them."""
    nodes = [a_node("any", cpu=2), a_node("special", cpu=4, labels={"kind": "special"})]
    anywhere, bound = a_role(2, name="any"), a_role(4, name="bound", node_selector={"kind": "special"})
    for fact in (a_pair(anywhere, bound), a_pair(bound, anywhere)):
        whatif = WhatIf(a_snapshot(nodes).usage, policy_of(PoolFact(name="default")))
        assert isinstance(place(whatif, fact), PlacedGang)


def test_nothing_stays_taken_of_orders_that_failed() -> None:
    nodes = [a_node("any", cpu=1), a_node("special", cpu=4, labels={"kind": "special"})]
    whatif = WhatIf(a_snapshot(nodes).usage, policy_of(PoolFact(name="default")))
    fact = a_pair(a_role(2, name="any"), a_role(4, name="bound", node_selector={"kind": "special"}))
    found = place(whatif, fact)
    assert isinstance(found, PlacementFailure)
    assert not whatif.usage.used.any()


def test_a_role_without_a_minimum_keeps_its_domain_too() -> None:
    """The first rank of such a role is surplus, and chooses the rack for the others; nodes outside of racks are no
    rack."""
    blocks: Blocks = {"": {"": 9}, "b1": {"r1": 2, "r2": 3}}
    surplus = (a_role(1, name="a"), want(3, "rack", "required", 0, name="b", cpu=1))
    found = racks_of(blocks, *surplus, minimum=1)
    assert {node: ranks for node, ranks in found.items() if node != "-"} == {"b1-r2": 3}
    alone = (a_role(1, name="a"), want(3, "nolabel", "required", 0, name="b", cpu=1))
    assert sum(racks_of(blocks, *alone, minimum=1).values()) == 1


def test_a_topology_of_the_gang_comes_before_those_of_its_roles() -> None:
    """Without a topology of the gang each role would take the tightest rack, and these are in two blocks."""
    blocks: Blocks = {"b1": {"r1": 2, "r2": 1}, "b2": {"r3": 3, "r4": 3}}
    roles = [want(2, "rack", "required", name="a"), want(3, "rack", "required", name="b")]
    assert racks_of(blocks, *roles) == {"b1-r1": 2, "b2-r3": 3}
    together = racks_of(blocks, *roles, topology=TopologyFact("block"))
    assert together == {"b2-r3": 2, "b2-r4": 3}
    assert racks_of(blocks, *roles, topology=TopologyFact("block", "preferred")) == together


def test_work_that_differs_in_its_topology_alone_is_not_alike() -> None:
    """One waits for a block, and the other, which names none, starts."""
    roles = [a_role(2, cpu=2, name="a"), a_role(2, cpu=2, name="b")]
    bound = an_allocation("bound", *roles, topology=TopologyFact("block"))
    nodes = cluster({"b1": {"r1": 4}, "b2": {"r2": 4}})
    decided = planned(a_snapshot(nodes, [bound, an_allocation("free", *roles)], pool=LEVELS))
    assert set(gates(decided)) == {"bound"}
    assert len(places(decided)["free"]) == 4
