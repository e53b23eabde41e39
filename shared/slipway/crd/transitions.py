"""Transitions of an allocation's status: the ring that records them, and the stream entries made from it.

Pure. Only this module appends to `status.transitions`, increases `seq`, or makes an event from a ring entry. The phase
is read from the one table in `model/lifecycle.py`.

Invariants: seq increases by one per transition. Seq 1 is `requested` and is derived from the object itself, because the
api never writes status; so the first writer of a status adds it to the ring. An event is a pure function of (metadata,
one ring entry).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.crd import dependencies
from slipway.crd.meta import ANNOTATION_TRACE, ANNOTATION_USER
from slipway.crd.v1alpha1 import RING_LENGTH, Admission, Allocation, AllocationStatus, RingEntry
from slipway.model import ids
from slipway.model.events import DATA_BYTES_MAX, AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Event, Phase, advance
from slipway.model.numbers import plain
from slipway.model.reasons import Reason
from slipway.model.times import format_time, parse_time

FIRST_SEQ = 1
CONDITION_BLOCKED = "StartBlocked"
"""Written by the watcher: why ranks that have their nodes do not start."""
CONDITION_STALLED = "Stalled"
"""The condition type of kstatus for "no progress without a change". The scheduler sets it on an allocation that can
never start as it is, the watcher on one that ended without success. Otherwise it is absent."""
CONDITION_STUCK = "Stuck"
"""Written by the pod worker: why the pods cannot be created or bound."""
HELD = "held"
"""In the data of `updated`: whether the allocation is held from now on. Recorded for allocations with a pending
timeout."""


def id_of(allocation: Allocation) -> AllocationId:
    """The AllocationID of the object."""
    return ids.allocation_id(allocation.metadata.name, allocation.metadata.uid)


def key_of(allocation: Allocation) -> str:
    """Return `<namespace>/<name>`, the key that hints contain."""
    return f"{allocation.metadata.namespace}/{allocation.metadata.name}"


def user_of(allocation: Allocation, default: str = "unknown") -> str:
    """Return the user of the allocation from the annotation; `default` when it was applied without a user."""
    return allocation.metadata.annotations.get(ANNOTATION_USER, default)


def seq_of(allocation: Allocation) -> int:
    """Return the seq of the last transition; `requested` is the first one of a new object."""
    return max(FIRST_SEQ, allocation.status.seq)


def created_ms(allocation: Allocation) -> int:
    """Return creationTimestamp in milliseconds (whole seconds * 1000)."""
    stamp = allocation.metadata.creation_timestamp
    return int(parse_time(stamp)) * 1000 if stamp else 0


def requested(allocation: Allocation) -> RingEntry:
    """Return the entry with seq 1. It depends only on metadata and spec, so that the api and the watcher build the same
    one."""
    spec = allocation.spec
    return RingEntry(
        seq=FIRST_SEQ,
        attempt=1,
        type=Event.REQUESTED,
        phase=Phase.PENDING,
        time=allocation.metadata.creation_timestamp or "",
        data={
            "kind": spec.kind.value,
            "pool": spec.pool,
            "ranks": sum(role.count for role in spec.ranks) or 1,
            "user": user_of(allocation),
        },
    )


def ring_of(allocation: Allocation) -> list[RingEntry]:
    """Return the ring, oldest entry first; never empty."""
    return allocation.status.transitions or [requested(allocation)]


def record(
    allocation: Allocation,
    event: Event,
    *,
    now: float,
    reason: str = "",
    data: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Allocation:
    """Return the allocation after `event` at `now` (epoch seconds), with `changes` to other status fields.

    `restarted` also starts the next attempt: release and ranks are cleared. The admission of the old attempt stays as a
    record of its epoch, because the API server refuses to remove it.

    Raises:
        InvariantError: the lifecycle table has no such transition.
    """
    status = allocation.status
    phase = advance(status.phase, event)
    attempt = status.attempt + (event is Event.RESTARTED)
    entry = RingEntry(
        seq=seq_of(allocation) + 1,
        attempt=attempt,
        type=event,
        phase=phase,
        reason=reason,
        time=format_time(now),
        data=_bounded(plain(data or {})),
    )
    if event is Event.RESTARTED:
        changes = {
            "release": None,
            "ranks": None,
            "admission": _spent(status.admission),
            "stop": None,
            "shrink": None,
            "growth": None,
            "restarted_ranks": [],
            "ready": False,
            "waiting": False,
            "nodes": "",
            **changes,
        }
    status = msgspec.structs.replace(
        status,
        phase=phase,
        attempt=attempt,
        seq=entry.seq,
        transitions=[*ring_of(allocation), entry][-RING_LENGTH:],
        **{"reason": reason or status.reason, **changes},
    )
    return with_status(allocation, status)


def with_status(allocation: Allocation, status: AllocationStatus) -> Allocation:
    """Return the object with another status."""
    return msgspec.structs.replace(allocation, status=status)


def event_of(allocation: Allocation, entry: RingEntry, *, truncated: str | None = None) -> AllocationEvent:
    """Return the event of one ring entry. `truncated` is `from-to` when the ring has lost entries before it."""
    meta = allocation.metadata
    return AllocationEvent(
        allocation_id=id_of(allocation),
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        created_ms=created_ms(allocation),
        seq=entry.seq,
        attempt=entry.attempt,
        type=entry.type,
        phase=entry.phase,
        reason=entry.reason,
        time=entry.time,
        data=entry.data,
        truncated=truncated,
        traceparent=meta.annotations.get(ANNOTATION_TRACE, ""),
    )


def events_after(allocation: Allocation, seq: int) -> list[AllocationEvent]:
    """Return the events that a stream with the last seq `seq` still lacks, oldest first.

    When the ring no longer contains `seq + 1`, `truncated` of the first event states which entries were lost.
    """
    entries = [entry for entry in ring_of(allocation) if entry.seq > seq]
    events: list[AllocationEvent] = []
    for index, entry in enumerate(entries):
        is_gap = index == 0 and seq > 0 and entry.seq > seq + 1
        events.append(event_of(allocation, entry, truncated=f"{seq + 1}-{entry.seq - 1}" if is_gap else None))
    return events


def is_admitted(allocation: Allocation) -> bool:
    """Whether the current attempt is admitted."""
    status = allocation.status
    admission = status.admission
    return admission is not None and admission.attempt == status.attempt and status.phase is not Phase.PENDING


def is_released(allocation: Allocation) -> bool:
    """Whether the release of the current attempt is committed: its pods may be bound."""
    release = allocation.status.release
    return release is not None and release.attempt == allocation.status.attempt


def stop_reason(allocation: Allocation, *, namespace_terminating: bool = False) -> Reason | None:
    """Return why this attempt must stop: a committed cancel, a deletion, or a stop that the scheduler wrote; else
    None."""
    if namespace_terminating:
        return Reason.NAMESPACE_TERMINATING
    if allocation.metadata.deletion_timestamp is not None:
        return Reason.DELETED
    if allocation.spec.desired == "Stopped":
        return Reason.KILLED
    stop = allocation.status.stop
    if stop is not None and stop.attempt == allocation.status.attempt:
        return Reason(stop.reason)
    return None


def leaving_ranks(allocation: Allocation) -> tuple[int, ...]:
    """Return the ranks of this attempt that are evicted while the other ranks continue."""
    shrink = allocation.status.shrink
    return tuple(shrink.ranks) if shrink is not None and shrink.attempt == allocation.status.attempt else ()


def is_hold_recorded(allocation: Allocation) -> bool:
    """Whether the latest ring entry of this attempt that contains `held` records that the allocation is held."""
    for entry in reversed(ring_of(allocation)):
        if entry.attempt != allocation.status.attempt or entry.type in (Event.REQUESTED, Event.RESTARTED):
            return False
        if HELD in entry.data:
            return bool(entry.data[HELD])
    return False


def waiting_since(allocation: Allocation) -> float | None:
    """Return the time (epoch seconds) since which this attempt waits to be admitted.

    None when it does not wait, is held, or may not start before other allocations have ended.
    """
    if allocation.status.phase is not Phase.PENDING or allocation.spec.hold or dependencies.waits_for(allocation):
        return None
    stamp = allocation.metadata.creation_timestamp or ""
    for entry in reversed(ring_of(allocation)):
        if HELD in entry.data:
            if entry.data[HELD]:
                # It was resumed, but that is not recorded yet. So the new start of its wait is not known.
                return None
            stamp = entry.time
            break
        if entry.type in (Event.REQUESTED, Event.RESTARTED):
            stamp = entry.time
            break
    since = parse_time(stamp) if stamp else None
    met_at = dependencies.met_at(allocation)
    return since if since is None or met_at is None else max(since, met_at)


def blocked_since(allocation: Allocation) -> float | None:
    """Return when this attempt was admitted (epoch seconds), if a condition states that it cannot start; else None."""
    status = allocation.status
    if status.phase not in (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING):
        return None
    known = [each for each in status.conditions if each.type in (CONDITION_BLOCKED, CONDITION_STUCK)]
    is_held_up = any(each.observed_generation == status.attempt and each.status != "False" for each in known)
    admission = status.admission
    if not is_held_up or admission is None or admission.attempt != status.attempt or not admission.at:
        return None
    return parse_time(admission.at)


def _spent(admission: Admission | None) -> Admission | None:
    return msgspec.structs.replace(admission, placements=[]) if admission else None


def _bounded(data: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(data)
    while len(msgspec.json.encode(kept)) > DATA_BYTES_MAX and kept:
        largest = max(kept, key=lambda name: (len(msgspec.json.encode(kept[name])), name))
        del kept[largest]
        kept["cut"] = True
        if set(kept) == {"cut"}:
            break
    return kept
