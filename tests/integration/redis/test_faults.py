"""Redis fails in every way while allocations progress: all parts recover without help, nothing is lost or doubled.

The tests use real servers and every user of the streams: the relay, a resync, workers, followers. Each test asserts in
the end: every stream and every reader has 1, 2, 3... up to the last seq, in order and each once, with one payload per
seq (I14, I15); each allocation's work was done exactly once; no entry stays pending (I16).
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from slipway.errors import ThrottledError, UnavailableError
from slipway.local.valkey import ServerOptions
from slipway.streams import keys
from tests.support.ports import free_port
from tests.support.redis import server_process
from tests.support.redis_workload import RedisUnderLoad, redis_under_load

# asyncio leaves a connection that is cancelled while it is being opened to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

AWAY_S = 0.6
"""Longer than the timeout of a command, and than several backoffs."""
Break = Callable[[RedisUnderLoad], Awaitable[None]]


async def flushed(under_load: RedisUnderLoad) -> None:
    for _ in range(3):
        await under_load.command("FLUSHALL")
        await under_load.work.moves(1)


async def replaced_by_an_empty_one(under_load: RedisUnderLoad) -> None:
    await under_load.server.kill()
    await under_load.work.moves(1)
    await under_load.server.start()


async def evicted(under_load: RedisUnderLoad) -> None:
    for key in await under_load.command("KEYS", "slipway:*"):
        await under_load.command("DEL", key.decode())
        await asyncio.sleep(0)


async def trimmed(under_load: RedisUnderLoad) -> None:
    """Trim the streams under their followers, and the work streams under their consumers."""
    for key in await under_load.command("KEYS", "slipway:alloc:*"):
        await under_load.command("XTRIM", key.decode(), "MAXLEN", 0)
    for key in keys.WORK_KEYS:
        await under_load.command("XTRIM", key, "MAXLEN", 0)


async def groups_lost(under_load: RedisUnderLoad) -> None:
    for key in await under_load.command("KEYS", "slipway:work:*"):
        await under_load.command("XGROUP", "DESTROY", key.decode(), keys.WORK_GROUP)


async def full(under_load: RedisUnderLoad) -> None:
    """With noeviction: writes that need memory are refused, and nothing is removed."""
    await under_load.command("CONFIG", "SET", "maxmemory", 1)
    await refused(under_load, ThrottledError)
    await under_load.command("CONFIG", "SET", "maxmemory", 0)


async def read_only(under_load: RedisUnderLoad) -> None:
    await under_load.command("REPLICAOF", "127.0.0.1", 1)
    await refused(under_load, UnavailableError)
    await under_load.command("REPLICAOF", "NO", "ONE")


async def hung(under_load: RedisUnderLoad) -> None:
    """Connections stay open, and no reply arrives."""
    under_load.proxy.mode = "deaf"
    await under_load.work.moves(2)
    await asyncio.sleep(AWAY_S)
    under_load.proxy.mode = "pass"
    under_load.proxy.cut()


async def slow(under_load: RedisUnderLoad) -> None:
    under_load.proxy.mode = "slow"
    await under_load.work.moves()
    await asyncio.sleep(AWAY_S)
    under_load.proxy.mode = "pass"


async def partitioned(under_load: RedisUnderLoad) -> None:
    under_load.proxy.mode = "refuse"
    under_load.proxy.cut()
    await under_load.work.moves(2)
    await asyncio.sleep(AWAY_S)
    under_load.proxy.mode = "pass"


async def flapping(under_load: RedisUnderLoad) -> None:
    """Connections are closed again and again, each time in the middle of an exchange."""
    for _ in range(10):
        under_load.proxy.cut()
        await under_load.work.moves(0)
        await asyncio.sleep(0.05)


async def refused(under_load: RedisUnderLoad, error: type[Exception]) -> None:
    """Commands are refused for a while, with the error that callers know."""
    await under_load.work.moves(2)
    with pytest.raises(error):
        await under_load.work.connect().wake.ring("x")
    await asyncio.sleep(AWAY_S / 2)


@pytest.mark.parametrize(
    "breaks",
    [
        flushed,
        replaced_by_an_empty_one,
        evicted,
        trimmed,
        groups_lost,
        full,
        read_only,
        hung,
        slow,
        partitioned,
        flapping,
    ],
)
async def test_all_recover_without_help(breaks: Break) -> None:
    """All parts recover from each fault of the server or the connection."""
    async with redis_under_load() as under_load:
        await under_load.work.moves()
        await breaks(under_load)
        await under_load.work.moves()
        await under_load.work.assert_whole()


async def test_a_file_that_was_torn_loses_its_tail_and_nothing_else() -> None:
    """After a kill -9 with appendonly the server returns with the complete entries; the rest is appended again."""
    async with redis_under_load(options=ServerOptions(appendonly=True)) as under_load:
        await under_load.work.moves()
        await under_load.server.kill()
        [file] = _files(under_load.server.log.parent)
        with file.open("r+b") as torn:
            torn.truncate(max(0, file.stat().st_size * 2 // 3 - 7))
        await under_load.work.moves(1)
        await under_load.server.start()
        await under_load.work.moves()
        await under_load.work.assert_whole()


def _files(folder: Path) -> list[Path]:
    return list(folder.glob("appendonlydir/*.incr.aof"))


async def test_a_disk_that_cannot_be_written_is_waited_for() -> None:
    """MISCONF: writes are refused until a snapshot was saved."""
    async with redis_under_load(options=ServerOptions(extra=("--enable-protected-configs", "yes"))) as under_load:
        await under_load.work.moves()
        gone = under_load.server.log.parent / "gone"
        gone.mkdir()
        for name, value in (("save", "3600 1000000"), ("dir", str(gone))):
            await under_load.command("CONFIG", "SET", name, value)
        gone.rmdir()
        await under_load.command("BGSAVE")
        await _until(under_load, "rdb_last_bgsave_status:err")
        await refused(under_load, UnavailableError)
        gone.mkdir()
        await under_load.command("CONFIG", "SET", "dir", str(gone))
        await under_load.command("BGSAVE")
        await _until(under_load, "rdb_last_bgsave_status:ok")
        await under_load.work.moves()
        await under_load.work.assert_whole()


async def _until(under_load: RedisUnderLoad, said: str) -> None:
    async with asyncio.timeout(20):
        while said.encode() not in await under_load.command("INFO", "persistence"):  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.02)


async def test_a_server_that_reads_its_file_is_waited_for() -> None:
    """LOADING: the server answers, and executes nothing yet."""
    async with redis_under_load(
        options=ServerOptions(appendonly=True, extra=("--enable-debug-command", "yes"))
    ) as under_load:
        await under_load.work.moves()
        for number in range(200):
            await under_load.command("SET", f"ballast:{number}", "x" * 1_000)
        for name, value in (("key-load-delay", 3_000), ("loading-process-events-interval-bytes", 1_024)):
            await under_load.command("CONFIG", "SET", name, value)
        loading = asyncio.ensure_future(under_load.command("DEBUG", "RELOAD"))
        await under_load.work.moves(2)
        await asyncio.gather(loading, return_exceptions=True)
        await under_load.work.moves()
        await under_load.work.assert_whole()


async def test_a_failover_to_a_replica_that_lags() -> None:
    """The link is cut, the last events are lost, and an older copy takes over without a notice. (V12)"""
    port = free_port()
    async with redis_under_load(options=ServerOptions(port=port)) as under_load, server_process("redis") as copy:
        await under_load.command("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        await under_load.command("REPLICAOF", "127.0.0.1", port, server=copy)
        await under_load.work.moves()
        await under_load.work.until_whole()
        async with asyncio.timeout(30):
            while b"master_link_status:up" not in await under_load.command("INFO", "replication", server=copy):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await under_load.command("REPLICAOF", "NO", "ONE", server=copy)  # the copy lacks all later entries
        await under_load.work.moves()
        await under_load.work.until_whole()
        await under_load.server.kill()
        under_load.proxy.target = copy.socket
        await under_load.work.moves()
        await under_load.work.assert_whole()
