"""When Redis has lost its data, the watcher writes everything again at once, not at the next resync."""

import asyncio

from slipway.crd.transitions import id_of
from slipway.streams import keys
from slipway.watcher.watcher import FULL_ROUND
from tests.support.watcher_harness import WatcherHarness, play

SOON_S = 3.0
"""Far less than a resync: the feed has a heartbeat each second, and the watcher notices that its last entry is gone."""


async def settled(harness: WatcherHarness) -> None:
    """Launch an allocation that runs, and wait until nothing changes any more."""
    await harness.until(lambda found: found.status.phase == "Running", "it runs")
    await asyncio.sleep(FULL_ROUND * harness.settings.resync_interval_s + 1.0)


def test_streams_are_back_soon_after_a_flush() -> None:
    """After a flush the streams are back soon: an idle primary notices the loss in its own feed."""

    async def story(harness: WatcherHarness) -> None:
        allocation = await harness.launch()
        await settled(harness)
        before = await harness.stream(allocation)
        harness.server.flush()
        await asyncio.sleep(SOON_S)
        assert await harness.stream(allocation) == before != []

    play(story)


def test_hints_are_sent_again_soon_after_a_flush() -> None:
    """After a flush the hints of waiting work are sent again soon, before the regular time."""

    async def story(harness: WatcherHarness) -> None:
        harness.works = False
        allocation = await harness.launch()
        await asyncio.sleep(harness.settings.resync_interval_s * 2.5)  # between two resyncs
        harness.server.flush()
        await asyncio.sleep(SOON_S)
        work = harness.server.after(keys.work(keys.shard_of(id_of(allocation))), (0, 0), 10)
        assert len(work) == 1

    play(story)
