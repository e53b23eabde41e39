"""The commands that a real Redis executes for each call of the streams' port, counted by the server itself.

Owns a fixed sequence of calls, one client and one server. A script counts as itself and as each command inside it,
because both are work of the server. The commands at the beginning of a connection are sent before the count begins.
Must not read a clock.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from bench.streams import UID, an_entry
from slipway.local.valkey import ValkeyProcess
from slipway.model.ids import allocation_id
from slipway.runtime.clock import SystemClock, SystemRandom
from slipway.streams.client import RedisSettings
from slipway.streams.logpacks import LogKey, LogPack, LogPosition
from slipway.streams.ports import FeedEntry, FeedOp, WorkHint
from slipway.streams.redis_streams import RedisStreams, connect

BATCH = 10
_OURS = frozenset({"info", "ping", "hello", "client|setinfo", "client|setname", "select", "auth", "script|load"})
"""The commands of the counter itself, and of new connections, which are not counted."""

Call = Callable[[], Awaitable[Any]]


class Sequence:
    """Each call of the port as in a launch; `number` makes the names that a call writes differ from earlier names."""

    def __init__(self, streams: RedisStreams) -> None:
        self._streams = streams
        self._queue = streams.work_queue("budget")
        self._claimed: list[Any] = []
        self._cursor: str | None = None
        self._fed = 1
        self.number = 0

    def calls(self) -> dict[str, Call]:
        """Return {name: call}, in an order in which the calls can be made."""
        return {
            "append 1 event": lambda: self._append(1),
            f"append {BATCH} events": lambda: self._append(BATCH),
            f"feed of {BATCH}": self._feed,
            f"send {BATCH} hints": self._send,
            f"claim {BATCH} hints": self._claim,
            f"heartbeat of {BATCH}": lambda: self._queue.heartbeat(self._claimed),
            f"ack of {BATCH}": lambda: self._queue.ack(self._claimed),
            "ring": lambda: self._streams.wake.ring("budget"),
            f"log lines of {BATCH}": self._log,
            "trim": self._queue.trim,
            "backlog": self._queue.backlog,
        }

    def _names(self, count: int) -> list[str]:
        self.number += count
        return [f"job-{self.number - each}" for each in range(count)]

    async def _append(self, count: int) -> None:
        await self._streams.events.append([an_entry(name, 1) for name in self._names(count)])

    async def _feed(self) -> None:
        entries = [
            FeedEntry(epoch=1, number=self._fed + place, kind="pods", op=FeedOp.PUT, key=name, rv="1", data=b"{}" * 60)
            for place, name in enumerate(self._names(BATCH))
        ]
        self._fed += BATCH
        self._cursor = await self._streams.feed.append(entries, after=self._cursor)

    async def _send(self) -> None:
        hints = [WorkHint(namespace="default", allocation=allocation_id(n, UID)) for n in self._names(BATCH)]
        await self._streams.hints.send(hints)

    async def _claim(self) -> None:
        self._claimed = []
        for _ in range(BATCH):  # a claim may return only a part of the waiting hints
            self._claimed += await self._queue.claim(limit=BATCH - len(self._claimed), block_s=0.0)
            if len(self._claimed) == BATCH:
                return
        raise RuntimeError(f"{len(self._claimed)} of {BATCH} hints claimed")

    async def _log(self) -> None:
        packs = [
            LogPack(
                allocation=allocation_id(name, UID),
                source=LogKey(attempt=1, rank=0),
                after=LogPosition(),
                first=1,
                lines=[b"2026-01-02T03:04:05Z epoch 1"],
                position=LogPosition(number=1, second="2026-01-02T03:04:05Z", seen=1),
                share_bytes=1_048_576,
            )
            for name in self._names(BATCH)
        ]
        await self._streams.logs.append(packs)


async def measure() -> dict[str, float]:
    """Return {name of a count: commands of one call}."""
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        server = ValkeyProcess(Path(folder))
        await server.start()
        streams = connect(RedisSettings(url=server.url), clock=SystemClock(), random=SystemRandom())
        counter: Any = Redis(unix_socket_path=server.url.removeprefix("unix://"))
        try:
            sequence = Sequence(streams)
            found: dict[str, float] = {}
            for is_counted in (False, True):
                for name, call in sequence.calls().items():
                    before = await _executed(counter)
                    await call()
                    if is_counted:
                        found[f"redis commands, {name}"] = float(await _executed(counter) - before)
            return found
        finally:
            await counter.aclose()
            await streams.aclose()
            await server.stop()


async def _executed(counter: Any) -> int:
    stats = await counter.info("commandstats")
    return sum(int(each["calls"]) for name, each in stats.items() if name.removeprefix("cmdstat_") not in _OURS)


def main() -> None:
    """`python -m bench.budget.exchanges`: print the counts as JSON."""
    json.dump(asyncio.run(measure()), sys.stdout)


if __name__ == "__main__":
    main()
