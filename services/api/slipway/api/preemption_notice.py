"""What the ranks of an attempt are asked: to make room, by whom, and until when. Pure.

Owns the one view of it over both places where it is said: the signal of a user (`spec.signals.preempt`), and the stop
of the scheduler (`status.stop`: an eviction, or a deadline of work that may save itself first).
"""

import msgspec

from slipway.crd.v1alpha1 import Allocation, Signals, Stop
from slipway.model.reasons import Reason

DEADLINE = "preemption"
"""Of `status.deadlines`: there from the moment that the ranks of this attempt were told."""
_EVICTIONS = (Reason.PREEMPTED, Reason.PREEMPTION_GRACE)


class PreemptionNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A standing request. `n` is what an acknowledgement names."""

    n: int
    reason: str
    at: str
    deadline: str
    requeue: bool
    """another attempt follows"""
    by: str = ""
    """who needs the room: namespace/name"""

    @property
    def why(self) -> str:
        """The reason, and for whom."""
        return f"{self.reason} for {self.by}" if self.by else self.reason


def signals_of(allocation: Allocation) -> Signals:
    """The signals of the current attempt; those of an earlier one do not count."""
    signals = allocation.spec.signals
    attempt = allocation.status.attempt
    return signals if signals is not None and signals.attempt == attempt else Signals(attempt=attempt)


def asked_of(allocation: Allocation) -> PreemptionNotice | None:
    """What the current attempt is asked, if it is."""
    status, signal = allocation.status, signals_of(allocation).preempt
    deadline, stop = status.deadlines.get(DEADLINE, ""), _stop(allocation)
    if stop is not None and (stop.reason in _EVICTIONS or deadline):
        n = max(1, signal.n) if signal is not None else 1
        return PreemptionNotice(
            n=n, reason=stop.reason, at=stop.at, deadline=deadline, requeue=stop.requeue, by=stop.by
        )
    if signal is None:
        return None
    requeue = signal.requeue or allocation.spec.hold
    return PreemptionNotice(n=signal.n, reason=signal.reason, at=signal.at, deadline=deadline, requeue=requeue)


def _stop(allocation: Allocation) -> Stop | None:
    stop = allocation.status.stop
    return stop if stop is not None and stop.attempt == allocation.status.attempt else None
