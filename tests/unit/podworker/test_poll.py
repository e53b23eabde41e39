"""Work without Redis (R0) and with `--once`: consistent LISTs find all work that hints would report."""

import asyncio

import pytest

from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.model.lifecycle import Event
from slipway.podworker.poll import FULL_EVERY_S, Poller
from slipway.streams.memory_server import MemoryServer, ServerRefusal
from slipway.streams.memory_side import MemoryStreams
from tests.support.podworker_desk import Desk, at_a_desk
from tests.support.small_cluster import launch, look


class FlakyRedis:
    """Answers while `is_up`."""

    is_up = True

    async def ping(self) -> float:
        if not self.is_up:
            raise UnavailableError("away")
        return 0.0


def test_launches_and_ends_are_found_without_a_hint() -> None:
    """R0: launches and ends are found without a hint, only later."""

    async def story(desk: Desk) -> None:
        await desk.assign("n0", "n1")
        await desk.poller.step()
        assert [pod.spec.node_name for pod in await desk.pods()] == ["n0", "n1"]
        await desk.write("job", Event.TERMINATING)
        await desk.poller.step()
        assert all(pod.metadata.deletion_timestamp for pod in await desk.pods())

    at_a_desk(story)


def test_what_an_ended_allocation_left_is_found_by_the_full_pass() -> None:
    """The full pass finds the remaining objects of ended allocations by the objects themselves; it does not list the
    many ended allocations."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        await desk.poller.step()
        await desk.write("job", Event.TERMINATED)
        await desk.clock.sleep(FULL_EVERY_S)
        await desk.poller.step()
        assert await desk.configmaps() == []

    at_a_desk(story)


def test_the_rest_of_a_gang_is_bound_after_a_crash_in_the_middle() -> None:
    """After a crash in the middle of a gang, with some pods running and the phase moved, a worker with empty memory
    binds the others."""

    async def story(desk: Desk) -> None:
        await desk.assign("n0", "n1")
        desk.calls.fail_with(
            lambda call, _when: (
                UnavailableError("lost") if desk.calls.seen[: call + 1].count((Verb.BIND, "pods")) > 1 else None
            )
        )
        await desk.poller.step()
        assert [pod.spec.node_name for pod in await desk.pods()].count("") == 1
        await desk.write("job", Event.PULLING)
        desk.another_worker()
        await desk.poller.run_once()
        assert all(pod.spec.node_name for pod in await desk.pods())

    at_a_desk(story)


def test_at_rest_a_look_reads_and_writes_nothing_more() -> None:
    """At rest a look does not read or write more: running, waiting and torn down allocations need no work."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        await launch(desk.kube, "waiting")
        await desk.poller.run_once()
        await desk.write("job", Event.RUNNING)
        desk.calls.seen.clear()
        await desk.poller.run_once()
        assert {verb for verb, _ in desk.calls.seen} == {Verb.LIST}

    at_a_desk(story)


def test_one_hopeless_allocation_holds_nobody_up() -> None:
    """A failing allocation delays no other: each look tries every allocation once, and the next look follows soon."""

    async def story(desk: Desk) -> None:
        await desk.assign(name="first")
        await desk.assign(name="second")
        creates: list[int] = []

        def refuse_first(call: int, when: str) -> UnavailableError | None:
            if when == "before" and desk.calls.seen[call] == (Verb.CREATE, "pods"):
                creates.append(call)
                return UnavailableError("away") if len(creates) == 1 else None
            return None

        desk.calls.fail_with(refuse_first)
        started_s = desk.clock.monotonic()
        await desk.poller.step()
        assert desk.clock.monotonic() - started_s < 1
        launched = [(await look(desk.kube, name)).status.release is not None for name in ("first", "second")]
        assert launched.count(True) == 1

    at_a_desk(story)


def test_while_redis_answers_nobody_polls() -> None:
    """While Redis answers there is no poll."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        redis = FlakyRedis()
        poller: Poller = desk.another_poller(redis)
        await poller.step()
        assert desk.calls.seen == []
        redis.is_up = False
        await poller.step()
        assert (await look(desk.kube)).status.release is not None

    at_a_desk(story)


@pytest.mark.parametrize(
    "why", [ServerRefusal.OOM, ServerRefusal.READONLY, ServerRefusal.MISCONF, ServerRefusal.LOADING]
)
def test_a_redis_that_takes_no_writes_is_as_good_as_none(why: ServerRefusal) -> None:
    """A Redis that accepts no writes counts as absent: it answers but stores no hints, so the poll runs."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        server = MemoryServer(desk.clock)
        poller: Poller = desk.another_poller(MemoryStreams(server).health)
        await poller.step()
        assert desk.calls.seen == []
        server.refuses = why
        await poller.step()
        assert (await look(desk.kube)).status.release is not None

    at_a_desk(story)


def test_while_redis_answers_it_is_asked_seldom() -> None:
    """While Redis answers it is pinged seldom, because the ping is a write. The consumer notices a failure first, and
    wakes the poller."""

    async def story(desk: Desk) -> None:
        await desk.assign()
        redis = FlakyRedis()
        poller: Poller = desk.another_poller(redis)
        begun_s = desk.clock.monotonic()
        await poller.step()
        assert desk.clock.monotonic() - begun_s >= 4.0
        resting = asyncio.ensure_future(poller.step())
        await asyncio.sleep(0)
        redis.is_up, begun_s = False, desk.clock.monotonic()
        poller.end_rest()
        await resting
        await poller.step()
        assert desk.clock.monotonic() - begun_s < 1.0
        assert (await look(desk.kube)).status.release is not None

    at_a_desk(story)


def test_looks_are_spread_in_time() -> None:
    """Looks are spread in time, so that replicas do not LIST at once."""

    async def story(desk: Desk) -> None:
        pauses = {await desk.poller.step() for _ in range(5)}
        assert len(pauses) > 1
        assert all(1.5 <= pause <= 2.5 for pause in pauses)

    at_a_desk(story)
