"""The client on a real server that is absent, killed, hung, full, protected or slow: our errors, no mixed replies."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
from redis._parsers.hiredis import _AsyncHiredisParser  # pyright: ignore[reportPrivateUsage]
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError

from slipway.errors import (
    BusyError,
    DeadlineError,
    DeniedError,
    InvalidError,
    PermanentError,
    ThrottledError,
    UnavailableError,
)
from slipway.local.valkey import ServerOptions, ValkeyProcess
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams import client as client_module
from slipway.streams.client import Command, Pool, RedisClient, RedisSettings, command
from slipway.streams.ports import EntryOutcome, StreamEntry
from slipway.streams.redis_streams import RedisStreams, connect
from slipway.streams.replies import GroupMissingError, translate
from slipway.streams.routes import Login, RedisAddress, make_connection
from tests.models import cancellations
from tests.support.clock import wait_until
from tests.support.redis import an_event, an_id, server_process

T = TypeVar("T")


@asynccontextmanager
async def a_client(url: str, *, timeout_s: float = 2.0, connections_max: int = 32) -> AsyncGenerator[RedisClient]:
    settings = RedisSettings(url=url, command_timeout_s=timeout_s, connections_max=connections_max)
    client = RedisClient(settings, SystemClock(), SeededRandom(1))
    try:
        yield client
    finally:
        await client.aclose()


async def test_busy_connections_are_no_sign_that_the_server_is_away() -> None:
    """While all blocking connections are in use a blocking read returns nothing, a command gets its answer, and the
    circuit stays closed; the waiting read is served in its turn."""
    async with server_process() as server:
        settings = RedisSettings(url=server.url, blocking_max=1, command_timeout_s=0.05)
        client = RedisClient(settings, SystemClock(), SeededRandom(1))
        wait = Command("slipway:list", ("BLPOP", "slipway:list", "30"))
        holder = asyncio.ensure_future(client.block(wait, block_s=30))
        blocked = Command("slipway", ("CLIENT", "LIST"))
        try:
            async with asyncio.timeout(5):
                while b"cmd=blpop" not in await client.run(blocked):
                    pass
            for _ in range(5):
                assert await client.block(wait, block_s=0.01) is None
            waiting = asyncio.ensure_future(client.block(wait, block_s=5))
            for item in ("a", "b"):
                await client.run(command("RPUSH", "slipway:list", item))
            assert [(await holder)[1], (await waiting)[1]] == [b"a", b"b"]
        finally:
            holder.cancel()
            await client.aclose()


async def test_a_command_without_a_connection_says_that_we_are_busy() -> None:
    """The command was not sent, and the next one is."""
    async with server_process() as server, a_client(server.url, timeout_s=0.2, connections_max=1) as client:
        await client.ping()
        pool = next(iter(client._pools.values()))  # pyright: ignore[reportPrivateUsage]
        async with pool.slot(1):
            with pytest.raises(BusyError, match="all 1 connections to redis"):
                await client.ping()
        await client.ping()


async def until_answers(client: RedisClient) -> None:
    """Wait until the server answers again."""
    async with asyncio.timeout(5):
        while True:
            try:
                await client.ping()
                return
            except UnavailableError:
                await asyncio.sleep(0.01)


async def test_an_absent_server_fails_fast_and_is_found_when_it_comes(tmp_path: Path) -> None:
    """R0: the client can be constructed, calls fail at once, and no restart is needed when the server starts."""
    async with server_process() as server:
        await server.stop()
        async with a_client(server.url) as client:
            started_s = asyncio.get_running_loop().time()
            for _ in range(200):
                with pytest.raises(UnavailableError):
                    await client.ping()
            assert asyncio.get_running_loop().time() - started_s < 1
            await server.start()
            await until_answers(client)


async def test_a_killed_server_is_found_again(tmp_path: Path) -> None:
    """After a kill -9 under load callers get only our own errors, then everything works on new connections."""
    async with server_process() as server, a_client(server.url) as client:
        ended = asyncio.Event()
        failures: list[str] = []

        async def load() -> None:
            while not ended.is_set():
                try:
                    await client.run(command("INCR", "slipway:count"))
                except (UnavailableError, DeadlineError) as exc:
                    failures.append(type(exc).__name__)
                    await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(load())
            await asyncio.sleep(0.1)
            await server.kill()
            await asyncio.sleep(0.1)
            await server.start()
            await until_answers(client)
            ended.set()
        assert failures
        # The new server is empty, and the load may have ended before it counted there.
        assert await client.run(command("INCR", "slipway:count"))


async def test_a_hung_server_costs_a_deadline_and_then_nothing() -> None:
    """After SIGSTOP the first calls time out, then the circuit is open."""
    async with server_process() as server, a_client(server.url, timeout_s=0.1) as client:
        await client.ping()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                with pytest.raises(DeadlineError):
                    await client.ping()
            with pytest.raises(UnavailableError, match="unavailable"):
                await client.ping()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await until_answers(client)


def test_a_cancelled_command_never_gives_its_reply_to_another() -> None:
    """With commands of every kind, cancelled at any moment, on few connections, each reply belongs to its own
    request. (V15)"""
    report = cancellations.differ(5_000, 7, "")
    assert not report.differences, report.differences


class KeepingPool(Pool):
    """Seeded bug: a connection is returned to the pool whatever happened to its exchange."""

    async def use(self, exchange: Callable[[AbstractConnection], Awaitable[T]]) -> T:
        connection = self._idle.pop() if self._idle else await self._open()
        try:
            return await exchange(connection)
        finally:
            self._idle.append(connection)


async def keeping_read(connection: AbstractConnection) -> Any:
    """The other half of the bug: unless told not to, the library closes a connection whose read was interrupted."""
    try:
        return cast(Any, await connection.read_response(disconnect_on_error=False))  # pyright: ignore[reportUnknownMemberType]
    except ResponseError as exc:
        return translate(exc)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_test_detects_a_connection_that_is_kept_after_a_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few hundred cancellations are enough to see foreign replies. The kept connections also leak."""
    monkeypatch.setattr(client_module, "Pool", KeepingPool)
    monkeypatch.setattr(client_module, "read_reply", keeping_read)
    assert cancellations.differ(500, 7, "").differences
    gc.collect()  # collect here, where the leak is expected


