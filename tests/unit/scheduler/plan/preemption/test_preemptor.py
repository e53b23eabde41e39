"""Preemption: which work is evicted for which."""

import msgspec

from slipway.model.facts import AllocationFact, JobFact, PoolFact, QueueFact, TopologyFact
from slipway.model.ledger import Decision, DecisionKind
from slipway.scheduler.plan.lint import PlanRule, lint
from slipway.scheduler.plan.state.plan_types import Evict, Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import (
    a_node,
    a_role,
    a_snapshot,
    amounts,
    an_allocation,
    gates,
    nodes,
    places,
    planned,
    running,
)

EAGER = QueueFact(name="default", within_queue="LowerPriority")


def work(name: str, *where: str, cpu: int = 1, minimum: int | None = None, **more: object) -> AllocationFact:
    """Preemptible work with a rank of `cpu` on each node of `where`; without `where`, one rank that waits."""
    count = max(1, len(where))
    fact = an_allocation(name, a_role(count, minimum, cpu=cpu), preemptible=True, **more)
    return running(fact, dict(enumerate(where))) if where else fact


def evicted(decided: Plan) -> dict[str, tuple[int, ...]]:
    """{name: evicted ranks; empty for the whole allocation}."""
    return {evict.allocation.partition("/")[2]: evict.ranks for evict in decided.evictions}


def crowded(*facts: AllocationFact, queue: QueueFact = EAGER, count: int = 2) -> PoolSnapshot:
    """A snapshot with `count` nodes of 4 cpu and one queue."""
    return a_snapshot(nodes(count, cpu=4), facts, queues=[queue])


def test_what_leaves_already_is_waited_for() -> None:
    """The room of the leaving work is enough: no other work is evicted, and the explanation names the leaving work."""
    leaving = msgspec.structs.replace(work("leaving", "n0", cpu=4), stopping=True)
    snapshot = crowded(leaving, work("low", "n1", cpu=4), work("high", cpu=4, priority=9))
    decided = planned(snapshot)
    assert decided.evictions == ()
    assert "it waits for work that is ending: default/leaving" in decided.explanations["default/high"].message


def test_what_leaves_already_counts_as_gone() -> None:
    """When the room of the leaving work is not enough, only the rest is evicted, and the plan passes lint."""
    leaving = msgspec.structs.replace(work("leaving", "n0", cpu=4), stopping=True)
    gang = an_allocation("gang", a_role(2, cpu=4), priority=9)
    snapshot = crowded(leaving, work("low", "n1", cpu=4), gang)
    decided = planned(snapshot)
    assert evicted(decided) == {"low": ()}
    assert sorted(places(decided)["gang"]) == ["n0", "n1"]
    assert lint(snapshot, decided) == ()


def test_leaving_ranks_are_no_surplus() -> None:
    """A gang that already shrinks to its minimum is not shrunk further, because that would evict the whole gang."""
    elastic = msgspec.structs.replace(work("elastic", "n0", "n1", cpu=4, minimum=1), leaving_ranks=(1,))
    decided = planned(crowded(elastic, work("high", cpu=4, priority=9)))
    assert decided.evictions == ()


def test_a_gang_of_which_ranks_are_leaving_gives_what_the_others_use() -> None:
    """The leaving ranks count as gone, so they do not lower the share of the victim's queue a second time. By the rule
    of equal shares the gang is evicted, which has a lower priority than the lone work of its queue."""
    gang = msgspec.structs.replace(
        work("gang", "n1", "n2", "n1", "n2", cpu=2, minimum=2, queue="b"), leaving_ranks=(2, 3)
    )
    lone = [work(f"lone{node}", node, cpu=4, queue="b", priority=1) for node in ("n3", "n4")]
    own = work("own", "n0", cpu=4, queue="a")
    queues = [QueueFact(name="a", nominal=amounts(4), reclaim="Any"), QueueFact(name="b", nominal=amounts(4))]
    snapshot = a_snapshot(nodes(5, cpu=4), [gang, *lone, own, work("head", cpu=4, queue="a")], queues=queues)
    decided = planned(snapshot)
    assert evicted(decided) == {"gang": ()}
    assert lint(snapshot, decided) == ()


