"""The backends that the stream suites run on: the in-memory model and real servers, each emptied per test."""

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from slipway.local.valkey import ServerOptions, ValkeyProcess, find_bundled_server
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId, allocation_id
from slipway.model.lifecycle import Event, Phase
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import RedisClient, RedisSettings
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.pages import id_text
from slipway.streams.ports import Streams
from slipway.streams.redis_streams import RedisStreams

REDIS_SERVER = Path("/usr/bin/redis-server")
BACKENDS = ("memory", "valkey", "redis")


class Backend(Protocol):
    """One server, as a test meets it: processes connect, an operator flushes."""

    def connect(self) -> Streams: ...
    async def flush(self) -> None: ...
    async def keys(self) -> set[str]: ...
    async def ttl_s(self, key: str) -> float | None: ...
    async def add_raw(self, key: str, entry_id: str | None, fields: dict[str, bytes]) -> None: ...
    async def length(self, key: str) -> int: ...


class MemoryBackend:
    """The model."""

    def __init__(self) -> None:
        self.server = MemoryServer(SystemClock())

    def connect(self) -> Streams:
        return MemoryStreams(self.server)

    async def flush(self) -> None:
        self.server.flush()

    async def keys(self) -> set[str]:
        return set(self.server.keys())

    async def ttl_s(self, key: str) -> float | None:
        return self.server.ttl_s(key)

    async def add_raw(self, key: str, entry_id: str | None, fields: dict[str, bytes]) -> None:
        if entry_id is None:
            self.server.add(key, fields)
        else:
            major, minor = entry_id.split("-")
            self.server.add(key, fields, entry_id=(int(major), int(minor)))

    async def length(self, key: str) -> int:
        stream = self.server.stream(key)
        return len(stream.entries) if stream is not None else 0


class RedisBackend:
    """A real server."""

    def __init__(self, url: str, *, cluster: bool = False) -> None:
        self._settings = RedisSettings(url=url, cluster=cluster)
        self._operator = self.client()
        self._open: list[Streams] = []

    def client(self) -> RedisClient:
        """A client of its own."""
        return RedisClient(self._settings, SystemClock(), SeededRandom(1))

    def connect(self) -> Streams:
        streams = RedisStreams(self.client())
        self._open.append(streams)
        return streams

    async def command(self, *args: str | bytes | int, key: str = "slipway") -> Any:
        """Any command, as an operator would type it."""
        from slipway.streams.client import Command

        return await self._operator.run(Command(key, args))

    async def flush(self) -> None:
        await self.command("FLUSHALL")

    async def keys(self) -> set[str]:
        return {key.decode() for key in await self.command("KEYS", "*")}

    async def ttl_s(self, key: str) -> float | None:
        ttl_ms = await self.command("PTTL", key, key=key)
        return None if ttl_ms < 0 else ttl_ms / 1_000

    async def add_raw(self, key: str, entry_id: str | None, fields: dict[str, bytes]) -> None:
        flat = [part for item in fields.items() for part in item]
        await self.command("XADD", key, entry_id or "*", *flat, key=key)

    async def length(self, key: str) -> int:
        return await self.command("XLEN", key, key=key)

    async def aclose(self) -> None:
        """Close every connection that the test opened."""
        for streams in self._open:
            await streams.aclose()
        await self._operator.aclose()


def free_port() -> int:
    """A free loopback port, low enough for the bus of a cluster node 10,000 above it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_000:
            return port


def server_binary(name: str) -> Path:
    """The server behind a backend's name; skips the test when this machine has none."""
    binary = find_bundled_server() if name == "valkey" else REDIS_SERVER
    if binary is None or not binary.exists():
        pytest.skip(f"no {name} server on this machine")
    return binary


@contextmanager
def running_server(name: str, options: ServerOptions | None = None) -> Generator[ValkeyProcess]:
    """A server of that name in a folder of its own (short: the path of a socket has a limit)."""
    binary = server_binary(name)
    folder = Path(tempfile.mkdtemp(prefix="slipway-"))
    server = ValkeyProcess(folder, options, binary=binary)
    try:
        asyncio.run(server.start())
        yield server
    finally:
        asyncio.run(server.stop())
        shutil.rmtree(folder)


@asynccontextmanager
async def server_process(name: str = "valkey", options: ServerOptions | None = None) -> AsyncGenerator[ValkeyProcess]:
    """The same for one test, which may stop and start it."""
    folder = Path(tempfile.mkdtemp(prefix="slipway-"))
    server = ValkeyProcess(folder, options, binary=server_binary(name))
    try:
        await server.start()
        yield server
    finally:
        await server.stop()
        shutil.rmtree(folder)


def an_id(name: str = "train", uid: str = "0123abcd-0000-0000-0000-000000000000") -> AllocationId:
    """An AllocationID."""
    return allocation_id(name, uid)


def an_event(seq: int = 1, *, name: str = "train", type: Event = Event.UPDATED, **changes: Any) -> AllocationEvent:
    """One event of an allocation."""
    uid = "0123abcd-0000-0000-0000-000000000000"
    values: dict[str, Any] = {
        "allocation_id": allocation_id(name, uid),
        "namespace": "default",
        "name": name,
        "uid": uid,
        "created_ms": 1_700_000_000_000,
        "seq": seq,
        "attempt": 1,
        "type": type,
        "phase": Phase.TERMINATED if type is Event.TERMINATED else Phase.RUNNING,
        "reason": "",
        "time": "2026-01-02T03:04:05Z",
        "data": {"ranks": seq},
    }
    return AllocationEvent(**(values | changes))


def cursor(seq: int) -> str:
    """The cursor of `an_event(seq)` in its allocation's stream."""
    return id_text((1_700_000_000_000, seq))
