"""Decides what follows when an attempt ends: the final result, or another attempt.

Owns the table of results, which faults are counted as restarts, the backoff, and the outcome of a preemption. Pure.
Must not know when an attempt ends; `reduce.py` does.

Invariants: a user's cancel is never followed by another attempt; an invalid spec is never retried; a fault of the
infrastructure is never counted against `maxRestarts`, unless a rule of the allocation requires it.
"""

import msgspec

from slipway.crd.dependencies import unmet
from slipway.crd.meta import Condition, condition_of
from slipway.crd.policies import FailureAction, action_of
from slipway.crd.transitions import CONDITION_STUCK, ring_of, stop_reason
from slipway.crd.v1alpha1 import Allocation, PreemptSignal, RingEntry, Stop
from slipway.facts.custom_resources import gate_of
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import INFRASTRUCTURE, Reason, Result
from slipway.model.times import SKEW_S, parse_time, stored_duration

CONDITION_REFUSED = "Refused"
CONDITION_INVALID = "Invalid"
BROKEN_LAUNCHES = frozenset({"BindRefused", "PoolChanged", "PoolGone"})
"""Reasons of Stuck that waiting does not mend: a released pod cannot be bound, or the pool has changed or is gone."""
DEADLINE_PREEMPTION = "preemption"
DEADLINE_MAX_RUNTIME = "maxRuntime"
DEADLINE_IDLE = "idle"
AVOID_NODES_MAX = 16
_AFTER_TIMEOUT_S = 60.0
"""Extra seconds in which the scheduler can fire the timeout first."""

CANCELS = frozenset({Reason.KILLED, Reason.DELETED, Reason.NAMESPACE_TERMINATING})
_TIME_IS_UP = frozenset({Reason.IDLE, Reason.MAX_RUNTIME})
"""Reasons of stops by a time limit. A preemptible attempt is preempted first, and its end keeps this reason."""
_RESULTS: dict[Reason, Result] = {
    Reason.COMPLETED: Result.SUCCEEDED,
    Reason.USER_STOPPED: Result.SUCCEEDED,
    Reason.KILLED: Result.CANCELED,
    Reason.DELETED: Result.CANCELED,
    Reason.NAMESPACE_TERMINATING: Result.CANCELED,
    Reason.PREEMPTED: Result.PREEMPTED,
    Reason.PREEMPTION_GRACE: Result.PREEMPTED,
    Reason.EVICTED: Result.EVICTED,
    Reason.IDLE: Result.TIMED_OUT,
    Reason.MAX_RUNTIME: Result.TIMED_OUT,
    Reason.PENDING_TIMEOUT: Result.TIMED_OUT,
    Reason.DEPENDENCY: Result.CANCELED,
    Reason.INVALID_SPEC: Result.INVALID,
    Reason.TOO_LARGE: Result.INVALID,
}
_NODE_FAULTS = frozenset(
    {
        Reason.NODE_LOST,
        Reason.EVICTED,
        Reason.REJECTED,
        Reason.PLACEMENT_REFUSED,
        Reason.IMAGE_PULL_THROTTLED,
    }
)


class LifecyclePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of these decisions; durations in seconds."""

    image_pull_limit_s: float = 300.0
    stuck_limit_s: float = 600.0
    unschedulable_limit_s: float = 30.0
    rank_detail_interval_s: float = 1.0
    preemption_grace_s: float = 3600.0
    restart_backoff_s: float = 1.0
    restart_backoff_max_s: float = 30.0


class FinalEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The allocation has ended, with this result."""

    result: Result
    reason: Reason
    message: str = ""


class NextAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Another attempt follows. `counted`: it is counted against maxRestarts, as the user's fault; `not_before` is epoch
    seconds, 0 for at once; `note` is an additional message."""

    reason: Reason
    counted: bool = False
    is_spared: bool = False
    """a rule of the allocation counts it against a limit of its own (`maxUncountedRestarts`) instead of maxRestarts"""
    note: str = ""
    not_before: float = 0.0
    avoid_nodes: tuple[str, ...] = ()

    @property
    def is_infrastructure(self) -> bool:
        """Whether a fault of the infrastructure ended the attempt, rather than the user or a decision."""
        return not self.counted and not self.is_spared and self.not_before > 0


class PreemptionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to preempt this attempt. `requeue`: another attempt follows; `reason`: the reason of its end."""

    n: int
    requeue: bool
    by_system: bool
    by: str = ""
    reason: Reason = Reason.PREEMPTED

    @property
    def is_time_up(self) -> bool:
        """Whether a time limit of the allocation is the reason; it stays the reason however the ranks end."""
        return self.reason in _TIME_IS_UP

    @property
    def overdue(self) -> Reason:
        """The reason of the end if the ranks still run after the grace period."""
        return self.reason if self.is_time_up else Reason.PREEMPTION_GRACE


