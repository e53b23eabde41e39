"""How a candidate learns enough to take over: it waits for the feed, or makes a LIST."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from slipway.facts.core_objects import encode_fact, fact_of, object_key
from slipway.facts.pages import FactRow, encode_page
from slipway.kube.errors import Verb
from slipway.kube.resources import ALLOCATIONS
from slipway.model.facts import NodeFact
from slipway.runtime.clock import SeededRandom
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.cluster_sync import CATCH_UP_S, ClusterSync, apply_delta, latest
from slipway.streams import codec, keys
from slipway.streams.feed import Delta, FeedPublisher
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import FeedEntry, FeedOp
from slipway.streams.snapshot import SnapshotPosition, SnapshotWriter
from tests.support.mac_keys import a_folder, some_keys
from tests.support.small_cluster import a_client, a_core, a_manifest, furnish
from tests.support.virtual_time import VirtualClock, run_virtual

LIST_S = 10.0
"""A LIST takes much longer than a feed may be silent."""


class FollowerHarness:
    """A follower beside a cluster that is slow to LIST, and the publisher of its feed."""

    publishing: asyncio.Task[None]
    following: asyncio.Task[None]

    def __init__(self, keys_in: Path | None = None) -> None:
        """`keys_in`: a folder with the keys that the feed is signed with."""
        self.clock = VirtualClock()
        self.macs = some_keys(keys_in, self.clock) if keys_in is not None else None
        self.kube = a_client(a_core(self.clock.now))
        self.server = MemoryServer(self.clock)
        self.streams = streams = MemoryStreams(self.server, feed_macs=self.macs)
        self.publisher = FeedPublisher(streams.feed, self.clock, term=1)
        self.lists = 0
        self.list_s = LIST_S
        its = a_client(self.kube.core, seed=2)
        its.before = self._slow
        self.cluster = Cluster(self.clock.now)
        self.follower = ClusterSync(
            its, self.cluster, streams.feed, clock=self.clock, random=SeededRandom(3), list_pause_s=lambda: 2.0
        )

    async def _slow(self, verb: Verb, plural: str) -> None:
        if verb is Verb.LIST and plural == ALLOCATIONS.plural:
            self.lists += 1
            await self.clock.sleep(self.list_s)

    def newcomer(self) -> ClusterSync:
        """The follower of another process, with empty tables."""
        its = a_client(self.kube.core, seed=4)
        its.before, self.lists = self._slow, 0
        self.cluster = Cluster(self.clock.now)
        return ClusterSync(
            its,
            self.cluster,
            MemoryStreams(self.server, feed_macs=self.macs).feed,
            clock=self.clock,
            random=SeededRandom(5),
            list_pause_s=lambda: 2.0,
        )

    async def keep(self, *names: str) -> SnapshotPosition:
        """Write a snapshot with these allocations as they are now."""
        stands = self.publisher.stands
        assert stands is not None
        writer = SnapshotWriter(self.streams.feed, 0, stands)
        await writer.add(encode_page("allocations", [await self.told(name) for name in names]))
        await writer.finish()
        return stands

    async def told(self, name: str) -> FactRow:
        """The key, version and fact of an allocation, as they are published."""
        found = await self.kube.get(ALLOCATIONS, name, namespace="default")
        return object_key(found.metadata), found.metadata.version, fact_of(found, {})

    async def tell_of(self, name: str) -> None:
        """The watcher publishes the allocation as it is now."""
        key, version, fact = await self.told(name)
        self.publisher.offer(Delta(kind="allocations", op=FeedOp.PUT, key=key, rv=str(version), data=encode_fact(fact)))
        self.tell(version)

    def tell(self, version: int) -> None:
        """The watcher has published every allocation up to `version`; its next heartbeat says so."""
        self.publisher.reached(ALLOCATIONS.plural, str(version))


def run_with_harness(test: Callable[[FollowerHarness], Coroutine[Any, Any, None]], keys_in: Path | None = None) -> None:
    async def main() -> None:
        harness = FollowerHarness(keys_in)
        await furnish(harness.kube)
        await harness.kube.create(ALLOCATIONS, a_manifest("one"))
        await harness.publisher.step()
        async with asyncio.TaskGroup() as tasks:
            harness.publishing = tasks.create_task(harness.publisher.run())
            harness.following = tasks.create_task(harness.follower.follow())
            running = [harness.publishing, harness.following]
            await harness.clock.sleep(LIST_S + 2 * keys.FEED_BEAT_S)
            await test(harness)
            for task in running:
                task.cancel()

    run_virtual(main)


def test_a_list_that_takes_longer_than_silence_is_followed_by_the_feed() -> None:
    """There is one LIST, however long it takes: the follower reads the entries that were published during the LIST."""

    async def test(harness: FollowerHarness) -> None:
        await harness.clock.sleep(6 * LIST_S)
        assert harness.lists == 1
        assert harness.follower.is_fresh

    run_with_harness(test)


def test_who_takes_over_waits_for_a_heartbeat_rather_than_for_a_list() -> None:
    """The ledger knows a version that the feed has not reached yet. At the next heartbeat the term begins, without a
    LIST."""

    async def test(harness: FollowerHarness) -> None:
        version = harness.kube.core.store.version + 5
        harness.tell(version)
        begun_s = harness.clock.monotonic()
        assert not await harness.follower.wait_for_version(version)
        assert harness.clock.monotonic() - begun_s <= keys.FEED_BEAT_S + 0.1
        assert harness.follower.position == version
        assert harness.lists == 1

    run_with_harness(test)


def test_a_feed_that_does_not_come_so_far_is_not_waited_for_long() -> None:
    """After a heartbeat and a half without that version the follower makes a LIST."""

    async def test(harness: FollowerHarness) -> None:
        begun_s = harness.clock.monotonic()
        await harness.kube.create(ALLOCATIONS, a_manifest("two"))
        version = harness.kube.core.store.version
        assert await harness.follower.wait_for_version(version)
        assert harness.clock.monotonic() - begun_s <= CATCH_UP_S + LIST_S + 0.1
        assert harness.follower.position >= version

    run_with_harness(test)


def test_beside_a_small_cluster_no_heartbeat_is_awaited() -> None:
    """A LIST costs less than the wait there."""

    async def test(harness: FollowerHarness) -> None:
        harness.list_s = 0.0
        await harness.follower.wait_for_version(0)
        await harness.kube.create(ALLOCATIONS, a_manifest("two"))
        begun_s = harness.clock.monotonic()
        assert await harness.follower.wait_for_version(harness.kube.core.store.version)
        assert harness.clock.monotonic() - begun_s <= 0.01

    run_with_harness(test)


def test_a_feed_that_is_late_is_better_than_a_list_that_takes_longer() -> None:
    """The last heartbeat is seconds old: a LIST would be no younger when it has been read."""

    async def test(harness: FollowerHarness) -> None:
        harness.publishing.cancel()
        await harness.clock.sleep(keys.FEED_SILENCE_S + 0.5)
        assert not harness.follower.is_fresh
        assert not await harness.follower.wait_for_version(harness.follower.position)
        assert harness.lists == 1

    run_with_harness(test)


def test_a_list_that_was_under_way_is_not_made_again() -> None:
    """A takeover in the middle of a LIST uses that LIST, although it began long ago."""

    async def test(harness: FollowerHarness) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(harness.follower.wait_for_version(0))
            await harness.clock.sleep(LIST_S / 2)
            assert not await harness.follower.wait_for_version(harness.kube.core.store.version)
        assert harness.lists == 2

    run_with_harness(test)


def an_invented_node(number: int, *, epoch: int) -> FeedEntry:
    data = encode_fact(NodeFact(name="invented", labels={}))
    return FeedEntry(epoch=epoch, number=number, kind="nodes", op=FeedOp.PUT, key="invented", rv=str(10**9), data=data)


@pytest.mark.parametrize("is_signed", [False, True])
def test_a_node_that_the_owner_of_redis_has_invented_reaches_no_table(tmp_path: Path, is_signed: bool) -> None:
    """With keys the entry is refused, the API server is asked, and the feed is followed again. Without keys the entry
    is accepted: the keys are there to prevent that."""

    async def test(harness: FollowerHarness) -> None:
        stands = harness.publisher.stands
        assert stands is not None
        harness.publishing.cancel()
        entry = an_invented_node(stands.number + 1, epoch=stands.epoch)
        harness.server.add(keys.CLUSTER.prefix, codec.encode_feed([entry]))
        await harness.clock.sleep(keys.FEED_BEAT_S)
        assert (harness.cluster.nodes.get("invented") is None) is is_signed
        publisher = FeedPublisher(harness.streams.feed, harness.clock, term=2)
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(publisher.run())
            await harness.clock.sleep(3 * LIST_S)
            publishing.cancel()
        assert harness.cluster.nodes.get("invented") is None or not is_signed
        assert harness.lists == 2
        assert harness.follower.is_fresh

    run_with_harness(test, a_folder(tmp_path) if is_signed else None)


def test_a_replayed_feed_entry_restores_nothing(tmp_path: Path) -> None:
    """The entry is signed, and was true once; the LIST that follows the new epoch is newer."""

    async def test(harness: FollowerHarness) -> None:
        await harness.tell_of("one")
        await harness.clock.sleep(keys.FEED_BEAT_S)
        recorded = [fields for _, fields in harness.server.newest(keys.CLUSTER.prefix, 100)[::-1]]
        harness.publishing.cancel()
        await harness.kube.delete(ALLOCATIONS, "one", namespace="default")
        harness.following.cancel()
        newcomer = harness.newcomer()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(newcomer.follow())
            await harness.clock.sleep(LIST_S + keys.FEED_BEAT_S)
            for again in (1, 2):
                harness.server.drop(keys.CLUSTER.prefix)
                for fields in recorded:
                    harness.server.add(keys.CLUSTER.prefix, fields)
                    await harness.clock.sleep(again * LIST_S)
                    assert not len(harness.cluster.allocations)
            following.cancel()

    run_with_harness(test, a_folder(tmp_path))


def test_a_snapshot_that_the_owner_of_redis_has_written_is_not_started_from(tmp_path: Path) -> None:
    """An empty cluster would have room for everything, so the newcomer makes a LIST instead."""

    async def test(harness: FollowerHarness) -> None:
        stands = harness.publisher.stands
        assert stands is not None
        writer = SnapshotWriter(MemoryStreams(harness.server).feed, 0, stands)
        await writer.add(encode_page("pods", []))
        await writer.finish()
        newcomer = await begin(harness, LIST_S + 2 * keys.FEED_BEAT_S)
        assert harness.lists == 1
        assert newcomer.is_fresh
        assert {fact.name for fact in harness.cluster.allocations.values()} == {"one"}

    run_with_harness(test, a_folder(tmp_path))


async def begin(harness: FollowerHarness, within_s: float = 3 * keys.FEED_BEAT_S) -> ClusterSync:
    """A newcomer, after it has followed for a while."""
    newcomer = harness.newcomer()
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(newcomer.follow())
        await harness.clock.sleep(within_s)
        following.cancel()
    return newcomer


def test_who_starts_takes_a_snapshot_and_what_was_told_since() -> None:
    """The tables equal those of a LIST, and no LIST is made; a term needs none either."""

    async def test(harness: FollowerHarness) -> None:
        await harness.keep("one")
        await harness.kube.create(ALLOCATIONS, a_manifest("two"))
        await harness.tell_of("two")
        newcomer = harness.newcomer()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(newcomer.follow())
            await harness.clock.sleep(0.1)
            assert not await newcomer.wait_for_version(harness.kube.core.store.version)
            following.cancel()
        assert newcomer.is_fresh
        assert {fact.name for fact in harness.cluster.allocations.values()} == {"one", "two"}
        assert not harness.lists

    run_with_harness(test)


def test_however_much_was_told_since_is_read() -> None:
    """The entries are more than one read of the feed returns, and the publisher goes on."""

    async def test(harness: FollowerHarness) -> None:
        await harness.keep("one")
        kind, version, fact = ALLOCATIONS.plural, *(await harness.told("one"))[1:]
        for number in range(5_000):
            key = f"default/more{number}"
            harness.publisher.offer(
                Delta(kind=kind, op=FeedOp.PUT, key=key, rv=str(version + number), data=encode_fact(fact))
            )
        harness.tell(version + 5_000)
        await harness.clock.sleep(keys.FEED_BEAT_S)
        await begin(harness)
        assert not harness.lists
        assert len(harness.cluster.allocations) == 5_001

    run_with_harness(test)


@pytest.mark.parametrize("seed", range(50))
def test_the_last_deltas_of_all_objects_give_the_same_tables(seed: int) -> None:
    """Entries that are sent again, deletions and new objects of an old name included."""
    chance = random.Random(seed)
    ages = [chance.randrange(8) for _ in range(20)]
    deltas = [
        Delta(kind="nodes", op=FeedOp.DELETE, key=key, rv=str(age))
        if chance.random() < 0.3
        else Delta(
            kind="nodes", op=FeedOp.PUT, key=key, rv=str(age), data=encode_fact(NodeFact(name=key, uid=str(age)))
        )
        for age in ages
        for key in (f"n{chance.randrange(4)}",)
    ]
    all_, last = Cluster(), Cluster()
    for cluster, chosen in ((all_, deltas), (last, latest(deltas))):
        for delta in chosen:
            apply_delta(cluster, delta)
    assert len(latest(deltas)) <= 4
    assert sorted(all_.nodes.values(), key=lambda fact: fact.name) == sorted(
        last.nodes.values(), key=lambda fact: fact.name
    )
    assert all_.nodes.seen == last.nodes.seen


def test_a_snapshot_that_nobody_goes_on_from_is_not_started_from() -> None:
    """A snapshot without a live publisher may be of any age, so the newcomer makes a LIST. Before that its tables are
    empty."""

    async def test(harness: FollowerHarness) -> None:
        await harness.keep("one")
        for task in (harness.publishing, harness.following):
            task.cancel()
        await begin(harness, CATCH_UP_S + 0.5)
        assert not len(harness.cluster.allocations)
        await begin(harness, CATCH_UP_S + LIST_S + 0.5)
        assert {fact.name for fact in harness.cluster.allocations.values()} == {"one"}
        assert harness.lists == 1

    run_with_harness(test)


def test_a_snapshot_that_the_feed_does_not_reach_back_to_is_not_started_from() -> None:
    """The entries between the two are missing, so the newcomer makes a LIST."""

    async def test(harness: FollowerHarness) -> None:
        await harness.keep("one")
        await harness.clock.sleep((keys.CLUSTER.length_max + 2) * keys.FEED_BEAT_S)
        newcomer = await begin(harness, LIST_S + 2 * keys.FEED_BEAT_S)
        assert harness.lists == 1
        assert newcomer.is_fresh

    run_with_harness(test)


@pytest.mark.parametrize("part", [b"", b"not a page"], ids=["gone", "of another version"])
def test_a_snapshot_that_can_not_be_read_is_not_started_from(part: bytes) -> None:
    """The snapshot is being written again, or is of another version, so the newcomer makes a LIST."""

    async def test(harness: FollowerHarness) -> None:
        stands = await harness.keep("one")
        writer = SnapshotWriter(harness.streams.feed, 0, stands)
        if part:
            await writer.add(part)
        await writer.finish()
        if not part:
            await SnapshotWriter(harness.streams.feed, 0, stands).add(encode_page("pods", []))
        newcomer = await begin(harness, LIST_S + 2 * keys.FEED_BEAT_S)
        assert harness.lists == 1
        assert newcomer.is_fresh

    run_with_harness(test)
