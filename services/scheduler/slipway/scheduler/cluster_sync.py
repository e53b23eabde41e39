"""Keeps the leader's tables current: first by a LIST or a snapshot, then by the feed; by LISTs when the feed has gaps.

The LIST is the truth; with the feed changes only arrive sooner. Feed entries are translated into the tables of
`cluster.py`. `ClusterSync` chooses between the sources. Promises: after `wait_for_version(version)` the tables have
every allocation up to that version, and all other objects as they were a moment ago. Every later change arrives, by the
feed or by the next LIST, with a delay of at most `list_pause_s()` and one LIST. Not promised: that intermediate states
are seen.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from slipway.crd.v1alpha1 import ResourcePool
from slipway.errors import ControlPlaneError, ExpiredError, InvalidError, InvariantError, TransientError
from slipway.facts.core_objects import Fact, RangesByNamespace, decode_fact, fact_of, object_key, ranges_by_namespace
from slipway.facts.custom_resources import SpecCache
from slipway.facts.pages import FactRow, PageReader
from slipway.kube.resources import (
    ALLOCATIONS,
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_POOLS,
    RESOURCE_QUOTAS,
    Resource,
)
from slipway.kube.rest import LIST_STARTS_MAX, PAGE_SIZE
from slipway.kube.scope import only
from slipway.kube.wire import metadata_of
from slipway.model.facts import PodFact
from slipway.model.ids import split_allocation_id
from slipway.runtime import liveness, log, memory, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.ports import Kube
from slipway.streams import keys, snapshot
from slipway.streams.feed import BreakReason, Delta, FeedBatch, FeedReader
from slipway.streams.macs import ForgedError
from slipway.streams.ports import Feed, FeedOp

_log = log.get_logger(__name__)

FIRST: tuple[Resource[Any], ...] = (RESOURCE_POOLS, LIMIT_RANGES)
"""The resources on which the facts of allocations depend."""
LISTED: tuple[Resource[Any], ...] = (NAMESPACES, QUEUES, JOBS, RESOURCE_QUOTAS, NODES, PODS, ALLOCATIONS)


async def list_everything(kube: Kube, cluster: Cluster, specs: SpecCache) -> int:
    """Update every table from a consistent LIST; return the version of the LIST of the allocations.

    Pools and LimitRanges are listed first, because an allocation's fact depends on the defaults of its pool and of its
    namespace. Facts are made page by page, while the next page is being read. So a cluster of any size neither blocks
    the event loop, which also renews the lease, nor is in memory as a whole. The tables are updated in one step, so
    that no reader sees half of a LIST.
    """
    # A consistent LIST never has a lower version than one seen before it began,
    # unless the server has gone back in time.
    tables = {each: cluster.table(each.plural) for each in (*FIRST, *LISTED)}
    floors = {each: table.seen for each, table in tables.items() if table is not None}
    pools, limit_ranges = await asyncio.gather(kube.list(RESOURCE_POOLS), kube.list(LIMIT_RANGES))
    inputs = _FactInputs(
        {pool.metadata.name: pool for pool in pools.items}, ranges_by_namespace(limit_ranges.items), specs
    )
    # If they have changed, every fact of an allocation is made again, also at the version that the table has.
    are_other = [specs.take_pools(inputs.pools), specs.take_ranges(inputs.ranges)]

    def list_of(resource: Resource[Any]) -> _ListedFacts:
        keeps = not any(are_other) or resource is not ALLOCATIONS
        return _ListedFacts(cluster, resource, inputs, floor=floors.get(resource, 0), keeps=keeps)

    first, lists = [list_of(each) for each in FIRST], [list_of(each) for each in LISTED]
    await asyncio.gather(*(each.read(kube) for each in lists))
    for each, listed in zip(first, (pools, limit_ranges), strict=True):
        each.take(listed.items, listed.resource_version)
    for each in (*first, *lists):
        each.replace()
    return lists[LISTED.index(ALLOCATIONS)].version


def latest(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """Return the last delta of each object, in order; the tables are then the same as after all of them.

    An object may have changed often since a snapshot. The last one is that of the highest version, because entries may
    be sent again; at one version a deletion is the last.
    """
    found: dict[tuple[str, str], Delta] = {}
    for delta in deltas:
        known = found.pop((delta.kind, delta.key), delta)
        found[delta.kind, delta.key] = delta if _age(delta) >= _age(known) else known
    return tuple(found.values())


def _age(delta: Delta) -> tuple[int, bool]:
    return int(delta.rv) if delta.rv.isdigit() else -1, delta.op is FeedOp.DELETE


def apply_delta(cluster: Cluster, delta: Delta) -> bool:
    """Apply one delta of the feed; return True when that is news for planning.

    Raises: msgspec.ValidationError: the publisher uses another version of the format: LIST instead.
    """
    table = cluster.table(delta.kind)
    if table is None or not delta.rv.isdigit():
        return False
    match delta.op:
        case FeedOp.DELETE:
            return table.drop(delta.key, int(delta.rv))
        case FeedOp.PUT:
            fact = decode_fact(delta.kind, delta.data)
            return table.put(delta.key, fact, int(delta.rv), is_news=not _is_expected(cluster, fact))
        case FeedOp.BEAT:
            return False


def _is_expected(cluster: Cluster, fact: Fact) -> bool:
    """Whether the fact is a pod of ours on the node of its admission, which planning has already taken into account."""
    if not isinstance(fact, PodFact) or not (fact.live and fact.node and fact.allocation_uid):
        return False
    found = split_allocation_id(fact.name.rsplit("-", 2)[0])
    known = cluster.allocations.get(f"{fact.namespace}/{found[0]}") if found is not None else None
    if known is None or (known.uid, known.attempt) != (fact.allocation_uid, fact.attempt):
        return False
    return known.placements.get(fact.rank) == fact.node


def store_pages(cluster: Cluster, pages: Iterable[tuple[str, list[FactRow]]]) -> int:
    """Store the pages of a snapshot of the feed; return the number of objects."""
    count = 0
    for kind, told in pages:
        table = cluster.table(kind)
        if table is not None:
            for key, version, fact in told:
                table.put(key, fact, version)
            count += len(told)
    return count


class _FactInputs(NamedTuple):
    """The other inputs of an allocation's fact, besides the object."""

    pools: dict[str, ResourcePool]
    ranges: RangesByNamespace
    specs: SpecCache


