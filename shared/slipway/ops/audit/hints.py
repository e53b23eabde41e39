"""Checks of the work hints: none is forgotten, none is acknowledged too early, none that is broken delays the others.

I16, I17, ACK. Pure: evidence in, violations out.
"""

from collections.abc import Iterator, Sequence

from slipway.crd.meta import condition_of
from slipway.crd.transitions import id_of
from slipway.ops.audit.evidence import AuditEvidence, Delivered, InvariantViolation

DELIVERIES_MAX = 5
IDLE_MAX_S = 3_600.0
SAMPLES_MIN = 20
"""Fewer hints than these say nothing about how long hints take."""
DELAY_MIN_S = 1.0
"""What is quicker than this is not delayed, whatever is usual."""


def nothing_stays_pending(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: at rest no delivered hint waits for its acknowledgement."""
    if evidence.pending_hints:
        yield _broken("I16", "work", f"{evidence.pending_hints} hints are pending at rest")


def nothing_is_lost(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: at rest each hint that was sent has been delivered, and is done or a dead letter."""
    for hint in evidence.deliveries:
        if hint.done_at is None and hint.dead_at is None:
            what = f"was delivered {hint.times} times and is forgotten" if hint.times else "was never delivered"
            yield _broken("I16", hint.allocation, f"hint {hint.hint} {what}")


def consumers_leave(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: who has been idle for more than an hour and holds nothing is no member any more."""
    for consumer in evidence.consumers:
        if consumer.idle_s > IDLE_MAX_S and not consumer.pending:
            message = f"{consumer.name} of {consumer.group} has been idle for {consumer.idle_s:.0f} s"
            yield _broken("I16", consumer.stream, message)


def dead_letters_are_named(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: a hint becomes a dead letter only when its allocation is, or was, said to be Stuck."""
    named = set[str]()
    known = set[str]()
    for history in evidence.allocations.values():
        name = str(id_of(history[0].allocation))
        known.add(name)
        if any(condition_of(item.allocation.status.conditions, "Stuck") is not None for item in history):
            named.add(name)
    for hint in evidence.deliveries:
        if hint.dead_at is not None and not hint.is_poison and hint.allocation in known - named:
            yield _broken("I16", hint.allocation, f"hint {hint.hint} is a dead letter, and no condition says why")


def poison_is_set_aside(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I17: what cannot be done is delivered five times at most, and is then a dead letter."""
    for hint in evidence.deliveries:
        if not hint.is_poison:
            continue
        if hint.times > DELIVERIES_MAX:
            yield _broken("I17", hint.allocation, f"hint {hint.hint} was delivered {hint.times} times")
        elif evidence.is_at_rest and hint.dead_at is None and hint.done_at is None:
            yield _broken("I17", hint.allocation, f"hint {hint.hint} is neither done nor a dead letter")


def poison_delays_nobody(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I17: while a broken hint is about, the slowest of the others take less than twice what they take otherwise."""
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
        yield _broken("I17", "work", f"beside poison the slowest hints take {now:.2f} s, otherwise {usual:.2f} s")


def hints_are_acked_after_their_effect(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """ACK: a hint is acknowledged only when what it asked for is done, or another hint still asks for it."""
    for ack in evidence.acked:
        if ack.demands and not ack.others:
            yield _broken(
                "ACK", str(ack.allocation), f"{ack.process} acknowledged a hint while it still needs {ack.demands}"
            )


def _overlap(hint: Delivered, other: Delivered, end_at: float) -> bool:
    ends = [at for at in (other.dead_at, other.done_at) if at is not None]
    return hint.added_at < min(ends, default=end_at) and (hint.done_at or end_at) > other.added_at


def _slowest(values: Sequence[float]) -> float:
    """The 99th percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _broken(invariant: str, subject: str, message: str) -> InvariantViolation:
    return InvariantViolation(invariant=invariant, subject=subject, message=message)
