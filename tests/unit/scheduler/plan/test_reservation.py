"""Reservations: places and starts reserved for blocked heads, and which work they hold back."""

from typing import Any

import msgspec
import pytest

from slipway.model.facts import AllocationFact, PoolFact, QueueFact
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Gate
from slipway.scheduler.plan.reservation import timeline
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.run_ends import known_end, run_limit
from tests.support.planner import a_role, a_snapshot, amounts, an_allocation, nodes, planned, running

BACKFILL = QueueFact(name="default", ordering="Backfill")


def runs(name: str, node: str, *, cpu: int = 1, started: float = 0.0, **more: Any) -> AllocationFact:
    """Running on `node` since `started`."""
    fact = running(an_allocation(name, a_role(cpu=cpu), **more), {0: node})
    return msgspec.structs.replace(fact, started=started)


def plan_at(now: float, *work: AllocationFact, queues: tuple[QueueFact, ...] = (BACKFILL,), **more: Any) -> Plan:
    return planned(a_snapshot(nodes(more.pop("count", 1), cpu=4), work, queues=queues, **more), now)


def test_a_run_limit_is_the_lesser_of_its_own_and_the_queues() -> None:
    """The limit of the queue also applies to work without one."""
    limited = QueueFact(name="q", max_runtime=50.0)
    assert run_limit(an_allocation("a"), None) is None
    assert run_limit(an_allocation("a"), limited) == 50.0
    assert run_limit(an_allocation("a", max_runtime=20.0), limited) == 20.0
    assert run_limit(an_allocation("a", max_runtime=90.0), limited) == 50.0
    assert run_limit(an_allocation("a", max_runtime=90.0, beyond_queue=True), limited) == 90.0


def test_the_latest_end_follows_from_run_limits() -> None:
    """The end follows from the stored deadline, else from the run limit and the start; before the work runs, it counts
    from now. Without a limit the end is unknown.

    The end is never before now, because overdue work still uses its place.
    """
    fact = runs("a", "n0", started=10.0, max_runtime=100.0)
    assert known_end(fact, None, 50.0) == 110.0
    assert known_end(msgspec.structs.replace(fact, deadlines={"maxRuntime": 120.0}), None, 50.0) == 120.0
    assert known_end(msgspec.structs.replace(fact, phase=Phase.STARTING), None, 50.0) == 150.0
    assert known_end(runs("b", "n0"), None, 50.0) is None
    assert known_end(msgspec.structs.replace(fact, stopping=True, phase_since=40.0), None, 50.0) == 50.0
    assert known_end(fact, None, 120.0) == 120.0


def test_the_start_that_is_kept_follows_from_run_limits() -> None:
    """The head needs both to end: it starts when the later one must have ended."""
    first, second = runs("r", "n0", max_runtime=100.0), runs("s", "n0", max_runtime=70.0)
    [kept] = plan_at(5.0, first, second, an_allocation("head", a_role(cpu=4), created=1.0)).kept
    assert (kept.allocation, kept.start, kept.placements) == ("default/head", 100.0, {0: "n0"})


def test_the_start_stays_as_time_goes_on() -> None:
    """The start follows from the ends of running work, not from the time of the plan. While an end is overdue the start
    is now, and the message states no time."""
    work = (runs("r", "n0", max_runtime=100.0), an_allocation("head", a_role(cpu=4), created=1.0))
    assert [plan_at(now, *work).kept[0].start for now in (2.0, 50.0, 99.0, 120.0)] == [100.0] * 3 + [120.0]
    small = an_allocation("small", a_role(cpu=2), created=2.0)
    half = (runs("r", "n0", cpu=2, max_runtime=100.0), work[1], small)
    why = plan_at(120.0, *half).explanations["default/small"]
    assert why.message == "room is reserved for default/head, which starts as soon as that room is free"
    assert why.change is None


def test_a_start_after_an_overdue_end_is_not_beside_the_places_of_another_head() -> None:
    """The place of the overdue run is part of what the first head gets at 200. A run of 50 seconds from 100 would end
    before that, but it is 180 already."""
    held = (runs("r", "n0", cpu=4, max_runtime=100.0), runs("s", "n1", cpu=4, max_runtime=200.0))
    first = an_allocation("first", a_role(2, cpu=4), queue="a", created=1.0, max_runtime=100.0)
    second = an_allocation("second", a_role(cpu=4), queue="b", created=2.0, max_runtime=50.0)
    queues = tuple(QueueFact(name=name, ordering="Backfill", priority=name == "a") for name in ("default", "a", "b"))
    decided = plan_at(180.0, *held, first, second, queues=queues, count=2)
    assert {kept.allocation: kept.start for kept in decided.kept} == {"default/first": 200.0, "default/second": 300.0}


