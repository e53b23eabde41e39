"""Behind a Sentinel: the client asks it for the master, and asks again when the known master is gone."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from slipway.errors import UnavailableError
from slipway.local.valkey import ServerOptions, ValkeyProcess
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import RedisClient, RedisSettings, command
from tests.support.ports import free_port
from tests.support.redis import server_binary, server_process


@pytest.fixture
async def master() -> AsyncGenerator[tuple[ValkeyProcess, int]]:
    port = free_port()
    async with server_process(options=ServerOptions(port=port)) as server:
        yield server, port


@pytest.fixture
async def sentinel(master: tuple[ValkeyProcess, int]) -> AsyncGenerator[int]:
    """A Sentinel that watches the master; returns its port."""
    server, master_port = master
    port = free_port()
    folder = Path(server.socket.parent, "sentinel")
    folder.mkdir()  # noqa: ASYNC240
    config = folder / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor main 127.0.0.1 {master_port} 1\n")
    process = subprocess.Popen(  # noqa: ASYNC220
        [str(server_binary("valkey")), str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    yield port
    process.send_signal(signal.SIGTERM)
    process.wait(5)


async def until_runs(client: RedisClient) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await client.run(command("SET", "slipway:x", "1"))
                return
            except UnavailableError:
                await asyncio.sleep(0.02)


async def test_the_master_is_found_through_a_sentinel(master: tuple[ValkeyProcess, int], sentinel: int) -> None:
    """It is found also when one of the named Sentinels is down, and again after the master was down."""
    settings = RedisSettings(url=f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel}/main/0")
    client = RedisClient(settings, SystemClock(), SeededRandom(1))
    await until_runs(client)
    await master[0].kill()
    with pytest.raises(UnavailableError):
        await client.ping()
    await master[0].start()
    await until_runs(client)
    await client.aclose()


async def test_a_sentinel_that_says_nothing_is_passed_over(master: tuple[ValkeyProcess, int], sentinel: int) -> None:
    """A Sentinel that accepts connections and never answers costs a part of a command's time, not all of it."""
    ended = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as mute:
        port = mute.sockets[0].getsockname()[1]
        settings = RedisSettings(url=f"redis+sentinel://127.0.0.1:{port},127.0.0.1:{sentinel}/main")
        client = RedisClient(settings, SystemClock(), SeededRandom(1))
        try:
            await client.run(command("SET", "slipway:x", "1"))
        finally:
            ended.set()
            await client.aclose()


async def test_an_unknown_service_has_no_master(master: tuple[ValkeyProcess, int], sentinel: int) -> None:
    """A Sentinel that does not know the service is treated like none."""
    settings = RedisSettings(url=f"redis+sentinel://127.0.0.1:{sentinel}/other/0")
    client = RedisClient(settings, SystemClock(), SeededRandom(1))
    with pytest.raises(UnavailableError):
        await client.ping()
    await client.aclose()
