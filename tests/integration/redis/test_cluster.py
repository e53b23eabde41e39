"""On a Redis Cluster whose topology changes under us: slots move, masters change, are down, or restart empty."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, asynccontextmanager

import pytest
from redis.crc import key_slot

from slipway.errors import InvalidError, TransientError, UnavailableError
from slipway.local.valkey import ServerOptions
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams import keys
from slipway.streams.client import RedisClient, RedisSettings, command
from slipway.streams.consumer import ConsumerSettings, WorkConsumer
from slipway.streams.logpacks import LogLine
from slipway.streams.ports import EntryOutcome, StreamEntry, Streams, WorkHint
from slipway.streams.producer import Ring, RingPublisher
from tests.support.clock import wait_until
from tests.support.logs import store_lines
from tests.support.ports import free_port
from tests.support.redis import RedisBackend, an_event, an_id, running_server, server_binary, server_process
from tests.support.redis_cluster import Cluster, Node, cluster_processes, until

SLOT = key_slot(keys.allocation(an_id()).encode())


@pytest.fixture(scope="module", params=["valkey", "redis"])
def shared(request: pytest.FixtureRequest) -> Generator[Cluster]:
    """A cluster for the tests that move no slot."""
    cluster = Cluster(server_binary(request.param))
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        asyncio.run(cluster.stop())


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncGenerator[RedisBackend]:
    """The empty cluster."""
    backend = cluster.backend()
    await backend.flush()
    try:
        yield backend
    finally:
        await backend.aclose()


@pytest.fixture
async def backend(shared: Cluster) -> AsyncGenerator[RedisBackend]:
    async with opened(shared) as found:
        yield found


def source_and_target(cluster: Cluster) -> tuple[Node, Node]:
    """The master of the slot that the tests move, and another one."""
    source = cluster.owner(SLOT)
    return source, next(node for node in cluster.nodes if node is not source)


async def there_and_back(cluster: Cluster, paused: Callable[[], Awaitable[object]] | None = None) -> None:
    """Move the slot away and back."""
    source, target = source_and_target(cluster)
    try:
        await cluster.move_slot(SLOT, source, target, paused=paused)
    finally:
        await cluster.move_slot(SLOT, target, source)
        await cluster.until_ready()


def a_line(text: str) -> LogLine:
    return LogLine(attempt=1, rank=0, stream="stdout", time="2026-01-02T03:04:05Z", text=text)


async def seqs(streams: Streams) -> list[int]:
    return [each.event.seq for each in await streams.events.read(an_id(), limit=1_000)]


async def store_when_it_can(streams: Streams, number: int) -> None:
    """Append as a follower of a log does: a script with several keys is refused while their slot moves, and retried."""
    while (await streams.logs.position(an_id(), a_line("").source)).number < number:
        try:
            await store_lines(streams, an_id(), [a_line(str(number))])
        except UnavailableError:
            await asyncio.sleep(0.01)


async def test_a_slot_moves_while_it_is_written(shared: Cluster, backend: RedisBackend) -> None:
    """Resharding causes no error, no lost entry and no wrong order: MOVED and ASK are followed."""
    streams, moved = backend.connect(), asyncio.Event()
    written = 0

    async def write() -> None:
        nonlocal written
        while not moved.is_set():
            written += 1
            [answer] = await streams.events.append([StreamEntry(event=an_event(written))])
            assert answer.outcome is EntryOutcome.APPENDED
            await store_when_it_can(streams, written)

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(write())
        for _ in range(3):
            await there_and_back(shared)
        moved.set()
    assert await seqs(streams) == list(range(1, written + 1))
    lines = await streams.logs.read(an_id(), limit=10_000)
    assert [each.line.text for each in lines] == [str(number) for number in range(1, written + 1)]


async def test_a_slot_that_is_on_its_way_is_asked_for_at_both_ends(shared: Cluster, backend: RedisBackend) -> None:
    """While a slot migrates, existing keys stay at the source and new ones begin at the target; log lines wait."""
    streams = backend.connect()
    await streams.events.append([StreamEntry(event=an_event(1))])

    async def meanwhile() -> None:
        [answer] = await streams.events.append([StreamEntry(event=an_event(2))])
        assert answer.outcome is EntryOutcome.APPENDED
        with pytest.raises(UnavailableError, match="being moved"):
            await store_lines(streams, an_id(), [a_line("1")])
        assert await seqs(streams) == [1, 2]

    await there_and_back(shared, paused=meanwhile)
    assert await seqs(streams) == [1, 2]
    await store_when_it_can(streams, 1)
    assert [each.line.text for each in await streams.logs.read(an_id())] == ["1"]


async def test_followers_stay_with_a_stream_that_moves(shared: Cluster, backend: RedisBackend) -> None:
    """A blocked read of a moved slot continues at the slot's new node."""
    writer, reader = backend.connect(), backend.connect()
    seen: list[int] = []

    async def follow() -> None:
        async with aclosing(reader.events.follow(an_id())) as events:
            async for stored in events:
                seen.append(stored.event.seq)
                if stored.event.seq == 4:
                    return

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(follow())
        await writer.events.append([StreamEntry(event=an_event(1))])
        await wait_until(lambda: seen == [1], "the first event")
        source, target = source_and_target(shared)
        await shared.move_slot(SLOT, source, target)
        await writer.events.append([StreamEntry(event=an_event(2)), StreamEntry(event=an_event(3))])
        await shared.move_slot(SLOT, target, source)
        await writer.events.append([StreamEntry(event=an_event(4))])
    assert seen == [1, 2, 3, 4]


