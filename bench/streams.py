"""The cost of the streams on a real server: appends, hints, hand-over, feed."""

import asyncio
import tempfile
import time
from pathlib import Path

from bench.runner import Row, Target, percentile, row
from slipway.local.valkey import ValkeyProcess
from slipway.model.events import AllocationEvent
from slipway.model.ids import allocation_id
from slipway.model.lifecycle import Event, Phase
from slipway.runtime.clock import SystemClock, SystemRandom
from slipway.streams.client import RedisSettings
from slipway.streams.consumer import WorkConsumer
from slipway.streams.feed import Delta, FeedPublisher
from slipway.streams.ports import FeedOp, StreamEntry, WorkHint
from slipway.streams.redis_streams import RedisStreams, connect

UID = "0123abcd-0000-0000-0000-000000000000"


def an_entry(name: str, seq: int) -> StreamEntry:
    event = AllocationEvent(
        allocation_id=allocation_id(name, UID),
        namespace="default",
        name=name,
        uid=UID,
        created_ms=1_700_000_000_000,
        seq=seq,
        attempt=1,
        type=Event.RUNNING,
        phase=Phase.RUNNING,
        time="2026-01-02T03:04:05Z",
        data={"ranks": 4},
        traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
    )
    return StreamEntry(event=event)


async def appends(streams: RedisStreams, *, batch: int, total: int, run: int) -> float:
    """Append events to firehose and stream, in batches, one after the other; return the events per second."""
    started_s = time.perf_counter()
    for start in range(0, total, batch):
        await streams.events.append([an_entry(f"r{run}-{batch}-{number}", 1) for number in range(start, start + batch)])
    return total / (time.perf_counter() - started_s)


async def hints(streams: RedisStreams, total: int) -> float:
    """Return the hints per second from sending to acknowledgement, with an empty handler."""
    done = asyncio.Event()
    count = 0

    async def handler(hint: WorkHint) -> None:
        nonlocal count
        count += 1
        if count == total:
            done.set()

    sent = [WorkHint(namespace="default", allocation=allocation_id(f"h-{number}", UID)) for number in range(total)]
    await streams.hints.send(sent)
    started_s = time.perf_counter()
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(WorkConsumer(streams.work_queue("bench"), handler, SystemClock()).run(stop))
        await done.wait()
        spent_s = time.perf_counter() - started_s
        stop.set()
    return total / spent_s


async def hand_over(sender: RedisStreams, worker: RedisStreams, samples: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds from send to the handler of an idle consumer, and from ring to the end of a wait."""
    hints_ms: list[float] = []
    wakes_ms: list[float] = []
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def handler(hint: WorkHint) -> None:
        arrived.put_nowait(time.perf_counter())

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(WorkConsumer(worker.work_queue("latency"), handler, SystemClock()).run(stop))
        await asyncio.sleep(0.3)
        for number in range(samples):
            started_s = time.perf_counter()
            await sender.hints.send([WorkHint(namespace="default", allocation=allocation_id(f"l-{number}", UID))])
            hints_ms.append((await arrived.get() - started_s) * 1_000)
            await asyncio.sleep(0.002)
        stop.set()
    for _ in range(samples):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(worker.wake.wait(None, timeout_s=2))
            await asyncio.sleep(0.003)
            started_s = time.perf_counter()
            await sender.wake.ring("bench")
            await waiting
        wakes_ms.append((time.perf_counter() - started_s) * 1_000)
    return hints_ms, wakes_ms


async def feed(streams: RedisStreams, total: int, run: int) -> float:
    """Return the deltas per second through a publisher."""
    publisher = FeedPublisher(streams.feed, SystemClock(), term=run + 1)
    started_s = time.perf_counter()
    for number in range(total):
        publisher.offer(Delta(kind="pods", op=FeedOp.PUT, key=f"ns/{number}", rv=str(number), data=b"{}" * 60))
    await publisher.step()
    return total / (time.perf_counter() - started_s)


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    rows: list[Row] = []
    rate = Target(better="higher")
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        server = ValkeyProcess(Path(folder))
        started_s = time.perf_counter()
        await server.start()
        rows.append(row("R-start", "server start", [(time.perf_counter() - started_s) * 1_000], "ms"))
        settings = RedisSettings(url=server.url)
        streams, other = (connect(settings, clock=SystemClock(), random=SystemRandom()) for _ in range(2))
        for batch, total in ((1, 1_000), (32, 6_400), (256, 10_240)):
            rates = [await appends(streams, batch=batch, total=total, run=run) for run in range(runs)]
            rows.append(row(f"R-append-{batch}", f"append, batches of {batch}", rates, "events/s", target=rate))
        rates = [await hints(streams, 5_000) for _ in range(runs)]
        rows.append(row("R-hints", "hints worked off", rates, "hints/s", target=rate))
        rates = [await feed(streams, 10_000, run) for run in range(runs)]
        rows.append(row("R-feed", "feed", rates, "deltas/s", target=rate))
        samples = [await hand_over(streams, other, 40) for _ in range(runs)]
        for place, name in ((0, "hint to handler"), (1, "ring to waiter")):
            for percent in (50, 99):
                figures = [percentile(both[place], percent) for both in samples]
                rows.append(row(f"R-{name.split()[0]}-p{percent}", f"{name}, p{percent}", figures, "ms"))
        for each in (streams, other):
            await each.aclose()
        await server.stop()
    return rows