@pytest.mark.parametrize(("limit", "is_let_pass"), [(95.0, True), (95.5, False), (None, False)])
def test_work_that_ends_by_the_reserved_start_passes(limit: float | None, is_let_pass: bool) -> None:
    """A run that ends at that very instant is in time."""
    head = an_allocation("head", a_role(cpu=4), created=1.0)
    small = an_allocation("small", a_role(cpu=1), created=2.0, max_runtime=limit)
    decided = plan_at(5.0, runs("r", "n0", cpu=2, max_runtime=100.0), head, small)
    assert [admit.allocation for admit in decided.admits] == (["default/small"] if is_let_pass else [])
    if not is_let_pass:
        why = decided.explanations["default/small"]
        assert why.gate is Gate.BEHIND_RESERVATION
        assert "default/head, which starts at 1970-01-01T00:01:40Z" in why.message
        assert why.change is not None
        assert [change.seconds for change in why.change] == [95.0]


def test_a_pool_may_do_without() -> None:
    """With `backfill: false` nothing is reserved for a Backfill queue."""
    work = (runs("r", "n0", cpu=2, max_runtime=100.0), an_allocation("head", a_role(cpu=4), created=1.0))
    small = an_allocation("small", created=2.0)
    decided = plan_at(5.0, *work, small, pool=PoolFact(name="default", backfill=False))
    assert (len(decided.admits), decided.kept) == (1, ())


def test_what_has_aged_keeps_places_without_a_known_start() -> None:
    """In any queue, work that has waited long reserves places; work on other nodes still passes."""
    work = (runs("r", "n0", cpu=2), an_allocation("head", a_role(cpu=4), created=1.0))
    small = [an_allocation(f"s{index}", a_role(cpu=2), created=2.0) for index in range(3)]
    pool = PoolFact(name="default", aging=60.0)
    plain = (QueueFact(name="default"),)
    young = plan_at(30.0, *work, *small, queues=plain, pool=pool, count=2)
    assert [admit.allocation for admit in young.admits] == ["default/head", "default/s0"]
    blocked = runs("t", "n1", cpu=1)
    aged = plan_at(61.5, *work, blocked, *small, queues=plain, pool=pool, count=2)
    assert [kept.start for kept in aged.kept] == [None]
    assert (
        len({*aged.kept[0].placements.values()} & {node for each in aged.admits for node in each.placements.values()})
        == 0
    )


def test_halving_finds_what_looking_one_by_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both searches find the same start, however many instants there are."""
    work = [runs(f"r{index}", f"n{index % 3}", max_runtime=10.0 + 3 * index) for index in range(12)]
    head = an_allocation("head", a_role(2, cpu=3), created=1.0)
    [one] = plan_at(5.0, *work, head, count=3).kept
    monkeypatch.setattr(timeline, "SCAN_MAX", 0)
    [other] = plan_at(5.0, *work, head, count=3).kept
    assert one == other


def test_what_was_kept_for_who_has_started_is_free_in_the_same_plan() -> None:
    """The first in turn would take the port that is reserved for the second. The second starts, so the rest of the
    first starts in the same plan."""
    queues = (QueueFact(name="default", nominal=amounts(2)), QueueFact(name="other", nominal=amounts(0)))
    port = a_role(minimum=0, name="port", host_ports=(80,))
    first = an_allocation("first", port, a_role(minimum=0), minimum=1, created=2.0)
    second = an_allocation("second", a_role(host_ports=(80,)), queue="other", preemptible=True, created=1.0)
    decided = plan_at(10.0, first, second, queues=queues, pool=PoolFact(name="default", aging=2.0))
    assert {admit.allocation: tuple(admit.placements) for admit in decided.admits} == {
        "default/first": (1,),
        "default/second": (0,),
    }


def test_work_that_passes_is_counted_once_in_the_quota_of_the_head() -> None:
    """Beside the head two pieces of work fit into the limit of the queue at its start, so both may pass."""
    stands = (runs("r", "n0", cpu=4, max_runtime=100.0), runs("s", "n1", cpu=2, queue="other"))
    head = an_allocation("head", a_role(cpu=4), created=1.0)
    small = [an_allocation(f"p{number}", a_role(cpu=1), created=2.0 + number) for number in range(2)]
    queue = msgspec.structs.replace(BACKFILL, limit=amounts(cpu=6))
    decided = plan_at(5.0, *stands, head, *small, queues=(queue, QueueFact(name="other")), count=2)
    assert [kept.start for kept in decided.kept] == [100.0]
    assert [admit.allocation for admit in decided.admits] == ["default/p0", "default/p1"]
