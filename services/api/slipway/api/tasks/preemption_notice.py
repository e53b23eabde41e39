"""The preemption notice of an attempt: why its ranks must end, for which allocation, and until when. Pure.

Owns the one view over the two sources of a notice: the signal of a user (`spec.signals.preempt`), and the stop of the
scheduler (`status.stop`: an eviction, or a time limit after which the work may still save its state).
"""

import msgspec

from slipway.crd.v1alpha1 import Allocation, Signals, Stop
from slipway.model.reasons import Reason

DEADLINE = "preemption"
"""The key in `status.deadlines`: it is set when the ranks of this attempt are notified."""
_EVICTIONS = (Reason.PREEMPTED, Reason.PREEMPTION_GRACE)


class PreemptionNotice(msgspec.Struct, frozen=True, kw_only=True):
    """A preemption notice that is in effect. An acknowledgement names it by its number `n`."""

    n: int
    reason: str
    at: str
    deadline: str
    requeue: bool
    """another attempt follows"""
    by: str = ""
    """the allocation that needs the room: namespace/name; empty when the notice is for no other allocation"""

    @property
    def why(self) -> str:
        """The reason, and the allocation that needs the room, if there is one."""
        return f"{self.reason} for {self.by}" if self.by else self.reason


def signals_of(allocation: Allocation) -> Signals:
    """Return the signals of the current attempt; signals of an earlier attempt are ignored."""
    signals = allocation.spec.signals
    attempt = allocation.status.attempt
    return signals if signals is not None and signals.attempt == attempt else Signals(attempt=attempt)


def asked_of(allocation: Allocation) -> PreemptionNotice | None:
    """Return the preemption notice of the current attempt; None when there is none."""
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
