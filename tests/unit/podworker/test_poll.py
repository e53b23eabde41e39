"""Work without Redis (R0) and with `--once`: consistent LISTs find all work that hints would report."""

import asyncio

import pytest

from slipway.errors import UnavailableError
from slipway.kube.errors import Verb
from slipway.model.lifecycle import Event
from slipway.podworker.poll import FULL_EVERY_S, Poller
from slipway.streams.memory_server import MemoryServer, ServerRefusal
from slipway.streams.memory_side import MemoryStreams
from tests.support.podworker_harness import PodWorkerHarness, run_with_harness
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

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        await harness.poller.step()
        assert [pod.spec.node_name for pod in await harness.pods()] == ["n0", "n1"]
        await harness.write("job", Event.TERMINATING)
        await harness.poller.step()
        assert all(pod.metadata.deletion_timestamp for pod in await harness.pods())

    run_with_harness(story)


def test_what_an_ended_allocation_left_is_found_by_the_full_pass() -> None:
    """The full pass finds the remaining objects of ended allocations by the objects themselves; it does not list the
    many ended allocations."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        await harness.poller.step()
        await harness.write("job", Event.TERMINATED)
        await harness.clock.sleep(FULL_EVERY_S)
        await harness.poller.step()
        assert await harness.configmaps() == []

    run_with_harness(story)


def test_the_rest_of_a_gang_is_bound_after_a_crash_in_the_middle() -> None:
    """After a crash in the middle of a gang, with some pods running and the phase moved, a worker with empty memory
    binds the others."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign("n0", "n1")
        harness.calls.fail_with(
            lambda call, _when: (
                UnavailableError("lost") if harness.calls.seen[: call + 1].count((Verb.BIND, "pods")) > 1 else None
            )
        )
        await harness.poller.step()
        assert [pod.spec.node_name for pod in await harness.pods()].count("") == 1
        await harness.write("job", Event.PULLING)
        harness.another_worker()
        await harness.poller.run_once()
        assert all(pod.spec.node_name for pod in await harness.pods())

    run_with_harness(story)


def test_at_rest_a_look_reads_and_writes_nothing_more() -> None:
    """At rest a look does not read or write more: running, waiting and torn down allocations need no work."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        await launch(harness.kube, "waiting")
        await harness.poller.run_once()
        await harness.write("job", Event.RUNNING)
        harness.calls.seen.clear()
        await harness.poller.run_once()
        assert {verb for verb, _ in harness.calls.seen} == {Verb.LIST}

    run_with_harness(story)


def test_one_failing_allocation_delays_no_other() -> None:
    """A failing allocation delays no other: each look tries every allocation once, and the next look follows soon."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign(name="first")
        await harness.assign(name="second")
        creates: list[int] = []

        def refuse_first(call: int, when: str) -> UnavailableError | None:
            if when == "before" and harness.calls.seen[call] == (Verb.CREATE, "pods"):
                creates.append(call)
                return UnavailableError("away") if len(creates) == 1 else None
            return None

        harness.calls.fail_with(refuse_first)
        started_s = harness.clock.monotonic()
        await harness.poller.step()
        assert harness.clock.monotonic() - started_s < 1
        launched = [(await look(harness.kube, name)).status.release is not None for name in ("first", "second")]
        assert launched.count(True) == 1

    run_with_harness(story)


def test_while_redis_answers_there_is_no_polling() -> None:
    """While Redis answers there is no poll."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        redis = FlakyRedis()
        poller: Poller = harness.another_poller(redis)
        await poller.step()
        assert harness.calls.seen == []
        redis.is_up = False
        await poller.step()
        assert (await look(harness.kube)).status.release is not None

    run_with_harness(story)


@pytest.mark.parametrize(
    "why", [ServerRefusal.OOM, ServerRefusal.READONLY, ServerRefusal.MISCONF, ServerRefusal.LOADING]
)
def test_a_read_only_redis_counts_as_absent(why: ServerRefusal) -> None:
    """A Redis that accepts no writes counts as absent: it answers but stores no hints, so the poll runs."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        server = MemoryServer(harness.clock)
        poller: Poller = harness.another_poller(MemoryStreams(server).health)
        await poller.step()
        assert harness.calls.seen == []
        server.refuses = why
        await poller.step()
        assert (await look(harness.kube)).status.release is not None

    run_with_harness(story)


def test_while_redis_answers_it_is_asked_seldom() -> None:
    """While Redis answers it is pinged seldom, because the ping is a write. The consumer notices a failure first, and
    wakes the poller."""

    async def story(harness: PodWorkerHarness) -> None:
        await harness.assign()
        redis = FlakyRedis()
        poller: Poller = harness.another_poller(redis)
        begun_s = harness.clock.monotonic()
        await poller.step()
        assert harness.clock.monotonic() - begun_s >= 4.0
        resting = asyncio.ensure_future(poller.step())
        await asyncio.sleep(0)
        redis.is_up, begun_s = False, harness.clock.monotonic()
        poller.end_rest()
        await resting
        await poller.step()
        assert harness.clock.monotonic() - begun_s < 1.0
        assert (await look(harness.kube)).status.release is not None

    run_with_harness(story)


def test_looks_are_spread_in_time() -> None:
    """Looks are spread in time, so that replicas do not LIST at once."""

    async def story(harness: PodWorkerHarness) -> None:
        pauses = {await harness.poller.step() for _ in range(5)}
        assert len(pauses) > 1
        assert all(1.5 <= pause <= 2.5 for pause in pauses)

    run_with_harness(story)
