"""The cluster feed and its snapshots: the observed objects as compact facts, while this process holds the feed's lease.

Owns which changes are published, and when the publisher must begin a new epoch. The order, the numbers and the
heartbeats are in `streams/feed.py`.

Invariants: nothing is published before every store is synced; a change that does not matter for placement is not
published; after a gap in our own view (a new LIST) a new epoch begins, so that readers LIST as well; when a watch
becomes silent, publishing ends until it is fresh again.

With a snapshot of the feed, a scheduler that starts in a large cluster needs no LIST. The LIST of a small cluster is
quicker, so there is no snapshot of it. A snapshot of a large cluster is made page by page, in at most a twentieth of
the time. `streams/snapshot.py` explains how a snapshot is read, and why objects may change while it is made.

Invariant: a page shows the stores at a moment no earlier than the snapshot's position in the feed. The stores had every
fact before the feed published it.
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

from slipway.crd.meta import LABEL_ALLOCATION_UID, TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.errors import ControlPlaneError, InvariantError, StaleError, TransientError
from slipway.facts.core_objects import Fact, encode_fact, fact_of, object_key, ranges_by_namespace, resize_of
from slipway.facts.custom_resources import SpecCache, allocation_fact
from slipway.facts.pages import FactRow, encode_page
from slipway.kube.lease import Leadership
from slipway.kube.objects import LimitRange, Pod
from slipway.kube.resources import ALLOCATIONS, LIMIT_RANGES, RESOURCE_POOLS, Resource
from slipway.kube.scope import raise_only
from slipway.kube.wire import metadata_of
from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.namespace_limits import Ranges
from slipway.runtime import liveness, log
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams import keys
from slipway.streams.feed import EPOCHS_PER_TERM, Delta, FeedPublisher
from slipway.streams.ports import Feed, FeedOp
from slipway.streams.snapshot import SnapshotPosition, SnapshotWriter
from slipway.watcher.informers import BY_NAMESPACE, Informers

PAGE_OBJECTS = 250
"""The number of facts that are made without a pause: some milliseconds of the event loop."""
APPENDS_MAX = keys.CLUSTER.length_max * 3 // 8
"""A new snapshot is made after so many appends, well before the feed drops the entries after its position."""
AGE_MAX_S = keys.SNAPSHOT.ttl_s / 2
REST = 20
"""The pause after a snapshot is so many times as long as it took to make."""
PAUSE_S = 5.0
"""The least pause, for a snapshot that failed or was made at once."""

_log = log.get_logger(__name__)

FactOf = Callable[[Any], Fact | None]
"""Returns the fact that the feed would publish of an object now; None for an object that it leaves out."""


class Snapshots:
    """Makes snapshots, one after the other, while a publisher runs. `objects_min`:
    the least number of objects for that."""

    def __init__(self, feed: Feed, informers: Informers, clock: Clock, fact_of: FactOf, *, objects_min: int) -> None:
        self._feed = feed
        self._informers = informers
        self._clock = clock
        self._fact_of = fact_of
        self._objects_min = objects_min
        self._slot = 0
        self._made: SnapshotPosition | None = None
        self._appends = 0
        """the publisher's count of appends at the position of the last snapshot"""
        self._made_at_s = -math.inf
        self._not_before_s = -math.inf
        self._task: asyncio.Task[None] | None = None

    def look(self, publisher: FeedPublisher, tasks: TaskGroup) -> None:
        """Begin a snapshot if one is due."""
        stands, now_s = publisher.stands, self._clock.monotonic()
        if self._task is not None or stands is None or now_s < self._not_before_s:
            return
        is_known = self._made is not None and self._made.epoch == stands.epoch
        is_good = is_known and publisher.appends - self._appends < APPENDS_MAX and now_s - self._made_at_s < AGE_MAX_S
        if is_good or sum(len(store) for _, store in self._informers.stores()) < self._objects_min:
            return
        self._task = tasks.create_task(self._make(publisher, stands, publisher.appends))

    def stop(self) -> None:
        """Cancel the snapshot that is being made."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _make(self, publisher: FeedPublisher, stands: SnapshotPosition, appends: int) -> None:
        begun_s = self._clock.monotonic()
        try:
            if await self._write(publisher, stands):
                self._made, self._appends, self._made_at_s = stands, appends, begun_s
                # The next snapshot uses the other slot, because readers may still read this one.
                self._slot = (self._slot + 1) % keys.SNAPSHOT_SLOTS
        except InvariantError:
            raise
        except ControlPlaneError as error:
            _log.info("snapshot of the feed not written", error=str(error))
        finally:
            took_s = self._clock.monotonic() - begun_s
            self._not_before_s = self._clock.monotonic() + max(PAUSE_S, REST * took_s)
            self._task = None

    async def _write(self, publisher: FeedPublisher, stands: SnapshotPosition) -> bool:
        """Write the snapshot; return False if a new epoch has begun, so that it is invalid."""
        writer = SnapshotWriter(self._feed, self._slot, stands)
        count = 0
        for kind, told in self._pages():
            if publisher.epoch != stands.epoch:
                return False
            await writer.add(encode_page(kind, told))
            count += len(told)
        await writer.finish()
        _log.debug("snapshot of the feed written", epoch=stands.epoch, number=stands.number, objects=count)
        return True

    def _pages(self) -> Iterator[tuple[str, list[FactRow]]]:
        for resource, store in self._informers.stores():
            items = store.items()
            for start in range(0, len(items), PAGE_OBJECTS):
                told = [self._encoded(item) for item in items[start : start + PAGE_OBJECTS]]
                yield resource.plural, [each for each in told if each is not None]

    def _encoded(self, item: Any) -> FactRow | None:
        fact = self._fact_of(item)
        if fact is None:
            return None
        meta = metadata_of(item)
        return object_key(meta), meta.version, fact


WATCH_S = 0.5
"""The time between two checks of a view that is incomplete or may be old."""
_ENDED = ("Succeeded", "Failed")


class ClusterFeed:
    """Publishes the observed objects. `gaps` counts the gaps in our own view; `is_stale` is whether the view may be
    old.

    `lost` is called when the feed has lost what we published: the Redis server was emptied, replaced, or restored.
    """

    def __init__(
        self,
        feed: Feed,
        informers: Informers,
        clock: Clock,
        *,
        gaps: Callable[[], int],
        is_stale: Callable[[], bool],
        lost: Callable[[], None],
        snapshot_objects: int,
    ) -> None:
        """`snapshot_objects`: with at least so many objects, snapshots of the feed are made."""
        self._feed = feed
        self._informers = informers
        self._clock = clock
        self._gaps = gaps
        self._is_stale = is_stale
        self._lost = lost
        self._resolved: dict[str, AllocationFact] = {}
        """{uid of an unended allocation: its last fact}, from the present spec, pool and LimitRanges"""
        self._specs = SpecCache()
        self._snapshots = Snapshots(feed, informers, clock, self._fact_now, objects_min=snapshot_objects)

    async def publish(self, leadership: Leadership) -> None:
        """Publish while the lease is held; begin a new epoch after each gap."""
        term = leadership.term
        while leadership.is_valid():
            liveness.beat()
            if not self._informers.is_synced or self._is_stale():
                await self._clock.sleep(WATCH_S)
                continue
            self._resolved.clear()
            publisher = FeedPublisher(self._feed, self._clock, term=term)
            async with AsyncExitStack() as listening:
                for resource, store in self._informers.stores():
                    listening.callback(store.on_change(self._listener(publisher, resource)))
                try:
                    await self._run(publisher, leadership)
                except StaleError as error:
                    # The lease was deleted and its terms begin at 0 again, or its last holder wrote late: use a higher
                    # term.
                    _log.warning("lost the cluster-feed lease", error=str(error))
                    await self._clock.sleep(WATCH_S)
                    term = max(term, await self._term_in_feed() + 1)
        # The elector ends this term soon. Until then the loop calls `publish` again at once, and must not spin.
        await self._clock.sleep(WATCH_S)

    async def _run(self, publisher: FeedPublisher, leadership: Leadership) -> None:
        """Publish until the view has a gap or is stale, or the lease is lost."""
        gaps, epoch = self._gaps(), 0
        stores = [(resource.plural, store) for resource, store in self._informers.stores()]

        def begin_round(tasks: TaskGroup) -> bool:
            """Report the reached versions, notice a lost feed, begin a due snapshot; return whether to publish on."""
            nonlocal epoch
            for plural, store in stores:
                publisher.reached(plural, str(store.version))
            if epoch not in (0, publisher.epoch):
                _log.info("published feed lost", epoch=publisher.epoch)
                self._lost()
            epoch = publisher.epoch
            self._snapshots.look(publisher, tasks)
            return leadership.is_valid() and self._gaps() == gaps and not self._is_stale()

        try:
            async with TaskGroup() as tasks:
                await publisher.run(lambda: begin_round(tasks))
                self._snapshots.stop()
        except BaseExceptionGroup as group:
            raise_only(group)

    async def _term_in_feed(self) -> int:
        try:
            return (await self._feed.position()).epoch // EPOCHS_PER_TERM
        except TransientError:
            return 0

    def _listener(self, publisher: FeedPublisher, resource: Resource[Any]) -> Callable[[Any, Any], None]:
        kind = resource.plural

        def take(old: Any, new: Any) -> None:
            for delta in self._deltas(kind, old, new):
                publisher.offer(delta)
            if kind == RESOURCE_POOLS.plural and _spec_of(old) != _spec_of(new):
                pool = (new or old).metadata.name
                self._republish(
                    publisher, [each for each in self._informers.allocations.items() if each.spec.pool == pool]
                )
            elif kind == LIMIT_RANGES.plural and _spec_of(old) != _spec_of(new):
                self._republish(
                    publisher, self._informers.allocations.indexed(BY_NAMESPACE, (new or old).metadata.namespace)
                )

        return take

    def _deltas(self, kind: str, old: Any, new: Any) -> list[Delta]:
        if new is None:
            meta = metadata_of(old)
            self._resolved.pop(meta.uid, None)
            return [Delta(kind=kind, op=FeedOp.DELETE, key=object_key(meta), rv=meta.resource_version)]
        if isinstance(new, Pod) and (not _is_visible(new) or _uses_the_same(old, new)):
            return []
        pools = self._pools()
        if isinstance(new, Allocation):
            # The fact contains the object's version, by which the leading scheduler knows
            # that its own write has arrived.
            return [_put(kind, new, encode_fact(self._allocation_fact(old, new)))]
        fact = fact_of(new, pools)
        is_same = old is not None and fact_of(old, pools) == fact
        if is_same and not (isinstance(old, Pod) and not _is_visible(old)):
            return []
        return [_put(kind, new, encode_fact(fact))]

    def _fact_now(self, obj: Any) -> Fact | None:
        """Return the fact that the feed has, or will have, of an object; None when the object is not published."""
        if isinstance(obj, Pod) and not _is_visible(obj):
            return None
        if isinstance(obj, Allocation):
            pool, ranges = self._informers.pools.get(obj.spec.pool), self._ranges_of(obj)
            known = self._resolved.get(obj.metadata.uid) or self._specs.of(obj, pool, ranges)
            return allocation_fact(obj, pool, ranges=ranges, known=known)
        return fact_of(obj, self._pools())

    def _allocation_fact(self, old: Allocation | None, new: Allocation) -> AllocationFact:
        """Return the fact. Its costly part, which follows from the spec alone,
        is cached while the spec is unchanged."""
        uid = new.metadata.uid
        # The API server raises the generation with each change of the spec.
        is_same_spec = old is not None and (old.metadata.uid, old.metadata.generation) == (uid, new.metadata.generation)
        known = self._resolved.get(uid) if is_same_spec else None
        ranges = self._ranges_of(new) if known is None else ()
        fact = allocation_fact(new, self._informers.pools.get(new.spec.pool), ranges=ranges, known=known)
        if new.status.phase is Phase.TERMINATED and TEARDOWN_FINALIZER not in new.metadata.finalizers:
            self._resolved.pop(uid, None)
        else:
            self._resolved[uid] = fact
        return fact

    def _republish(self, publisher: FeedPublisher, allocations: list[Allocation]) -> None:
        """Publish facts again, after the defaults of a pool or the LimitRanges of a namespace have changed."""
        for allocation in allocations:
            fact = self._allocation_fact(None, allocation)
            publisher.offer(_put(ALLOCATIONS.plural, allocation, encode_fact(fact)))

    def _ranges_of(self, allocation: Allocation) -> Ranges:
        namespace = allocation.metadata.namespace
        return ranges_by_namespace(self._informers.ranges.indexed(BY_NAMESPACE, namespace)).get(namespace, ())

    def _pools(self) -> dict[str, ResourcePool]:
        return {pool.metadata.name: pool for pool in self._informers.pools.items()}


def _put(kind: str, obj: Any, data: bytes) -> Delta:
    meta = metadata_of(obj)
    return Delta(kind=kind, op=FeedOp.PUT, key=object_key(meta), rv=meta.resource_version, data=data)


def _is_visible(pod: Pod) -> bool:
    """Whether a pod matters for placement: it uses a node, or is a rank of ours that has ended."""
    is_ours = LABEL_ALLOCATION_UID in pod.metadata.labels
    return bool(pod.spec.node_name) or (is_ours and pod.status.phase in _ENDED)


def _uses_the_same(old: Pod | None, new: Pod) -> bool:
    """Whether a pod that was visible uses the same resources as before: most changes are of its status only.

    A request to delete the pod is a change: the pod is no longer counted for the spreading of pods. A resize that the
    kubelet reports is a change too: the requests of the pod are then different.
    """
    if old is None or old.metadata.uid != new.metadata.uid or not _is_visible(old):
        return False
    states = [(pod.status.phase in _ENDED, _is_leaving(pod), resize_of(pod)) for pod in (old, new)]
    return states[0] == states[1] and old.spec == new.spec and old.metadata.labels == new.metadata.labels


def _is_leaving(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None and pod.status.phase not in _ENDED


def _spec_of(obj: ResourcePool | LimitRange | None) -> object:
    return obj.spec if obj is not None else None