async def test_a_cancelled_blocking_read_frees_its_connection() -> None:
    """Cancelled readers neither leak connections nor disturb the next read."""
    async with server_process() as server, a_client(server.url) as client:
        streams = RedisStreams(client)
        for _ in range(30):
            reading = asyncio.ensure_future(streams.feed.read(None, limit=1, block_s=5))
            await asyncio.sleep(0.002)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        info = await client.run(Command("k", ("INFO", "clients")))
        connected = next(line for line in info.decode().splitlines() if line.startswith("connected_clients"))
        assert int(connected.partition(":")[2]) <= 4


def test_replies_are_parsed_in_c() -> None:
    """hiredis parses replies on every connection: by address, by socket file, by TLS."""
    for address, tls in (
        (RedisAddress("127.0.0.1", 1), False),
        (RedisAddress(path="/x"), False),
        (RedisAddress("127.0.0.1", 1), True),
    ):
        connection = make_connection(address, Login(tls=tls), timeout_s=1, name="x")
        assert isinstance(connection._parser, _AsyncHiredisParser)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType]


async def test_a_cancelled_large_reply_is_given_to_no_other_caller() -> None:
    """Megabytes that still arrive are dropped with their connection; the next reader gets its own reply, whole."""
    async with server_process() as server, a_client(server.url, timeout_s=10, connections_max=2) as client:
        text = b"x" * 200_000
        for _ in range(40):
            await client.run(command("XADD", "slipway:wake", "*", "x", text))
        for pause_s in (0.0, 0.001, 0.003, 0.01):
            reading = asyncio.ensure_future(client.run(command("XRANGE", "slipway:wake", "-", "+")))
            await asyncio.sleep(pause_s)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert await client.run(Command("k", ("ECHO", "mine"))) == b"mine"
        whole = await client.run(command("XRANGE", "slipway:wake", "-", "+"))
        assert [fields for _, fields in whole] == [[b"x", text]] * 40


