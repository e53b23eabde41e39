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


async def test_a_rank_that_lags_loses_no_line_while_redis_is_away(world: ApiWorld) -> None:
    """Each rank goes on after its own last line, not after the newest of all; each line comes once, beyond a tail."""
    await world.launch(name="gang", ranks=[{"count": 2}])
    gang = await world.run("gang")
    world.server.absent = True
    found: list[str] = []
    news = asyncio.Event()

    async def emit(page: Sequence[LogLineView]) -> None:
        found.extend(line.text for line in page)
        news.set()

    async def come(*texts: str) -> None:
        while sorted(found) != sorted(texts):
            news.clear()
            await news.wait()

    feed = LogFeed(world.streams.logs, world.kube, world.parts.lookup, world.clock)
    said = world.pod_logs.said
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        following = group.create_task(feed.follow(gang, Wanted(tail=1), emit))
        said[0] = ["2026-01-02T03:04:10Z first of 0"]
        await come("first of 0")
        said[1] = ["2026-01-02T03:04:05Z first of 1", "2026-01-02T03:04:06Z second of 1"]
        await come("first of 0", "first of 1", "second of 1")
        said[0].append("2026-01-02T03:04:11Z second of 0")
        await come("first of 0", "first of 1", "second of 1", "second of 0")
        following.cancel()
