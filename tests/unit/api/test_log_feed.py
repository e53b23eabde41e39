"""Following a log: nothing that is stored is left out, however late it comes from the store."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from slipway.api.log_feed import LogFeed, Wanted
from slipway.api.schemas import LogLineView
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event
from slipway.streams.logpacks import LogLine, LogPosition, LogSource, StoredLine
from slipway.streams.memory_logs import MemoryLogs
from slipway.streams.ports import NoTally
from tests.support.api_world import ApiWorld
from tests.support.logs import end_logs, store_lines


class LateLogs(MemoryLogs):
    """A store whose followers get nothing until the reader has asked twice where the logs end."""

    def __init__(self, world: ApiWorld) -> None:
        super().__init__(world.server, NoTally())
        self._asked = 0
        self._goes_on = asyncio.Event()

    async def positions(self, allocation: AllocationId) -> dict[LogSource, LogPosition]:
        self._asked += 1
        if self._asked > 2:
            self._goes_on.set()
        return await super().positions(allocation)

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        await self._goes_on.wait()
        async with aclosing(super().follow(allocation, after=after)) as pages:
            async for page in pages:
                yield page


async def test_what_is_stored_is_sent_before_following_ends(world: ApiWorld) -> None:
    """The allocation has ended and its logs are stored to their end; a follower that is slow still gets every line."""
    answer = await world.launch()
    lines = [LogLine(attempt=1, rank=0, time=f"2026-01-02T03:04:0{n}Z", text=f"line {n}") for n in range(5)]
    await store_lines(world.streams, AllocationId(answer["id"]), lines)
    await end_logs(world.streams, AllocationId(answer["id"]))
    ended = await world.step(answer["name"], Event.TERMINATED)
    found: list[str] = []

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)

    feed = LogFeed(LateLogs(world), world.kube, world.parts.lookup, world.clock)
    async with asyncio.timeout(15):
        await feed.follow(ended, Wanted(), emit)
    assert found == [f"line {n}" for n in range(5)]