class _ListedFacts:
    """One LIST, converted to facts."""

    def __init__(
        self,
        cluster: Cluster,
        resource: Resource[Any],
        inputs: _FactInputs,
        *,
        floor: int,
        keeps: bool,
    ) -> None:
        """`floor`: the highest version seen before it began; `keeps`:
        a fact in the table at the same version is reused."""
        self.version = 0
        self._table = cluster.table(resource.plural)
        self._floor = floor
        self._keeps = keeps
        self._resource = resource
        self._inputs = inputs
        self._facts: dict[str, tuple[Fact, int]] = {}

    async def read(self, kube: Kube) -> None:
        """Read all pages of one consistent LIST.

        Raises:
            TransientError: the API server cannot be reached.
            ExpiredError: the LIST has expired before its last page, in every try.
        """
        for start in range(LIST_STARTS_MAX):
            self._facts.clear()
            try:
                await self._pages(kube)
            except BaseExceptionGroup as group:
                error = only(group)
                if not isinstance(error, ExpiredError) or start == LIST_STARTS_MAX - 1:
                    raise error from None
            else:
                return

    def take(self, items: list[Any], resource_version: str) -> None:
        """Convert some objects to facts; a fact that the table has at the same version is reused."""
        self.version = int(resource_version) if resource_version.isdigit() else 0
        table = self._table
        if table is None:
            return
        for item in items:
            meta = metadata_of(item)
            key, version = object_key(meta), meta.version
            is_known = self._keeps and version and table.version(key) == version and not self._is_rewound
            known = table.get(key) if is_known else None
            self._facts[key] = (known or self._fact_of(item), version)

    def _fact_of(self, item: Any) -> Fact:
        return fact_of(item, self._inputs.pools, self._inputs.specs, ranges=self._inputs.ranges)

    def replace(self) -> None:
        """Update the table from the LIST."""
        if self._table is None:
            return
        if self._is_rewound:
            _log.error(
                "the API server has gone back in time: the table is read anew",
                resource=self._resource.plural,
                version=self.version,
                seen=self._floor,
            )
            telemetry.WATCH_RESTARTS.labels(resource=self._resource.plural, reason="rewound").inc()
            self._table.rewind(self._facts)
        else:
            self._table.replace(self._facts, self.version)

    @property
    def _is_rewound(self) -> bool:
        return 0 < self.version < self._floor

    async def _pages(self, kube: Kube) -> None:
        async with TaskGroup() as tasks:
            coming = tasks.create_task(kube.list(self._resource, limit=PAGE_SIZE))
            while True:
                page = await coming
                if not page.continue_:
                    break
                coming = tasks.create_task(kube.list(self._resource, limit=PAGE_SIZE, continue_=page.continue_))
                # The request for the next page is sent before this page is converted.
                await asyncio.sleep(0)
                self.take(page.items, page.resource_version)
            self.take(page.items, page.resource_version)


