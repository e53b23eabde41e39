"""The cluster feed: a reader that LISTs once and then follows knows what a LIST shows."""

import asyncio
from typing import Any

from slipway.kube.facts import FEED_KINDS, decode_fact, fact_of, object_key
from slipway.kube.resources import LEASES, PODS, RESOURCE_POOLS
from slipway.model.facts import AllocationFact, PodFact
from slipway.model.lifecycle import Phase
from slipway.streams.feed import BreakReason, FeedBroken, FeedReader
from slipway.streams.ports import FeedOp
from tests.support.small_cluster import add_node
from tests.support.watch_post import Post, play

READ_S = 0.05


class Reader:
    """Folds the feed into {(kind, key): fact}; LISTs when it breaks."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self._reader = FeedReader(post.streams.feed, post.clock)
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


async def listed(post: Post) -> dict[tuple[str, str], Any]:
    """What a LIST of everything shows."""
    pools = {pool.metadata.name: pool for pool in (await post.kube.list(RESOURCE_POOLS)).items}
    facts: dict[tuple[str, str], Any] = {}
    for resource, _ in post.watcher.world.stores():
        assert resource.plural in FEED_KINDS
        for item in (await post.kube.list(resource)).items:
            facts[resource.plural, object_key(item.metadata)] = fact_of(item, pools)
    return facts


def test_a_reader_knows_what_a_list_shows() -> None:
    """Over a whole life, with nodes that come."""

    async def story(post: Post) -> None:
        reader = Reader(post)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(3)
        assert reader.is_fresh
        post.kubelet.runs_s = {0: 3.0, 1: 3.0}
        await post.launch("n0", "n1")
        await add_node(post.kube, "n7")
        await post.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        await asyncio.sleep(1)
        assert reader.facts == await listed(post)
        assert reader.facts["nodes", "n7"]
        await asyncio.sleep(20)
        assert reader.facts == await listed(post)
        assert reader.is_fresh
        assert not any(isinstance(fact, PodFact) for fact in reader.facts.values())
        assert any(isinstance(fact, AllocationFact) for fact in reader.facts.values())
        reading.cancel()

    play(story)


def test_what_placement_can_not_see_is_not_published() -> None:
    """A pod's status moves without an entry until the pod has ended."""

    async def story(post: Post) -> None:
        await post.launch()
        await post.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        await asyncio.sleep(2)
        reader = Reader(post)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(2)
        before = reader.deltas
        name = (await post.pods())[0].metadata.name
        await post.kube.patch(PODS, name, {"metadata": {"annotations": {"a": "b"}}}, namespace="default")
        await asyncio.sleep(2)
        assert reader.deltas == before
        reading.cancel()

    play(story)


def test_a_feed_begins_again_after_a_flush_and_after_its_lease_was_deleted() -> None:
    """Readers notice, LIST, and follow on."""

    async def story(post: Post) -> None:
        reader = Reader(post)
        reading = asyncio.ensure_future(reader.run())
        await asyncio.sleep(3)
        post.server.flush()
        await asyncio.sleep(10)
        assert reader.is_fresh
        await post.kube.delete(LEASES, "slipway-feed", namespace="slipway-system")
        await asyncio.sleep(30)
        assert reader.is_fresh
        await post.launch()
        await post.until(lambda found: found.status.phase is Phase.RUNNING, "running")
        await asyncio.sleep(2)
        assert reader.facts == await listed(post)
        reading.cancel()

    play(story)
