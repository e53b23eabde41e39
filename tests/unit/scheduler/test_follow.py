"""What a candidate does to know enough when it takes over: wait for the feed, or LIST."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from slipway.kube.answers import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.runtime.clock import SeededRandom
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.follow import CATCH_UP_S, Follower
from slipway.streams import keys
from slipway.streams.feed import FeedPublisher
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish
from tests.support.virtual_time import VirtualClock, run_virtual

LIST_S = 10.0
"""A LIST takes much longer than a feed may be silent."""


class Desk:
    """A follower beside a cluster that is slow to LIST, and the publisher of its feed."""

    publishing: asyncio.Task[None]

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.kube = a_client(a_core(self.clock.now))
        streams = MemoryStreams(MemoryServer(self.clock))
        self.publisher = FeedPublisher(streams.feed, self.clock, term=1)
        self.lists = 0
        self.list_s = LIST_S
        its = a_client(self.kube.core, seed=2)
        its.before = self._slow
        self.cluster = Cluster(self.clock.now)
        self.follower = Follower(
            its, self.cluster, streams.feed, clock=self.clock, random=SeededRandom(3), list_pause_s=lambda: 2.0
        )

    async def _slow(self, verb: Verb, plural: str) -> None:
        if verb is Verb.LIST and plural == ALLOCATIONS.plural:
            self.lists += 1
            await self.clock.sleep(self.list_s)

    def tell(self, version: int) -> None:
        """The watcher has published every allocation up to `version`; its next heartbeat says so."""
        self.publisher.reached(ALLOCATIONS.plural, str(version))


def at_a_desk(test: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        desk = Desk()
        await furnish(desk.kube)
        await desk.kube.create(ALLOCATIONS, a_manifest("one"))
        await desk.publisher.step()
        async with asyncio.TaskGroup() as tasks:
            desk.publishing = tasks.create_task(desk.publisher.run())
            running = [desk.publishing, tasks.create_task(desk.follower.follow())]
            await desk.clock.sleep(LIST_S + 2 * keys.FEED_BEAT_S)
            await test(desk)
            for task in running:
                task.cancel()

    run_virtual(main)


def test_a_list_that_takes_longer_than_silence_is_followed_by_the_feed() -> None:
    """One LIST, however long it takes: what the publisher said meanwhile is read, and it was not silent."""

    async def test(desk: Desk) -> None:
        await desk.clock.sleep(6 * LIST_S)
        assert desk.lists == 1
        assert desk.follower.is_fresh

    at_a_desk(test)


def test_who_takes_over_waits_for_a_heartbeat_rather_than_for_a_list() -> None:
    """The ledger knows a version that the feed has not told of yet: at a heartbeat the term begins, without a LIST."""

    async def test(desk: Desk) -> None:
        version = desk.kube.core.store.version + 5
        desk.tell(version)
        begun_s = desk.clock.monotonic()
        assert not await desk.follower.reach(version)
        assert desk.clock.monotonic() - begun_s <= keys.FEED_BEAT_S + 0.1
        assert desk.follower.position == version
        assert desk.lists == 1

    at_a_desk(test)


def test_a_feed_that_does_not_come_so_far_is_not_waited_for_long() -> None:
    """After a heartbeat and a half without news of that version: LIST."""

    async def test(desk: Desk) -> None:
        begun_s = desk.clock.monotonic()
        await desk.kube.create(ALLOCATIONS, a_manifest("two"))
        version = desk.kube.core.store.version
        assert await desk.follower.reach(version)
        assert desk.clock.monotonic() - begun_s <= CATCH_UP_S + LIST_S + 0.1
        assert desk.follower.position >= version

    at_a_desk(test)


def test_beside_a_small_cluster_nobody_waits_for_a_heartbeat() -> None:
    """Where a LIST costs less than the wait."""

    async def test(desk: Desk) -> None:
        desk.list_s = 0.0
        await desk.follower.reach(0)
        await desk.kube.create(ALLOCATIONS, a_manifest("two"))
        begun_s = desk.clock.monotonic()
        assert await desk.follower.reach(desk.kube.core.store.version)
        assert desk.clock.monotonic() - begun_s <= 0.01

    at_a_desk(test)


def test_a_feed_that_is_late_is_better_than_a_list_that_takes_longer() -> None:
    """The publisher was heard of seconds ago: a LIST would be no younger when it has been read."""

    async def test(desk: Desk) -> None:
        desk.publishing.cancel()
        await desk.clock.sleep(keys.FEED_SILENCE_S + 0.5)
        assert not desk.follower.is_fresh
        assert not await desk.follower.reach(desk.follower.position)
        assert desk.lists == 1

    at_a_desk(test)


def test_a_list_that_was_under_way_is_not_made_again() -> None:
    """Who takes over in the middle of a LIST works with it, though it began long ago."""

    async def test(desk: Desk) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(desk.follower.reach(0))
            await desk.clock.sleep(LIST_S / 2)
            assert not await desk.follower.reach(desk.kube.core.store.version)
        assert desk.lists == 2

    at_a_desk(test)
