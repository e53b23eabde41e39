"""A topology of the whole gang, on random pools: one domain for all roles, and no wait when a domain has enough free
resources."""

from hypothesis import given
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, NodeFact, PoolFact, RoleFact, TopologyFact
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, gates, places, planned

BLOCKS = ("b1", "b2", "b3")
POOL = PoolFact(name="default", topology=("block", "rack"))


@st.composite
def pools(draw: st.DrawFn) -> list[NodeFact]:
    """Up to nine nodes in three blocks of two racks; some have no block."""
    found: list[NodeFact] = []
    for number in range(draw(st.integers(1, 9))):
        block = draw(st.sampled_from((*BLOCKS, "")))
        labels = {"block": block, "rack": f"{block}-{draw(st.sampled_from('xy'))}"} if block else {}
        found.append(a_node(f"n{number}", cpu=draw(st.integers(1, 4)), labels=labels))
    return found


@st.composite
def roles(draw: st.DrawFn) -> list[RoleFact]:
    """Up to three roles, some elastic, some with a rack topology of their own."""
    found: list[RoleFact] = []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 4))
        own = draw(st.sampled_from([None, None, TopologyFact("rack"), TopologyFact("rack", "preferred")]))
        least = draw(st.integers(1, count))
        found.append(a_role(count, least, cpu=draw(st.integers(1, 2)), topology=own, name=f"r{number}"))
    return found


def gang(parts: list[RoleFact], mode: str) -> AllocationFact:
    return an_allocation("g", *parts, topology=TopologyFact("block", mode))


@given(pools(), roles())
def test_required_is_one_domain(nodes: list[NodeFact], parts: list[RoleFact]) -> None:
    """All ranks of all roles are in one domain, surplus ranks too; a waiting gang would fit in no single block."""
    found = places(planned(a_snapshot(nodes, [gang(parts, "required")], pool=POOL))).get("g")
    block_of = {node.name: node.labels.get("block") for node in nodes}
    if found is not None:
        blocks = {block_of[node] for node in found}
        assert len(blocks) == 1
        assert blocks <= set(BLOCKS)
        return
    for block in BLOCKS:
        alone = [node for node in nodes if block_of[node.name] == block]
        assert places(planned(a_snapshot(alone, [an_allocation("g", *parts)], pool=POOL))) == {}


@given(pools(), roles())
def test_a_reason_of_topology_means_that_the_pool_has_room(nodes: list[NodeFact], parts: list[RoleFact]) -> None:
    """TopologyTooSmall, for roles without a topology of their own, is only given when the gang would start without
    the topology."""
    parts = [a_role(role.count, role.minimum, cpu=1, name=role.name) for role in parts]
    snapshot = a_snapshot(nodes, [gang(parts, "required")], pool=POOL)
    if gates(planned(snapshot)).get("g") == "TopologyTooSmall":
        assert "g" in places(planned(a_snapshot(nodes, [an_allocation("g", *parts)], pool=POOL)))


@given(pools(), roles())
def test_preferred_never_waits_for_a_domain(nodes: list[NodeFact], parts: list[RoleFact]) -> None:
    """The gang starts when it would start without the topology, and in one block if one can hold its smallest form."""
    found = places(planned(a_snapshot(nodes, [gang(parts, "preferred")], pool=POOL))).get("g")
    without = places(planned(a_snapshot(nodes, [an_allocation("g", *parts)], pool=POOL))).get("g")
    assert without is None or found is not None
    block_of = {node.name: node.labels.get("block") for node in nodes}
    whole = all(role.minimum == role.count for role in parts)
    if found is not None and whole and len({block_of[node] for node in found}) > 1:
        for block in BLOCKS:
            alone = [node for node in nodes if block_of[node.name] == block]
            assert places(planned(a_snapshot(alone, [an_allocation("g", *parts)], pool=POOL))) == {}
