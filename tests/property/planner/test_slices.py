"""MIG slices on random pools: limits of GPUs apply to whole GPUs and slices together, counted here as fractions."""

from fractions import Fraction

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, NodeFact, QueueFact
from slipway.model.resources import GPU, Resources
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, gates, planned

PARTS = {
    "nvidia.com/mig-1g.10gb": Fraction(1, 7),
    "nvidia.com/mig-3g.40gb": Fraction(3, 7),
    "nvidia.com/mig-1g.6gb": Fraction(1, 4),
    GPU: Fraction(1),
}


@st.composite
def pools(draw: st.DrawFn) -> list[NodeFact]:
    """Up to three nodes with GPUs and slices of several kinds."""
    found: list[NodeFact] = []
    for number in range(draw(st.integers(1, 3))):
        node = a_node(f"n{number}", cpu=100)
        offered = {name: draw(st.integers(0, 8)) for name in PARTS}
        found.append(msgspec.structs.replace(node, allocatable=node.allocatable + Resources.of(offered)))
    return found


@st.composite
def backlogs(draw: st.DrawFn) -> list[AllocationFact]:
    """Up to eight allocations of up to four ranks, each rank with some slices of one kind."""
    found: list[AllocationFact] = []
    for number in range(draw(st.integers(1, 8))):
        asked = {draw(st.sampled_from(sorted(PARTS))): draw(st.integers(1, 3))}
        role = a_role(draw(st.integers(1, 4)), resources=asked)
        found.append(an_allocation(f"w{number}", role, queue="lab", preemptible=draw(st.booleans())))
    return found


def gpus_of(fact: AllocationFact) -> Fraction:
    return sum((PARTS.get(name, Fraction()) * n * fact.rank_count for name, n in asks(fact)), Fraction())


def asks(fact: AllocationFact) -> list[tuple[str, int]]:
    return [(name, amount) for name, amount in fact.roles[0].requests.amounts.items() if name in PARTS]


@given(pools(), backlogs(), st.integers(0, 4))
def test_a_limit_of_gpus_holds_for_slices(nodes: list[NodeFact], work: list[AllocationFact], limit: int) -> None:
    """Started allocations are within the limit, exactly; one that waits for quota would have exceeded it, or all
    GPUs of the pool."""
    queue = QueueFact(name="lab", limit=Resources({GPU: limit}))
    decided = planned(a_snapshot(nodes, work, queues=[queue]))
    started = {admit.uid for admit in decided.admits}
    used = sum((gpus_of(fact) for fact in work if fact.uid in started), Fraction())
    assert used <= limit
    waits = gates(decided)
    total = sum((PARTS[name] * node.allocatable.get(name) for node in nodes for name in PARTS), Fraction())
    for fact in work:
        if waits.get(fact.name) in ("WaitingForQuota", "ExceedsMaxQuota"):
            assert used + gpus_of(fact) > min(limit, total)


@given(pools(), backlogs())
def test_without_quotas_slices_change_nothing(nodes: list[NodeFact], work: list[AllocationFact]) -> None:
    """In one queue without bounds slices are placed like any other resource: only free resources decide."""
    decided = planned(a_snapshot(nodes, work, queues=[QueueFact(name="lab")]))
    assert set(gates(decided).values()) <= {"NoFit"}
