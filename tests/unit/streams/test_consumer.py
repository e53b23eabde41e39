"""The consumer acknowledges hints together that are done together, and never before they are done."""

import asyncio
from collections import Counter

import pytest

from slipway.errors import UnavailableError
from slipway.runtime.clock import SystemClock
from slipway.streams.consumer import ConsumerSettings, WorkConsumer
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import WorkHint
from tests.support.clock import wait_until
from tests.support.redis import an_id

QUICK = ConsumerSettings(block_s=0.05, min_idle_s=0.1, sweep_s=0.03, heartbeat_s=0.03)


class CountingServer:
    """A server that counts its calls."""

    def __init__(self) -> None:
        self.server = MemoryServer(SystemClock())
        self.streams = MemoryStreams(self.server)
        self.calls: Counter[str] = Counter()
        self.refuses = ""
        self.server.on_call = self._called

    async def _called(self, operation: str) -> None:
        self.calls[operation] += 1
        if operation == self.refuses:
            self.refuses = ""
            raise UnavailableError("not now")

    async def send(self, count: int) -> None:
        await self.streams.hints.send([WorkHint(namespace="ns", allocation=an_id(f"r-{n}")) for n in range(count)])


@pytest.fixture
def counted() -> CountingServer:
    return CountingServer()


async def test_hints_done_together_are_acknowledged_together(counted: CountingServer) -> None:
    """Hints that are done together are acknowledged in a few exchanges, not one each; in the end nothing is pending."""
    await counted.send(64)
    done = 0

    async def handler(hint: WorkHint) -> None:
        nonlocal done
        done += 1

    stop = asyncio.Event()
    consumer = WorkConsumer(counted.streams.work_queue("a"), handler, SystemClock(), settings=QUICK)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(stop))
        await wait_until(lambda: done == 64, "all hints")
        stop.set()
    assert await counted.streams.work_queue("a").backlog() == 0
    assert counted.calls["queue.ack"] <= 8


async def test_nothing_is_acknowledged_before_it_is_done(counted: CountingServer) -> None:
    """A slow hint is not acknowledged with the others."""
    await counted.send(8)
    gate, done = asyncio.Event(), 0

    async def handler(hint: WorkHint) -> None:
        nonlocal done
        if hint.allocation == an_id("r-0"):
            await gate.wait()
        done += 1

    stop = asyncio.Event()
    consumer = WorkConsumer(counted.streams.work_queue("a"), handler, SystemClock(), settings=QUICK)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(stop))
        await wait_until(lambda: done == 7 and counted.calls["queue.ack"], "the others")
        async with asyncio.timeout(5):
            while await counted.streams.work_queue("b").backlog() != 1:  # noqa: ASYNC110 - a server's state
                await asyncio.sleep(0.005)
        gate.set()
        stop.set()
    assert await counted.streams.work_queue("a").backlog() == 0


async def test_an_acknowledgement_that_is_refused_brings_the_hint_again(counted: CountingServer) -> None:
    """A hint whose acknowledgement is refused is handled again: at least once, without loss, and nothing stays
    pending."""
    await counted.send(1)
    counted.refuses = "queue.ack"
    runs = 0

    async def handler(hint: WorkHint) -> None:
        nonlocal runs
        runs += 1

    stop = asyncio.Event()
    consumer = WorkConsumer(counted.streams.work_queue("a"), handler, SystemClock(), settings=QUICK)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(stop))
        await wait_until(lambda: runs == 2, "the second run")
        stop.set()
    assert await counted.streams.work_queue("a").backlog() == 0


async def _nothing(_hint: WorkHint) -> None:
    return None


async def test_a_stop_does_not_wait_for_hints(counted: CountingServer) -> None:
    """A stopped process ends soon, however long its claim may block."""
    stop = asyncio.Event()
    settings = ConsumerSettings(block_s=60.0)
    consumer = WorkConsumer(counted.streams.work_queue("a"), _nothing, SystemClock(), settings=settings)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(stop))
        await wait_until(lambda: counted.calls["queue.claim"], "it waits for hints")
        stop.set()


async def test_at_rest_nothing_is_trimmed(counted: CountingServer) -> None:
    """At rest the sweeps only take over abandoned hints; the stream is trimmed only after hints were acknowledged."""
    stop = asyncio.Event()
    consumer = WorkConsumer(counted.streams.work_queue("a"), _nothing, SystemClock(), settings=QUICK)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(stop))
        await wait_until(lambda: counted.calls["queue.claim_abandoned"] >= 4, "sweeps at rest")
        assert (counted.calls["queue.trim"], counted.calls["queue.forget_consumers"]) == (1, 1)
        await counted.send(1)
        await wait_until(lambda: counted.calls["queue.trim"] == 2, "it trims what it has done")
        stop.set()


async def test_callers_are_told_that_the_queue_is_unavailable(counted: CountingServer) -> None:
    """The caller is told at once that the queue is away, so that it finds work by LIST."""
    told: list[int] = []
    counted.refuses = "queue.claim"
    stop = asyncio.Event()
    consumer = WorkConsumer(
        counted.streams.work_queue("a"), _nothing, SystemClock(), settings=QUICK, troubled=lambda: told.append(1)
    )
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(consumer.run(stop))
        await wait_until(lambda: told, "the trouble")
        stop.set()
    assert told == [1]