def test_a_growing_gang_is_evicted_whole() -> None:
    """A gang is not shrunk before it has grown, but work that needs the room of all its ranks evicts it whole."""
    elastic = work("elastic", "n0", "n1", cpu=4, minimum=1)
    elastic = msgspec.structs.replace(elastic, placements={0: "n0"}, is_elastic=True)
    grows = Decision(
        id="1-1-0",
        epoch=1,
        allocation=elastic.key,
        uid=elastic.uid,
        attempt=1,
        kind=DecisionKind.GROW,
        placements=(-1, 1),
    )
    gang = an_allocation("gang", a_role(2, cpu=4), priority=9)
    snapshot = a_snapshot(nodes(2, cpu=4), [elastic, gang], queues=[EAGER], decisions=[(grows, ("n0", "n1"))])
    assert snapshot.holdings[elastic.uid].is_growing
    decided = planned(snapshot)
    assert evicted(decided) == {"elastic": ()}
    assert lint(snapshot, decided) == ()


def test_two_may_not_shrink_one_gang_in_one_tick() -> None:
    """The second preemptor waits for the next tick, so that the gang shrinks only once in a tick."""
    elastic = work("elastic", "n0", "n1", "n2", cpu=4, minimum=1)
    first, second = work("first", cpu=4, priority=9), work("second", cpu=4, priority=8)
    decided = planned(crowded(elastic, first, second, count=3))
    assert evicted(decided) == {"elastic": (2,)}
    assert list(places(decided)) == ["first"]


def test_what_was_admitted_in_the_same_tick_stays() -> None:
    """Work that was admitted in this tick is not evicted in it, although its priority is lower."""
    low, high = an_allocation("low", a_role(1, cpu=4)), work("high", cpu=4, priority=9)
    decided = planned(crowded(low, high, count=1))
    assert places(decided) == {"high": ["n0"]}
    assert decided.evictions == ()


def test_a_victim_does_not_preempt_its_preemptor() -> None:
    """A victim may not evict its displacer for ten minutes, whatever their priorities are by then."""
    victim = work("victim", cpu=4, priority=9, evictions=((1000.0, "default/displacer"),))
    snapshot = crowded(victim, work("displacer", "n0", cpu=4), count=1)
    held = planned(snapshot, 1100.0)
    assert (held.evictions, held.look_again) == ((), 1600.0)
    assert "has just evicted it" in held.explanations["default/victim"].message
    assert evicted(planned(snapshot, 1600.0)) == {"displacer": ()}


def test_three_preemptions_an_hour_are_enough() -> None:
    """The fourth preemption of an allocation waits until the first is an hour ago."""
    history = tuple((1000.0 + number, f"default/other{number}") for number in range(3))
    snapshot = crowded(work("worn", "n0", cpu=4, evictions=history), work("high", cpu=4, priority=9), count=1)
    assert planned(snapshot, 4599.0).evictions == ()
    assert planned(snapshot, 4599.0).look_again == 4600.0
    assert evicted(planned(snapshot, 4600.0)) == {"worn": ()}


def test_the_priority_of_a_job_counts() -> None:
    """The priority of a job is that of its work, for victims and for preemptors."""
    jobs = [JobFact(namespace="default", name="important", priority=9)]
    facts = [work("low", "n0", cpu=4, priority=5), work("mine", cpu=4, job="important")]
    snapshot = a_snapshot(nodes(1, cpu=4), facts, queues=[EAGER], jobs=jobs)
    assert evicted(planned(snapshot)) == {"low": ()}


def test_ports_are_freed_too() -> None:
    """A host port that a victim holds is room like any other."""
    low = running(an_allocation("low", a_role(1, host_ports=(8080,)), preemptible=True), {0: "n0"})
    high = an_allocation("high", a_role(1, host_ports=(8080,)), priority=9)
    assert evicted(planned(crowded(low, high, count=1))) == {"low": ()}


