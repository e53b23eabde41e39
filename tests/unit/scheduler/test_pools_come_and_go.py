"""Finding pools: the feed says when to look, a LIST says what there is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from slipway.kube.errors import Verb
from slipway.kube.resources import RESOURCE_POOLS
from slipway.runtime.clock import SeededRandom
from slipway.runtime.health import ProcessHealth
from slipway.runtime.service import ServiceStop
from slipway.scheduler.leader import LIST_S, Scheduler
from slipway.scheduler.settings import Settings
from slipway.scheduler.standby import SchedulerDeps
from slipway.streams.feed import Delta, FeedPublisher
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import FeedOp
from tests.support.small_cluster import a_client, a_core, furnish
from tests.support.virtual_time import VirtualClock, run_virtual

LOOK_S = 2.0


class PoolDiscoveryHarness:
    """A scheduler that looks for pools as its process does, beside a publisher of the feed."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.clock = VirtualClock()
        core = a_core(self.clock.now)
        self.kube, self.its = a_client(core), a_client(core, seed=2)
        self.streams = MemoryStreams(MemoryServer(self.clock))
        self.publisher = FeedPublisher(self.streams.feed, self.clock, term=1)
        self.scheduler = Scheduler(
            SchedulerDeps(
                kube=self.its,
                streams=self.streams,
                clock=self.clock,
                random=SeededRandom(3),
                health=ProcessHealth(self.clock),
                settings=Settings(),
                identity="one",
            )
        )
        self.lists = 0
        self.pools: dict[str, ServiceStop] = {}
        self._tasks = tasks
        self.its.before = self._note

    async def _note(self, verb: Verb, plural: str) -> None:
        self.lists += verb is Verb.LIST and plural == RESOURCE_POOLS.plural

    async def look(self, seconds: float) -> None:
        """Look for pools for so many seconds, as often as the process does."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            for candidate, stop in await self.scheduler.discover():
                self.pools[candidate.pool] = stop
                self._tasks.create_task(candidate.compete(stop))
            await self.clock.sleep(LOOK_S)

    async def tell(self, name: str, op: FeedOp, version: str) -> None:
        """Publish a change of a pool, as the watcher would."""
        data = b'{"name":"%s"}' % name.encode() if op is FeedOp.PUT else b""
        self.publisher.offer(Delta(kind="resourcepools", op=op, key=name, rv=version, data=data))


def run_with_harness(story: Callable[[PoolDiscoveryHarness], Awaitable[Any]], *, has_feed: bool = True) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            harness = PoolDiscoveryHarness(tasks)
            await furnish(harness.kube)
            publishing = tasks.create_task(harness.publisher.run()) if has_feed else None
            await harness.look(20.0)
            harness.lists = 0
            await story(harness)
            harness.scheduler.stop()
            if publishing is not None:
                publishing.cancel()

    run_virtual(main)


def test_at_rest_pools_are_listed_seldom() -> None:
    """While the feed tells of pools, a LIST now and then is enough."""

    async def story(harness: PoolDiscoveryHarness) -> None:
        await harness.look(4 * LIST_S)
        assert 3 <= harness.lists <= 5

    run_with_harness(story)


def test_a_pool_that_the_feed_tells_of_is_found_at_once() -> None:
    """A leadership of a pool that is deleted ends."""

    async def story(harness: PoolDiscoveryHarness) -> None:
        pool = await harness.kube.create(RESOURCE_POOLS, {"metadata": {"name": "second"}, "spec": {}})
        await harness.tell("second", FeedOp.PUT, pool.metadata.resource_version)
        await harness.look(2 * LOOK_S)
        assert set(harness.pools) == {"default", "second"}
        await harness.kube.delete(RESOURCE_POOLS, "second")
        gone = await harness.kube.list(RESOURCE_POOLS)
        await harness.tell("second", FeedOp.DELETE, gone.resource_version)
        await harness.look(2 * LOOK_S)
        assert harness.pools["second"].is_set()
        assert not harness.pools["default"].is_set()

    run_with_harness(story)


def test_without_a_feed_pools_are_looked_for_each_time() -> None:
    """Without Redis (R0) a new pool is found at the next look."""

    async def story(harness: PoolDiscoveryHarness) -> None:
        await harness.kube.create(RESOURCE_POOLS, {"metadata": {"name": "second"}, "spec": {}})
        await harness.look(2 * LOOK_S)
        assert set(harness.pools) == {"default", "second"}

    run_with_harness(story, has_feed=False)
