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
from tests.support.redis_workshop import Shop, a_shop

# asyncio leaves a connection that is cancelled while it is being opened to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

AWAY_S = 0.6
"""Longer than the timeout of a command, and than several backoffs."""
Break = Callable[[Shop], Awaitable[None]]


async def flushed(shop: Shop) -> None:
    for _ in range(3):
        await shop.command("FLUSHALL")
        await shop.work.moves(1)


async def replaced_by_an_empty_one(shop: Shop) -> None:
    await shop.server.kill()
    await shop.work.moves(1)
    await shop.server.start()


async def evicted(shop: Shop) -> None:
    for key in await shop.command("KEYS", "slipway:*"):
        await shop.command("DEL", key.decode())
        await asyncio.sleep(0)


async def trimmed(shop: Shop) -> None:
    """Trim the streams under their followers, and the work streams under their consumers."""
    for key in await shop.command("KEYS", "slipway:alloc:*"):
        await shop.command("XTRIM", key.decode(), "MAXLEN", 0)
    for key in keys.WORK_KEYS:
        await shop.command("XTRIM", key, "MAXLEN", 0)


async def groups_lost(shop: Shop) -> None:
    for key in await shop.command("KEYS", "slipway:work:*"):
        await shop.command("XGROUP", "DESTROY", key.decode(), keys.WORK_GROUP)


async def full(shop: Shop) -> None:
    """With noeviction: writes that need memory are refused, and nothing is removed."""
    await shop.command("CONFIG", "SET", "maxmemory", 1)
    await refused(shop, ThrottledError)
    await shop.command("CONFIG", "SET", "maxmemory", 0)


async def read_only(shop: Shop) -> None:
    await shop.command("REPLICAOF", "127.0.0.1", 1)
    await refused(shop, UnavailableError)
    await shop.command("REPLICAOF", "NO", "ONE")


async def hung(shop: Shop) -> None:
    """Connections stay open, and no reply arrives."""
    shop.switch.mode = "deaf"
    await shop.work.moves(2)
    await asyncio.sleep(AWAY_S)
    shop.switch.mode = "pass"
    shop.switch.cut()


async def slow(shop: Shop) -> None:
    shop.switch.mode = "slow"
    await shop.work.moves()
    await asyncio.sleep(AWAY_S)
    shop.switch.mode = "pass"


async def partitioned(shop: Shop) -> None:
    shop.switch.mode = "refuse"
    shop.switch.cut()
    await shop.work.moves(2)
    await asyncio.sleep(AWAY_S)
    shop.switch.mode = "pass"


async def flapping(shop: Shop) -> None:
    """Connections are closed again and again, each time in the middle of an exchange."""
    for _ in range(10):
        shop.switch.cut()
        await shop.work.moves(0)
        await asyncio.sleep(0.05)


async def refused(shop: Shop, error: type[Exception]) -> None:
    """Commands are refused for a while, with the error that callers know."""
    await shop.work.moves(2)
    with pytest.raises(error):
        await shop.work.connect().wake.ring("x")
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
    async with a_shop() as shop:
        await shop.work.moves()
        await breaks(shop)
        await shop.work.moves()
        await shop.work.assert_whole()


async def test_a_file_that_was_torn_loses_its_tail_and_nothing_else() -> None:
    """After a kill -9 with appendonly the server returns with the complete entries; the rest is appended again."""
    async with a_shop(options=ServerOptions(appendonly=True)) as shop:
        await shop.work.moves()
        await shop.server.kill()
        [file] = _files(shop.server.log.parent)
        with file.open("r+b") as torn:
            torn.truncate(max(0, file.stat().st_size * 2 // 3 - 7))
        await shop.work.moves(1)
        await shop.server.start()
        await shop.work.moves()
        await shop.work.assert_whole()


def _files(folder: Path) -> list[Path]:
    return list(folder.glob("appendonlydir/*.incr.aof"))


async def test_a_disk_that_cannot_be_written_is_waited_for() -> None:
    """MISCONF: writes are refused until a snapshot was saved."""
    async with a_shop(options=ServerOptions(extra=("--enable-protected-configs", "yes"))) as shop:
        await shop.work.moves()
        gone = shop.server.log.parent / "gone"
        gone.mkdir()
        for name, value in (("save", "3600 1000000"), ("dir", str(gone))):
            await shop.command("CONFIG", "SET", name, value)
        gone.rmdir()
        await shop.command("BGSAVE")
        await _until(shop, "rdb_last_bgsave_status:err")
        await refused(shop, UnavailableError)
        gone.mkdir()
        await shop.command("CONFIG", "SET", "dir", str(gone))
        await shop.command("BGSAVE")
        await _until(shop, "rdb_last_bgsave_status:ok")
        await shop.work.moves()
        await shop.work.assert_whole()


async def _until(shop: Shop, said: str) -> None:
    async with asyncio.timeout(20):
        while said.encode() not in await shop.command("INFO", "persistence"):  # noqa: ASYNC110 - a server's state
            await asyncio.sleep(0.02)


async def test_a_server_that_reads_its_file_is_waited_for() -> None:
    """LOADING: the server answers, and executes nothing yet."""
    async with a_shop(options=ServerOptions(appendonly=True, extra=("--enable-debug-command", "yes"))) as shop:
        await shop.work.moves()
        for number in range(200):
            await shop.command("SET", f"ballast:{number}", "x" * 1_000)
        for name, value in (("key-load-delay", 3_000), ("loading-process-events-interval-bytes", 1_024)):
            await shop.command("CONFIG", "SET", name, value)
        loading = asyncio.ensure_future(shop.command("DEBUG", "RELOAD"))
        await shop.work.moves(2)
        await asyncio.gather(loading, return_exceptions=True)
        await shop.work.moves()
        await shop.work.assert_whole()


async def test_a_failover_to_a_replica_that_lags() -> None:
    """The link is cut, the last events are lost, and an older copy takes over without a notice. (V12)"""
    port = free_port()
    async with a_shop(options=ServerOptions(port=port)) as shop, server_process("redis") as copy:
        await shop.command("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        await shop.command("REPLICAOF", "127.0.0.1", port, server=copy)
        await shop.work.moves()
        await shop.work.until_whole()
        async with asyncio.timeout(30):
            while b"master_link_status:up" not in await shop.command("INFO", "replication", server=copy):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await shop.command("REPLICAOF", "NO", "ONE", server=copy)  # the copy lacks all later entries
        await shop.work.moves()
        await shop.work.until_whole()
        await shop.server.kill()
        shop.switch.target = copy.socket
        await shop.work.moves()
        await shop.work.assert_whole()