def test_a_gang_clears_the_cheapest_rack() -> None:
    """For a required domain the planner clears the rack that costs least."""
    racks = [
        msgspec.structs.replace(node, labels={"rack": f"r{number // 2}"}) for number, node in enumerate(nodes(4, cpu=4))
    ]
    facts = [work(f"w{number}", f"n{number}", cpu=4, priority=2 - number // 2) for number in range(4)]
    gang = an_allocation("gang", a_role(2, cpu=4, topology=TopologyFact("rack")), priority=9)
    decided = planned(a_snapshot(racks, [*facts, gang], queues=[EAGER]))
    assert evicted(decided) == {"w2": (), "w3": ()}


def test_a_move_keeps_all_work_running() -> None:
    """Work that moves is evicted and admitted as its next attempt in one plan, which passes lint."""
    scores = PoolFact(name="default", scores={"LeastAllocated": 1})
    facts = [work("a", "n0", cpu=2), work("b", "n1", cpu=2), work("whole", cpu=4)]
    snapshot = a_snapshot(nodes(2, cpu=4), facts, pool=scores)
    decided = planned(snapshot)
    assert len(decided.evictions) == 1
    moved = decided.evictions[0]
    assert moved.by == "default/whole"
    assert {admit.allocation: admit.attempt for admit in decided.admits} == {moved.allocation: 2, "default/whole": 1}
    assert lint(snapshot, decided) == ()


def test_nothing_moves_to_a_node_that_has_failed_it() -> None:
    """Running work does not move to a node on which it has failed; only waiting work accepts such a node rather than
    none."""
    runs = work("runs", "n0", cpu=2)
    waits = an_allocation("waits", a_role(cpu=2, node_selector={"disk": "ssd"}))
    room = [a_node("n0", cpu=2, labels={"disk": "ssd"}), a_node("n1", cpu=2)]
    assert evicted(planned(a_snapshot(room, [runs, waits]))) == {"runs": ()}
    failed = msgspec.structs.replace(runs, avoid_nodes=("n1",))
    assert planned(a_snapshot(room, [failed, waits])).is_empty


def test_surplus_leaves_room_for_victims() -> None:
    """A place that the victim can move to is not used for surplus ranks of its preemptor."""
    fixed = [running(an_allocation(f"fixed{at}", a_role(1, cpu=3)), {0: f"n{at}"}) for at in range(2)]
    near = a_role(1, name="near", node_selector={"at": "n0"})
    comer = an_allocation("comer", near, a_role(1, 0, name="anywhere"), priority=9)
    there = [msgspec.structs.replace(node, labels={"at": node.name}) for node in nodes(2, cpu=4)]
    snapshot = a_snapshot(there, [*fixed, work("victim", "n0"), comer], queues=[EAGER])
    decided = planned(snapshot)
    assert evicted(decided) == {"victim": ()}
    assert places(decided) == {"comer": ["n0"]}


def test_lint_knows_victims() -> None:
    """Lint refuses evictions of work that is not preemptible, evictions without a preemptor, and a gang below its
    minimum."""
    fixed = running(an_allocation("fixed", a_role(1, cpu=4)), {0: "n0"})
    elastic = work("elastic", "n1", "n2", cpu=4, minimum=2)
    snapshot = crowded(fixed, elastic, count=3)

    def told(fact: AllocationFact, ranks: tuple[int, ...] = ()) -> Evict:
        decided = planned(crowded(work("low", "n0", cpu=4), work("high", cpu=4, priority=9), count=1)).evictions[0]
        return msgspec.structs.replace(decided, allocation=fact.key, uid=fact.uid, ranks=ranks)

    rules = [violation.rule for violation in lint(snapshot, Plan(evictions=(told(fixed), told(elastic, (1,)))))]
    assert rules == [PlanRule.VICTIM, PlanRule.VICTIM, PlanRule.VICTIM, PlanRule.ATOMIC]


def test_an_explanation_without_a_preemption_policy_mentions_no_eviction() -> None:
    """The explanation in a queue without a preemption policy does not mention evictions."""
    decided = planned(
        crowded(work("low", "n0", cpu=4), work("high", cpu=4, priority=9), queue=QueueFact(name="default"), count=1)
    )
    assert gates(decided) == {"high": "NoFit"}
    assert "evict" not in decided.explanations["default/high"].message
