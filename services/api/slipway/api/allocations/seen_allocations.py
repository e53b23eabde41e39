"""A view of all allocations for the pages and lists of the api, kept in memory by a watch.

A live allocation is kept whole. Of an ended one the view keeps the fields that lists filter and sort by, its usage, how
long it ran, and its run limit. Owns the decision when the view answers and when the API server is read instead. The
watch itself is that of `cluster/watched.py`.

Promises
- An answer is never older than what this process has shown before: its own writes, its reads of single allocations
  (`saw`), and the events that it has sent to clients which follow all events. An answer waits up to `CATCH_UP_S` for
  the watch to show these; after that the answer is a LIST.
- While there is no view, or its watch is interrupted, each answer is a LIST, and raises what the LIST raises.

Not promised: to be current. Writes of other processes arrive with the delay of the watch, usually some milliseconds.
Code that refuses a request, or deletes or ends an object, reads the API server.

Memory: 7 KB for a live allocation of one rank with a short template, 3.4 KB for an ended one.
"""

import asyncio
import math
from collections.abc import Iterable, Sequence
from functools import partial
from sys import intern

import msgspec

from slipway.accounting.daily_totals import ANNOTATION_USAGE
from slipway.api.cluster.watched import LOOK_S, WatchedObjects
from slipway.api.http.ttl_cache import LoadingCache
from slipway.api.ports import WatchingKube
from slipway.api.queues.queue_view import gpu_units_of
from slipway.crd.meta import ANNOTATION_USER, ObjectMeta
from slipway.crd.transitions import seq_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, AllocationStatus
from slipway.errors import NotFoundError
from slipway.facts.custom_resources import run_limit
from slipway.kube.ports import Listed
from slipway.kube.resources import ALLOCATIONS
from slipway.kube.scope import StopSignal
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Phase
from slipway.model.mig import whole_gpus
from slipway.model.times import parse_time
from slipway.runtime.clock import Clock, Random

LIVE = f"status.phase!={Phase.TERMINATED}"
"""The field selector of live allocations."""
CATCH_UP_S = 0.2
"""How long an answer waits for the watch to show what this process already knows."""
KNOWN_S = 5.0
"""How long after a write, a read or an event answers are LISTs if the watch has not shown it.

Older events are ignored: a client that resumes a stream receives many of them.
"""
AHEAD_MAX = 10_000
"""The most allocations for which the view records what the watch has still to show."""
READ_MAX = 100
"""The most ended allocations that are read one by one for a page; for more the whole list is read."""
READ_AT_ONCE = 16
READ_KEPT_MAX = 500
READ_KEPT_S = 3_600.0
"""Ended allocations that were read whole are cached: at most `READ_KEPT_MAX`, for `READ_KEPT_S`."""
_LIVES = "lives"
_KEPT = (ANNOTATION_USER, ANNOTATION_USAGE)


class SeenAllocation(Allocation, kw_only=True, frozen=True):
    """An allocation of the view.

    An ended one has only the fields that lists filter and sort by, and those that usage sums and estimates need. Its
    run limit is the one that was in effect.
    """

    def __post_init__(self) -> None:
        if self.status.phase is Phase.TERMINATED:
            for name, part in (("metadata", _brief_meta(self)), ("spec", _brief_spec(self)), ("status", _brief(self))):
                msgspec.structs.force_setattr(self, name, part)


SEEN_ALLOCATIONS = msgspec.structs.replace(ALLOCATIONS, struct=SeenAllocation)


def _brief_meta(allocation: Allocation) -> ObjectMeta:
    meta = allocation.metadata
    return ObjectMeta(
        name=meta.name,
        namespace=intern(meta.namespace),
        uid=meta.uid,
        resource_version=meta.resource_version,
        creation_timestamp=meta.creation_timestamp,
        deletion_timestamp=meta.deletion_timestamp,
        annotations={name: intern(meta.annotations[name]) for name in _KEPT if name in meta.annotations},
    )


def _brief_spec(allocation: Allocation) -> AllocationSpec:
    spec = allocation.spec
    return AllocationSpec(
        kind=spec.kind,
        pool=intern(spec.pool),
        queue=intern(spec.queue),
        job=intern(spec.job) if spec.job else spec.job,
        priority=spec.priority,
        preemptible=spec.preemptible,
        max_runtime=run_limit(allocation),
    )