def result_of(reason: Reason) -> Result:
    """Return the result of an end for `reason`."""
    return _RESULTS.get(reason, Result.FAILED)


def refusal(allocation: Allocation) -> FinalEnd | None:
    """Return the end of a launch that can never succeed, as the pod worker or the scheduler recorded it; else None."""
    for type_ in (CONDITION_REFUSED, CONDITION_INVALID):
        found = _condition(allocation, type_)
        if found is not None:
            reason = Reason(found.reason) if found.reason in set(Reason) else Reason.INVALID_SPEC
            return FinalEnd(result=Result.INVALID, reason=reason, message=found.message)
    return None


def stuck_until(allocation: Allocation, policy: LifecyclePolicy) -> float | None:
    """Return when a stuck launch is given up (epoch seconds); None when it is not stuck."""
    found = _condition(allocation, CONDITION_STUCK)
    if found is None or not found.last_transition_time:
        return None
    patience_s = 0.0 if found.reason in BROKEN_LAUNCHES else start_limit_s(allocation, policy)
    admission = allocation.status.admission
    # A launch cannot be stuck before its admission, but the clock of the pod worker, which wrote the condition, may be
    # behind.
    since = max(parse_time(at) for at in (found.last_transition_time, admission.at if admission else "") if at)
    return since + patience_s


def start_limit_s(allocation: Allocation, policy: LifecyclePolicy) -> float:
    """Return for how many seconds a start may be blocked before another attempt is made.

    Each new attempt would begin the wait again. So if `pendingTimeout` is longer, one attempt waits until it is over,
    and then the allocation ends.
    """
    timeout = allocation.spec.pending_timeout
    return max(policy.stuck_limit_s, stored_duration(timeout) + _AFTER_TIMEOUT_S if timeout else 0.0)


def current_stop(allocation: Allocation) -> Stop | None:
    """Return `status.stop` if it is about this attempt."""
    stop = allocation.status.stop
    return stop if stop is not None and stop.attempt == allocation.status.attempt else None


def preemption(allocation: Allocation) -> PreemptionRequest | None:
    """Return the request to preempt this attempt, if there is one."""
    spec, stop = allocation.spec, current_stop(allocation)
    signal = _preempt_signal(allocation)
    by_system = stop is not None and stop.requeue and stop.reason in (Reason.PREEMPTED, Reason.PREEMPTION_GRACE)
    if by_system and stop is not None:
        return PreemptionRequest(n=signal.n if signal else 0, requeue=True, by_system=True, by=stop.by)
    if stop is not None and stop.reason in _TIME_IS_UP and (spec.preemptible or is_preempting(allocation)):
        if signal is not None and signal.requeue and is_preempting(allocation):
            # A pause is in progress: this attempt ends anyway, and the next attempt has its own time limits.
            return PreemptionRequest(n=signal.n, requeue=True, by_system=True)
        n = signal.n if signal else 0
        return PreemptionRequest(n=n, requeue=False, by_system=True, reason=Reason(stop.reason))
    # A preemption of a held allocation is a pause: the next attempt waits until the user resumes it. The signal has
    # `requeue` too, because the user may resume the allocation before its ranks have ended.
    return PreemptionRequest(n=signal.n, requeue=signal.requeue or spec.hold, by_system=False) if signal else None


def is_preempting(allocation: Allocation) -> bool:
    """Whether the preemption was announced to the ranks of this attempt."""
    return DEADLINE_PREEMPTION in allocation.status.deadlines


def preemption_deadline(allocation: Allocation, *, now: float) -> float | None:
    """Return when the grace period of the preemption ends, by a clock that shows `now` (epoch seconds); None without
    one.

    A watcher whose clock is behind moves a correct deadline to an earlier time (`reduce.py`). So the deadline that
    was announced to the ranks is used if it is later. If the announcement itself is in our future, the clock of the
    watcher that made it was ahead; then the stored deadline is used, which was corrected.
    """
    at = allocation.status.deadlines.get(DEADLINE_PREEMPTION)
    if not at:
        return None
    told = next((each for each in reversed(ring_of(allocation)) if each.type is Event.PREEMPTING), None)
    if told is None or told.attempt != allocation.status.attempt or parse_time(told.time) > now + SKEW_S:
        return parse_time(at)
    return max(parse_time(at), parse_time(str(told.data.get("deadline") or at)))


