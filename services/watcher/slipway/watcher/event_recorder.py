"""Kubernetes Events about the steps of each allocation, which `kubectl describe allocation` shows.

The replica with the lease writes them (`EventRecorder`). It remembers which Events were written already, and limits how
fast they are written. Best effort: nothing waits for an Event. An Event that the API server refuses is counted, and the
first one of a term is logged. An Event that could not be written for `RECENT_S` is left out.

Promises: no Event is created twice. Its name follows from the object, so the next replica finds it and continues its
count. At the start of a term only recent events are written. Repetitions are counted in the same Event, which is
written each time the count has doubled.

Pure functions decide which steps get an Event, and with which words. Invariants: an Event follows from the object
alone, from one entry of its ring or from its condition Stalled, so every process builds the same Event under the same
name. One name is used for one step with one cause in one hour. Its repetitions in that hour are counted in the same
Event, so a gang that fails each second makes one Event an hour. An Event never contains a name from another namespace.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import msgspec

from slipway.crd.meta import API_GROUP, API_VERSION, condition_of
from slipway.crd.transitions import CONDITION_STALLED, HELD, id_of, ring_of, seq_of
from slipway.crd.v1alpha1 import Allocation, RingEntry
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
from slipway.model.ids import pod_name
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import INFRASTRUCTURE, Reason, Result
from slipway.model.times import format_time, parse_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher.informers import Informers
from slipway.watcher.obstacles import BLOCKED
from slipway.watcher.ports import EventWriter
from slipway.watcher.rank_changes import NOTE, STARTED_AGAIN

REPORTER = f"{API_GROUP}/watcher"
"""The source of the Events that kubectl shows."""
NOTE_BYTES_MAX = 1024
WINDOW_S = 3600
NODES_SAID_MAX = 3
_IN_ORDER = (
    "Queued", "CannotStart", "Held", "Resumed", "Admitted", "StartBlocked", "Running", "Preempting", "Requeued",
)  # fmt: skip
"""Reasons in the order in which they follow each other; every other reason is an end.
The name of an Event contains this position, because kubectl sorts these Events by name."""
_SAME_PLACE_AS = {"RankRestarted": "Running"}
"""{reason: the reason whose place in that order it shares}"""
_CALM = (Reason.PREEMPTED, Reason.PREEMPTION_GRACE, Reason.NODE_DISABLED, Reason.NODE_RESERVED)
"""Reasons of ends that a user or the scheduler decided: they are no warnings."""


class EventNote(msgspec.Struct, frozen=True, kw_only=True):
    """One Event about an allocation."""

    name: str
    """the name of the Event: repetitions that are counted in it have the same name"""
    reason: str
    action: str
    text: str
    at: float
    """epoch seconds"""
    is_warning: bool = False
    related: dict[str, str] | None = None
    """a reference to another object that the Event is about: a pod, or an allocation"""


class _EventText(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    action: str
    text: str
    is_warning: bool = False
    related: dict[str, str] | None = None


def notes_of(allocation: Allocation) -> list[EventNote]:
    """Return the Events about the allocation, oldest first; older steps only if the ring still has them."""
    found: list[EventNote] = []
    for entry in ring_of(allocation):
        event_text = _text_of(allocation, entry) if entry.time else None
        if event_text is not None:
            found.append(_note(allocation, event_text, parse_time(entry.time), cause=entry.reason))
    stalled = condition_of(allocation.status.conditions, CONDITION_STALLED)
    if stalled is not None and allocation.status.phase is Phase.PENDING and stalled.last_transition_time:
        event_text = _EventText(reason="CannotStart", action="Explain", text=stalled.message, is_warning=True)
        found.append(_note(allocation, event_text, parse_time(stalled.last_transition_time), cause=stalled.reason))
    return found


def body_of(allocation: Allocation, note: EventNote, instance: str) -> dict[str, Any]:
    """Return the Event as JSON for its creation. `instance` is the process that reports it."""
    meta = allocation.metadata
    body: dict[str, Any] = {
        "metadata": {"name": note.name, "namespace": meta.namespace},
        "eventTime": format_time(note.at, "microseconds"),
        "regarding": _reference(allocation, meta.name, meta.uid),
        "reason": note.reason,
        "action": note.action,
        "note": _cut(note.text),
        "type": "Warning" if note.is_warning else "Normal",
        "reportingController": REPORTER,
        "reportingInstance": instance[:128],
    }
    if note.related is not None:
        body["related"] = note.related
    return body


def _note(allocation: Allocation, event_text: _EventText, at: float, *, cause: str) -> EventNote:
    like = _SAME_PLACE_AS.get(event_text.reason, event_text.reason)
    place = _IN_ORDER.index(like) if like in _IN_ORDER else len(_IN_ORDER)
    parts = [id_of(allocation), str(int(at // WINDOW_S)), f"{place}-{event_text.reason}", cause]
    name = ".".join(part.lower() for part in parts if part)
    return EventNote(
        name=name,
        reason=event_text.reason,
        action=event_text.action,
        text=event_text.text,
        at=at,
        is_warning=event_text.is_warning,
        related=event_text.related,
    )


def _text_of(allocation: Allocation, entry: RingEntry) -> _EventText | None:
    data = entry.data
    match entry.type:
        case Event.REQUESTED:
            spec = allocation.spec
            text = f"waits in queue {spec.queue} of pool {spec.pool} for {_count(data.get('ranks'), 'rank')}"
            return _EventText(reason="Queued", action="Queue", text=text)
        case Event.ASSIGNED:
            return _EventText(reason="Admitted", action="Admit", text=_placed(entry))
        case Event.RUNNING:
            text = f"attempt {entry.attempt}: {_count(data.get('ranks'), 'rank')} started"
            return _EventText(reason="Running", action="Start", text=text)
        case Event.PREEMPTING:
            return _preempting(allocation, entry)
        case Event.RESTARTED:
            return _requeued(allocation, entry)
        case Event.TERMINATED:
            return _ended(allocation, entry)
        case Event.UPDATED if data.get(BLOCKED):
            return _EventText(reason="StartBlocked", action="Start", text=str(data[BLOCKED]), is_warning=True)
        case Event.UPDATED if STARTED_AGAIN in data:
            text = str(data.get(NOTE) or "a rank failed; it starts again")
            return _EventText(reason="RankRestarted", action="Start", text=text, is_warning=True)
        case Event.UPDATED if HELD in data:
            is_held = bool(data[HELD])
            text = "is held and does not start" if is_held else "waits in its queue again"
            return _EventText(reason="Held" if is_held else "Resumed", action="Hold", text=text)
        case _:
            return None


def _placed(entry: RingEntry) -> str:
    nodes = {str(name): int(count) for name, count in dict(entry.data.get("nodes") or {}).items()}
    said = [f"{name} ({_count(count, 'rank')})" for name, count in list(nodes.items())[:NODES_SAID_MAX]]
    more = len(nodes) - len(said)
    if more > 0:
        said.append(f"{more} more")
    where = f" on {', '.join(said)}" if said else ""
    return f"attempt {entry.attempt} is placed{where}"


def _preempting(allocation: Allocation, entry: RingEntry) -> _EventText:
    space, _, name = str(entry.data.get("by") or "").rpartition("/")
    is_known = bool(name) and space == allocation.metadata.namespace
    deadline = entry.data.get("deadline")
    text = "was told to make room" + (f" for {name}" if is_known else "") + (f" until {deadline}" if deadline else "")
    related = _reference(allocation, name) if is_known else None
    return _EventText(reason="Preempting", action="Preempt", text=text, related=related)


def _requeued(allocation: Allocation, entry: RingEntry) -> _EventText:
    """Return the Event of a restart. The message in the status is about the last restart;
    an older one has only its reason."""
    last = [each for each in ring_of(allocation) if each.type is Event.RESTARTED][-1]
    is_last = last.seq == entry.seq and allocation.status.phase is Phase.PENDING and allocation.status.message
    text = allocation.status.message if is_last else f"attempt {entry.attempt - 1} ended with {entry.reason}"
    is_warning = entry.reason not in _CALM
    return _EventText(
        reason="Requeued", action="Requeue", text=f"{text}; waits for its next attempt", is_warning=is_warning
    )


def _ended(allocation: Allocation, entry: RingEntry) -> _EventText:
    status = allocation.status
    result = str(entry.data.get("result") or status.result or "")
    is_bad = result in (Result.FAILED, Result.INVALID, Result.TIMED_OUT)
    text = f"attempt {entry.attempt} ended: {status.message or entry.reason or result}"
    related = _failed_pod(allocation) if is_bad and entry.reason not in INFRASTRUCTURE else None
    return _EventText(reason=result or "Ended", action="End", text=text, is_warning=is_bad, related=related)


def _failed_pod(allocation: Allocation) -> dict[str, str] | None:
    """Return a reference to the pod of the lowest failed rank; None without one."""
    for rank, each in enumerate(allocation.status.ranks or []):
        if each.phase is RankState.FAILED and each.pod_uid:
            name = pod_name(id_of(allocation), allocation.status.attempt, rank)
            space = allocation.metadata.namespace
            return {"apiVersion": "v1", "kind": "Pod", "namespace": space, "name": name, "uid": each.pod_uid}
    return None


def _reference(allocation: Allocation, name: str, uid: str = "") -> dict[str, str]:
    space = allocation.metadata.namespace
    found = {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": "Allocation", "namespace": space, "name": name}
    return {**found, "uid": uid} if uid else found


def _count(number: Any, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number or 0} {noun}s"


def _cut(text: str) -> str:
    return text.encode()[:NOTE_BYTES_MAX].decode(errors="ignore")


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
        # The allocation may have been deleted in the meantime. Its last Events are written nevertheless.
        if self._informers.allocations.by_uid(allocation.metadata.uid) is not None:
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
