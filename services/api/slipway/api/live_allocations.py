"""The allocations that have not ended, as the pages and lists of the api read them: kept by a watch.

Owns when the view answers and when the API server is asked instead. What is kept and how old it may be is
`watched.py`'s.

Promises
- An answer is never older than what this process has said before: than its own writes, what it has read of one
  allocation (`saw`), and the events that it has told those who follow all of them. It waits `CATCH_UP_S` for the watch
  to show them; then it is a LIST.
- While there is no view, or its watch is interrupted, each answer is a LIST, and fails as that does.

Not promised: to be current. Writes of other processes come as late as the watch, usually some milliseconds. What
refuses a request, or deletes or ends something, reads the API server.

Memory: 7 KB for an allocation of one rank with a short template, the index included.
"""

import math

import msgspec

from slipway.api.ports import WatchingKube
from slipway.api.queue_view import slots_of
from slipway.api.watched import LOOK_S, WatchedObjects
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.ports import Listed
from slipway.kube.reflector import PartOfResource
from slipway.kube.resources import ALLOCATIONS
from slipway.kube.scope import StopSignal
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.runtime.clock import Clock, Random

LIVE = f"status.phase!={Phase.TERMINATED}"
"""The field selector of what is kept."""
CATCH_UP_S = 0.2
"""How long an answer waits for the watch to show what is known."""
KNOWN_S = 5.0
"""So long after it was learnt, what the watch has not shown keeps answers away from the view. An older event is no news
either: who resumes a stream is told much that has passed."""
FIRST_SEQ = 1
"""That of the event that a new object stands for itself: its status says nothing yet."""
AHEAD_MAX = 10_000
"""Of so many allocations it is known what the watch has to show."""


class _Ahead(msgspec.Struct, frozen=True):
    """What is known of an allocation, and may not have come by the watch."""

    at_s: float
    """when it was learnt, monotonic"""
    version: int = 0
    """the resourceVersion that was seen"""
    seq: int = 0
    """of the last transition that was told"""
    is_over: bool = False
    """that transition was its end"""
    is_deleted: bool = False
    """an own delete was carried out"""

    def is_shown_by(self, held: Allocation | None, version: int) -> bool:
        """Whether the view is as new as this; `held` is what it has, None when it has nothing, at `version`."""
        if held is None:
            return self.is_over or self.is_deleted or (not self.seq and version >= self.version)
        if self.is_over or (self.is_deleted and held.metadata.deletion_timestamp is None):
            return False
        return held.metadata.version >= self.version and max(held.status.seq, FIRST_SEQ) >= self.seq


class LiveAllocations:
    """See the module's promises. `run` keeps it filled."""

    def __init__(self, kube: WatchingKube, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        part = PartOfResource(field_selector=LIVE, keeps=_is_live)
        self._watched = WatchedObjects(kube, ALLOCATIONS, clock, random, part=part)
        self._ahead: dict[str, _Ahead] = {}
        """{uid: what is known}, as it was learnt, the oldest first"""
        self._list_until_s = -math.inf
        """until then answers are LISTs: more was known than `_ahead` holds"""
        self._slots: dict[str, tuple[Allocation, int]] = {}
        """{uid: (the version that it was worked out for, GPUs)}"""
        self._watched.store.on_change(self._show)

    @property
    def plural(self) -> str:
        """Of the resource."""
        return self._watched.plural

    @property
    def is_kept(self) -> bool:
        """Whether there is a view, and its watch goes on."""
        return self._watched.is_running

    async def run(self, stop: StopSignal) -> None:
        """Watches until `stop`."""
        await self._watched.run(stop)

    async def listed(self) -> Listed[Allocation]:
        """All that has not ended, in no promised order, and a version to watch from.

        Raises what a LIST raises, where it has to be one.
        """
        if await self._is_current():
            store = self._watched.store
            return Listed(items=store.items(), resource_version=str(store.version))
        return await self._kube.list(ALLOCATIONS, field_selector=LIVE)

    async def items(self) -> list[Allocation]:
        """The items of `listed`."""
        return (await self.listed()).items

    def slots_of(self, allocation: Allocation) -> int:
        """What `queue_view.slots_of` says, worked out once for each version of what is kept."""
        uid = allocation.metadata.uid
        known = self._slots.get(uid)
        if known is not None and known[0] is allocation:
            return known[1]
        slots = slots_of(allocation)
        if self._watched.store.by_uid(uid) is allocation:
            self._slots[uid] = allocation, slots
        return slots

    def saw(self, allocation: Allocation) -> None:
        """The API server has answered a write, or a read of this one, with this object."""
        if _is_live(allocation):
            self._know(allocation.metadata.uid, version=allocation.metadata.version)

    def deleted(self, allocation: Allocation) -> None:
        """An own delete of this object was carried out."""
        self._know(allocation.metadata.uid, is_deleted=True)

    def heard(self, event: AllocationEvent) -> None:
        """An event is told to those who follow all of them."""
        if self._clock.now() - parse_time(event.time) <= KNOWN_S:
            self._know(event.uid, seq=event.seq, is_over=event.phase is Phase.TERMINATED)

    def _know(
        self, uid: str, *, version: int = 0, seq: int = 0, is_over: bool = False, is_deleted: bool = False
    ) -> None:
        now, store = self._clock.monotonic(), self._watched.store
        known = self._ahead.pop(uid, None) or _Ahead(now)
        ahead = _Ahead(
            now,
            max(version, known.version),
            max(seq, known.seq),
            is_over or known.is_over,
            is_deleted or known.is_deleted,
        )
        if ahead.is_shown_by(store.by_uid(uid), store.version):
            return
        if len(self._ahead) >= AHEAD_MAX:
            self._list_until_s = now + KNOWN_S
            return
        self._ahead[uid] = ahead

    def _show(self, old: Allocation | None, new: Allocation | None) -> None:
        """The watch has shown a change."""
        gone = old if new is None else None
        if gone is not None:
            self._ahead.pop(gone.metadata.uid, None)
            self._slots.pop(gone.metadata.uid, None)
        elif new is not None:
            ahead = self._ahead.get(new.metadata.uid)
            if ahead is not None and ahead.is_shown_by(new, new.metadata.version):
                del self._ahead[new.metadata.uid]

    async def _is_current(self) -> bool:
        """Whether the view may answer, after it was waited for."""
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

    def _oldest(self, now: float) -> _Ahead | None:
        """Of what the watch has still to show."""
        while self._ahead:
            uid, ahead = next(iter(self._ahead.items()))
            if now - ahead.at_s < KNOWN_S:
                return ahead
            del self._ahead[uid]
        return None


def _is_live(allocation: Allocation) -> bool:
    return allocation.status.phase is not Phase.TERMINATED