async def test_a_server_that_is_loading_is_waited_for(tmp_path: Path) -> None:
    """LOADING is an absence like any other: our error, and it works when the server has loaded."""
    is_loading = True
    open_lines: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_lines.add(writer)
        while head := await reader.readline():
            for _ in range(2 * int(head[1:])):
                await reader.readline()
            writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" if is_loading else b"+OK\r\n")
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        open_lines.discard(writer)

    path = tmp_path / "loading.sock"
    async with await asyncio.start_unix_server(serve, str(path)):
        async with a_client(f"unix://{path}") as client:
            for _ in range(5):
                with pytest.raises(UnavailableError):
                    await client.ping()
            is_loading = False
            await until_answers(client)
        await wait_until(lambda: not open_lines, "the ends of all connections")


class ReplyDroppingProxy:
    """Forwards what the client sends; after `drops_replies` is set, the server's replies are dropped and the
    connection is closed."""

    def __init__(self, target: Path) -> None:
        self._target, self.drops_replies = target, False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_unix_connection(str(self._target))

        async def requests() -> None:
            while data := await reader.read(65_536):
                forth.write(data)
                await forth.drain()

        async def replies() -> None:
            while data := await back.read(65_536):
                if self.drops_replies:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()
            reader.feed_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(requests())
            group.create_task(replies())
        forth.close()


async def test_a_lost_reply_never_sends_the_command_again() -> None:
    """An XADD whose reply is lost has an unknown outcome; it must not be in the stream twice."""
    async with server_process() as server, a_client(server.url) as direct:
        proxy = ReplyDroppingProxy(server.socket)
        path = server.socket.with_name("proxy.sock")
        listener = await asyncio.start_unix_server(proxy.serve, str(path))
        async with listener, a_client(f"unix://{path}") as client:
            await client.ping()
            proxy.drops_replies = True
            with pytest.raises(UnavailableError):
                await client.run(command("XADD", "slipway:wake", "*", "reason", "x"))
        assert await direct.run(command("XLEN", "slipway:wake")) == 1


async def test_republishing_after_a_lost_reply_changes_nothing() -> None:
    """After an unknown outcome the event log repeats the same append."""
    async with server_process() as server, a_client(server.url) as direct:
        proxy = ReplyDroppingProxy(server.socket)
        path = server.socket.with_name("proxy.sock")
        listener = await asyncio.start_unix_server(proxy.serve, str(path))
        async with listener, a_client(f"unix://{path}") as client:
            proxy.drops_replies = True
            with pytest.raises(UnavailableError):
                await RedisStreams(client).events.append([StreamEntry(event=an_event(1))])
        streams = RedisStreams(direct)
        await streams.events.append([StreamEntry(event=an_event(1))])
        [again] = await streams.events.append([StreamEntry(event=an_event(1))])
        assert again.outcome is EntryOutcome.DUPLICATE
        assert len(await streams.events.read(an_id())) == 1


async def test_a_script_that_the_server_forgot_is_sent_again() -> None:
    """SCRIPT FLUSH, a restart or a failover costs one more exchange, and the order stays."""
    async with server_process() as server, a_client(server.url) as client:
        streams = RedisStreams(client)
        for start in (1, 4, 7):
            entries = [StreamEntry(event=an_event(seq)) for seq in range(start, start + 3)]
            assert {each.outcome for each in await streams.events.append(entries)} == {EntryOutcome.APPENDED}
            await client.run(Command("k", ("SCRIPT", "FLUSH")))
        assert [each.event.seq for each in await streams.events.read(an_id())] == list(range(1, 10))