def _brief(allocation: Allocation) -> AllocationStatus:
    status = allocation.status
    is_counted = status.usage is not None and status.usage.seq >= status.seq
    return AllocationStatus(
        phase=status.phase,
        attempt=status.attempt,
        seq=status.seq,
        result=status.result,
        started_at=status.started_at,
        ended_at=status.ended_at,
        slots=status.slots,
        slices=status.slices,
        usage=status.usage,
        # While its final usage is not stored yet, its usage is computed from these two.
        transitions=[] if is_counted else status.transitions,
        admission=None if is_counted else status.admission,
    )


class _AheadOfWatch(msgspec.Struct, frozen=True):
    """What this process knows about an allocation, and the watch may not have shown yet."""

    at_s: float
    """when the process learnt it, monotonic"""
    version: int = 0
    """the resourceVersion that was seen"""
    seq: int = 0
    """the highest seq of an event that was sent to clients"""
    is_deleted: bool = False
    """this process has deleted it"""

    def is_shown_by(self, held: Allocation | None, version: int) -> bool:
        """Whether the view is as new as this.

        `held` is the allocation in the view, None when the view has none; `version` is that of the view.
        """
        if held is None:
            return self.is_deleted or (not self.seq and version >= self.version)
        if self.is_deleted and held.metadata.deletion_timestamp is None:
            return False
        return held.metadata.version >= self.version and seq_of(held) >= self.seq


