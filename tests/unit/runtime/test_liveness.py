"""A loop is alive while its work proceeds, or while it rests and has no work."""

import asyncio

import pytest

from slipway.errors import InvariantError
from slipway.runtime import liveness
from slipway.runtime.health import ProcessHealth
from slipway.runtime.liveness import BOUND_MAX_S, Loop
from tests.support.clock import FakeClock

LOOP = Loop(name="work", bound_s=60.0, moves="each step")


@pytest.mark.parametrize("bound_s", [float("inf"), float("nan"), 0.0, -1.0, BOUND_MAX_S + 1])
def test_a_loop_without_a_finite_bound_cannot_be_stated(bound_s: float) -> None:
    """A loop must have a finite bound; otherwise a standstill would never be noticed."""
    with pytest.raises(InvariantError, match="'work' needs a bound"):
        Loop(name="work", bound_s=bound_s, moves="nothing")


def test_a_loop_that_rests_may_wait_for_ever() -> None:
    """A resting loop without work may wait for ever."""
    clock = FakeClock()
    health = ProcessHealth(clock)
    with health.watch(LOOP), liveness.rest(lambda: False):
        for _ in range(3):
            clock.advance(10_000)
            assert health.liveness().ok


def test_a_loop_that_rests_beside_work_stands_still() -> None:
    """A loop that rests while there is work stands still, as after a lost wake-up: the age of the work counts from the
    first check that saw it."""
    clock, work = FakeClock(), list[str]()
    health = ProcessHealth(clock)
    with health.watch(LOOP):
        with liveness.rest(lambda: work):
            clock.advance(10_000)
            assert health.liveness().ok
            work.append("key")
            assert health.liveness().ok
            clock.advance(61)
            assert health.standstill() == "loop work: no progress for 61 s, allowed 60 s"
        assert health.liveness().ok


def test_work_that_comes_and_goes_beside_a_loop_that_rests_is_not_old() -> None:
    """Work that appears and disappears beside a resting loop is not old, because another worker did it."""
    clock, work = FakeClock(), list[str]()
    health = ProcessHealth(clock)
    with health.watch(LOOP), liveness.rest(lambda: work):
        for _ in range(20):
            work.append("key")
            assert health.liveness().ok
            work.clear()
            clock.advance(50)
            assert health.liveness().ok


async def test_a_task_beats_for_the_loop_that_started_it_and_for_no_other() -> None:
    """A task reports progress for the loop that started it and for no other, without a parameter; a detached task
    reports for none."""
    clock = FakeClock()
    health = ProcessHealth(clock)

    async def works() -> None:
        liveness.beat()

    async def leaves() -> None:
        liveness.leave()
        liveness.beat()

    with health.watch(Loop(name="other", bound_s=60.0, moves="each step")), health.watch(LOOP):
        clock.advance(61)
        await asyncio.ensure_future(leaves())
        assert health.liveness().problems.keys() == {"work", "other"}
        await asyncio.ensure_future(works())
        assert health.liveness().problems.keys() == {"other"}


def test_a_loop_moves_with_its_parts_and_a_part_alone_can_stand_still() -> None:
    """A loop proceeds with its parts, and a part alone can stand still: one look may make many launches, and each has
    its own bound."""
    clock = FakeClock()
    health = ProcessHealth(clock)
    with health.watch(LOOP):
        with health.watch(LOOP.of("a"), part=True) as part:
            clock.advance(61)
            assert health.liveness().problems.keys() == {"work", "work:a"}
            part.beat()
            assert health.liveness().ok
        clock.advance(61)
        assert health.liveness().problems.keys() == {"work"}


def test_silence_counts_from_when_the_dependency_is_there() -> None:
    """Silence counts from when the dependency is available: a watch on a server that is away, or has just come back, is
    not at fault."""
    clock, there_since = FakeClock(), float("inf")
    health = ProcessHealth(clock)
    with health.watch(LOOP, since=lambda: there_since):
        clock.advance(3600)
        assert health.liveness().ok
        there_since = clock.monotonic()
        clock.advance(60)
        assert health.liveness().ok
        clock.advance(1)
        assert not health.liveness().ok
