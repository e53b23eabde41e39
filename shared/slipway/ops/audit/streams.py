"""Checks of streams, requests and work hints. Pure: evidence in, violations out.

Streams and requests (I14, I15, FENCE): order, one payload per seq, a complete end, a fence on every write. Hints (I16,
I17, ACK): none is lost, none is acknowledged too early, and a broken one does not delay others.
"""

from collections.abc import Iterator, Sequence

import msgspec

from slipway.crd.hashing import canonical_json
from slipway.crd.meta import condition_of
from slipway.crd.transitions import event_of, id_of, ring_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.numbers import plain
from slipway.model.times import parse_time
from slipway.ops.audit.evidence import SETTLE_S, AuditEvidence, HintHistory, InvariantViolation
from slipway.streams.keys import ALLOCATION

_REPLACES = "update"
_DELETES = "delete"
_BINDS = "bind"
_REFUSED = "InvalidError"


def streams_are_ordered(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I14: streams are strictly ordered and contiguous (a hole is marked). Each entry equals the object's own
    transition, byte for byte, also when it is published again.
    """
    truth = _transitions(evidence)
    payloads: dict[str, bytes] = {}
    stored = (event for events in evidence.streams.values() for event in events)
    for event in evidence.appended or stored:
        bare = _spelled(event)
        known = payloads.setdefault(event.event_id, bare)
        if known != bare:
            yield _broken("I14", event.allocation_id, f"two payloads for seq {event.seq}: {known!r} and {bare!r}")
        said = truth.get(event.event_id)
        if said is None and (evidence.is_sampled or evidence.starts_late):
            continue
        if said is None:
            yield _broken("I14", event.allocation_id, f"seq {event.seq} {event.type} is not a transition of the object")
        elif said != bare:
            yield _broken("I14", event.allocation_id, f"seq {event.seq} says {bare!r}, but the object says {said!r}")
    for name, events in evidence.streams.items():
        expected = 1 if len(events) < ALLOCATION.length_max else events[0].seq
        for event in events:
            if event.truncated:
                expected = int(event.truncated.split("-")[1]) + 1
            if event.seq != expected:
                yield _broken("I14", name, f"seq {event.seq} follows {expected - 1}")
            expected = event.seq + 1


def streams_are_complete(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I15: at rest, the stream of each existing object ends with its last transition."""
    for history in evidence.allocations.values():
        if history[-1].version.is_deletion or not evidence.is_settled(history[-1].version):
            continue
        last = history[-1].allocation
        if not evidence.is_at_rest and _is_forgotten(last, evidence.end_at):
            continue
        events = evidence.streams.get(id_of(last), ())
        wanted = ring_of(last)[-1].seq
        found = events[-1].seq if events else 0
        if found != wanted:
            yield _broken("I15", id_of(last), f"the stream ends with seq {found}, the object with {wanted}")


def writes_carry_fences(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """FENCE: every bind and delete names a uid, every replacement a version."""
    for request in evidence.requests:
        verb = request.verb
        if verb in (_BINDS, _DELETES) and not request.uid:
            yield _broken("FENCE", request.name, f"{request.process}: {verb} {request.resource} without a uid")
        if verb == _REPLACES and not request.resource_version:
            yield _broken("FENCE", request.name, f"{request.process}: {verb} {request.resource} without a version")


def writes_are_allowed(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I8: no service writes a status that the rules of its resource refuse."""
    for request in evidence.requests:
        if request.verb == _REPLACES and request.resource.endswith("/status") and request.outcome == _REFUSED:
            yield _broken("I8", request.name, f"{request.process}: the server refuses a write of {request.resource}")


def _is_forgotten(allocation: Allocation, now: float) -> bool:
    """Whether it ended so long ago that its stream may have expired."""
    ended = allocation.status.ended_at
    return bool(ended) and parse_time(ended) + ALLOCATION.ttl_s < now + SETTLE_S


def _transitions(evidence: AuditEvidence) -> dict[str, bytes]:
    """Return {event id: the expected bytes} of every transition in the objects' history."""
    found: dict[str, bytes] = {}
    for history in evidence.allocations.values():
        for item in history:
            for entry in ring_of(item.allocation):
                event = event_of(item.allocation, entry)
                if event.event_id not in found:
                    found[event.event_id] = _spelled(msgspec.structs.replace(event, data=plain(event.data)))
    return found


def _spelled(event: AllocationEvent) -> bytes:
    """Return the bytes of an event without `traceparent` and `truncated`. In bytes, 5.0 differs from 5."""
    bare = AllocationEvent(
        allocation_id=event.allocation_id,
        namespace=event.namespace,
        name=event.name,
        uid=event.uid,
        created_ms=event.created_ms,
        seq=event.seq,
        attempt=event.attempt,
        type=event.type,
        phase=event.phase,
        reason=event.reason,
        time=event.time,
        data=event.data,
    )
    return canonical_json(bare)


def _broken(invariant: str, subject: str | AllocationId, message: str) -> InvariantViolation:
    return InvariantViolation(invariant=invariant, subject=str(subject), message=message)


DELIVERIES_MAX = 5
IDLE_MAX_S = 3_600.0
SAMPLES_MIN = 20
"""With fewer hints than this, their durations are not judged."""
DELAY_MIN_S = 1.0
"""A hint that takes less than this is never delayed, whatever the usual duration is."""


def nothing_stays_pending(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: at rest, no delivered hint waits for its acknowledgement."""
    if evidence.pending_hints:
        yield _broken_hint("I16", "work", f"{evidence.pending_hints} hints are pending at rest")


def nothing_is_lost(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: at rest, each sent hint was delivered, and is done or a dead letter."""
    for hint in evidence.deliveries:
        if hint.done_at is None and hint.dead_at is None:
            what = f"was delivered {hint.times} times and then lost" if hint.times else "was never delivered"
            yield _broken_hint("I16", hint.allocation, f"hint {hint.hint} {what}")


def consumers_leave(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: a consumer without pending entries that was idle for more than an hour is no member of its group any
    more.
    """
    for consumer in evidence.consumers:
        if consumer.idle_s > IDLE_MAX_S and not consumer.pending:
            message = f"{consumer.name} of {consumer.group} has been idle for {consumer.idle_s:.0f} s"
            yield _broken_hint("I16", consumer.stream, message)


def dead_letters_are_named(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: a hint becomes a dead letter only when its allocation has, or had, the condition Stuck."""
    named = set[str]()
    known = set[str]()
    for history in evidence.allocations.values():
        name = str(id_of(history[0].allocation))
        known.add(name)
        if any(condition_of(item.allocation.status.conditions, "Stuck") is not None for item in history):
            named.add(name)
    for hint in evidence.deliveries:
        if hint.dead_at is not None and not hint.is_poison and hint.allocation in known - named:
            yield _broken_hint(
                "I16",
                hint.allocation,
                f"hint {hint.hint} is a dead letter, but no condition of the allocation explains it",
            )


def poison_is_set_aside(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I17: a hint that cannot be handled is delivered at most five times, and is then a dead letter."""
    for hint in evidence.deliveries:
        if not hint.is_poison:
            continue
        if hint.times > DELIVERIES_MAX:
            yield _broken_hint("I17", hint.allocation, f"hint {hint.hint} was delivered {hint.times} times")
        elif evidence.is_at_rest and hint.dead_at is None and hint.done_at is None:
            yield _broken_hint("I17", hint.allocation, f"hint {hint.hint} is neither done nor a dead letter")


def poison_delays_no_other_hint(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I17: while a broken hint exists, the slowest other hints take less than twice their usual time."""
    poison = [hint for hint in evidence.deliveries if hint.is_poison]
    during: list[float] = []
    else_: list[float] = []
    for hint in evidence.deliveries:
        if hint.is_poison or hint.done_at is None:
            continue
        is_beside = any(_overlap(hint, other, evidence.end_at) for other in poison)
        (during if is_beside else else_).append(hint.done_at - hint.added_at)
    if len(during) < SAMPLES_MIN or len(else_) < SAMPLES_MIN:
        return
    usual, now = _slowest(else_), _slowest(during)
    if now > max(DELAY_MIN_S, 2 * usual):
        yield _broken_hint(
            "I17", "work", f"next to failing hints the slowest hints take {now:.2f} s, otherwise {usual:.2f} s"
        )


def hints_are_acked_after_their_effect(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """ACK: a hint is acknowledged only when its work is done, or when another pending hint demands the same work."""
    for ack in evidence.acked:
        if ack.demands and not ack.others:
            yield _broken_hint(
                "ACK", str(ack.allocation), f"{ack.process} acknowledged a hint while it still needs {ack.demands}"
            )


def _overlap(hint: HintHistory, other: HintHistory, end_at: float) -> bool:
    ends = [at for at in (other.dead_at, other.done_at) if at is not None]
    return hint.added_at < min(ends, default=end_at) and (hint.done_at or end_at) > other.added_at


def _slowest(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _broken_hint(invariant: str, subject: str, message: str) -> InvariantViolation:
    return InvariantViolation(invariant=invariant, subject=subject, message=message)