async def test_the_cluster_is_found_from_any_node(shared: Cluster, backend: RedisBackend) -> None:
    """One named node that answers is enough, whichever it is."""
    url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{shared.nodes[1].port}"
    client = backend.client(url)
    replies = await client.pipeline([command("XLEN", key) for key in (*keys.WORK_KEYS, *keys.EVENT_KEYS)])
    assert replies == [0] * 32
    await client.aclose()


async def test_scripts_that_one_node_forgot_are_sent_again(shared: Cluster, backend: RedisBackend) -> None:
    """Each node has its own scripts; a node that lost them costs one exchange, and the order stays."""
    streams = backend.connect()
    names = [f"run-{number}" for number in range(30)]
    for seq in (1, 2, 3):
        await shared.nodes[seq % 3].command("SCRIPT", "FLUSH")
        answers = await streams.events.append([StreamEntry(event=an_event(seq, name=name)) for name in names])
        assert {each.outcome for each in answers} == {EntryOutcome.APPENDED}
    assert await streams.events.last_seqs([an_id(name) for name in names]) == [3] * 30


async def test_a_url_of_one_node_of_a_cluster_is_reported(shared: Cluster) -> None:
    """The error tells a user who names a single node of a cluster what to write."""
    client = RedisClient(RedisSettings(url=f"redis://127.0.0.1:{shared.nodes[0].port}"), SystemClock(), SeededRandom(1))
    with pytest.raises(UnavailableError, match=r"redis\+cluster://"):
        await client.run(command("XLEN", "a"))  # a key of the last master
    await client.aclose()


async def test_a_replica_takes_over() -> None:
    """After a failover the client finds the new master, which has no scripts, and the stream continues."""
    async with cluster_processes() as cluster, opened(cluster) as backend:
        streams = backend.connect()
        await streams.events.append([StreamEntry(event=an_event(1))])
        master = cluster.owner(SLOT)
        replica = await cluster.add_replica(master)
        await replica.command("CLUSTER", "FAILOVER")

        async def has_taken_over() -> bool:
            return b"role:master" in await replica.command("INFO", "replication")

        await until(has_taken_over, "the replica to be master")
        publisher = RingPublisher(streams.events)
        ring = Ring(events=tuple(an_event(seq) for seq in range(1, 5)))

        async def is_published() -> bool:
            try:
                await publisher.publish([ring])
            except TransientError:
                return False
            return True

        await until(is_published, "the ring to be published")
        assert await seqs(streams) == [1, 2, 3, 4]
        assert await replica.command("XLEN", keys.allocation(an_id())) == 4


async def test_a_master_that_comes_back_empty() -> None:
    """Meanwhile the other shards work; then groups begin again at the start, and streams at their rings."""
    async with cluster_processes() as cluster, opened(cluster) as backend:
        for node in cluster.nodes:
            await node.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
        streams = backend.connect()
        names = [f"run-{number}" for number in range(40)]
        rings = [Ring(events=(an_event(1, name=name), an_event(2, name=name))) for name in names]
        await RingPublisher(streams.events).publish(rings)
        seen: set[str] = set()

        async def handler(hint: WorkHint) -> None:
            seen.add(hint.allocation)

        settings = ConsumerSettings(block_s=0.1, retry_max_s=0.1)
        worker, stop = WorkConsumer(streams.work_queue("a"), handler, SystemClock(), settings=settings), asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(worker.run(stop))
            await streams.hints.send([WorkHint(namespace="ns", allocation=an_id(name)) for name in names])
            await wait_until(lambda: len(seen) == 40, "all hints", timeout_s=10)
            await cluster.nodes[0].server.kill()
            seen.clear()
            with pytest.raises(TransientError):
                await streams.hints.send([WorkHint(namespace="ns", allocation=an_id(name)) for name in names])
            await wait_until(lambda: len(seen) >= 10, "the hints of the shards that are there", timeout_s=10)
            await cluster.nodes[0].server.start()
            await cluster.until_ready()
            seen.clear()

            async def is_back() -> bool:
                try:
                    await streams.hints.send([WorkHint(namespace="ns", allocation=an_id(name)) for name in names])
                except TransientError:
                    return False
                return True

            await until(is_back, "hints to be taken again")
            await wait_until(lambda: len(seen) == 40, "all hints again", timeout_s=10)
            stop.set()
        await RingPublisher(streams.events).publish(rings)
        assert await streams.events.last_seqs([an_id(name) for name in names]) == [2] * 40


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://host:port",
        "redis+cluster://host:1/3",
        "redis+cluster://host:1,:2",
        "redis+cluster://u:s3cret@host:1/service",
    ],
)
def test_a_cluster_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    """A cluster URL has nodes with hosts, and no database; the error does not contain the password."""
    with pytest.raises(InvalidError) as caught:
        RedisClient(RedisSettings(url=url), SystemClock(), SeededRandom(1))
    assert "s3cret" not in str(caught.value)


async def test_a_server_of_one_slot_range_is_a_cluster_too() -> None:
    """One node that owns all slots is the smallest cluster of hosted services."""
    async with server_process(options=ServerOptions(port=free_port(), cluster=True)) as server:
        operator = RedisBackend(server.url)
        await operator.command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        await until(lambda: _is_ok(operator), "the slots to be served")
        real = RedisBackend(server.url.replace("redis://", "redis+cluster://"))
        streams = real.connect()
        await streams.hints.send([WorkHint(namespace="ns", allocation=an_id(f"run-{number}")) for number in range(9)])
        assert len(await streams.work_queue("a").claim(limit=64, block_s=1)) == 9
        await real.aclose()
        await operator.aclose()


async def _is_ok(operator: RedisBackend) -> bool:
    return b"state:ok" in await operator.command("CLUSTER", "INFO")


def test_the_server_of_a_test_ends_with_it() -> None:
    """The synchronous fixture stops the server that it started."""
    with running_server("valkey") as server:
        assert server.pid is not None
    assert server.pid is None
