"""The order of victims: first the queue that is furthest above its share, after the victims chosen before."""

from slipway.model.facts import AllocationFact, QueueFact
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.preemption.victims import eviction_ranks, in_eviction_order, victims_of
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_role, a_snapshot, an_allocation, nodes, planned, running


def lone_work(queue: str, count: int, **more: int) -> list[AllocationFact]:
    """`count` allocations of one cpu each, running on n0."""
    names = [f"{queue}{number}" for number in range(count)]
    return [running(an_allocation(name, queue=queue, preemptible=True, **more), {0: "n0"}) for name in names]


def order(snapshot: PoolSnapshot, tree: QueueTree, own: str, most: int) -> list[str]:
    """The queues of the first `most` victims; the use of each is taken off before the next is chosen."""
    found: list[str] = []
    for unit in in_eviction_order(victims_of(snapshot).units, tree, own):
        tree.take(unit.fact.queue, {"cpu": -1000}, preemptible=True)
        found.append(unit.fact.queue)
        if len(found) == most:
            break
    return found


def test_the_queue_furthest_above_its_share_gives_first() -> None:
    """Each of three queues deserves 3 of 9 cpu: `a` has 6 and `b` has 4. When both are equally far above, the lower
    priority goes."""
    queues = [QueueFact(name=name) for name in "abc"]
    facts = [*lone_work("a", 6, priority=9), *lone_work("b", 4, priority=1)]
    snapshot = a_snapshot(nodes(1, cpu=9), facts, queues=queues)
    assert order(snapshot, queue_tree(snapshot), "c", 5) == ["a", "a", "b", "a", "b"]
    assert eviction_ranks(queue_tree(snapshot), ["a", "b", "c"], "c").tolist() == [0, 1, 2]


def test_its_own_work_goes_last() -> None:
    """Work of the preemptor's own queue goes last, however far that queue is above its share."""
    facts = [*lone_work("a", 2), *lone_work("c", 6)]
    snapshot = a_snapshot(nodes(1), facts, queues=[QueueFact(name=name) for name in "ac"])
    assert order(snapshot, queue_tree(snapshot), "c", 3) == ["a", "a", "c"]


def test_departments_are_compared_before_their_queues() -> None:
    """The department of `x` is above its share, so `x` loses work before `y`, which by itself is further above."""
    queues = [
        QueueFact(name="one"),
        QueueFact(name="x", parent="one"),
        QueueFact(name="two", weight=9),
        QueueFact(name="y", parent="two"),
        QueueFact(name="z", parent="two"),
    ]
    facts = [*lone_work("x", 3), *lone_work("y", 6)]
    snapshot = a_snapshot(nodes(1, cpu=10), facts, queues=queues)
    tree = queue_tree(snapshot)
    assert tree.share("y") > 0
    assert tree.share("two") == 0
    assert order(snapshot, tree, "z", 3) == ["x", "x", "y"]


def test_a_queue_that_has_just_made_room_takes_nothing_from_others_in_the_same_plan() -> None:
    """`c` evicts work of `b` on the one node that it may use; waiting work of `b` evicts work of `a` a second later."""
    queues = [QueueFact(name=name, reclaim="Any") for name in "abc"]
    pinned = [running(fact, {0: "n1"}) for fact in lone_work("b", 4)]
    on_n1 = a_role(node_name="n1")
    wants = an_allocation("wants", on_n1, queue="c", preemptible=True)
    waits = an_allocation("waits", queue="b", preemptible=True, created=9.0)
    where = [*nodes(1, cpu=5), *nodes(2, cpu=4)[1:]]
    found = planned(a_snapshot(where, [*lone_work("a", 5), *pinned, waits, wants], queues=queues), 100.0)
    assert [evict.by for evict in found.evictions] == [wants.key]
    assert found.look_again == 101.0
