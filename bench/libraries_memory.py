"""Redis in memory, for the simulation: compares our model of the used commands with fakeredis, which runs our scripts.

Owns one round of stream calls that both sides can run, and the check whether two runs give the same ids. fakeredis
reads the time of the machine; ours uses the clock that it is given. The peers are not installed with the product.
Without fakeredis and lupa nothing is compared.
"""

import importlib
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import AbstractConnection

from bench.runner import Row, paired, row
from bench.streams import UID, an_entry
from slipway.model.ids import allocation_id
from slipway.runtime.clock import SeededRandom
from slipway.streams import keys
from slipway.streams.client import RedisClient, RedisSettings
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import Streams, WorkHint
from slipway.streams.redis_streams import RedisStreams
from slipway.streams.routes import RedisAddress
from tests.support.clock import FakeClock

BATCH = 8
ROUNDS = 60
PLAYED = 20
PEER = "fakeredis"


def lacks() -> str:
    """Return the missing packages of the peer; empty when all are installed."""
    return ", ".join(name for name in ("fakeredis", "lupa") if importlib.util.find_spec(name) is None)


class _FakeClient(RedisClient):
    """Our client with connections to a fakeredis server in this process."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(RedisSettings(url="redis://in-memory"), clock, SeededRandom(1))
        self._fake: Any = importlib.import_module("fakeredis")
        self._server = self._fake.FakeServer(server_type="redis", version=(7,))

    async def _open(self, address: RedisAddress) -> AbstractConnection:
        kind: Any = importlib.import_module("fakeredis.aioredis").FakeAsyncRedisConnection
        options: dict[str, Any] = {"server_type": "redis", "version": (7,), "protocol": 2, "lua_modules": set()}
        connection: AbstractConnection = kind(server=self._server, **options)
        await connection.connect()
        return connection


def _ours(clock: FakeClock) -> Streams:
    return MemoryStreams(MemoryServer(clock))


def _peer(clock: FakeClock) -> Streams:
    return RedisStreams(_FakeClient(clock))


async def _round(streams: Streams, number: int) -> list[str]:
    """Append some events, and send, claim and acknowledge some hints; return the ids of the hints."""
    names = [f"a{number}-{place}" for place in range(BATCH)]
    await streams.events.append([an_entry(name, 1) for name in names])
    await streams.hints.send([WorkHint(namespace="default", allocation=allocation_id(name, UID)) for name in names])
    queue = streams.work_queue("bench")
    taken = await queue.claim(limit=BATCH, block_s=0.0)
    await queue.ack(taken)
    return [each.entry_id for each in taken]


async def _cost(made: Callable[[FakeClock], Streams]) -> float:
    """Return the CPU time of a round in microseconds."""
    streams = made(FakeClock())
    await _round(streams, 0)
    cpu_s = time.process_time()
    for number in range(1, ROUNDS + 1):
        await _round(streams, number)
    spent_s = time.process_time() - cpu_s
    await _closed(streams)
    return spent_s / ROUNDS * 1e6


async def _differing(made: Callable[[FakeClock], Streams]) -> float:
    """Return how many ids differ between two equal runs."""
    plays: list[list[str]] = []
    for _ in range(2):
        clock, ids = FakeClock(), list[str]()
        streams = made(clock)
        for number in range(PLAYED):
            ids += await _round(streams, number)
            clock.advance(0.25)
        await _closed(streams)
        plays.append(ids)
    return float(sum(1 for left, right in zip(*plays, strict=True) if left != right))


async def _outlived(made: Callable[[FakeClock], Streams]) -> float:
    """Return how many keys still exist after their lifetime by the given clock."""
    clock = FakeClock()
    streams = made(clock)
    used = [allocation_id(f"a{number}", UID) for number in range(PLAYED)]
    await streams.activity.touch({each: {"proxy": clock.now()} for each in used})
    clock.advance(keys.ACTIVITY.ttl_s + 1.0)
    left = await streams.activity.read(used)
    await _closed(streams)
    return float(sum(1 for each in left if each))


async def _closed(streams: Streams) -> None:
    if isinstance(streams, RedisStreams):
        await streams.aclose()


async def measure(runs: int) -> list[Row]:
    """Return the rows of this comparison."""
    if missing := lacks():
        print(f"bench libraries: without {missing} nothing is compared with {PEER}", file=sys.stderr)
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        costs = await paired(runs, lambda _: _cost(_ours), lambda _: _cost(_peer))
        differing = await _differing(_ours), await _differing(_peer)
        outlived = await _outlived(_ours), await _outlived(_peer)
    work = f"Redis in memory: {BATCH} events, and {BATCH} hints to the end, cpu"
    late = f"Redis in memory: of {PLAYED} keys whose time is over by the given clock, still there"
    ids = f"Redis in memory: of {PLAYED * BATCH} ids of two plays, not the same"
    return [
        row("LIB-memory-round", work, costs[0], "us", peer=costs[1], peer_name=PEER),
        row("LIB-memory-ids", ids, [differing[0]], "ids", peer=[differing[1]], peer_name=PEER),
        row("LIB-memory-expiry", late, [outlived[0]], "keys", peer=[outlived[1]], peer_name=PEER),
    ]
