"""Checks of the streams and of the requests: order, one payload per seq, fences, acknowledgements after effects.

I14, I15, I16, and the fences that architecture promises on every write. Pure: evidence in, violations out.
"""

from collections.abc import Iterator

from slipway.audit.evidence import Evidence, Violation
from slipway.crd.transitions import event_of, id_of, ring_of
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId

_REPLACES = "update"
_DELETES = "delete"
_BINDS = "bind"


def streams_are_ordered(evidence: Evidence) -> Iterator[Violation]:
    """I14: strictly ordered, contiguous (a hole is marked), and each entry is the object's own transition."""
    truth = _transitions(evidence)
    payloads: dict[str, AllocationEvent] = {}
    for event in evidence.appended:
        bare = _bare(event)
        known = payloads.setdefault(event.event_id, bare)
        if known != bare:
            yield _broken("I14", event.allocation_id, f"two payloads for seq {event.seq}: {known} and {bare}")
        said = truth.get(event.event_id)
        if said is None:
            yield _broken("I14", event.allocation_id, f"seq {event.seq} {event.type} was never a transition")
        elif said != bare:
            yield _broken("I14", event.allocation_id, f"seq {event.seq} says {bare}, the object {said}")
    for name, events in evidence.streams.items():
        expected = events[0].seq if events else 0
        for event in events:
            if event.truncated:
                expected = int(event.truncated.split("-")[1]) + 1
            if event.seq != expected:
                yield _broken("I14", name, f"seq {event.seq} follows {expected - 1}")
            expected = event.seq + 1


def streams_are_complete(evidence: Evidence) -> Iterator[Violation]:
    """I15: at rest the stream of each object that exists ends with its last transition."""
    if not (evidence.is_at_rest and evidence.has_streams):
        return
    for history in evidence.allocations.values():
        if history[-1].version.is_deletion:
            continue
        last = history[-1].allocation
        events = evidence.streams.get(id_of(last), ())
        wanted = ring_of(last)[-1].seq
        found = events[-1].seq if events else 0
        if found != wanted:
            yield _broken("I15", id_of(last), f"the stream ends with seq {found}, the object with {wanted}")


def nothing_stays_pending(evidence: Evidence) -> Iterator[Violation]:
    """I16: at rest no delivered hint waits for its acknowledgement."""
    if evidence.is_at_rest and evidence.pending_hints:
        yield _broken("I16", "work", f"{evidence.pending_hints} hints are pending at rest")


def hints_are_acked_after_their_effect(evidence: Evidence) -> Iterator[Violation]:
    """A hint is acknowledged only when what it asked for is done, or another hint still asks for it."""
    for ack in evidence.acked:
        if ack.demands and not ack.others:
            yield _broken(
                "ACK", ack.allocation, f"{ack.process} acknowledged a hint while it still needs {ack.demands}"
            )


def writes_carry_fences(evidence: Evidence) -> Iterator[Violation]:
    """Every bind and delete names a uid, every replacement a version."""
    for request in evidence.requests:
        verb = request.verb
        if verb in (_BINDS, _DELETES) and not request.uid:
            yield _broken("FENCE", request.name, f"{request.process}: {verb} {request.resource} without a uid")
        if verb == _REPLACES and not request.resource_version:
            yield _broken("FENCE", request.name, f"{request.process}: {verb} {request.resource} without a version")


def _transitions(evidence: Evidence) -> dict[str, AllocationEvent]:
    """{event id: the event} of every transition that the objects' history holds."""
    found: dict[str, AllocationEvent] = {}
    for history in evidence.allocations.values():
        for item in history:
            for entry in ring_of(item.allocation):
                event = _bare(event_of(item.allocation, entry))
                found.setdefault(event.event_id, event)
    return found


def _bare(event: AllocationEvent) -> AllocationEvent:
    return AllocationEvent(
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


def _broken(invariant: str, subject: str | AllocationId, message: str) -> Violation:
    return Violation(invariant=invariant, subject=str(subject), message=message)
