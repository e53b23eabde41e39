"""When Redis has lost its data, the watcher writes everything again at once, not at the next resync."""

import asyncio

from slipway.crd.transitions import id_of
from slipway.streams import keys
from slipway.watcher.watcher import FULL_ROUND
from tests.support.watch_post import Post, play

SOON_S = 3.0
"""Far less than a resync: the feed has a heartbeat each second, and the watcher notices that its last entry is gone."""


async def settled(post: Post) -> None:
    """Launch an allocation that runs, and wait until nothing changes any more."""
    await post.until(lambda found: found.status.phase == "Running", "it runs")
    await asyncio.sleep(FULL_ROUND * post.settings.resync_interval_s + 1.0)


def test_streams_are_back_soon_after_a_flush() -> None:
    """After a flush the streams are back soon: an idle primary notices the loss in its own feed."""

    async def story(post: Post) -> None:
        allocation = await post.launch()
        await settled(post)
        before = await post.stream(allocation)
        post.server.flush()
        await asyncio.sleep(SOON_S)
        assert await post.stream(allocation) == before != []

    play(story)


def test_hints_are_sent_again_soon_after_a_flush() -> None:
    """After a flush the hints of waiting work are sent again soon, before the regular time."""

    async def story(post: Post) -> None:
        post.works = False
        allocation = await post.launch()
        await asyncio.sleep(post.settings.resync_interval_s * 2.5)  # between two resyncs
        post.server.flush()
        await asyncio.sleep(SOON_S)
        work = post.server.after(keys.work(keys.shard_of(id_of(allocation))), (0, 0), 10)
        assert len(work) == 1

    play(story)
