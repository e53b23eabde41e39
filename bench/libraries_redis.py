"""Exchanges with Redis: our client compared with redis-py's own clients, as a program would use them.

Owns `LibraryClient`, which implements our port (`run`, `pipeline`, `block`) with redis-py's `Redis` and `RedisCluster`
only. The same calls of our streams therefore run on both.
"""

import asyncio
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from bench.runner import Row, paired, row
from bench.streams import an_entry
from slipway.errors import ControlPlaneError
from slipway.local.valkey import ServerOptions, ValkeyProcess
from slipway.runtime.clock import SystemClock, SystemRandom
from slipway.streams.client import Command, RedisClient, RedisSettings, command
from slipway.streams.ports import NoTally
from slipway.streams.redis_events import RedisEvents
from slipway.streams.replies import translate
from slipway.streams.routes import Reply
from slipway.streams.tail import Tail

PIPELINE = 16
EVENTS = 8
CONNECTIONS = 32
TIMEOUT_S = 2.0
PEER = "redis.asyncio"

Port = "RedisClient | LibraryClient"
Exchange = Callable[[Any, int], Awaitable[object]]


class LibraryClient:
    """Our port on redis-py's own client: one server, or with several ports a Cluster. It sends nothing twice."""

    clock = SystemClock()
    command_timeout_s = TIMEOUT_S

    def __init__(self, url: str = "", ports: Sequence[int] = (), connections: int = CONNECTIONS) -> None:
        self.is_cluster = bool(ports)
        self._redis: Any
        plain: dict[str, Any] = {"protocol": 2, "driver_info": None, "retry": Retry(NoBackoff(), 0)}
        if ports:
            nodes = [ClusterNode("127.0.0.1", port) for port in ports]
            self._redis = RedisCluster(
                startup_nodes=nodes,
                max_connections=connections,
                socket_timeout=None,
                require_full_coverage=False,
                **plain,
            )
            told = {name: read for name, read in self._redis.response_callbacks.items() if name.startswith("COMMAND")}
            self._redis.nodes_manager.connection_kwargs["response_callbacks"] = told
            for node in self._redis.nodes_manager.startup_nodes.values():
                node.response_callbacks = told
        else:
            pools: Any = BlockingConnectionPool
            plain |= {"max_connections": connections, "timeout": TIMEOUT_S, "socket_timeout": None}
            self._redis = Redis.from_pool(pools.from_url(url, **plain))
            self._redis.response_callbacks.clear()

    async def run(self, each: Command) -> Reply:
        """Return the reply to one command."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self._redis.execute_command(*each.args)

    async def pipeline(self, commands: Sequence[Command]) -> list[Reply | ControlPlaneError]:
        """Return the replies to commands sent in one batch; an error reply is a value."""
        pipe = self._redis.pipeline() if self.is_cluster else self._redis.pipeline(transaction=False)
        for each in commands:
            pipe.execute_command(*each.args)
        async with asyncio.timeout(TIMEOUT_S):
            replies = cast("list[Any]", await pipe.execute(raise_on_error=False))
        return [translate(reply) if isinstance(reply, ResponseError) else reply for reply in replies]

    async def block(self, each: Command, *, block_s: float) -> Reply:
        """Return the reply to a command that may block."""
        async with asyncio.timeout(TIMEOUT_S + block_s):
            return await self._redis.execute_command(*each.args)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def our_client(url: str, connections: int = CONNECTIONS) -> RedisClient:
    """Return the client of the product."""
    settings = RedisSettings(url=url, connections_max=connections, command_timeout_s=TIMEOUT_S)
    return RedisClient(settings, SystemClock(), SystemRandom())


async def _ping(client: RedisClient, number: int) -> object:
    return await client.run(Command("k", ("PING",)))


async def _pipeline(client: RedisClient, number: int) -> object:
    one = command("XADD", "s", "MAXLEN", "~", 1_000, "*", "type", "Running", "data", b"x" * 300, "time", "2026-01-02")
    return await client.pipeline([one] * PIPELINE)


async def _append(client: RedisClient, number: int) -> object:
    entries = [an_entry(f"a{number}-{place}", 1) for place in range(EVENTS)]
    return await RedisEvents(client, Tail(client), NoTally()).append(entries)


async def _group(client: RedisClient, number: int) -> object:
    if number == 0:
        await client.pipeline([command("XGROUP", "CREATE", "w", "g", "0", "MKSTREAM")])
    await client.pipeline([command("XADD", "w", "MAXLEN", "~", 1_000, "*", "a", "b")])
    read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", 16, "BLOCK", 100, "STREAMS", "w", ">")
    return await client.block(Command("w", read), block_s=0.1)


EXCHANGES: dict[str, tuple[str, Exchange, int]] = {
    "ping": ("one command", _ping, 2_000),
    "pipeline": (f"a pipeline of {PIPELINE} XADDs", _pipeline, 500),
    "append": (f"{EVENTS} events appended (EVALSHA)", _append, 300),
    "group": ("an XADD, and a blocking XREADGROUP that finds it", _group, 700),
}


async def _sample(client: Any, exchange: Exchange, count: int) -> tuple[float, float]:
    """Return the microseconds of one exchange: CPU time, and wall time."""
    await exchange(client, 0)
    cpu_s, started_s = time.process_time(), time.perf_counter()
    for number in range(count):
        await exchange(client, number + 1)
    return (time.process_time() - cpu_s) / count * 1e6, (time.perf_counter() - started_s) / count * 1e6


async def _compared(runs: int, way: str, url: str) -> list[Row]:
    rows: list[Row] = []
    ours, peer = our_client(url), LibraryClient(url)
    try:
        for name, (work, exchange, count) in EXCHANGES.items():
            walls: tuple[list[float], list[float]] = ([], [])

            def side(
                client: Any, wall: list[float], exchange: Exchange = exchange, count: int = count
            ) -> Callable[[int], Awaitable[float]]:
                async def sample(_: int) -> float:
                    cpu_us, wall_us = await _sample(client, exchange, count)
                    wall.append(wall_us)
                    return cpu_us

                return sample

            await ours.run(Command("k", ("FLUSHALL",)))
            cpu = await paired(runs, side(ours, walls[0]), side(peer, walls[1]))
            for what, (left, right) in (("cpu", cpu), ("wall", walls)):
                id_ = f"LIB-redis-{way}-{name}-{what}"
                rows.append(row(id_, f"Redis, {way}: {work}, {what}", left, "us", peer=right, peer_name=PEER))
    finally:
        await ours.aclose()
        await peer.aclose()
    return rows


async def measure(runs: int) -> list[Row]:
    """Return the rows over a socket file, and over TCP."""
    rows: list[Row] = []
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    for way, options in (("socket", None), ("tcp", ServerOptions(port=port))):
        with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
            server = ValkeyProcess(Path(folder), options)
            await server.start()
            try:
                rows += await _compared(runs, way, server.url)
            finally:
                await server.stop()
    return rows
