"""A process whose loops stand still stops leading, and one whose work cannot be stopped ends."""

import asyncio
from contextlib import suppress

import pytest

from slipway.kube.lease import END_S, Leadership
from slipway.runtime.health import EXIT_STANDSTILL
from slipway.runtime.liveness import Loop
from tests.support.candidates import LOOK_S, RETRY_S, Candidate, World, in_world
from tests.support.virtual_time import VirtualClock

LOOP = Loop(name="work", bound_s=60.0, moves="each step")


def test_a_leader_that_stands_still_gives_the_lease_up_and_another_takes_it() -> None:
    """A leader whose loop stands still releases the lease within its bound and a renewal; another takes it after a
    look. Once its loop moves it may lead again."""

    async def check(world: World) -> None:
        leader, _ = world.join("a")
        await asyncio.sleep(1)
        other, _ = world.join("b")
        with leader.health.watch(LOOP) as pulse:
            await asyncio.sleep(LOOP.bound_s - 1)
            assert leader.leads
            await asyncio.sleep(1 + RETRY_S + LOOK_S)
            assert (leader.leads, other.leads) == (False, True)
            other.stop.set()
            await asyncio.sleep(5 * RETRY_S)
            assert not leader.leads
            pulse.beat()
            await asyncio.sleep(RETRY_S)
            assert leader.leads

    in_world(check)


def test_work_that_does_not_end_with_its_term_ends_the_process() -> None:
    """Work that does not end with its term ends the process, because it could continue beside the next leader."""

    async def check(world: World) -> None:
        candidate, release = Candidate(world, "a", VirtualClock()), asyncio.Event()

        async def lead(_leadership: Leadership) -> None:
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()

        running = world.tasks.create_task(candidate.elector.run(lead, candidate.stop))
        await asyncio.sleep(1)
        assert candidate.leads
        candidate.refuse()
        await asyncio.sleep(candidate.elector.timing.renew_deadline_s + RETRY_S + END_S - 5)
        assert candidate.exits == []
        await asyncio.sleep(5 + RETRY_S)
        assert candidate.exits == [EXIT_STANDSTILL]
        release.set()
        candidate.stop.set()
        await asyncio.wait({running})

    in_world(check)


@pytest.mark.parametrize("away_s", [0.0, 7.0])
def test_it_is_known_since_when_the_server_answers(away_s: float) -> None:
    """The process knows since when the server answers, which excuses a late watch: a failed call starts the time
    anew."""

    async def check(world: World) -> None:
        candidate, _ = world.join("a")
        await asyncio.sleep(20)
        began = candidate.elector.answered_since
        assert began <= 1.0
        if away_s:
            candidate.refuse()
            await asyncio.sleep(away_s)
            assert candidate.elector.answered_since == float("inf")
            candidate.reconnect()
        await asyncio.sleep(20)
        assert (candidate.elector.answered_since > 20.0) == bool(away_s)

    in_world(check)