def is_acknowledged(allocation: Allocation, preempt: PreemptionRequest) -> bool:
    """Whether a rank has acknowledged the preemption."""
    signals = allocation.spec.signals
    if signals is None or signals.attempt != allocation.status.attempt:
        return False
    return any(n >= preempt.n for n in signals.acks.values())


def preemption_grace_s(allocation: Allocation, policy: LifecyclePolicy) -> float:
    """Return the grace period of a preemption, in seconds."""
    grace = allocation.spec.preemption_grace
    return stored_duration(grace) if grace else policy.preemption_grace_s


def after_end(
    allocation: Allocation,
    cause: Reason,
    *,
    now: float,
    policy: LifecyclePolicy,
    namespace_terminating: bool = False,
) -> FinalEnd | NextAttempt:
    """Return what follows after an attempt that was ended for `cause` and whose pods have all ended."""
    stop = stop_reason(allocation, namespace_terminating=namespace_terminating)
    if stop is not None and stop in CANCELS:
        return _end(stop)
    refused = refusal(allocation)
    if refused is not None:
        return refused
    if cause in (Reason.COMPLETED, Reason.USER_STOPPED):
        return _end(cause)
    preempt = preemption(allocation)
    if preempt is not None and (cause in INFRASTRUCTURE or cause is Reason.PREEMPTION_GRACE):
        reason = cause if cause is Reason.PREEMPTION_GRACE else preempt.reason
        return NextAttempt(reason=reason) if preempt.requeue else _end(reason)
    standing = current_stop(allocation)
    if standing is not None and (cause.value == standing.reason or cause in INFRASTRUCTURE):
        return NextAttempt(reason=cause) if standing.requeue else _end(Reason(standing.reason))
    action = action_of_rule(allocation, cause)
    if action is not None:
        return _by_rule(allocation, cause, action, now=now, policy=policy)
    if cause in INFRASTRUCTURE:
        return _next_attempt(allocation, cause, counted=False, now=now, policy=policy)
    is_retried = result_of(cause) is Result.FAILED and cause is not Reason.IMAGE_PULL
    if is_retried and allocation.status.restarts < allocation.spec.max_restarts:
        return _next_attempt(allocation, cause, counted=True, now=now, policy=policy)
    return _end(cause)


def action_of_rule(allocation: Allocation, cause: Reason) -> FailureAction | None:
    """Return the action of the failure policy's rule that ended the attempt for `cause`.

    The transition to Terminating records the index of that rule. None when no rule decided.
    """
    entry = _terminating(allocation)
    if entry is None or entry.reason != cause.value:
        return None
    rule = entry.data.get("rule")
    return action_of(allocation.spec.failure_policy, rule if isinstance(rule, int) else None)


def after_unstarted(
    allocation: Allocation, *, now: float, policy: LifecyclePolicy, namespace_terminating: bool = False
) -> FinalEnd | NextAttempt | None:
    """Return what follows when an attempt that was never released has to end; None when it goes on."""
    stop = stop_reason(allocation, namespace_terminating=namespace_terminating)
    if stop is not None and stop in CANCELS:
        return _end(stop)
    refused = refusal(allocation)
    if refused is not None:
        return refused
    if allocation.status.phase is Phase.PENDING and (why := unmet(allocation)):
        return FinalEnd(result=result_of(Reason.DEPENDENCY), reason=Reason.DEPENDENCY, message=why)
    preempt = preemption(allocation)
    if preempt is not None:
        return NextAttempt(reason=Reason.PREEMPTED) if preempt.requeue else _end(preempt.reason)
    standing = current_stop(allocation)
    if standing is not None and stop is not None:
        if standing.requeue:
            return NextAttempt(reason=stop)
        message = _why_not_started(allocation) if stop is Reason.PENDING_TIMEOUT else ""
        return FinalEnd(result=result_of(stop), reason=stop, message=message)
    if allocation.status.phase is Phase.TERMINATING:
        return after_end(allocation, cause_of(allocation), now=now, policy=policy)
    if allocation.spec.hold and allocation.status.phase is not Phase.PENDING:
        # The user held the allocation after its admission: it waits again, as if it had never been admitted.
        return NextAttempt(reason=Reason.PREEMPTED)
    until = stuck_until(allocation, policy)
    if until is not None and now >= until:
        return _next_attempt(allocation, Reason.LAUNCH_STUCK, counted=False, now=now, policy=policy)
    return None


