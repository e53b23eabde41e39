"""Which queue's head is next, level by level through the queue tree."""

from collections.abc import Mapping

from slipway.model.facts import QueueFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.queueing.queue_cursor import FairShareTournament
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state.pending import HeadKey

TOTAL = Resources({"cpu": 12})
ONE: Mapping[str, int] = {"cpu": 1}


def a_key(name: str, queue_priority: int = 0, priority: int = 0, created: int = 0) -> HeadKey:
    return (-queue_priority, -priority, created, name, name)


def shared_out(tree: QueueTree, wanted: Mapping[str, int], room: int = 12) -> dict[str, int]:
    """{queue: cpus that it gets} when each queue has `wanted` allocations of one cpu."""
    contest, left, got = FairShareTournament(tree), dict(wanted), dict.fromkeys(wanted, 0)
    for name in sorted(name for name in wanted if wanted[name]):
        contest.enter(name, ONE, a_key(name))
    for _ in range(room):
        name = contest.pop()
        if name is None:
            break
        tree.take(name, ONE, preemptible=True)
        got[name] += 1
        left[name] -= 1
        if left[name]:
            contest.enter(name, ONE, a_key(name))
    return got


def test_by_weight() -> None:
    """Weights of 3 and 1 share the pool three to one."""
    tree = QueueTree([QueueFact(name="a", weight=3), QueueFact(name="b")], TOTAL)
    assert shared_out(tree, {"a": 12, "b": 12}) == {"a": 9, "b": 3}


def test_what_a_team_leaves_goes_to_its_department_first() -> None:
    """`b` gets the rest of the half of `p`, because its sibling `a` wants little; `q` does not get it."""
    queues = [
        QueueFact(name="p"),
        QueueFact(name="a", parent="p"),
        QueueFact(name="b", parent="p"),
        QueueFact(name="q"),
    ]
    assert shared_out(QueueTree(queues, TOTAL), {"a": 1, "b": 12, "q": 12}) == {"a": 1, "b": 5, "q": 6}
    assert shared_out(QueueTree(queues, TOTAL), {"a": 12, "b": 12, "q": 12}) == {"a": 3, "b": 3, "q": 6}
    assert shared_out(QueueTree(queues, TOTAL), {"a": 0, "b": 12, "q": 2}) == {"a": 0, "b": 10, "q": 2}


def test_three_levels() -> None:
    """A branch that is above its due loses to one that is not, whatever its leaves deserve."""
    queues = [
        QueueFact(name="p"),
        QueueFact(name="p1", parent="p"),
        QueueFact(name="p2", parent="p"),
        QueueFact(name="p1a", parent="p1"),
        QueueFact(name="p1b", parent="p1"),
        QueueFact(name="q"),
    ]
    tree = QueueTree(queues, TOTAL)
    assert shared_out(tree, {"p1a": 12, "p1b": 12, "p2": 12, "q": 12}) == {"p1a": 2, "p1b": 1, "p2": 3, "q": 6}


def test_equal_shares_go_by_the_queue_then_by_the_head() -> None:
    """Between equal shares the priority of the queue decides, then the priority, the age and the name of its head."""
    tree = QueueTree([QueueFact(name=name) for name in "abcd"], TOTAL)
    contest = FairShareTournament(tree)
    contest.enter("a", ONE, a_key("a"))
    contest.enter("b", ONE, a_key("b", priority=1))
    contest.enter("c", ONE, a_key("c", queue_priority=1))
    contest.enter("d", ONE, a_key("d", created=-1))
    assert [contest.pop() for _ in range(5)] == ["c", "b", "d", "a", None]


def test_a_queue_that_gave_something_back_is_renewed() -> None:
    """An eviction puts its queue, and all above it, further below their due."""
    queues = [QueueFact(name="p"), QueueFact(name="a", parent="p"), QueueFact(name="q")]
    tree = QueueTree(queues, TOTAL)
    tree.take("a", {"cpu": 8}, preemptible=True)
    contest = FairShareTournament(tree)
    contest.enter("a", ONE, a_key("a"))
    contest.enter("q", ONE, a_key("q"))
    tree.take("a", {"cpu": -8}, preemptible=True)
    contest.update(["a"])
    assert [contest.pop() for _ in range(2)] == ["a", "q"]


def test_a_head_may_be_replaced() -> None:
    """A new head of a queue replaces the one before."""
    tree = QueueTree([QueueFact(name="a"), QueueFact(name="b")], TOTAL)
    contest = FairShareTournament(tree)
    contest.enter("a", ONE, a_key("a"))
    contest.enter("b", ONE, a_key("b"))
    contest.enter("a", {"cpu": 9}, a_key("a"))
    assert [contest.pop() for _ in range(3)] == ["b", "a", None]
