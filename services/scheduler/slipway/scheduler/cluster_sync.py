"""Keeps the leader's tables current: first a LIST or a snapshot, then the feed; LISTs where the feed may have gaps.

Owns the choice between these sources. Promises: after `reach(version)` the tables hold every allocation up to that
version, and everything else as it was a moment ago. Every later change arrives, by the feed or by the next LIST, at
most `list_pause_s()` and one LIST late. Not promised: that intermediate states are seen.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from slipway.crd.specs import Specs
from slipway.errors import ControlPlaneError, InvalidError, InvariantError, TransientError
from slipway.kube.factpages import PageReader, Told
from slipway.kube.resources import ALLOCATIONS
from slipway.runtime import liveness, log, memory, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.cluster_reader import list_everything, take, take_pages
from slipway.scheduler.ports import Kube
from slipway.streams import keys, snapshot
from slipway.streams.feed import BreakReason, Delta, FeedBatch, FeedReader
from slipway.streams.macs import ForgedError
from slipway.streams.ports import Feed

LIST_PAUSE_S = 0.2
"""LISTs are at least this far apart, whoever asks for them."""
RETRY_MAX_S = 10.0
RECENT_S = 4.0
"""A LIST that began so long ago is as good as what a leader without a feed works with."""
CATCH_UP_S = 1.5 * keys.FEED_BEAT_S
"""A feed that has not told how far it has come for so long is not waited for."""
START_S = 15.0
"""A snapshot that the feed has gone so far beyond that reading it takes longer is no gain."""
_AT_ONCE = (BreakReason.NEW_EPOCH, BreakReason.GAP)
"""Breaks after which the feed is there: a LIST mends them now."""
_SILENT = (BreakReason.SILENCE, BreakReason.AWAY)
"""Breaks after which nothing is known to have been missed."""

_log = log.get_logger(__name__)


class Follower:
    """Follows the cluster for one candidate."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        feed: Feed,
        *,
        clock: Clock,
        random: Random,
        list_pause_s: Callable[[], float],
    ) -> None:
        """`list_pause_s` says how far LISTs are apart while there is no feed."""
        self._kube = kube
        self._cluster = cluster
        self._feed = feed
        self._reader = FeedReader(feed, clock)
        self._clock = clock
        self._random = random
        self._list_pause_s = list_pause_s
        self._specs = Specs()
        self._changed = asyncio.Event()
        self._poked = asyncio.Event()
        self._listing = asyncio.Lock()
        self._listed_at = -math.inf
        """when the last LIST began"""
        self._listed = 0
        """the version of its allocations"""
        self._list_took_s = 0.0
        self._heard = asyncio.Event()
        """set when something was read of the feed"""
        self._told_at = -math.inf
        """when that was"""
        self._has_missed = False
        """whether the feed has told more since the last LIST than what was read"""

    @property
    def is_fresh(self) -> bool:
        """Whether changes come by the feed."""
        return self._reader.is_fresh

    @property
    def position(self) -> int:
        """The version up to which every change of an allocation is in the tables."""
        told = self._reader.versions.get(ALLOCATIONS.plural, "")
        return max(self._listed, int(told) if told.isdigit() else 0)

    async def reach(self, version: int) -> bool:
        """Return when the tables hold the allocations up to `version` (0: as they are now), and the rest is recent.

        The answer is whether that took a LIST. A feed that is at work but has not come that far is waited for as long
        as a LIST takes: beside a small cluster not at all, and beside a large one its next heartbeat comes sooner.

        Raises:
            TransientError: the API server cannot be reached.
        """
        if version:
            await self._catch_up(version)
        listed_at = self._listed_at
        async with self._turn():
            if version and not self._has_listed:
                # What it has started from is as good as the heartbeat that follows.
                await self._catch_up(version)
            # A LIST that ended while it was waited for is as recent as it gets, however long it took.
            is_recent = self._is_recent or self._listed_at > listed_at
            is_reached = bool(version) and is_recent and self.position >= version
            if not is_reached:
                _log.info("LIST before a term", feed=self.is_fresh, position=self.position, wanted=version)
                # A reader that is at work goes on: what it gives and a LIST are merged by version.
                await self._list(restart=self._reader.is_broken)
        # Without a feed, what has come since that LIST is found by the next.
        self.poke()
        return not is_reached

    async def follow(self) -> None:
        """For ever: know all, then apply what the feed gives, and LIST when it breaks."""
        begun_at = self._clock.monotonic()
        async with self._turn():
            is_known = await self._start_from_snapshot()
        # A term that began meanwhile has made the first LIST.
        if not is_known and not self._has_listed:
            await self._list_since(begun_at)
        while True:
            batch = await self._reader.read(timeout_s=keys.FEED_SILENCE_S)
            liveness.beat()
            if isinstance(batch, FeedBatch):
                self._heard.set()
                self._told_at = self._clock.monotonic()
                telemetry.FEED_HEARD.set(self._clock.now() - self._reader.silent_s)
                if self._take(batch.deltas):
                    self._changed.set()
                continue
            telemetry.FEED_GAPS.labels(reason=batch.reason.name.lower()).inc()
            if batch.reason is BreakReason.FORGED:
                _log.warning("entry of the cluster feed refused", why=batch.reason.value, then="LIST")
            self._has_missed = batch.reason not in _SILENT
            broken_at = self._clock.monotonic()
            # The API server has other things to do than to LIST for us: at most half of the time.
            pause_s = max(self._list_pause_s(), self._list_took_s)
            await self._pause(LIST_PAUSE_S if batch.reason in _AT_ONCE else pause_s)
            await self._list_since(broken_at)

    def has_changed(self) -> bool:
        """Whether `changed` returns at once."""
        return self._changed.is_set()

    async def changed(self, within_s: float | None = None) -> None:
        """Wait until something has changed since the last call, or so many seconds have passed."""
        # At rest this is most of what a leader does: a timer that is heard like a change costs less than a timeout.
        timer = asyncio.get_running_loop().call_later(within_s, self.stir) if within_s is not None else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._changed.clear()

    def caught_up(self) -> None:
        """What has changed until now is about to be looked at."""
        self._changed.clear()

    def stir(self) -> None:
        """Something that is not of the cluster has changed: whoever waits looks again."""
        self._changed.set()

    def poke(self) -> None:
        """Somebody says that there is news: LIST soon, unless it comes by the feed anyway."""
        if not self.is_fresh:
            self._poked.set()

    @property
    def _is_recent(self) -> bool:
        """Whether the tables are as good as a LIST: what one gives is as old as it takes, or a moment."""
        now = self._clock.monotonic()
        told_at = -math.inf if self._has_missed else self._told_at
        is_as_good = now - told_at <= max(RECENT_S, self._list_took_s)
        return self.is_fresh or is_as_good or now - self._listed_at <= RECENT_S

    async def _catch_up(self, version: int) -> None:
        """Wait for the feed to say that it has told everything up to `version`, while that is quicker than a LIST."""
        until_s = self._clock.monotonic() + min(CATCH_UP_S, self._list_took_s)
        while self.is_fresh and self.position < version and (left_s := until_s - self._clock.monotonic()) > 0:
            self._heard.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._heard.wait()
            except TimeoutError:
                return

    @property
    def _has_listed(self) -> bool:
        return self._listed_at > -math.inf

    async def _start_from_snapshot(self) -> bool:
        """Begin with what the feed had told up to a snapshot of it, and all that it has told since; False: LIST.

        The tables take all of it in one step, once the publisher is heard of: what nobody publishes any more may be
        of any age.
        """
        begun_at = self._clock.monotonic()
        reading, told, deltas = PageReader(), list[tuple[str, list[Told]]](), list[Delta]()
        with memory.loading():
            try:
                found = await self._reader.resume()
                if found is None:
                    return False
                async for page in snapshot.pages_of(self._feed, found):
                    liveness.beat()
                    told.append(reading.read(page))
                until_s = self._clock.monotonic() + CATCH_UP_S
                while not (self.is_fresh and self.position):
                    now = self._clock.monotonic()
                    batch = await self._reader.read(timeout_s=until_s - now) if now < until_s else None
                    if not isinstance(batch, FeedBatch) or now - begun_at > START_S:
                        _log.info("the snapshot of the feed does not reach until now", since=len(deltas))
                        return False
                    if batch.deltas:
                        deltas += batch.deltas
                        until_s = self._clock.monotonic() + CATCH_UP_S
            except ForgedError as exc:
                telemetry.FEED_GAPS.labels(reason=BreakReason.FORGED.name.lower()).inc()
                _log.warning("snapshot of the cluster feed refused", why=str(exc), then="LIST")
                return False
            except (TransientError, InvalidError, msgspec.ValidationError) as exc:
                _log.info("no start from a snapshot of the feed", error=str(exc))
                return False
            count = take_pages(self._cluster, told)
            self._take(tuple(deltas))
        now = self._clock.monotonic()
        # A LIST of as much would take longer than that.
        self._told_at, self._list_took_s = now, max(CATCH_UP_S, now - begun_at)
        _log.info(
            "started from a snapshot of the feed", objects=count, since=len(deltas), took_s=round(now - begun_at, 3)
        )
        self._changed.set()
        return True

    def _take(self, deltas: tuple[Delta, ...]) -> bool:
        """Apply deltas; one that cannot be read is another version's, so the next LIST brings the object."""
        changed = False
        for delta in deltas:
            try:
                changed |= take(self._cluster, delta)
            except msgspec.ValidationError as exc:
                _log.warning("feed entry of another version", kind=delta.kind, key=delta.key, error=str(exc))
                self._poked.set()
        return changed

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        """One LIST at a time; the loop that makes it is watched itself."""
        with liveness.rest():
            await self._listing.acquire()
        try:
            yield
        finally:
            self._listing.release()

    async def _pause(self, seconds: float) -> None:
        await self._clock.sleep(min(LIST_PAUSE_S, seconds))
        left_s = seconds * self._random.uniform(0.8, 1.2) - LIST_PAUSE_S
        if left_s > 0:
            liveness.beat(left_s)
            try:
                async with asyncio.timeout(left_s):
                    await self._poked.wait()
            except TimeoutError:
                pass
        self._poked.clear()

    async def _list(self, *, restart: bool) -> None:
        """A consistent LIST of everything, made after the reader took its place at the end of the feed."""
        began_at = self._clock.monotonic()
        if restart:
            try:
                await self._reader.start()
            except TransientError as exc:
                _log.debug("no feed", error=str(exc))
        with memory.loading():
            self._listed = await list_everything(self._kube, self._cluster, self._specs)
        self._has_missed = False
        self._listed_at, self._list_took_s = began_at, self._clock.monotonic() - began_at
        self._changed.set()

    async def _list_since(self, moment: float) -> None:
        """Try until a LIST has worked that began after `moment`."""
        failures = 0
        while True:
            try:
                async with self._turn():
                    if self._listed_at <= moment:
                        await self._list(restart=True)
                liveness.beat()
                return
            except InvariantError:
                raise
            except ControlPlaneError as exc:
                failures += 1
                liveness.beat(RETRY_MAX_S)
                _log.warning("LIST failed", failures=failures, error=str(exc))
                await self._clock.sleep(
                    self._random.uniform(0.5, 1.0) * min(RETRY_MAX_S, 0.2 * 2.0 ** min(failures, 10))
                )