LIST_PAUSE_S = 0.2
"""The least time between two LISTs, whatever requests them."""
RETRY_MAX_S = 10.0
RECENT_S = 4.0
"""A LIST that began at most so long ago is as current as the tables of a leader without a feed."""
CATCH_UP_S = 1.5 * keys.FEED_BEAT_S
"""The longest wait for the feed's next position."""
START_S = 15.0
"""A start from a snapshot that takes longer than this is given up, because a LIST would be as quick."""
_AT_ONCE = (BreakReason.NEW_EPOCH, BreakReason.GAP)
"""Breaks after which the feed can be read again at once, so a LIST is made now."""
_SILENT = (BreakReason.SILENCE, BreakReason.AWAY)
"""Breaks in which no entry is known to be missed."""


class ClusterSync:
    """Keeps the tables of one candidate current."""

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
        """`list_pause_s` returns the time between LISTs while there is no feed."""
        self._kube = kube
        self._cluster = cluster
        self._feed = feed
        self._reader = FeedReader(feed, clock)
        self._clock = clock
        self._random = random
        self._list_pause_s = list_pause_s
        self._specs = SpecCache()
        self._changed = asyncio.Event()
        self._poked = asyncio.Event()
        self._listing = asyncio.Lock()
        self._listed_at = -math.inf
        """when the last LIST began"""
        self._listed = 0
        """the version of its allocations"""
        self._list_took_s = 0.0
        self._heard = asyncio.Event()
        """set when a batch was read from the feed"""
        self._informed_at = -math.inf
        """when a batch was last read from the feed (monotonic seconds)"""
        self._has_missed = False
        """whether entries of the feed were missed since the last LIST"""

    @property
    def is_fresh(self) -> bool:
        """Whether changes arrive by the feed."""
        return self._reader.is_fresh

    @property
    def position(self) -> int:
        """The version up to which every change of an allocation is in the tables."""
        told = self._reader.versions.get(ALLOCATIONS.plural, "")
        return max(self._listed, int(told) if told.isdigit() else 0)

    async def wait_for_version(self, version: int) -> bool:
        """Wait until the tables have the allocations up to `version` (0: as they are now), and the rest is recent.

        Return whether that needed a LIST. If the feed works but has not reached that version, the wait is as long as a
        LIST would take: in a small cluster no wait at all, and in a large one the next heartbeat arrives sooner.

        Raises:
            TransientError: the API server cannot be reached.
        """
        if version:
            await self._catch_up(version)
        listed_at = self._listed_at
        async with self._list_lock():
            if version and not self._has_listed:
                # The start from a snapshot is complete with the next heartbeat, so wait for that.
                await self._catch_up(version)
            # A LIST that ended during the wait is as recent as possible, however long it took.
            is_recent = self._is_recent or self._listed_at > listed_at
            is_reached = bool(version) and is_recent and self.position >= version
            if not is_reached:
                _log.info("LIST before a leadership", feed=self.is_fresh, position=self.position, wanted=version)
                # A working reader continues: its entries and the LIST are merged by version.
                await self._list(restart=self._reader.is_broken)
        # Without a feed, the next LIST finds the changes since that LIST.
        self.request_list()
        return not is_reached

    async def follow(self) -> None:
        """Fill the tables, then apply the feed for ever, and LIST when the feed breaks."""
        begun_at = self._clock.monotonic()
        async with self._list_lock():
            is_known = await self._start_from_snapshot()
        # A term that has begun since then may have made the first LIST.
        if not is_known and not self._has_listed:
            await self._list_since(begun_at)
        while True:
            batch = await self._reader.read(timeout_s=keys.FEED_SILENCE_S)
            liveness.beat()
            if isinstance(batch, FeedBatch):
                self._heard.set()
                self._informed_at = self._clock.monotonic()
                telemetry.FEED_HEARD.set(self._clock.now() - self._reader.silent_s)
                if self._apply(batch.deltas):
                    self._changed.set()
                continue
            telemetry.FEED_GAPS.labels(reason=batch.reason.name.lower()).inc()
            if batch.reason is BreakReason.FORGED:
                _log.warning("entry of the cluster feed refused", why=batch.reason.value, then="LIST")
            self._has_missed = batch.reason not in _SILENT
            broken_at = self._clock.monotonic()
            # LISTs must not load the API server for more than half of the time.
            pause_s = max(self._list_pause_s(), self._list_took_s)
            await self._pause(LIST_PAUSE_S if batch.reason in _AT_ONCE else pause_s)
            await self._list_since(broken_at)

    def has_changed(self) -> bool:
        """Whether `changed` returns at once."""
        return self._changed.is_set()

    async def changed(self, within_s: float | None = None) -> None:
        """Wait until a table has changed since the last call, or `within_s` seconds have passed."""
        # An idle leader does little else, and a timer that acts like a change costs less than a timeout.
        timer = asyncio.get_running_loop().call_later(within_s, self.wake) if within_s is not None else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._changed.clear()

    def clear_changes(self) -> None:
        """Forget the changes until now, because the caller is about to read them."""
        self._changed.clear()

    def wake(self) -> None:
        """End the wait in `changed`, because something outside the tables has changed."""
        self._changed.set()

    def request_list(self) -> None:
        """LIST soon, because there may be changes; without effect while the feed works."""
        if not self.is_fresh:
            self._poked.set()

    @property
    def _is_recent(self) -> bool:
        """Whether the tables are as current as a LIST would be, which is as old as the time that it takes."""
        now = self._clock.monotonic()
        told_at = -math.inf if self._has_missed else self._informed_at
        is_as_good = now - told_at <= max(RECENT_S, self._list_took_s)
        return self.is_fresh or is_as_good or now - self._listed_at <= RECENT_S

    async def _catch_up(self, version: int) -> None:
        """Wait until the feed has reached `version`, as long as that is quicker than a LIST."""
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
        """Fill the tables from a snapshot of the feed and all entries since; return False when a LIST is needed.

        The tables are updated in one step, once the publisher is known to be alive: a feed without a publisher may be
        of any age.
        """
        begun_at = self._clock.monotonic()
        reading, told, deltas = PageReader(), list[tuple[str, list[FactRow]]](), list[Delta]()
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
                        _log.info("feed did not catch up with its snapshot", since=len(deltas))
                        return False
                    if batch.deltas:
                        deltas += batch.deltas
                        until_s = self._clock.monotonic() + CATCH_UP_S
            except ForgedError as exc:
                telemetry.FEED_GAPS.labels(reason=BreakReason.FORGED.name.lower()).inc()
                _log.warning("snapshot of the cluster feed refused", why=str(exc), then="LIST")
                return False
            except (TransientError, InvalidError, msgspec.ValidationError) as exc:
                _log.info("start from a snapshot of the feed failed", error=str(exc))
                return False
            count = store_pages(self._cluster, told)
            self._apply(latest(deltas))
        now = self._clock.monotonic()
        # A LIST of the same objects would take longer than that.
        self._informed_at, self._list_took_s = now, max(CATCH_UP_S, now - begun_at)
        _log.info(
            "started from a snapshot of the feed", objects=count, since=len(deltas), took_s=round(now - begun_at, 3)
        )
        self._changed.set()
        return True

    def _apply(self, deltas: tuple[Delta, ...]) -> bool:
        """Apply deltas. A delta that cannot be decoded is from another version, so a LIST has to bring the object."""
        changed = False
        for delta in deltas:
            try:
                changed |= apply_delta(self._cluster, delta)
            except msgspec.ValidationError as exc:
                _log.warning(
                    "feed entry not decoded: it is of another version", kind=delta.kind, key=delta.key, error=str(exc)
                )
                self._poked.set()
        return changed

    @asynccontextmanager
    async def _list_lock(self) -> AsyncGenerator[None]:
        """Let one loop at a time LIST; the loop that makes the LIST is watched itself."""
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
        """Make a consistent LIST of each resource; with `restart`,
        after the reader has moved to the end of the feed."""
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
        """Retry until a LIST that began after `moment` has succeeded."""
        failures = 0
        while True:
            try:
                async with self._list_lock():
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
