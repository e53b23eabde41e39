"""Usage of nodes: each rank counts once, by its pod, its admission or an open decision."""

from typing import Any

import msgspec

from slipway.model.facts import DISABLED, DRAINING, SCHEDULING_LABEL, AllocationFact, PodFact, PoolFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.model.lifecycle import Phase
from slipway.model.resources import CPU
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.plan.state.snapshot import PoolSnapshot, nodes_of_pool
from tests.support.planner import a_node, a_role, a_snapshot, amounts, an_allocation, nodes, planned, running


def used(snapshot: PoolSnapshot) -> list[int]:
    """cpu in use per node."""
    return [amount // 1000 for amount in snapshot.usage.used[snapshot.table.row[CPU]].tolist()]


def a_pod(fact: AllocationFact | None, rank: int, node: str, **more: Any) -> PodFact:
    name = more.pop("name", f"pod-{rank}")
    owner: dict[str, Any] = {"allocation_uid": fact.uid, "attempt": fact.attempt, "rank": rank} if fact else {}
    return PodFact(namespace="default", name=name, uid=name, node=node, requests=amounts(1), **{**owner, **more})


def a_decision(fact: AllocationFact, *placements: int, **more: Any) -> tuple[Decision, tuple[str, ...]]:
    decision = Decision(
        id="d",
        epoch=1,
        allocation=fact.key,
        uid=fact.uid,
        attempt=more.pop("attempt", 1),
        placements=placements,
        **more,
    )
    return decision, ("n0", "n1")


GANG = an_allocation("g", a_role(2))
PLACED = running(GANG, {0: "n0", 1: "n1"})


def test_foreign_pods_count_by_their_node_while_they_live() -> None:
    pods = [a_pod(None, 0, "n0"), a_pod(None, 1, "n0", live=False), a_pod(None, 2, ""), a_pod(None, 3, "elsewhere")]
    assert used(a_snapshot(nodes(2), pods=pods)) == [1, 0]


def test_an_admission_counts_until_its_pods_are_bound() -> None:
    """A rank never counts twice: it counts by its pod once the pod is bound."""
    assert used(a_snapshot(nodes(2), [PLACED])) == [1, 1]
    assert used(a_snapshot(nodes(2), [PLACED], pods=[a_pod(GANG, 0, "n0"), a_pod(GANG, 1, "")])) == [1, 1]
    assert used(a_snapshot(nodes(2), [PLACED], pods=[a_pod(GANG, 0, "n0"), a_pod(GANG, 1, "n1")])) == [1, 1]


def test_a_decision_counts_until_its_admission_is_seen() -> None:
    """The allocation of an open decision is no longer pending."""
    decided = a_snapshot(nodes(2), [GANG], decisions=[a_decision(GANG, 0, 1)])
    assert (used(decided), decided.pending) == ([1, 1], ())
    assert used(a_snapshot(nodes(2), [PLACED], decisions=[a_decision(GANG, 0, 1)])) == [1, 1]


def test_a_decision_for_another_attempt_holds_nothing() -> None:
    again = msgspec.structs.replace(GANG, attempt=2)
    stale = a_snapshot(nodes(2), [again], decisions=[a_decision(GANG, 0, 1)])
    assert (used(stale), stale.pending) == ([0, 0], (again,))


def test_a_rank_that_a_decision_leaves_out_holds_nothing() -> None:
    assert used(a_snapshot(nodes(2), [GANG], decisions=[a_decision(GANG, -1, 1)])) == [0, 1]


def test_ended_ranks_use_nothing() -> None:
    """A rank has ended by the status, or by a pod of this attempt that has ended; a missing pod has not ended."""
    ended = msgspec.structs.replace(PLACED, ended_ranks=(0,))
    assert used(a_snapshot(nodes(2), [ended])) == [0, 1]
    assert used(a_snapshot(nodes(2), [PLACED], pods=[a_pod(GANG, 1, "n1", live=False)])) == [1, 0]
    over = msgspec.structs.replace(PLACED, phase=Phase.TERMINATED)
    assert used(a_snapshot(nodes(2), [over])) == [0, 0]


def test_a_rank_that_may_start_again_holds_its_place_when_its_pod_has_ended() -> None:
    """Only the object tells the end of such a rank; until then other work would take the room that its next pod
    needs."""
    kept = msgspec.structs.replace(PLACED, told_ends=(0, 1))
    assert used(a_snapshot(nodes(2), [kept], pods=[a_pod(GANG, 1, "n1", live=False)])) == [1, 1]
    done = msgspec.structs.replace(kept, ended_ranks=(1,))
    assert used(a_snapshot(nodes(2), [done], pods=[a_pod(GANG, 1, "n1", live=False)])) == [1, 0]


def test_a_pod_of_an_earlier_attempt_counts_beside_the_new_admission() -> None:
    """A pod of an earlier attempt still uses its node, whatever the state of its allocation."""
    second = msgspec.structs.replace(PLACED, attempt=2)
    assert used(a_snapshot(nodes(2), [second], pods=[a_pod(GANG, 0, "n0")])) == [2, 1]


def test_a_terminating_gang_holds_its_places() -> None:
    leaving = msgspec.structs.replace(PLACED, phase=Phase.TERMINATING)
    assert used(a_snapshot(nodes(2), [leaving])) == [1, 1]


def test_other_pools_are_left_out() -> None:
    other = msgspec.structs.replace(GANG, pool="gpu")
    assert a_snapshot(nodes(2), [other]).pending == ()


def test_an_unchanged_table_is_kept() -> None:
    """Nothing is rebuilt while nodes stay what they are; a snapshot does not change under its reader."""
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(nodes(2))
    first = columns.snapshot()
    columns.set_nodes(nodes(2))
    columns.set_pod(a_pod(None, 0, "n0"))
    second = columns.snapshot()
    assert first.table is second.table
    assert (used(first), used(second)) == ([0, 0], [1, 0])
    columns.set_node(a_node("n2"))
    assert used(columns.snapshot()) == [1, 0, 0]


def test_a_gang_below_its_minimum_is_taken_down_once() -> None:
    """The gang is not evicted again while that decision is open, nor when it is stopping anyway."""
    broken = running(GANG, {0: "n0"})
    made = planned(a_snapshot(nodes(2), [broken]))
    assert [(evict.uid, evict.reason.value) for evict in made.evictions] == [(GANG.uid, "BelowMinimum")]
    asked = a_decision(GANG, kind=DecisionKind.EVICT)
    assert planned(a_snapshot(nodes(2), [broken], decisions=[asked])).is_empty
    assert planned(a_snapshot(nodes(2), [msgspec.structs.replace(broken, stopping=True)])).is_empty


def test_ranks_that_ended_do_not_make_a_gang_too_small() -> None:
    """The first rank of the gang has succeeded, and the other goes on."""
    assert planned(a_snapshot(nodes(2), [msgspec.structs.replace(PLACED, ended_ranks=(0,))])).is_empty


def test_a_node_in_two_pools_is_of_the_first_by_name() -> None:
    pools = [PoolFact(name="b"), PoolFact(name="a", node_selector={"kind": "gpu"}), PoolFact(name="c")]
    gpu, plain = a_node("g", labels={"kind": "gpu"}), a_node("p")
    assert nodes_of_pool(pools, [plain, gpu]) == {"a": [gpu], "b": [plain], "c": []}


def test_what_stands_on_a_disabled_node_is_taken_down_whole_and_once() -> None:
    """A gang with only one rank on such a node is evicted whole. Work on a draining node and work that is stopping is
    not."""
    disabled, draining = ({SCHEDULING_LABEL: word} for word in (DISABLED, DRAINING))
    other = running(an_allocation("o", a_role()), {0: "n1"})

    def taken(labels: dict[str, str], gang: AllocationFact = PLACED) -> list[tuple[str, str]]:
        where = [a_node("n0", labels=labels), a_node("n1")]
        made = planned(a_snapshot(where, [gang, other]))
        return [(evict.uid, evict.reason.value) for evict in made.evictions]

    assert taken(disabled) == [(GANG.uid, "NodeDisabled")]
    assert taken(draining) == taken({}) == []
    assert taken(disabled, msgspec.structs.replace(PLACED, stopping=True)) == []
    assert taken(disabled, msgspec.structs.replace(PLACED, placements={0: "n1", 1: "n1"})) == []


def test_use_on_nodes_that_take_no_work_is_known_apart() -> None:
    """Work on nodes that are cordoned, not ready, draining, disabled or gone counts as used, and as stranded."""
    shut = [
        a_node("cordoned", unschedulable=True),
        a_node("silent", ready=False),
        a_node("draining", labels={SCHEDULING_LABEL: DRAINING}),
        a_node("disabled", labels={SCHEDULING_LABEL: DISABLED}),
    ]
    everywhere = {rank: node for rank, node in enumerate(["n", *(node.name for node in shut), "gone"])}
    gang = running(an_allocation("gang", a_role(6), preemptible=True), everywhere)
    snapshot = a_snapshot([a_node("n"), *shut], [gang])
    assert snapshot.use["default"].preemptible["cpu"] == 6000
    assert snapshot.stranded["default"].preemptible["cpu"] == 5000
    assert snapshot.table.closed_total.get("cpu") == 32_000
    assert a_snapshot([a_node("n")], [running(an_allocation("one"), {0: "n"})]).stranded == {}


def test_use_is_stranded_as_long_as_its_node_takes_no_work() -> None:
    """The node is cordoned and uncordoned; the sums follow."""
    columns = PoolState(PoolFact(name="default"))
    columns.set_allocation(running(an_allocation("one"), {0: "n"}))
    for is_cordoned, expected in ((False, 0), (True, 1000), (False, 0)):
        columns.set_node(a_node("n", unschedulable=is_cordoned))
        stranded = columns.snapshot().stranded
        assert (stranded["default"].fixed.get("cpu", 0) if stranded else 0) == expected
