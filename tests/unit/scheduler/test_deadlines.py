"""Stored deadlines fire once, the earliest first, and only while nothing else stops the allocation."""

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason
from slipway.scheduler.cluster import FactTable
from slipway.scheduler.deadlines import STALE_MAX, Deadlines, TimerQueue

NOW = 1000.0


def a_fact(name: str = "a", **changes: object) -> AllocationFact:
    values = {"namespace": "default", "name": name, "uid": name, "version": 1, "phase": Phase.RUNNING}
    return AllocationFact(**{**values, **changes})  # pyright: ignore[reportArgumentType] - builder


def of(*facts: AllocationFact) -> Deadlines:
    return in_a_table(*facts)[1]


def in_a_table(*facts: AllocationFact) -> tuple[FactTable[AllocationFact], Deadlines]:
    table: FactTable[AllocationFact] = FactTable()
    deadlines = Deadlines("default", table)
    for fact in facts:
        table.put(fact.key, fact, fact.version)
    return table, deadlines


def reasons(deadlines: Deadlines, now: float = NOW) -> list[Reason]:
    return [item.reason for item in deadlines.passed(now)]


def test_the_earliest_of_several_is_the_reason() -> None:
    assert reasons(of(a_fact(deadlines={"maxRuntime": 990.0, "idle": 950.0}))) == [Reason.IDLE]


def test_they_fire_in_order_of_time() -> None:
    late, early = a_fact("late", deadlines={"idle": 999.0}), a_fact("early", deadlines={"pending": 10.0})

    assert [item.allocation.name for item in of(late, early).passed(NOW)] == ["early", "late"]


def test_nothing_fires_before_its_time_after_the_end_or_beside_another_stop() -> None:
    quiet = of(
        a_fact("soon", deadlines={"idle": NOW + 1}),
        a_fact("ended", deadlines={"idle": 1.0}, phase=Phase.TERMINATED),
        a_fact("stopping", deadlines={"idle": 1.0}, stopping=True),
        a_fact("unknown", deadlines={"somethingElse": 1.0}),
        a_fact("unset", deadlines={"idle": 0.0}),
        a_fact("elsewhere", deadlines={"idle": 1.0}, pool="other"),
    )

    assert quiet.passed(NOW) == []


def test_it_fires_until_the_stop_is_seen() -> None:
    """A write that failed is tried again by the next tick; a leader that comes later finds the same."""
    table, deadlines = in_a_table(a_fact(deadlines={"maxRuntime": 990.0}))

    assert reasons(deadlines) == reasons(deadlines) == reasons(Deadlines("default", table)) == [Reason.MAX_RUNTIME]
    table.put("default/a", a_fact(version=2, deadlines={"maxRuntime": 990.0}, stopping=True), 2)
    assert reasons(deadlines) == []


def test_a_later_deadline_of_the_same_object_takes_the_place_of_the_first() -> None:
    """Another attempt has deadlines of its own; a deleted allocation has none."""
    table, deadlines = in_a_table(a_fact(deadlines={"maxRuntime": 990.0}))
    table.put("default/a", a_fact(version=2, attempt=2, deadlines={"maxRuntime": NOW + 50}), 2)

    assert (reasons(deadlines), deadlines.next_due(NOW)) == ([], NOW + 50)
    table.drop("default/a", 3)
    assert (reasons(deadlines, NOW + 60), deadlines.next_due(NOW)) == ([], None)


def test_activity_postpones_idleness_and_nothing_else() -> None:
    """Use puts off neither the other deadlines nor those of the next attempt, and never to an earlier time."""
    fact = a_fact(deadlines={"idle": 950.0, "maxRuntime": NOW + 100})
    table, deadlines = in_a_table(fact)

    deadlines.postpone(fact, NOW + 30)
    assert (reasons(deadlines), deadlines.next_due(NOW)) == ([], NOW + 30)
    assert reasons(deadlines, NOW + 30) == [Reason.IDLE]
    deadlines.postpone(fact, NOW + 500)
    assert reasons(deadlines, NOW + 100) == [Reason.MAX_RUNTIME]
    table.put("default/a", a_fact(version=2, attempt=2, deadlines={"idle": NOW + 40}), 2)
    assert deadlines.next_due(NOW) == NOW + 40
    deadlines.postpone(a_fact(attempt=2), 1.0)
    assert deadlines.next_due(NOW) == NOW + 40


def test_what_could_not_be_fired_lets_others_go_first() -> None:
    """The deadline is tried again a little later, with the same reason."""
    fact = a_fact(deadlines={"maxRuntime": 900.0})
    _, deadlines = in_a_table(fact, a_fact("other", deadlines={"pending": 950.0}))
    deadlines.retry(fact, NOW + 2)

    assert reasons(deadlines) == [Reason.PENDING_TIMEOUT]
    assert deadlines.next_due(NOW) is None or deadlines.next_due(NOW) == NOW + 2
    assert reasons(deadlines, NOW + 2) == [Reason.PENDING_TIMEOUT, Reason.MAX_RUNTIME]


def test_the_next_look_is_at_the_next_deadline_or_end_of_a_backoff() -> None:
    waiting = a_fact("waiting", phase=Phase.PENDING, not_before=NOW + 3)
    running = a_fact("running", deadlines={"maxRuntime": NOW + 8})
    deadlines = of(running, waiting)

    assert deadlines.next_due(NOW) == NOW + 3
    assert deadlines.next_due(NOW + 3) == NOW + 8
    assert of(a_fact()).next_due(NOW) is None


def test_a_timer_queue_keeps_only_the_last_time_of_a_key() -> None:
    """Whatever was set before is forgotten, also when the same time comes back."""
    alarms = TimerQueue()
    for at in (5.0, 3.0, 9.0, 3.0, 7.0):
        alarms.set("a", at)
    alarms.set("b", 4.0)

    assert (alarms.next(), alarms.due(8.0), alarms.due(8.0)) == (4.0, ["b", "a"], ["b", "a"])
    alarms.set("b", None)
    assert (alarms.next(), alarms.due(6.0), len(alarms)) == (7.0, [], 1)


def test_timers_that_never_fired_are_forgotten() -> None:
    """Most work ends long before its limit, so an alarm that was removed must not be kept until then."""
    alarms = TimerQueue()
    for number in range(20_000):
        alarms.set(f"done-{number}", 1e9)
        alarms.set(f"done-{number}", None)
        alarms.set("stays", 5.0 + number)
    assert alarms.size <= 2 * len(alarms) + STALE_MAX
    assert (len(alarms), alarms.next(), alarms.due(1e9)) == (1, 20_004.0, ["stays"])