async def test_a_full_server_is_a_limit_not_a_failure() -> None:
    """With noeviction an OOM error means throttled, and nothing is evicted."""
    async with server_process() as server, a_client(server.url) as client:
        await client.run(command("SET", "slipway:kept", "x"))
        await client.run(Command("k", ("CONFIG", "SET", "maxmemory", "1mb")))
        replies = await client.pipeline([command("XADD", "slipway:wake", "*", "x", "y" * 100_000)] * 50)
        assert isinstance(replies[-1], ThrottledError)
        with pytest.raises(ThrottledError):
            await RedisStreams(client).events.append([StreamEntry(event=an_event(1))])
        assert await client.run(command("GET", "slipway:kept")) == b"x"


async def test_a_replica_is_unavailable() -> None:
    """READONLY after a failover is retried, and no permanent failure."""
    async with server_process() as server, a_client(server.url) as client:
        await client.run(Command("k", ("REPLICAOF", "127.0.0.1", "1")))
        with pytest.raises(UnavailableError):
            await client.run(command("SET", "slipway:x", "1"))
        await client.run(Command("k", ("REPLICAOF", "NO", "ONE")))
        await client.run(command("SET", "slipway:x", "1"))


async def test_a_wrong_password_is_denied_and_never_shown() -> None:
    """Neither errors nor reprs contain the password."""
    async with server_process(options=ServerOptions(extra=("--requirepass", "right"))) as server:
        url = server.url.replace("unix://", "unix://:s3cret@")
        async with a_client(url) as client:
            with pytest.raises(DeniedError) as caught:
                await client.ping()
            assert "s3cret" not in repr(caught.value) + repr(RedisSettings(url=url))
        async with a_client(server.url.replace("unix://", "unix://:right@")) as client:
            await client.ping()
        async with a_client(server.url) as client:
            with pytest.raises(DeniedError):
                await client.ping()


async def test_error_replies_leave_the_connection_in_order() -> None:
    """An error in the middle of a pipeline is a value; the replies after it are the right ones."""
    async with server_process() as server, a_client(server.url, connections_max=1) as client:
        await client.run(command("SET", "slipway:x", "text"))
        replies = await client.pipeline(
            [
                command("INCR", "slipway:x"),
                Command("k", ("ECHO", "a")),
                Command("k", ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "slipway:none", ">")),
                Command("k", ("ECHO", "b")),
            ]
        )
        assert isinstance(replies[0], PermanentError)
        assert isinstance(replies[2], GroupMissingError)
        assert (replies[1], replies[3]) == (b"a", b"b")


@pytest.mark.parametrize("url", ["", "http://x", "localhost:6379", "redis+sentinel://host:26379", "redis://h:port"])
def test_a_url_that_is_none_is_refused_without_repeating_it(url: str) -> None:
    """The URL may contain a password."""
    with pytest.raises(InvalidError) as caught:
        connect(RedisSettings(url=url), clock=SystemClock(), random=SeededRandom(1))
    assert not url or url not in str(caught.value)


async def test_a_server_process_leaves_nothing_behind(tmp_path: Path) -> None:
    """It listens on its socket only, stores nothing, and ends on request."""
    async with server_process() as server:
        pid = server.pid
        assert pid is not None
        async with a_client(server.url) as client:
            await client.run(command("SET", "slipway:x", "1"))
            assert await client.run(Command("k", ("CONFIG", "GET", "port"))) == [b"port", b"0"]
        folder = server.socket.parent
        await server.stop()
        assert server.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert sorted(path.name for path in folder.iterdir()) == ["valkey.log"]


async def test_a_server_process_keeps_what_it_is_asked_to_keep() -> None:
    """With appendonly a kill -9 loses no acknowledged write."""
    async with server_process(options=ServerOptions(appendonly=True)) as server, a_client(server.url) as client:
        await client.run(command("SET", "slipway:x", "1"))
        await server.kill()
        await server.start()
        await until_answers(client)
        assert await client.run(command("GET", "slipway:x")) == b"1"


async def test_a_server_that_can_not_start_says_where_to_look(tmp_path: Path) -> None:
    """The error names the log, and no process is left."""
    server = ValkeyProcess(tmp_path, ServerOptions(extra=("--no-such-option", "1")))
    with pytest.raises(UnavailableError, match=r"valkey\.log"):
        await server.start()
    assert server.pid is None
