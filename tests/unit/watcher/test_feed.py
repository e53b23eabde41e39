"""The cluster feed: a reader that LISTs once and then follows knows the same as a LIST shows."""

import asyncio
from typing import Any

import msgspec

from slipway.facts.core_objects import FEED_KINDS, decode_fact, fact_of, object_key
from slipway.facts.pages import PageReader
from slipway.kube.resources import LEASES, PODS, RESOURCE_POOLS
from slipway.local.apiserver.objects import clone
from slipway.model.facts import AllocationFact, PodFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import CPU
from slipway.streams import codec, keys
from slipway.streams.feed import EPOCHS_PER_TERM, BreakReason, FeedBatch, FeedBroken, FeedReader
from slipway.streams.ports import FeedEntry, FeedOp, FeedPosition
from slipway.streams.snapshot import pages_of
from slipway.watcher.feed import APPENDS_MAX, PAUSE_S
from tests.support.small_cluster import add_node
from tests.support.watcher_harness import SETTINGS, WatcherHarness, play

READ_S = 0.05
KEEPS = msgspec.structs.replace(SETTINGS, snapshot_objects=1)
"""Make snapshots also of this small cluster."""
INFEASIBLE = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}


class Reader:
    """Folds the feed into {(kind, key): fact}; LISTs when it breaks."""

    def __init__(self, harness: WatcherHarness) -> None:
        self._post = harness
        self._reader = FeedReader(harness.streams.feed, harness.clock)
        self.facts: dict[tuple[str, str], Any] = {}
        self.breaks: list[BreakReason] = []
        self.deltas = 0

    async def run(self) -> None:
        while True:
            batch = await self._reader.read(timeout_s=READ_S)
            if isinstance(batch, FeedBroken):
                self.breaks.append(batch.reason)
                await asyncio.sleep(0.1)
                await self._reader.start()
                self.facts = await listed(self._post)
                continue
            for delta in batch.deltas:
                self.deltas += 1
                if delta.op is FeedOp.DELETE:
                    self.facts.pop((delta.kind, delta.key), None)
                else:
                    self.facts[delta.kind, delta.key] = decode_fact(delta.kind, delta.data)

    @property
    def is_fresh(self) -> bool:
        return self._reader.is_fresh


async def from_snapshot(harness: WatcherHarness) -> dict[tuple[str, str], Any]:
    """The facts of a reader that starts from a snapshot, once it receives the publisher's first entry."""
    reader, pages, facts = FeedReader(harness.streams.feed, harness.clock), PageReader(), dict[tuple[str, str], Any]()
    versions: dict[tuple[str, str], int] = {}
    found = await reader.resume()
    assert found is not None
    async for page in pages_of(harness.streams.feed, found):
        kind, told = pages.read(page)
        for key, version, fact in told:
            facts[kind, key], versions[kind, key] = fact, version
    while not reader.is_fresh:
        batch = await reader.read(timeout_s=2 * keys.FEED_BEAT_S)
        assert isinstance(batch, FeedBatch), batch
        for delta in batch.deltas:
            place = delta.kind, delta.key
            if int(delta.rv) < versions.get(place, 0):
                continue
            versions[place] = int(delta.rv)
            if delta.op is FeedOp.DELETE:
                facts.pop(place, None)
            else:
                facts[place] = decode_fact(delta.kind, delta.data)
    return facts


def _foreign(end: FeedPosition) -> FeedEntry:
    """The first entry of a publisher of a later term."""
    epoch = end.epoch + EPOCHS_PER_TERM
    return FeedEntry(epoch=epoch, number=1, kind="", op=FeedOp.BEAT, data=codec.encode_beat({}))


async def listed(harness: WatcherHarness) -> dict[tuple[str, str], Any]:
    """The facts of a LIST of everything."""
    pools = {pool.metadata.name: pool for pool in (await harness.kube.list(RESOURCE_POOLS)).items}
    facts: dict[tuple[str, str], Any] = {}
    for resource, _ in harness.watcher.informers.stores():
        assert resource.plural in FEED_KINDS
        for item in (await harness.kube.list(resource)).items:
            facts[resource.plural, object_key(item.metadata)] = fact_of(item, pools)
    return facts


def test_a_reader_knows_what_a_list_shows() -> None:
    """A reader knows what a LIST shows, over a whole life and while nodes are added."""

    async def story(harness: WatcherHarness) -> None:
        reader = Reader(harness)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(3)
        assert reader.is_fresh
        harness.kubelet.runs_s = {0: 3.0, 1: 3.0}
        await harness.launch("n0", "n1")
        await add_node(harness.kube, "n7")
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        await asyncio.sleep(1)
        assert reader.facts == await listed(harness)
        assert reader.facts["nodes", "n7"]
        await asyncio.sleep(20)
        assert reader.facts == await listed(harness)
        assert reader.is_fresh
        assert not any(isinstance(fact, PodFact) for fact in reader.facts.values())
        assert any(isinstance(fact, AllocationFact) for fact in reader.facts.values())
        reading.cancel()

    play(story)


def test_a_snapshot_and_what_was_told_since_are_what_a_list_shows() -> None:
    """A snapshot and the entries after it equal a LIST at any time: while allocations are created, run and are deleted,
    and nodes are added."""

    async def story(harness: WatcherHarness) -> None:
        harness.kubelet.runs_s = {0: 3.0}
        await asyncio.sleep(3)
        for number in range(6):
            await harness.launch(name=f"job{number}")
            await add_node(harness.kube, f"more{number}")
            await asyncio.sleep(1.7)
            # A change between the two reads is only in the later one.
            tries = 0
            while await from_snapshot(harness) != await listed(harness):
                tries += 1
                assert tries < 3
        await asyncio.sleep(20)
        assert await from_snapshot(harness) == await listed(harness)

    play(story, settings=KEEPS)


