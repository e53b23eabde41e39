"""The order in which running work ends, as the plans of several ticks read it."""

import msgspec
import pytest

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.state.run_ends import RunEnds
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_role, a_snapshot, an_allocation, nodes, running


def runs(name: str, limit: float, **changes: object) -> AllocationFact:
    """An allocation that runs on node n0 since 0, for at most `limit` seconds."""
    fact = running(an_allocation(name, a_role(), max_runtime=limit), {0: "n0"})
    return msgspec.structs.replace(fact, started=0.0, **changes)


def a_state(*work: AllocationFact) -> PoolSnapshot:
    return a_snapshot(nodes(1, cpu=8), work)


def ends_of(snapshot: PoolSnapshot) -> RunEnds:
    held = [(holding.allocation, holding.charges) for holding in snapshot.holdings.values()]
    return snapshot.ends.start(held, snapshot.table)


def times(ends: RunEnds, now: float, limit: float | None = None) -> list[float]:
    """The known ends at `now`; `limit` is the longest run time in each queue."""
    return ends.in_order(lambda _: limit, now)[1].tolist()


def test_an_end_that_is_past_is_now() -> None:
    """The order is kept from tick to tick, but not beyond the first end: overdue work ends now."""
    ends = ends_of(a_state(runs("a", 100.0), runs("b", 70.0)))
    assert [times(ends, now) for now in (5.0, 60.0, 80.0, 90.0)] == [[70, 100], [70, 100], [80, 100], [90, 100]]
    assert times(ends, 5.0) == [70, 100]


def test_work_that_has_not_begun_ends_later_at_each_tick() -> None:
    """Its run limit counts from now."""
    ends = ends_of(a_state(runs("a", 100.0), runs("b", 70.0, phase=Phase.STARTING)))
    assert [times(ends, now) for now in (5.0, 6.0)] == [[75, 100], [76, 100]]


@pytest.mark.parametrize("limit", [10.0, 80.0])
def test_a_changed_limit_of_a_queue_is_followed_at_once(limit: float) -> None:
    """The run limit of a queue may change between two ticks."""
    ends = ends_of(a_state(runs("a", 100.0)))
    assert times(ends, 5.0) == [100]
    assert times(ends, 5.0, limit) == [limit]


def test_what_begins_or_ends_is_followed_at_once() -> None:
    """Rows that are added or removed between two ticks are in the next answer, or are not."""
    snapshot = a_state(runs("a", 100.0), runs("b", 70.0))
    ends = ends_of(snapshot)
    assert times(ends, 5.0) == [70, 100]
    gone = next(holding for holding in snapshot.holdings.values() if holding.allocation.name == "b")
    ends.drop(gone.allocation.uid)
    assert times(ends, 5.0) == [100]
    ends.put(gone.allocation, gone.charges, snapshot.table)
    assert times(ends, 5.0) == [70, 100]
