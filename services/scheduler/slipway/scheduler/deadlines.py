"""Which stored deadlines have passed. Pure.

Deadlines are times in the object (`status.deadlines`, and the pending timeout of the spec), so a restart of
any service never resets one. The scheduler fires them as `status.stop`.
"""

from collections.abc import Iterable

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason

REASONS: dict[str, Reason] = {
    "idle": Reason.IDLE,
    "maxRuntime": Reason.MAX_RUNTIME,
    "pending": Reason.PENDING_TIMEOUT,
    "preemption": Reason.PREEMPTION_GRACE,
}
"""Name of a deadline -> the reason of the stop that it fires."""


class Fired(msgspec.Struct, frozen=True):
    """A deadline that has passed."""

    allocation: AllocationFact
    reason: Reason


def fired(allocations: Iterable[AllocationFact], now: float) -> list[Fired]:
    """The earliest passed deadline of each allocation that nothing stops yet, in order of time."""
    passed: list[tuple[float, str, Fired]] = []
    for fact in allocations:
        due = _due(fact)
        if due is not None and due[0] <= now:
            passed.append((due[0], fact.uid, Fired(fact, due[1])))
    return [item for _, _, item in sorted(passed, key=lambda entry: entry[:2])]


def next_due(allocations: Iterable[AllocationFact], now: float) -> float | None:
    """When the next deadline or backoff after `now` runs out (epoch seconds), or None."""
    times: list[float] = []
    for fact in allocations:
        due = _due(fact)
        if due is not None and due[0] > now:
            times.append(due[0])
        if fact.phase is Phase.PENDING and fact.not_before > now:
            times.append(fact.not_before)
    return min(times, default=None)


def _due(fact: AllocationFact) -> tuple[float, Reason] | None:
    if fact.stopping or fact.phase is Phase.TERMINATED:
        return None
    known = [(at, REASONS[name]) for name, at in fact.deadlines.items() if name in REASONS and at > 0]
    return min(known, default=None)