class SeenAllocations:
    """See the module's promises. `run` keeps it filled."""

    def __init__(self, kube: WatchingKube, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        self._watched = WatchedObjects(kube, SEEN_ALLOCATIONS, clock, random, indexers={_LIVES: _lives})
        self._ahead: dict[str, _AheadOfWatch] = {}
        """{uid: what the watch has still to show}, the oldest first"""
        self._gone: dict[str, float] = {}
        """{uid: when the watch showed that the allocation was deleted, monotonic}, the oldest first"""
        self._list_until_s = -math.inf
        """until this monotonic time answers are LISTs, because `_ahead` was full"""
        self._units: dict[str, tuple[Allocation, int]] = {}
        """{uid: (the allocation that it was computed for, GPUs in `GPU_UNITS`)}"""
        self._read = LoadingCache[tuple[str, str], Allocation](clock, ttl_s=READ_KEPT_S, keys_max=READ_KEPT_MAX)
        """{(uid, version): the whole allocation} of ended ones"""
        self._watched.store.on_change(self._show)

    @property
    def plural(self) -> str:
        """The plural name of the resource."""
        return self._watched.plural

    @property
    def is_kept(self) -> bool:
        """Whether there is a view, and its watch is not interrupted."""
        return self._watched.is_running

    async def run(self, stop: StopSignal) -> None:
        """Watch until `stop` is set."""
        await self._watched.run(stop)

    async def live(self) -> list[Allocation]:
        """Return all live allocations, whole, in no promised order. Raises what a LIST raises when it has to be one."""
        if await self._is_current():
            return self._watched.store.indexed(_LIVES, _LIVES)
        return (await self._kube.list(ALLOCATIONS, field_selector=LIVE)).items

    async def all(self) -> Listed[Allocation] | None:
        """Return all allocations in no promised order, and a version to watch from; None while the view cannot answer.

        Ended ones have only the fields of the view; `whole` reads the rest of them.
        """
        if not await self._is_current():
            return None
        store = self._watched.store
        return Listed(items=store.items(), resource_version=str(store.version))

    async def brief(self) -> list[Allocation]:
        """Like the items of `all`, but from a LIST when the view cannot answer. Raises what a LIST raises."""
        found = await self.all()
        return (found if found is not None else await self._kube.list(ALLOCATIONS)).items

    async def whole(self, found: Sequence[Allocation]) -> list[Allocation] | None:
        """Return these allocations whole, without deleted ones; None if that needs more than `READ_MAX` reads."""
        missing = [each for each in found if not _is_live(each) and not self._read.is_known(_version_of(each))]
        if len(missing) > READ_MAX:
            return None
        turn, gone = asyncio.Semaphore(READ_AT_ONCE), set[str]()

        async def whole_of(each: Allocation) -> Allocation:
            if _is_live(each):
                return each
            async with turn:
                try:
                    return await self._read.get(_version_of(each), partial(self._get, each))
                except NotFoundError:
                    gone.add(each.metadata.uid)
                    return each

        answer = await asyncio.gather(*map(whole_of, found))
        return [each for each in answer if each.metadata.uid not in gone]

    async def _get(self, seen: Allocation) -> Allocation:
        meta = seen.metadata
        found = await self._kube.get(ALLOCATIONS, meta.name, namespace=meta.namespace)
        if found.metadata.uid != meta.uid:
            raise NotFoundError(f"another allocation has the name {meta.name} now")
        return found

    def slots_of(self, allocation: Allocation) -> int:
        """Return the same as `queue_view.slots_of`, from the cache of `gpu_units_of`."""
        return whole_gpus(self.gpu_units_of(allocation))

    def gpu_units_of(self, allocation: Allocation) -> int:
        """Return the same as `queue_view.gpu_units_of`, computed once for each version of an allocation in the view."""
        uid = allocation.metadata.uid
        known = self._units.get(uid)
        if known is not None and known[0] is allocation:
            return known[1]
        units = gpu_units_of(allocation)
        if self._watched.store.by_uid(uid) is allocation:
            self._units[uid] = allocation, units
        return units

    def saw(self, allocation: Allocation) -> None:
        """Note that the API server answered a write or a read of one allocation with this object."""
        self._know(allocation.metadata.uid, version=allocation.metadata.version)

    def deleted(self, allocation: Allocation) -> None:
        """Note that this process has deleted this allocation."""
        self._know(allocation.metadata.uid, is_deleted=True)

    def heard(self, event: AllocationEvent) -> None:
        """Note that this event is about to be sent to the clients that follow all events."""
        if self._clock.now() - parse_time(event.time) <= KNOWN_S:
            self._know(event.uid, seq=event.seq)

    def _know(self, uid: str, *, version: int = 0, seq: int = 0, is_deleted: bool = False) -> None:
        if uid in self._gone:
            return
        now, store = self._clock.monotonic(), self._watched.store
        known = self._ahead.pop(uid, None) or _AheadOfWatch(now)
        ahead = _AheadOfWatch(now, max(version, known.version), max(seq, known.seq), is_deleted or known.is_deleted)
        if ahead.is_shown_by(store.by_uid(uid), store.version):
            return
        if len(self._ahead) >= AHEAD_MAX:
            self._list_until_s = now + KNOWN_S
            return
        self._ahead[uid] = ahead

    def _show(self, old: Allocation | None, new: Allocation | None) -> None:
        """Note a change that the watch has shown."""
        if new is None:
            assert old is not None  # noqa: S101 - a change has one of them
            uid, now = old.metadata.uid, self._clock.monotonic()
            self._ahead.pop(uid, None)
            self._units.pop(uid, None)
            self._gone[uid] = now
            while self._gone[first := next(iter(self._gone))] < now - KNOWN_S:
                del self._gone[first]
            return
        uid = new.metadata.uid
        # After a restore of etcd a deleted allocation may exist again.
        self._gone.pop(uid, None)
        ahead = self._ahead.get(uid)
        if ahead is not None and ahead.is_shown_by(new, new.metadata.version):
            del self._ahead[uid]
        if not _is_live(new):
            self._units.pop(uid, None)

    async def _is_current(self) -> bool:
        """Wait up to `CATCH_UP_S` for the watch; return whether the view may answer."""
        until = self._clock.monotonic() + CATCH_UP_S
        while self.is_kept:
            now = self._clock.monotonic()
            oldest = self._oldest(now)
            if now < self._list_until_s:
                return False
            if oldest is None:
                return True
            if now >= min(until, oldest.at_s + CATCH_UP_S):
                return False
            await self._clock.sleep(LOOK_S)
        return False

    def _oldest(self, now: float) -> _AheadOfWatch | None:
        """Return the oldest entry that the watch has still to show; None when there is none. Entries expire."""
        while self._ahead:
            uid, ahead = next(iter(self._ahead.items()))
            if now - ahead.at_s < KNOWN_S:
                return ahead
            del self._ahead[uid]
        return None


def _is_live(allocation: Allocation) -> bool:
    return allocation.status.phase is not Phase.TERMINATED


def _version_of(allocation: Allocation) -> tuple[str, str]:
    return allocation.metadata.uid, allocation.metadata.resource_version


def _lives(allocation: Allocation) -> Iterable[str]:
    return (_LIVES,) if _is_live(allocation) else ()
