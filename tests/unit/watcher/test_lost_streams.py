"""When Redis does not hold what it held, everything is told again at once, not at the next resync."""

import asyncio

from slipway.crd.transitions import id_of
from slipway.streams import keys
from slipway.watcher.watcher import FULL_ROUND
from tests.support.watch_post import Post, play

SOON_S = 3.0
"""Far less than a resync: the feed beats each second, and its end is not there any more."""


async def settled(post: Post) -> None:
    """The allocation runs, and long after it nothing moves."""
    await post.until(lambda found: found.status.phase == "Running", "it runs")
    await asyncio.sleep(FULL_ROUND * post.settings.resync_interval_s + 1.0)


def test_streams_are_back_soon_after_a_flush() -> None:
    """A primary at rest notices by its own feed."""

    async def story(post: Post) -> None:
        allocation = await post.launch()
        await settled(post)
        before = await post.stream(allocation)
        post.server.flush()
        await asyncio.sleep(SOON_S)
        assert await post.stream(allocation) == before != []

    play(story)


def test_hints_are_sent_again_soon_after_a_flush() -> None:
    """Work that waits is announced anew: nobody has to wait until hints are sent again anyway."""

    async def story(post: Post) -> None:
        post.works = False
        allocation = await post.launch()
        await asyncio.sleep(post.settings.resync_interval_s * 2.5)  # between two resyncs
        post.server.flush()
        await asyncio.sleep(SOON_S)
        work = post.server.after(keys.work(keys.shard_of(id_of(allocation))), (0, 0), 10)
        assert len(work) == 1

    play(story)
