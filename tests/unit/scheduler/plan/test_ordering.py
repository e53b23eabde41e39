"""The total order: priority, position, age, uid; and the order of heads."""

from slipway.model.facts import JobFact, QueueFact
from slipway.model.position import default_position
from slipway.scheduler.plan.state.pending import ages_at, head_key, is_aged, work_key
from tests.support.planner import an_allocation

JOB = JobFact(namespace="default", name="j", priority=9, position="")


def test_priority_then_position_then_age_then_uid() -> None:
    last = an_allocation("a", created=1.0, uid="z")
    first = an_allocation("b", created=5.0, priority=1)
    moved = an_allocation("c", created=9.0, position=default_position(0.5))
    older = an_allocation("d", created=0.7)
    twin = an_allocation("e", created=1.0, uid="y")
    work = [last, first, moved, older, twin]
    assert sorted(work, key=lambda fact: work_key(fact, None)) == [first, moved, older, twin, last]


def test_a_job_with_a_priority_gives_it_to_its_work() -> None:
    """The priority of the job decides, also when it is lower; within the job the allocation's own priority decides."""
    mine, other = an_allocation("a", job="j", priority=1), an_allocation("b", priority=5)
    assert work_key(mine, JOB) < work_key(other, None)
    low = JobFact(namespace="default", name="j", priority=0)
    assert work_key(mine, low) > work_key(other, None)
    assert work_key(an_allocation("c", job="j", priority=3), JOB) < work_key(mine, JOB)


def test_a_position_compares_with_work_that_was_never_moved() -> None:
    """The default position is the time of creation, before the epoch too."""
    assert default_position(-5) < default_position(0) < default_position(0.001) < default_position(1_700_000_000)
    ahead = an_allocation("a", created=9.0, position=default_position(3.0) + ".5")
    assert work_key(an_allocation("b", created=3.0), None) < work_key(ahead, None)
    assert work_key(ahead, None) < work_key(an_allocation("c", created=3.001), None)


def test_heads_of_equal_shares_go_by_queue_priority_then_their_own_then_age_and_name() -> None:
    queue, urgent = QueueFact(name="a"), QueueFact(name="z", priority=1)
    head = an_allocation("h", created=1.0)
    assert head_key(urgent, head, None) < head_key(queue, head, None)
    assert head_key(queue, an_allocation("i", priority=1, created=2.0), None) < head_key(queue, head, None)
    assert head_key(queue, head, None) < head_key(queue, an_allocation("i", created=2.0), None)
    assert head_key(urgent, head, None) < head_key(urgent, an_allocation("i", created=1.0), None)
    assert head_key(QueueFact(name="b"), head, None) < head_key(QueueFact(name="c"), head, None)


def test_what_has_waited_long_goes_first_whatever_the_priorities() -> None:
    """With aging, the work that has waited longest goes first; each attempt begins a new wait."""
    urgent, old = an_allocation("u", priority=9, created=50.0), an_allocation("o", created=10.0)
    older, again = an_allocation("p", created=5.0), an_allocation("q", created=1.0, waiting_since=40.0)

    def order(now: float, aging: float) -> str:
        return "".join(f.name for f in sorted([urgent, old, older, again], key=lambda f: work_key(f, None, aging, now)))

    assert order(100.0, 0.0) == "uqpo"
    assert order(54.0, 50.0) == "uqpo"
    assert order(55.0, 50.0) == "puqo"
    assert order(60.0, 50.0) == "pouq"
    assert order(100.0, 50.0) == "poqu"
    assert ages_at(again, 50.0) == 90.0
    assert ages_at(again, 0.0) is None
    assert is_aged(again, 50.0, 90.0)
    assert not is_aged(again, 50.0, 89.0)