def _why_not_started(allocation: Allocation) -> str:
    """Return what prevented the start, or why the allocation was not placed; empty when neither is recorded."""
    status = allocation.status
    kept = condition_of(status.conditions, CONDITION_STUCK)
    if kept is not None and kept.observed_generation == status.attempt and kept.status != "False":
        return kept.message
    return gate_of(allocation)[1]


def cause_of(allocation: Allocation) -> Reason:
    """Return why a Terminating attempt was ended, as its transition recorded it."""
    reason = allocation.status.reason
    return Reason(reason) if reason in set(Reason) else Reason.UNKNOWN_EXIT


def _end(reason: Reason) -> FinalEnd:
    return FinalEnd(result=result_of(reason), reason=reason)


def _by_rule(
    allocation: Allocation, cause: Reason, action: FailureAction, *, now: float, policy: LifecyclePolicy
) -> FinalEnd | NextAttempt:
    """Return what follows from a failure that a rule of the failure policy matches."""
    spec, status, rules = allocation.spec, allocation.status, allocation.spec.failure_policy
    if action is FailureAction.FAIL:
        return FinalEnd(result=Result.FAILED, reason=cause, message=status.message)
    note = ""
    if action is FailureAction.NOT_COUNTED and rules is not None:
        limit = rules.max_uncounted_restarts
        if status.uncounted_restarts < limit:
            return _next_attempt(allocation, cause, counted=False, spared=True, now=now, policy=policy)
        note = f"maxUncountedRestarts is {limit}, so it counts against maxRestarts"
    if status.restarts < spec.max_restarts:
        again = _next_attempt(allocation, cause, counted=True, now=now, policy=policy)
        return msgspec.structs.replace(again, note=note)
    parts = (status.message, note, f"maxRestarts is {spec.max_restarts}")
    return FinalEnd(result=Result.FAILED, reason=cause, message="; ".join(part for part in parts if part))


def _next_attempt(
    allocation: Allocation,
    reason: Reason,
    *,
    counted: bool,
    spared: bool = False,
    now: float,
    policy: LifecyclePolicy,
) -> NextAttempt:
    """Return another attempt after a backoff that doubles with each attempt of the same kind of fault."""
    status = allocation.status
    before = status.uncounted_restarts if spared else status.restarts if counted else status.infra_restarts
    wait_s = min(policy.restart_backoff_s * 2.0 ** min(before, 30), policy.restart_backoff_max_s)
    avoid, node = list(status.avoid_nodes), _failed_node(allocation)
    if node and reason in _NODE_FAULTS:
        avoid = [*(name for name in avoid if name != node), node]
    nodes = tuple(avoid[-AVOID_NODES_MAX:])
    return NextAttempt(reason=reason, counted=counted, is_spared=spared, not_before=now + wait_s, avoid_nodes=nodes)


def _failed_node(allocation: Allocation) -> str:
    """Return the node that the transition to Terminating names as the cause; empty without one."""
    entry = _terminating(allocation)
    return str(entry.data.get("node", "")) if entry is not None else ""


def _terminating(allocation: Allocation) -> RingEntry | None:
    """Return the transition that ended this attempt."""
    for entry in reversed(allocation.status.transitions):
        if entry.type is Event.TERMINATING and entry.attempt == allocation.status.attempt:
            return entry
    return None


def _preempt_signal(allocation: Allocation) -> PreemptSignal | None:
    signals, attempt = allocation.spec.signals, allocation.status.attempt
    if signals is None or signals.attempt != attempt or signals.preempt is None:
        return None
    return signals.preempt if signals.preempt.attempt == attempt else None


def _condition(allocation: Allocation, type_: str) -> Condition | None:
    """Return the condition if it is True and about this attempt (its observedGeneration is the attempt)."""
    found = condition_of(allocation.status.conditions, type_)
    is_current = found is not None and found.observed_generation == allocation.status.attempt
    return found if found is not None and is_current and found.status == "True" else None
