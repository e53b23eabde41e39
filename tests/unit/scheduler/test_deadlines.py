"""Stored deadlines fire once, the earliest first, and only while nothing else stops the allocation."""

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason
from slipway.scheduler import deadlines

NOW = 1000.0


def a_fact(name: str = "a", **changes: object) -> AllocationFact:
    values = {"namespace": "default", "name": name, "uid": name, "version": 1, "phase": Phase.RUNNING}
    return AllocationFact(**{**values, **changes})  # pyright: ignore[reportArgumentType] - builder


def test_the_earliest_of_several_is_the_reason() -> None:
    fired = deadlines.fired([a_fact(deadlines={"maxRuntime": 990.0, "idle": 950.0})], NOW)

    assert [item.reason for item in fired] == [Reason.IDLE]


def test_they_fire_in_order_of_time() -> None:
    late, early = a_fact("late", deadlines={"idle": 999.0}), a_fact("early", deadlines={"pending": 10.0})

    assert [item.allocation.name for item in deadlines.fired([late, early], NOW)] == ["early", "late"]


def test_nothing_fires_before_its_time_after_the_end_or_beside_another_stop() -> None:
    quiet = [
        a_fact("soon", deadlines={"idle": NOW + 1}),
        a_fact("ended", deadlines={"idle": 1.0}, phase=Phase.TERMINATED),
        a_fact("stopping", deadlines={"idle": 1.0}, stopping=True),
        a_fact("unknown", deadlines={"somethingElse": 1.0}),
        a_fact("unset", deadlines={"idle": 0.0}),
    ]

    assert deadlines.fired(quiet, NOW) == []


def test_the_next_look_is_at_the_next_deadline_or_end_of_a_backoff() -> None:
    waiting = a_fact("waiting", phase=Phase.PENDING, not_before=NOW + 3)
    running = a_fact("running", deadlines={"maxRuntime": NOW + 8, "idle": NOW - 1})

    assert deadlines.next_due([running, waiting], NOW) == NOW + 3
    assert deadlines.next_due([a_fact()], NOW) is None
