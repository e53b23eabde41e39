"""Keeps the leader's tables current: a LIST first, then the feed; LISTs again whenever the feed can not be trusted.

Owns the choice between the two. Promises: after `catch_up` the tables hold a consistent LIST; every change published
after it reaches them, by the feed or by the next LIST, at most `list_interval_s` (and a LIST) late. Not promised:
that intermediate states are seen.
"""

import asyncio

import msgspec

from slipway.errors import ControlPlaneError, InvariantError, TransientError
from slipway.runtime import log, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.observe import list_everything, take
from slipway.scheduler.ports import Kube
from slipway.streams.feed import BreakReason, Delta, FeedBatch, FeedReader
from slipway.streams.ports import Feed

READ_S = 1.0
LIST_PAUSE_S = 0.2
"""LISTs are at least this far apart, whoever asks for them."""
RETRY_MAX_S = 10.0
_AT_ONCE = (BreakReason.NEW_EPOCH, BreakReason.GAP)
"""Breaks after which the feed is there: a LIST mends them now."""

_log = log.get_logger(__name__)


class Follower:
    """Follows the cluster for one leadership."""

    def __init__(
        self, kube: Kube, cluster: Cluster, feed: Feed, *, clock: Clock, random: Random, list_interval_s: float
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._reader = FeedReader(feed, clock)
        self._clock = clock
        self._random = random
        self._list_interval_s = list_interval_s
        self._changed = asyncio.Event()
        self._poked = asyncio.Event()

    @property
    def is_fresh(self) -> bool:
        """Whether changes come by the feed."""
        return self._reader.is_fresh

    async def catch_up(self) -> None:
        """A consistent LIST of everything, made after the reader took its place at the end of the feed.

        Raises:
            TransientError: the API server can not be reached.
        """
        try:
            await self._reader.start()
        except TransientError as exc:
            _log.debug("no feed", error=str(exc))
        await list_everything(self._kube, self._cluster)
        self._changed.set()

    async def follow(self) -> None:
        """For ever: apply what the feed gives, LIST when it breaks."""
        while True:
            batch = await self._reader.read(timeout_s=READ_S)
            if isinstance(batch, FeedBatch):
                if self._take(batch.deltas):
                    self._changed.set()
                continue
            telemetry.FEED_GAPS.labels(reason=batch.reason.name.lower()).inc()
            await self._pause(LIST_PAUSE_S if batch.reason in _AT_ONCE else self._list_interval_s)
            await self._list_again()

    async def changed(self) -> None:
        """Wait until something has changed since the last call."""
        await self._changed.wait()
        self._changed.clear()

    def poke(self) -> None:
        """Somebody says that there is news: LIST soon, unless it comes by the feed anyway."""
        if not self.is_fresh:
            self._poked.set()

    def _take(self, deltas: tuple[Delta, ...]) -> bool:
        """Apply deltas; one that can not be read is another version's, so the next LIST brings the object."""
        changed = False
        for delta in deltas:
            try:
                changed |= take(self._cluster, delta)
            except msgspec.ValidationError as exc:
                _log.warning("feed entry of another version", kind=delta.kind, key=delta.key, error=str(exc))
                self._poked.set()
        return changed

    async def _pause(self, seconds: float) -> None:
        await self._clock.sleep(min(LIST_PAUSE_S, seconds))
        left_s = seconds * self._random.uniform(0.8, 1.2) - LIST_PAUSE_S
        if left_s > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._poked.wait()
            except TimeoutError:
                pass
        self._poked.clear()

    async def _list_again(self) -> None:
        failures = 0
        while True:
            try:
                await self.catch_up()
                return
            except InvariantError:
                raise
            except ControlPlaneError as exc:
                failures += 1
                _log.warning("LIST failed", failures=failures, error=str(exc))
                await self._clock.sleep(
                    self._random.uniform(0.5, 1.0) * min(RETRY_MAX_S, 0.2 * 2.0 ** min(failures, 10))
                )