def test_a_snapshot_is_of_its_epoch() -> None:
    """After a new epoch of the feed the old snapshot is not used; a new one follows soon."""

    async def story(harness: WatcherHarness) -> None:
        await asyncio.sleep(3)
        assert await from_snapshot(harness) == await listed(harness)
        await harness.streams.feed.append([_foreign(await harness.streams.feed.position())], after=None)
        reader = FeedReader(harness.streams.feed, harness.clock)
        assert await reader.resume() is None
        await asyncio.sleep(10 + PAUSE_S)
        assert await from_snapshot(harness) == await listed(harness)

    play(story, settings=KEEPS)


def test_a_snapshot_is_made_anew_before_the_feed_forgets_where_it_stands() -> None:
    """A snapshot is renewed before the feed drops its position, which heartbeats alone cause within about an hour; it
    is not renewed more often."""

    async def story(harness: WatcherHarness) -> None:
        reader = FeedReader(harness.streams.feed, harness.clock)
        await asyncio.sleep(3)
        stood: set[int] = set()
        for _ in range(11):
            await asyncio.sleep(APPENDS_MAX / 4 * keys.FEED_BEAT_S)
            found = await reader.resume()
            assert found is not None
            stood.add(found.stands.number)
            assert await from_snapshot(harness) == await listed(harness)
        assert len(stood) == 3

    play(story, settings=KEEPS)


def test_a_small_cluster_has_no_snapshot() -> None:
    """A small cluster has no snapshot, because a LIST is as quick."""

    async def story(harness: WatcherHarness) -> None:
        await asyncio.sleep(5)
        assert await FeedReader(harness.streams.feed, harness.clock).resume() is None

    play(story)


def test_what_placement_can_not_see_is_not_published() -> None:
    """Changes of a pod that do not affect placement, such as an annotation or a condition of its status, are not
    published; a label is."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch()
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        await asyncio.sleep(2)
        reader = Reader(harness)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(2)
        before = reader.deltas
        name = (await harness.pods())[0].metadata.name
        await harness.kube.patch(PODS, name, {"metadata": {"annotations": {"a": "b"}}}, namespace="default")
        await asyncio.sleep(2)
        assert reader.deltas == before
        pod = clone(harness.core.get("pods", "default", name))
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        harness.core.update_status("pods", "default", name, pod)
        harness.core.settle()
        await asyncio.sleep(2)
        assert reader.deltas == before
        await harness.kube.patch(PODS, name, {"metadata": {"labels": {"a": "b"}}}, namespace="default")
        await asyncio.sleep(2)
        assert reader.deltas == before + 1
        reading.cancel()

    play(story)


def test_a_resize_that_only_the_status_shows_is_told() -> None:
    """While a pod is resized, its status shows what its node has granted, or that the node never will: the feed follows
    the status, as a LIST does."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch()
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        reader = Reader(harness)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(2)
        name = (await harness.pods())[0].metadata.name
        amounts: list[int] = []
        for held, conditions in (("8", []), ("1m", []), ("1m", [INFEASIBLE])):
            pod = clone(harness.core.get("pods", "default", name))
            granted = {"resources": {"requests": {"cpu": held}}, "allocatedResources": {"cpu": held}}
            pod["status"]["containerStatuses"][0] |= granted
            pod["status"]["conditions"] = conditions
            harness.core.update_status("pods", "default", name, pod)
            harness.core.settle()
            await asyncio.sleep(2)
            assert reader.facts == await listed(harness)
            (fact,) = [fact for fact in reader.facts.values() if isinstance(fact, PodFact)]
            amounts.append(fact.requests.get(CPU))
        asked = amounts[1]
        assert amounts == [8000, asked, 1]
        assert 1 < asked < 8000
        reading.cancel()

    play(story)


def test_a_feed_begins_again_after_a_flush_and_after_its_lease_was_deleted() -> None:
    """After a flush, or a delete of its lease, the feed begins again: readers notice, LIST, and continue."""

    async def story(harness: WatcherHarness) -> None:
        reader = Reader(harness)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(3)
        harness.server.flush()
        await asyncio.sleep(10)
        assert reader.is_fresh
        await harness.kube.delete(LEASES, "slipway-feed", namespace="slipway-system")
        await asyncio.sleep(30)
        assert reader.is_fresh
        await harness.launch()
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        await asyncio.sleep(2)
        assert reader.facts == await listed(harness)
        reading.cancel()

    play(story)


def test_that_a_pod_is_to_go_is_told() -> None:
    """The feed shows that a running pod is being deleted, and a LIST shows the same: a reader of either does not count
    such a pod for spreading."""

    async def story(harness: WatcherHarness) -> None:
        await harness.launch()
        await harness.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        reader = Reader(harness)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(2)

        def told() -> list[tuple[bool, bool]]:
            return [(fact.live, fact.leaving) for fact in reader.facts.values() if isinstance(fact, PodFact)]

        assert told() == [(True, False)]
        before = reader.deltas
        pod = (await harness.pods())[0]
        harness.kubelet.is_away.add(pod.spec.node_name)
        await harness.kube.delete(PODS, pod.metadata.name, namespace="default")
        await asyncio.sleep(2)
        assert told() == [(True, True)]
        assert reader.deltas > before
        assert reader.facts == await listed(harness)
        reading.cancel()

    play(story)
