"""On a Redis Cluster: every exchange stays within one slot, and waiting works without multi-key reads."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from slipway.local.valkey import ServerOptions
from slipway.runtime.clock import SystemClock
from slipway.streams.client import Command
from slipway.streams.consumer import ConsumerSettings, WorkConsumer
from slipway.streams.ports import Entry, FeedEntry, FeedOp, Outcome, Streams, WorkHint
from tests.support.clock import wait_until
from tests.support.redis import RedisBackend, an_event, an_id, free_port, running_server, server_process


@pytest.fixture
async def streams() -> AsyncGenerator[Streams]:
    """One node that owns all slots: it refuses whatever touches two of them, as any cluster does."""
    async with server_process(options=ServerOptions(port=free_port(), cluster=True)) as server:
        backend = RedisBackend(server.url)
        await backend.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        real = RedisBackend(server.url, cluster=True)
        async with asyncio.timeout(10):
            while b"state:ok" not in await backend.command("CLUSTER", "INFO"):  # noqa: ASYNC110 - a server's state
                await asyncio.sleep(0.02)
        yield real.connect()
        await real.aclose()
        await backend.aclose()


async def test_events_and_work_on_a_cluster(streams: Streams) -> None:
    """The log, the firehose, a follower, the queue, the feed and the dead letters."""
    names = [f"run-{number}" for number in range(20)]
    answers = await streams.events.append([Entry(event=an_event(1, name=name)) for name in names])
    assert {each.outcome for each in answers} == {Outcome.APPENDED}
    assert len(await streams.firehose.read(block_s=1)) == 20
    assert await streams.events.last_seqs([an_id(name) for name in names]) == [1] * 20
    async with asyncio.timeout(5), aclosing(streams.events.follow(an_id(names[0]))) as events:
        assert (await anext(events)).event.seq == 1
        await streams.events.append([Entry(event=an_event(2, name=names[0]))])
        assert (await anext(events)).event.seq == 2

    seen: set[str] = set()

    async def handler(hint: WorkHint) -> None:
        seen.add(hint.allocation)

    worker = WorkConsumer(streams.work_queue("a"), handler, SystemClock(), settings=ConsumerSettings(block_s=0.2))
    stop = asyncio.Event()
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(worker.run(stop))
        await streams.hints.send([WorkHint(namespace="default", allocation=an_id(name)) for name in names])
        await wait_until(lambda: len(seen) == 20, "all hints")
        stop.set()
    assert await streams.work_queue("b").backlog() == 0
    entry = FeedEntry(epoch=1, number=1, kind="pods", op=FeedOp.PUT)
    await streams.feed.append([entry], after=None)
    assert [each for _, each in await streams.feed.read(None, limit=5, block_s=1)] == [entry]


def test_the_server_of_a_test_ends_with_it() -> None:
    """The synchronous fixture stops what it started."""
    with running_server("valkey") as server:
        assert server.pid is not None
    assert server.pid is None
    assert Command("k", ("PING",)).key == "k"
