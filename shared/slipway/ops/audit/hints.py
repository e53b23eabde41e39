"""Checks of work hints: none is lost, none is acknowledged too early, and a broken one does not delay others.

I16, I17, ACK. Pure: evidence in, violations out.
"""

from collections.abc import Iterator, Sequence

from slipway.crd.meta import condition_of
from slipway.crd.transitions import id_of
from slipway.ops.audit.evidence import AuditEvidence, HintHistory, InvariantViolation

DELIVERIES_MAX = 5
IDLE_MAX_S = 3_600.0
SAMPLES_MIN = 20
"""With fewer hints than this, their durations are not judged."""
DELAY_MIN_S = 1.0
"""A hint that takes less than this is never delayed, whatever the usual duration is."""


def nothing_stays_pending(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: at rest, no delivered hint waits for its acknowledgement."""
    if evidence.pending_hints:
        yield _broken("I16", "work", f"{evidence.pending_hints} hints are pending at rest")


def nothing_is_lost(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: at rest, each sent hint was delivered, and is done or a dead letter."""
    for hint in evidence.deliveries:
        if hint.done_at is None and hint.dead_at is None:
            what = f"was delivered {hint.times} times and then lost" if hint.times else "was never delivered"
            yield _broken("I16", hint.allocation, f"hint {hint.hint} {what}")


def consumers_leave(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """I16: a consumer without pending entries that was idle for more than an hour is no member of its group any
    more.
    """
    for consumer in evidence.consumers:
        if consumer.idle_s > IDLE_MAX_S and not consumer.pending:
            message = f"{consumer.name} of {consumer.group} has been idle for {consumer.idle_s:.0f} s"
            yield _broken("I16", consumer.stream, message)


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
            yield _broken(
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
            yield _broken("I17", hint.allocation, f"hint {hint.hint} was delivered {hint.times} times")
        elif evidence.is_at_rest and hint.dead_at is None and hint.done_at is None:
            yield _broken("I17", hint.allocation, f"hint {hint.hint} is neither done nor a dead letter")


def poison_delays_nobody(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
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
        yield _broken(
            "I17", "work", f"next to failing hints the slowest hints take {now:.2f} s, otherwise {usual:.2f} s"
        )


def hints_are_acked_after_their_effect(evidence: AuditEvidence) -> Iterator[InvariantViolation]:
    """ACK: a hint is acknowledged only when its work is done, or when another pending hint demands the same work."""
    for ack in evidence.acked:
        if ack.demands and not ack.others:
            yield _broken(
                "ACK", str(ack.allocation), f"{ack.process} acknowledged a hint while it still needs {ack.demands}"
            )


def _overlap(hint: HintHistory, other: HintHistory, end_at: float) -> bool:
    ends = [at for at in (other.dead_at, other.done_at) if at is not None]
    return hint.added_at < min(ends, default=end_at) and (hint.done_at or end_at) > other.added_at


def _slowest(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def _broken(invariant: str, subject: str, message: str) -> InvariantViolation:
    return InvariantViolation(invariant=invariant, subject=subject, message=message)
