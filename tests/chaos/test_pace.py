"""Deadlines are counted in the time that we get of the machine."""

import asyncio

import pytest

from tests.chaos.pace import SHARE_MIN, Pace, share
from tests.support.clock import FakeClock


async def test_on_half_a_machine_a_limit_lasts_twice_as_long() -> None:
    """A measured share applies from then on, and counted time is never taken back."""
    clock = FakeClock()
    pace = Pace(clock)
    clock.advance(10.0)
    assert pace.now() == 10.0
    pace.note(0.5)
    assert pace.now() == 10.0
    clock.advance(10.0)
    assert (pace.now(), pace.mean, pace.lowest) == (15.0, 0.75, 0.5)


async def test_time_goes_on_however_busy_the_machine_is() -> None:
    """A system that uses the whole machine by itself does not get unlimited time."""
    clock = FakeClock()
    pace = Pace(clock)
    pace.note(0.0)
    clock.advance(100.0)
    assert pace.now() == pytest.approx(100.0 * SHARE_MIN)


async def test_a_limit_expires_by_the_pace_of_this_machine() -> None:
    """The limit does not follow the clock; work that ends before is not affected."""
    clock = FakeClock()
    pace = Pace(clock)
    pace.note(0.5)
    begun = asyncio.Event()

    async def wait() -> None:
        async with pace.limit(30.0):
            begun.set()
            await asyncio.Event().wait()

    waiting = asyncio.ensure_future(wait())
    await begun.wait()
    async with pace.limit(1.0):
        pass
    clock.advance(59.0)
    pace.note(0.5)
    await asyncio.sleep(0)
    assert not waiting.done()
    clock.advance(2.0)
    pace.note(0.5)
    with pytest.raises(TimeoutError):
        await waiting


def test_a_share_is_a_part_of_a_processor() -> None:
    """The share is measured, on whatever machine this is."""
    assert 0.0 < share() <= 1.0
