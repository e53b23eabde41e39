"""Builds the Kubernetes Events about the steps of an allocation, which `kubectl describe allocation` shows.

Owns which steps get an Event, and its words. Pure. Must not know how an Event is written.

Invariants: an Event follows from the object alone, from one entry of its ring or from its condition Stalled, so every
process builds the same Event under the same name. One name is used for one step with one cause in one hour. Its
repetitions in that hour are counted in the same Event, so a gang that fails each second makes one Event an hour. An
Event never contains a name from another namespace.
"""

from typing import Any

import msgspec

from slipway.crd.meta import API_GROUP, API_VERSION, condition_of
from slipway.crd.transitions import CONDITION_STALLED, HELD, id_of, ring_of
from slipway.crd.v1alpha1 import Allocation, RingEntry
from slipway.model.ids import pod_name
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import INFRASTRUCTURE, Reason, Result
from slipway.model.times import format_time, parse_time
from slipway.watcher.obstacles import BLOCKED
from slipway.watcher.restarting import NOTE, STARTED_AGAIN

REPORTER = f"{API_GROUP}/watcher"
"""The source of the Events that kubectl shows."""
NOTE_BYTES_MAX = 1024
WINDOW_S = 3600
NODES_SAID_MAX = 3
_IN_ORDER = (
    "Queued", "CannotStart", "Held", "Resumed", "Admitted", "StartBlocked", "Running", "Preempting", "Requeued",
)  # fmt: skip
"""Reasons in the order in which they follow each other; every other reason is an end.
kubectl sorts these Events by name."""
_BESIDE = {"RankRestarted": "Running"}
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
    like = _BESIDE.get(event_text.reason, event_text.reason)
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
