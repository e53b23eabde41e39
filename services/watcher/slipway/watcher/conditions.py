"""The conditions that follow from a transition, for `kubectl wait`, Argo CD and Flux.

Owns the conditions Accepted, PodsReady, Ready, Complete, Failed and Preempted; also Stalled of an allocation that has
ended without success, and Admitted at the end of an attempt. Pure. The scheduler writes Admitted and Stalled while an
attempt waits; the pod worker writes Stuck and Refused.

Invariants: they are a function of the rest of the status; they change only in a write that also records a transition;
`observedGeneration` is the object's generation (`kubectl wait` ignores older ones). StartBlocked (`obstacles.py`) is
removed here when the start is over, Stalled when the wait is over.
"""

import msgspec

from slipway.crd.meta import Condition, condition_of
from slipway.crd.transitions import CONDITION_BLOCKED, CONDITION_STALLED
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Reason, Result
from slipway.model.times import format_time

ACCEPTED = "Accepted"
ADMITTED = "Admitted"
PODS_READY = "PodsReady"
READY = "Ready"
COMPLETE = "Complete"
FAILED = "Failed"
PREEMPTED = "Preempted"

_PREEMPTIONS = (Reason.PREEMPTED, Reason.PREEMPTION_GRACE)


class _Condition(msgspec.Struct, frozen=True):
    type: str
    holds: bool
    reason: str
    message: str = ""


def conditions_of(allocation: Allocation, *, now: float) -> list[Condition]:
    """Return all conditions of the allocation in its present state; a condition that was never True is left out."""
    status = allocation.status
    is_starting = status.phase in (Phase.ASSIGNED, Phase.PULLING, Phase.STARTING)
    passed = () if is_starting else (CONDITION_BLOCKED,)
    if status.phase is not Phase.PENDING:
        passed = (*passed, CONDITION_STALLED)
    kept = [item for item in status.conditions if item.type not in passed]
    for fact in _facts(allocation):
        before = condition_of(kept, fact.type)
        if before is None and not fact.holds:
            continue
        if before is not None and (before.status == "True") == fact.holds and fact.type == ADMITTED:
            continue
        kept = [item for item in kept if item.type != fact.type]
        kept.append(_condition(allocation, fact, before, now=now))
    return kept


def _facts(allocation: Allocation) -> list[_Condition]:
    status = allocation.status
    ended = status.phase is Phase.TERMINATED
    reason = status.reason or status.phase.value
    facts = [
        _Condition(ACCEPTED, True, "Accepted"),
        _Condition(PODS_READY, status.phase is Phase.RUNNING, status.phase.value),
        _Condition(READY, status.ready and status.phase is Phase.RUNNING, status.phase.value),
        _Condition(COMPLETE, status.result is Result.SUCCEEDED, reason, status.message),
        _Condition(FAILED, ended and status.result is not Result.SUCCEEDED, reason, status.message),
        _Condition(
            PREEMPTED,
            status.result is Result.PREEMPTED or _was_preempted(allocation),
            reason,
            _preemptor_text(allocation),
        ),
    ]
    if ended and status.result is not Result.SUCCEEDED:
        facts.append(_Condition(CONDITION_STALLED, True, reason, status.message))
    if status.phase is Phase.PENDING and status.attempt > 1:
        facts.append(_Condition(ADMITTED, False, "Restarted", f"attempt {status.attempt} has not been admitted yet"))
    return facts


def _was_preempted(allocation: Allocation) -> bool:
    """Whether the previous attempt was preempted."""
    status = allocation.status
    return status.phase is Phase.PENDING and status.attempt > 1 and status.reason in _PREEMPTIONS


def _preemptor_text(allocation: Allocation) -> str:
    """Return which allocation the previous attempt was preempted for, as a sentence; empty unless the scheduler
    chose."""
    status = allocation.status
    last = status.preemptions[-1] if status.preemptions else None
    is_of_it = last is not None and last.attempt == status.attempt - 1 and _was_preempted(allocation)
    return f"preempted for {last.by}" if last is not None and is_of_it else ""


def _condition(allocation: Allocation, fact: _Condition, before: Condition | None, *, now: float) -> Condition:
    word = "True" if fact.holds else "False"
    is_same = before is not None and before.status == word and before.last_transition_time
    return Condition(
        type=fact.type,
        status=word,
        reason=fact.reason,
        message=fact.message,
        observed_generation=allocation.metadata.generation,
        last_transition_time=before.last_transition_time if before is not None and is_same else format_time(now),
    )
