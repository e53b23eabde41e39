"""Writes Kubernetes Events about the steps of each allocation (`event_notes.py`), on the replica with the lease.

Owns which Events were written already, and how fast they are written. Best effort: nothing waits for an Event. An Event
that the API server refuses is counted, and the first one of a term is logged. An Event that could not be written for
`RECENT_S` is left out.

Promises: no Event is created twice. Its name follows from the object, so the next replica finds it and continues its
count. At the start of a term only recent events are written. Repetitions are counted in the same Event, which is
written each time the count has doubled.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from slipway.crd.meta import condition_of
from slipway.crd.transitions import CONDITION_STALLED, ring_of, seq_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import (
    AlreadyExistsError,
    NotFoundError,
    PermanentError,
    StaleError,
    TerminatingError,
    TransientError,
)
from slipway.kube.objects import OwnEvent
from slipway.kube.resources import STORY_EVENTS
from slipway.model.times import format_time, parse_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher.event_notes import EventNote, body_of, notes_of
from slipway.watcher.informers import Informers
from slipway.watcher.ports import EventWriter

RECENT_S = 120.0
"""Older events are left out, at the start of a term and after failures to write."""
BATCH_MAX = 10
PAUSE_S = 1.0
"""The pause after the Events of `BATCH_MAX` allocations were written."""
RETRY_S = 5.0
WAITING_MAX = 5_000
"""The most allocations that wait for their Events; Events of further allocations are left out."""
WRITTEN_MAX = 50_000

_log = log.get_logger(__name__)


class _Count(msgspec.Struct):
    """How many times an event has happened, when last (epoch seconds),
    and the count that was written to the cluster."""

    count: int
    last: float
    written: int


class EventRecorder:
    """Writes the Events of allocations, one term at a time."""

    def __init__(self, kube: EventWriter, informers: Informers, clock: Clock, *, instance: str) -> None:
        self._kube = kube
        self._informers = informers
        self._clock = clock
        self._instance = instance
        self._waiting: OrderedDict[str, Allocation] = OrderedDict()
        self._written: OrderedDict[str, _Count] = OrderedDict()
        """{namespace/name of an Event: its count}"""
        self._seen: dict[str, tuple[int, str]] = {}
        """{uid: (the seq, the time of the condition Stalled) up to which all Events are written}"""
        self._something = asyncio.Event()
        self._is_refused = False

    async def run(self) -> None:
        """Write Events until cancelled."""
        self._is_refused = False
        unsubscribe = self._informers.allocations.on_change(self._changed)
        try:
            self._offer_all(self._informers.allocations.items())
            while True:
                with liveness.rest(lambda: self._waiting):
                    await self._something.wait()
                await self._clock.sleep(await self.flush())
        finally:
            unsubscribe()
            self._waiting.clear()
            self._seen.clear()
            self._written.clear()

    async def flush(self) -> float:
        """Write the Events of one batch of allocations; return how long to pause (seconds)."""
        for uid in list(self._waiting)[:BATCH_MAX]:
            allocation = self._waiting.pop(uid)
            try:
                await self._write_events(allocation)
            except TransientError as error:
                _log.debug("events not written yet", allocation=allocation.metadata.name, error=str(error))
                self._waiting.setdefault(uid, allocation)
                return RETRY_S
            liveness.beat()
        if not self._waiting:
            self._something.clear()
        return PAUSE_S

    def offer(self, allocation: Allocation) -> None:
        """Queue the allocation, if it has events that are not written yet."""
        uid = allocation.metadata.uid
        if self._seen.get(uid) == _place(allocation):
            return
        if _latest(allocation) < self._clock.now() - RECENT_S:
            self._seen[uid] = _place(allocation)
            return
        if len(self._waiting) >= WAITING_MAX and uid not in self._waiting:
            telemetry.STORY_EVENTS.labels(outcome="left_out").inc()
            return
        self._waiting[uid] = allocation
        self._something.set()

    def _offer_all(self, allocations: Iterable[Allocation]) -> None:
        for allocation in allocations:
            self.offer(allocation)

    def _changed(self, old: Allocation | None, new: Allocation | None) -> None:
        if new is not None:
            self.offer(new)
        elif old is not None:
            self._seen.pop(old.metadata.uid, None)

    async def _write_events(self, allocation: Allocation) -> None:
        since = self._clock.now() - RECENT_S
        for note in notes_of(allocation):
            if note.at < since:
                continue
            try:
                outcome = await self._write(allocation, note)
            except (NotFoundError, TerminatingError):
                outcome = "left_out"  # its namespace is being deleted, or the Event is gone
            except (PermanentError, StaleError) as error:
                outcome = "refused"
                self._log_failure(note, error)
            if outcome:
                telemetry.STORY_EVENTS.labels(outcome=outcome).inc()
        self._seen[allocation.metadata.uid] = _place(allocation)

    async def _write(self, allocation: Allocation, note: EventNote) -> str:
        """Write the Event of a note; return the outcome, empty if nothing was left to write."""
        space = allocation.metadata.namespace
        key = f"{space}/{note.name}"
        known = self._written.get(key)
        outcome = ""
        if known is None:
            try:
                await self._kube.create(STORY_EVENTS, body_of(allocation, note, self._instance), namespace=space)
                known, outcome = _Count(count=1, last=note.at, written=1), "written"
            except AlreadyExistsError:
                known = _count_of(await self._kube.get(STORY_EVENTS, note.name, namespace=space))
            self._remember(key, known)
        if note.at <= known.last:
            return outcome
        count = known.count + 1
        if count >= 2 * known.written:
            # The count rises only after the write, so a failed patch is repeated with the same number.
            series = {"count": count, "lastObservedTime": format_time(note.at, "microseconds")}
            await self._kube.patch(STORY_EVENTS, note.name, {"series": series}, namespace=space)
            known.written, outcome = count, "counted"
        known.count, known.last = count, note.at
        return outcome

    def _remember(self, key: str, count: _Count) -> None:
        self._written[key] = count
        if len(self._written) > WRITTEN_MAX:
            self._written.popitem(last=False)

    def _log_failure(self, note: EventNote, error: Exception) -> None:
        if not self._is_refused:
            self._is_refused = True
            _log.warning("events of allocations refused", event=note.name, error=str(error))


def _place(allocation: Allocation) -> tuple[int, str]:
    stalled = condition_of(allocation.status.conditions, CONDITION_STALLED)
    since = stalled.last_transition_time if stalled is not None else None
    return seq_of(allocation), since or ""


def _latest(allocation: Allocation) -> float:
    """Return when the latest event of the allocation happened (epoch seconds)."""
    times = (ring_of(allocation)[-1].time, _place(allocation)[1])
    return max((parse_time(each) for each in times if each), default=0.0)


def _count_of(event: OwnEvent) -> _Count:
    """Return the count in an Event that another process has written."""
    series = event.series
    if series is None or not series.last_observed_time:
        return _Count(count=1, last=parse_time(event.event_time) if event.event_time else 0.0, written=1)
    return _Count(count=series.count, last=parse_time(series.last_observed_time), written=series.count)
