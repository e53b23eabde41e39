"""The permissions that docs/operating.md asks for are enough for everything, and reach no key of anybody else."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from slipway.errors import DeniedError
from slipway.streams import keys
from slipway.streams.gatherings import GatherKey, Seat
from slipway.streams.logpacks import LogLine
from slipway.streams.ports import Entry, FeedEntry, FeedOp, SpanRecord, Streams, WorkHint
from tests.support.logs import store_lines
from tests.support.redis import RedisBackend, an_event, an_id, server_binary, server_process
from tests.support.redis_cluster import Cluster, cluster_processes

ACCOUNT = "+@read +@write +@stream +@hash +@scripting +@connection +cluster|slots"
CREATE = ("ACL", "SETUSER", "slipway", "on", ">s3cret", "resetkeys", "~slipway:*", "-@all", *ACCOUNT.split())


@pytest.fixture(scope="module", params=["valkey", "redis"])
def name(request: pytest.FixtureRequest) -> str:
    server_binary(request.param)
    return request.param


async def everything(streams: Streams) -> None:
    """Each operation of each port, once."""
    event, hint = Entry(event=an_event(1)), WorkHint(namespace="ns", allocation=an_id())
    await streams.health.ping()
    await streams.events.append([event, event])
    assert len(await streams.events.read(an_id())) == 1
    assert await streams.events.last_seqs([an_id()]) == [1]
    assert len(await streams.firehose.read(after=None, block_s=0.1)) == 1
    await streams.firehose.read(after=await streams.firehose.tail(), block_s=0.02)
    await streams.hints.send([hint, hint])
    queue = streams.work_queue("a")
    claimed = await queue.claim(limit=100, block_s=1)
    await queue.heartbeat(claimed)
    await queue.release(claimed)
    claimed = await queue.claim_abandoned(min_idle_s=0, limit=100)
    await queue.dead_letter(claimed[0], cause="x")
    await queue.ack(claimed)
    assert await queue.backlog() == 0
    await queue.trim()
    await queue.forget_consumers(idle_s=0)
    [letter] = await streams.dead.page()
    assert await streams.dead.replay(letter.id)
    hooks = streams.webhooks("a")
    assert await hooks.is_first(silence_s=10)
    taken = await hooks.take(limit=10, block_s=0.05) or await hooks.take(limit=10, block_s=1)
    assert await hooks.is_first(silence_s=10)
    assert await hooks.take_again() == taken
    await hooks.route([(entry, ["hook"]) for entry in taken])
    deliveries = await hooks.claim(["hook"], limit=10)
    assert await hooks.held(["hook"]) == deliveries
    await hooks.heartbeat(deliveries)
    assert await hooks.claim_left(["hook"], min_idle_s=60, limit=10) == []
    await hooks.bury(deliveries[0], cause="x", tries=1)
    assert await hooks.backlog(["hook"]) == [0]
    await hooks.forget("hook")
    await streams.wake.ring("x")
    await streams.wake.wait(None, timeout_s=0.02)
    await streams.feed.append([FeedEntry(epoch=1, number=1, kind="pods", op=FeedOp.PUT)], after=None)
    assert len(await streams.feed.read(None, limit=9, block_s=0.1)) == 1
    await store_lines(streams, an_id(), [LogLine(attempt=1, rank=0, stream="stdout", time="t", text="x")])
    assert len(await streams.logs.tail(an_id(), limit=1)) == 1
    await streams.traces.append(
        {an_id(): [SpanRecord(trace_id="a", span_id="b", name="n", service="s", start_ns=1, end_ns=2)]}
    )
    await streams.activity.touch({an_id(): {"proxy": 1.0}})
    assert await streams.activity.read([an_id()]) == [{"proxy": 1.0}]
    gathering = GatherKey(allocation=an_id(), attempt=1, group="g")
    for name in ("a", "b"):
        await streams.gatherings.join(gathering, Seat(request_id=name, token=name), peers=3, owner=name)
    await streams.gatherings.look(gathering, owner="a")
    assert await streams.gatherings.tokens(gathering, ["a"]) == ["a"]
    await streams.gatherings.leave(gathering, Seat(request_id="a", token="a"))
    assert len(await streams.gatherings.seats(gathering)) == 1


@asynccontextmanager
async def with_account(url: str) -> AsyncGenerator[RedisBackend]:
    """The server as our account meets it."""
    backend = RedisBackend(url.replace("://", "://slipway:s3cret@"))
    try:
        yield backend
    finally:
        await backend.aclose()


async def test_the_account_of_one_server(name: str) -> None:
    """What the page says is enough, and a key of somebody else is out of reach."""
    async with server_process(name) as server:
        operator = RedisBackend(server.url)
        await operator.command(*CREATE)
        await operator.aclose()
        async with with_account(server.url) as backend:
            await everything(backend.connect())
            with pytest.raises(DeniedError):
                await backend.command("XLEN", "other")


async def test_the_account_of_a_cluster(name: str) -> None:
    """There it also asks who serves which slot."""
    async with cluster_processes(name) as cluster:
        await create_on(cluster)
        async with with_account(cluster.url) as backend:
            await everything(backend.connect())
            assert await backend.length(keys.BELL.prefix) == 1


async def create_on(cluster: Cluster) -> None:
    """The account on each node."""
    for node in cluster.nodes:
        await node.command(*CREATE)
