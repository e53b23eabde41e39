"""When progress is written at once, and when together with later changes."""

import msgspec
import pytest

from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.watcher.reconcile import AT_ONCE_MAX, AT_ONCE_PER_S, HELD_S_MAX, WritePace
from slipway.watcher.reduce import Reduction
from tests.support.builders import T0, an_allocation
from tests.support.clock import FakeClock


def an_assigned(number: int) -> Allocation:
    return an_allocation(name=f"run-{number}").assigned().released().it


def moved(allocation: Allocation, phase: Phase = Phase.STARTING) -> Reduction:
    status = msgspec.structs.replace(allocation.status, phase=phase, seq=allocation.status.seq + 1)
    return Reduction(allocation=msgspec.structs.replace(allocation, status=status), changed=True)


def a_busy_pace(clock: FakeClock) -> WritePace:
    """A pace without free places."""
    pace = WritePace(clock)
    for number in range(int(AT_ONCE_MAX)):
        allocation = an_assigned(number)
        assert pace.wait_s(allocation, moved(allocation)) == 0
    return pace


async def test_a_few_are_written_at_once_and_many_are_held_back() -> None:
    """A few writes of progress are done at once; many are held back, for a bounded time from the first sight."""
    clock = FakeClock(T0)
    pace, late = a_busy_pace(clock), an_assigned(1000)
    assert pace.wait_s(late, moved(late)) == HELD_S_MAX
    clock.advance(HELD_S_MAX / 2)
    assert pace.wait_s(late, moved(late)) == pytest.approx(HELD_S_MAX / 2)
    clock.advance(HELD_S_MAX / 2)
    assert pace.wait_s(late, moved(late)) <= 0


async def test_the_write_budget_refills_over_time() -> None:
    """Places become free with time: one quiet second frees the number of writes that are allowed per second, and no
    more."""
    clock = FakeClock(T0)
    pace = a_busy_pace(clock)
    clock.advance(1.0)
    waits = [pace.wait_s(each, moved(each)) for each in map(an_assigned, range(1000, 1010))]
    assert waits.count(0) == AT_ONCE_PER_S


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.TERMINATING, Phase.TERMINATED])
async def test_what_is_more_than_progress_is_never_held_back(phase: Phase) -> None:
    """Running and every end are never held back."""
    pace, allocation = a_busy_pace(FakeClock(T0)), an_assigned(1000)
    assert pace.wait_s(allocation, moved(allocation)) > 0
    assert pace.wait_s(allocation, moved(allocation, phase)) == 0


async def test_a_standby_leaves_progress_to_the_primary() -> None:
    """A standby leaves progress to the primary: it takes no place, so that it looks only after the primary's write."""
    pace, allocation = WritePace(FakeClock(T0), lambda: False), an_assigned(1000)
    assert pace.wait_s(allocation, moved(allocation)) == HELD_S_MAX
