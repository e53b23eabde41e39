"""Reduces one allocation and its pods to the allocation as it should be recorded, and to the other work that is due.

Owns when a phase changes. Pure: no clock, no IO. `exits.py` reads a pod, `gang.py` joins ranks, `causes.py` finds why
an attempt ends, and `ends.py` decides what follows; `crd/transitions.py` writes the ring.

Promises
- Level-triggered: the result depends on the present state, not on events; a reduction of its own result changes
  nothing.
- It makes only legal transitions, several in one write if necessary; Terminated is absorbing; an exit is written once.
- The state of one pod's rank never goes back: a view of a pod that is older than the record changes nothing.
- Absence is no evidence: a pod that is not seen changes nothing unless `consistent` is True.
- A pod's finalizer is removed only when its exit is in the allocation that this reduction returns (which the caller
  writes first), or when the pod never ran.
- Another attempt is recorded only after a recorded Terminating (or an attempt that never started), and only when a
  consistent read shows no pod that may still run.

Times that a watcher whose clock was ahead has recorded are corrected. A wait that ends at such a time would last too
long, by as much as that clock was ahead. So no recorded wait may end later than it would if it began now; if it does,
it begins now. A watcher whose clock is behind also moves a correct end to an earlier time: by its own clock, the wait
still has its full length. By the clock of another watcher, a grace period could then be over at once. So for grace
periods, the deadline that was announced to the ranks is used (`ends.preemption_deadline`). One record cannot show which
clock is right, so each service corrects only the times that it writes itself.

Conditions follow from a transition, for `kubectl wait`, Argo CD and Flux. Those of the watcher are Accepted, PodsReady,
Ready, Complete, Failed and Preempted; also Stalled for an allocation that has ended without success, and Admitted at
the end of an attempt. The scheduler writes Admitted and Stalled while an attempt waits; the pod worker writes Stuck and
Refused.

Invariants: they are a function of the rest of the status; they change only in a write that also records a transition;
`observedGeneration` is the object's generation (`kubectl wait` ignores older ones). StartBlocked (`obstacles.py`) is
removed here when the start is over, Stalled when the wait is over.

The usage of one attempt is the exact time between its transitions, in seconds per phase. The usage of a whole
allocation is the sum over its `restarted` and `terminated` transitions, which contain these figures.
"""

import math
from collections.abc import Iterable, Mapping, Set
from itertools import pairwise
from typing import Any

import msgspec

from slipway.accounting.usage import carried
from slipway.crd.members import unreleased
from slipway.crd.meta import TEARDOWN_FINALIZER, Condition, condition_of
from slipway.crd.transitions import (
    CONDITION_BLOCKED,
    CONDITION_STALLED,
    HELD,
    is_hold_recorded,
    is_released,
    leaving_ranks,
    record,
    ring_of,
    with_status,
)
from slipway.crd.v1alpha1 import Allocation, RankStatus, RingEntry
from slipway.facts.custom_resources import run_limit
from slipway.kube.objects import Pod
from slipway.model.lifecycle import RANK_ENDS, Event, Kind, Phase, has_reached
from slipway.model.numbers import plain
from slipway.model.reasons import Reason, Result
from slipway.model.times import SKEW_S, format_time, parse_time, stored_duration
from slipway.watcher import causes, cleanup, dependencies, ends, exits, gang, obstacles, rank_changes
from slipway.watcher.dependencies import NOTHING_SEEN, Seen
from slipway.watcher.ends import FinalEnd, LifecyclePolicy, NextAttempt
from slipway.watcher.podwarnings import PodWarning
from slipway.watcher.view import GRAIN_S, ReductionView, last_transition_at


def correct_times(allocation: Allocation, *, now: float, policy: LifecyclePolicy) -> Allocation:
    """Return the allocation; waits that end too late end as if they began at `now` (epoch seconds).

    Return the identical object when there are none.
    """
    status = allocation.status
    if status.phase is Phase.TERMINATED or not (status.deadlines or status.conditions or status.not_before):
        return allocation
    latest = {
        ends.DEADLINE_PREEMPTION: now + ends.preemption_grace_s(allocation, policy),
        obstacles.DEADLINE_START: now
        + max(policy.image_pull_limit_s, policy.unschedulable_limit_s, ends.start_limit_s(allocation, policy)),
    }
    righted = msgspec.structs.replace(
        status,
        deadlines={name: _no_later(at, latest.get(name, math.inf)) for name, at in status.deadlines.items()},
        conditions=[_corrected(each, now) for each in status.conditions],
        not_before=_no_later(status.not_before, now + policy.restart_backoff_max_s),
    )
    return allocation if righted == status else with_status(allocation, righted)


def _corrected(condition: Condition, now: float) -> Condition:
    """Return the condition; StartBlocked begins at `now` at the latest. The watcher corrects no other condition."""
    since = condition.last_transition_time
    if condition.type != CONDITION_BLOCKED or not since:
        return condition
    return msgspec.structs.replace(condition, last_transition_time=_no_later(since, now))


def _no_later(at: str, latest: float) -> str:
    return format_time(latest) if at and parse_time(at) > latest + SKEW_S else at


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


def of_attempt(allocation: Allocation, until: float) -> dict[str, Any]:
    """Return {slots, seconds: {phase: seconds}} of the current attempt up to `until` (epoch seconds)."""
    until = parse_time(format_time(until))
    steps = [(entry.phase, parse_time(entry.time)) for entry in _of_attempt(allocation) if entry.time]
    seconds: dict[str, float] = {}
    for (phase, begun), (_, ended) in pairwise([*steps, (Phase.TERMINATED, until)]):
        seconds[phase.value] = seconds.get(phase.value, 0.0) + max(0.0, ended - begun)
    rounded = {phase: plain(round(spent, 3)) for phase, spent in seconds.items() if spent > 0}
    return {"slots": allocation.status.slots, "seconds": rounded}


def _of_attempt(allocation: Allocation) -> list[RingEntry]:
    return [entry for entry in ring_of(allocation) if entry.attempt == allocation.status.attempt]


DEFAULT_POLICY = LifecyclePolicy()
NO_WARNINGS: Mapping[str, PodWarning] = {}
_SERVICES = (Kind.NOTEBOOK, Kind.SHELL, Kind.TENSORBOARD)
"""Kinds of allocations that are ready when their pods are ready."""
_GOOD_ENDS = (Reason.COMPLETED, Reason.USER_STOPPED)


class FollowUp(msgspec.Struct, frozen=True, kw_only=True):
    """The further work of the caller. `recheck_at` is epoch seconds; None when no recheck is needed."""

    hint: bool = False
    """the pod worker has something to do"""
    consistent_list: bool = False
    """read the pods from the API server and reduce again"""
    recheck_at: float | None = None


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    """The result. `allocation` has to be written when `changed`; the other fields are to be done after that write."""

    allocation: Allocation
    changed: bool = False
    drop_pod_finalizers: tuple[Pod, ...] = ()
    deletes: tuple[Pod, ...] = ()
    """pods that ended by themselves, to delete once their logs are read"""
    force_deletes: tuple[Pod, ...] = ()
    """pods on nodes that are gone: no kubelet will ever confirm their end"""
    hurried: tuple[tuple[Pod, int], ...] = ()
    """pods to delete once more, with a shorter grace period (seconds)"""
    drop_cr_finalizer: bool = False
    """it has ended and no pod is seen: check for leftovers, then remove the object's finalizer"""
    needs: FollowUp = FollowUp()


class _Transitioned(msgspec.Struct, frozen=True, kw_only=True):
    """The allocation after its transitions; `look` requests a consistent read, `at` another look at that time.

    `urgent`: the ends of the ranks have to be recorded now, because the next step waits for that.
    """

    allocation: Allocation
    look: bool = False
    at: float | None = None
    urgent: bool = False


def reduce(  # noqa: PLR0913 - all that was observed, each by its name
    allocation: Allocation,
    pods: Iterable[Pod],
    *,
    now: float,
    policy: LifecyclePolicy = DEFAULT_POLICY,
    namespace_terminating: bool = False,
    nodes_gone: Set[str] = frozenset(),
    consistent: bool = False,
    written_at: float | None = None,
    warnings: Mapping[str, PodWarning] = NO_WARNINGS,
    awaited: Seen = NOTHING_SEEN,
) -> Reduction:
    """Return the reduction of `allocation` with all `pods` that have its uid as label, at `now` (epoch seconds).

    `nodes_gone` are nodes whose deletion is confirmed; `consistent` is whether `pods` come from a consistent read that
    was made after `allocation` was read; `written_at` is when the status was last written (None: at its last
    transition). `warnings` has the last warning Event about the start of each of these pods; without an entry, no Event
    of the pod is known. `awaited` has the observed states of the allocations that this one waits for.
    """
    found = tuple(pods)
    nodes_gone = nodes_gone | gang.given_up(allocation)
    corrected = correct_times(allocation, now=now, policy=policy)
    view = ReductionView(
        allocation=corrected,
        pods=found,
        gang=gang.assemble(
            corrected,
            found,
            nodes_gone=nodes_gone,
            consistent=consistent,
            namespace_terminating=namespace_terminating,
        ),
        now=now,
        policy=policy,
        namespace_terminating=namespace_terminating,
        nodes_gone=nodes_gone,
        consistent=consistent,
        written_at=last_transition_at(allocation) if written_at is None else written_at,
        warnings=warnings,
        dependencies=awaited,
    )
    if allocation.status.phase is Phase.TERMINATED:
        moved = _Transitioned(allocation=allocation)
    else:
        moved = _with_details(view, _started(view) if is_released(allocation) else _unstarted(view))
    after = moved.allocation
    is_held = TEARDOWN_FINALIZER in allocation.metadata.finalizers
    return Reduction(
        allocation=after,
        changed=after is not allocation,
        drop_pod_finalizers=cleanup.droppable_finalizers(view, after),
        deletes=cleanup.deletable(view, after),
        force_deletes=cleanup.unreachable(view),
        hurried=cleanup.with_long_grace(view),
        drop_cr_finalizer=is_held and after.status.phase is Phase.TERMINATED and not view.pods,
        needs=FollowUp(hint=cleanup.needs_worker(view, after), consistent_list=moved.look, recheck_at=moved.at),
    )


# --- before the release


def _unstarted(view: ReductionView) -> _Transitioned:
    """Reduce an attempt that is not released: none of its pods can run, so it may end or begin again at once."""
    allocation = view.allocation
    is_waiting = allocation.status.phase is Phase.PENDING
    if is_waiting:
        allocation = dependencies.with_dependencies(allocation, view.dependencies, now=view.now)
    decision = ends.after_unstarted(
        allocation, now=view.now, policy=view.policy, namespace_terminating=view.namespace_terminating
    )
    if decision is None and is_waiting:
        decision = dependencies.problem_of(allocation, view.dependencies)
    match decision:
        case None:
            return _Transitioned(allocation=_with_hold(view, allocation), at=ends.stuck_until(allocation, view.policy))
        case FinalEnd():
            return _Transitioned(allocation=_terminated(view, allocation, decision))
        case NextAttempt():
            return _restart_unstarted(view, decision)


def _with_hold(view: ReductionView, allocation: Allocation) -> Allocation:
    """Record a change of `hold` of an allocation with a pending timeout, because a held allocation does not wait."""
    hold = allocation.spec.hold
    is_pending = allocation.status.phase is Phase.PENDING
    if not allocation.spec.pending_timeout or not is_pending or hold == is_hold_recorded(allocation):
        return allocation
    return record(allocation, Event.UPDATED, now=view.now, data={HELD: hold})


def _restart_unstarted(view: ReductionView, again: NextAttempt) -> _Transitioned:
    allocation = view.allocation
    if allocation.status.phase is Phase.PENDING:
        # There is no admission to withdraw, and a stop in the status would only prevent the next admission.
        if ends.current_stop(allocation) is None:
            return _Transitioned(allocation=allocation)
        freed = with_status(allocation, msgspec.structs.replace(allocation.status, stop=None))
        return _unstarted(msgspec.structs.replace(view, allocation=freed))
    if not view.live_pods:
        if view.consistent:
            return _Transitioned(allocation=_restarted(view, allocation, again))
        return _Transitioned(allocation=allocation, look=True)
    if allocation.status.phase is Phase.TERMINATING:
        return _Transitioned(allocation=allocation)
    return _Transitioned(allocation=record(allocation, Event.TERMINATING, now=view.now, reason=again.reason.value))


# --- after the release


def _started(view: ReductionView) -> _Transitioned:
    """Reduce a released attempt: follow its pods, and decide whether it has to end."""
    if view.allocation.status.phase is Phase.TERMINATING:
        return _finished(view, view.allocation)
    followed = _shrunk(view, _ready(view, _with_deadlines(view, _progressed(view, view.allocation))))
    followed = rank_changes.with_restarts(view, rank_changes.with_added_ranks(view, followed))
    allocation, cause = causes.preempted(view, followed)
    cause = cause or causes.ending(view, allocation)
    if cause is None:
        allocation = obstacles.with_obstacle(view, allocation)
        look = bool(view.gang.missing) and not view.consistent
        return _Transitioned(allocation=allocation, look=look, at=causes.next_check_at(view, allocation))
    if cause.reason in _GOOD_ENDS and all(rank.exit is not None for rank in view.gang.ranks):
        end = FinalEnd(result=ends.result_of(cause.reason), reason=cause.reason, message=cause.sentence())
        return _Transitioned(allocation=_terminated(view, allocation, end))
    ended = record(
        allocation,
        Event.TERMINATING,
        now=view.moment(allocation, cause.at),
        reason=cause.reason.value,
        data=cause.data(),
        message=cause.sentence(),
    )
    return _finished(view, ended)


def _progressed(view: ReductionView, allocation: Allocation) -> Allocation:
    """Return the allocation in Pulling and Starting once all ranks have a node, in Running once all ranks run."""
    found = view.gang
    if has_reached(allocation.status.phase, Phase.RUNNING) or not found.is_bound:
        return allocation
    if allocation.status.phase is Phase.STARTING and not found.has_started:
        return allocation
    changes: dict[str, Any] = {"nodes": found.nodes(), "slots": found.slots, "slices": found.slices}
    if allocation.status.phase is Phase.ASSIGNED:
        allocation = record(allocation, Event.PULLING, now=view.now, **changes)
    if allocation.status.phase is Phase.PULLING:
        allocation = record(allocation, Event.STARTING, now=view.now, **changes)
    if not found.has_started:
        return allocation
    starts = [exits.started_at(rank.pod) for rank in found.ranks if rank.pod is not None]
    at = view.moment(allocation, max((start for start in starts if start is not None), default=None))
    standing = {name: at_ for name, at_ in allocation.status.deadlines.items() if name != obstacles.DEADLINE_START}
    changes["deadlines"] = {**standing, **_deadlines(allocation, at)}
    running = record(
        allocation,
        Event.RUNNING,
        now=at,
        data={"ranks": len(found.ranks), "nodes": found.nodes(), "slots": found.slots},
        started_at=format_time(at),
        message="",
        **changes,
    )
    # The reason for the end of the previous attempt does not apply any more.
    return with_status(running, msgspec.structs.replace(running.status, reason=""))


def _with_deadlines(view: ReductionView, allocation: Allocation) -> Allocation:
    """Return the allocation with new deadlines,
    if one of its limits was changed or a wrong clock had written its start."""
    status = allocation.status
    if status.phase is not Phase.RUNNING or not status.started_at:
        return allocation
    ours = (ends.DEADLINE_MAX_RUNTIME, ends.DEADLINE_IDLE)
    since = _start_of(view, parse_time(status.started_at))
    started_at = format_time(since)
    wanted = _deadlines(allocation, since)
    known = {name: at for name, at in status.deadlines.items() if name in ours}
    if wanted == known and started_at == status.started_at:
        return allocation
    others = {name: at for name, at in status.deadlines.items() if name not in ours}
    return record(
        allocation,
        Event.UPDATED,
        now=view.now,
        data={"deadlines": wanted},
        deadlines={**others, **wanted},
        started_at=started_at,
    )


def _start_of(view: ReductionView, written: float) -> float:
    """Return when the attempt began to run: the recorded time, unless that is in the future by our clock and the nodes
    report an earlier start.

    In that case a clock that was ahead has written the time, and its limits would last too long. If the start that the
    nodes report is in the future too, our clock is behind, and the recorded time is kept.
    """
    starts = [exits.started_at(rank.pod) for rank in view.gang.ranks if rank.pod is not None]
    seen = max((start for start in starts if start is not None), default=None)
    latest = view.now + SKEW_S
    return written if written <= latest or seen is None or seen > latest else min(view.now, seen + GRAIN_S)


def _deadlines(allocation: Allocation, since: float) -> dict[str, str]:
    """Return the deadlines that begin with Running.

    The idle deadline is the earliest possible one: activity postpones it without a write.
    """
    limits = {
        ends.DEADLINE_MAX_RUNTIME: run_limit(allocation),
        ends.DEADLINE_IDLE: allocation.spec.idle_timeout,
    }
    return {name: format_time(since + stored_duration(limit)) for name, limit in limits.items() if limit}


def _ready(view: ReductionView, allocation: Allocation) -> Allocation:
    """Return the allocation with `ready` and `waiting`.

    `ready` is True once its program reports it or, for a service, once its pods are ready; `waiting` is what the
    program reports.
    """
    status, signals = allocation.status, allocation.spec.signals
    if status.phase is not Phase.RUNNING:
        return allocation
    is_current = signals is not None and signals.attempt == status.attempt
    if signals is not None and is_current and signals.waiting != status.waiting:
        allocation = record(
            allocation, Event.UPDATED, now=view.now, data={"waiting": signals.waiting}, waiting=signals.waiting
        )
    if status.ready:
        return allocation
    says_so = signals is not None and is_current and signals.ready
    serves = allocation.spec.kind in _SERVICES and all(
        rank.pod is not None and exits.is_pod_ready(rank.pod) for rank in view.gang.ranks
    )
    return record(allocation, Event.READY, now=view.now, ready=True) if says_so or serves else allocation


def _shrunk(view: ReductionView, allocation: Allocation) -> Allocation:
    """Record once, when all evicted ranks have ended, that the gang uses fewer slots from now on."""
    shrink, told = allocation.status.shrink, leaving_ranks(allocation)
    if shrink is None or allocation.status.phase is not Phase.RUNNING or len(told) <= shrink.told:
        return allocation
    gone = [rank for rank in view.gang.ranks if rank.leaving and rank.exit is not None]
    # Ranks that never had a pod, because their growth was withdrawn, are gone as well.
    coming = {rank.index for rank in view.gang.ranks} | {member.rank for member in unreleased(allocation)}
    if len(gone) + len(set(told) - coming) < len(told):
        return allocation
    slots = view.gang.slots
    data: dict[str, Any] = {"ranks": sorted(told[shrink.told :]), "by": shrink.by, "slots": slots}
    return record(
        allocation,
        Event.UPDATED,
        now=view.now,
        data=data,
        slots=slots,
        slices=view.gang.slices,
        shrink=msgspec.structs.replace(shrink, told=len(told)),
    )


def _finished(view: ReductionView, allocation: Allocation) -> _Transitioned:
    """Reduce a Terminating attempt: it ends once it is certain that none of its pods runs."""
    found = view.gang
    if found.missing and not view.consistent:
        return _Transitioned(allocation=allocation, look=True)
    if found.live:
        return _Transitioned(allocation=allocation)
    decision = ends.after_end(
        allocation,
        ends.cause_of(allocation),
        now=view.now,
        policy=view.policy,
        namespace_terminating=view.namespace_terminating,
    )
    match decision:
        case FinalEnd():
            return _Transitioned(allocation=_terminated(view, allocation, decision))
        case NextAttempt():
            if view.allocation.status.phase is not Phase.TERMINATING:
                # The exits are recorded first, because the next attempt clears the ranks.
                return _Transitioned(allocation=allocation, at=view.now)
            if gang.is_unrecorded(allocation, found):
                return _Transitioned(allocation=allocation, at=view.now, urgent=True)
            if not view.consistent:
                return _Transitioned(allocation=allocation, look=True)
            if view.live_pods:
                return _Transitioned(allocation=allocation)
            return _Transitioned(allocation=_restarted(view, allocation, decision))


def _terminated(view: ReductionView, allocation: Allocation, end: FinalEnd) -> Allocation:
    found, status = view.gang, allocation.status
    times = [rank.exit.at for rank in found.ranks if rank.exit is not None]
    last = max((at for at in times if at is not None), default=None) if end.reason is Reason.COMPLETED else None
    # The message of an attempt that completes is about its start, unless it is Terminating.
    is_plain = end.reason is Reason.COMPLETED and status.phase is not Phase.TERMINATING
    at = view.moment(allocation, last)
    data: dict[str, Any] = {"result": end.result.value, **of_attempt(allocation, at)}
    if found.ranks:
        data["exits"] = found.exit_counts()
    return record(
        allocation,
        Event.TERMINATED,
        now=at,
        reason=end.reason.value,
        data=data,
        result=end.result,
        message=end.message or ("" if is_plain else status.message),
        ended_at=format_time(at),
        ready=False,
        waiting=False,
    )


def _restarted(view: ReductionView, allocation: Allocation, again: NextAttempt) -> Allocation:
    status = allocation.status
    said = f": {'; '.join(part for part in (status.message, again.note) if part)}" if status.message else ""
    data: dict[str, Any] = {"counted": again.counted, **of_attempt(allocation, view.now)}
    if again.not_before:
        data["notBefore"] = format_time(again.not_before)
    return record(
        allocation,
        Event.RESTARTED,
        now=view.now,
        reason=again.reason.value,
        data=data,
        restarts=status.restarts + again.counted,
        infra_restarts=status.infra_restarts + again.is_infrastructure,
        uncounted_restarts=status.uncounted_restarts + again.is_spared,
        not_before=format_time(again.not_before) if again.not_before else "",
        avoid_nodes=list(again.avoid_nodes) or status.avoid_nodes,
        deadlines={},
        started_at="",
        slots=0,
        slices={},
        message=f"attempt {status.attempt} ended with {again.reason.value}{said}"[: exits.MESSAGE_CHARS_MAX],
    )


# --- the other parts of the write


def _with_details(view: ReductionView, moved: _Transitioned) -> _Transitioned:
    """Add ranks and conditions to a transition; without a transition, only changed ranks, at most once an interval."""
    before, after = view.allocation, moved.allocation
    same_attempt = after.status.attempt == before.status.attempt
    ranks = view.gang.statuses() if view.gang.ranks and same_attempt else after.status.ranks
    if after.status.seq > before.status.seq:
        # The conditions are computed from the rest of the status, so they come last.
        after = carried(before, with_status(after, msgspec.structs.replace(after.status, ranks=ranks)))
        conditions = conditions_of(after, now=view.now)
        after = with_status(after, msgspec.structs.replace(after.status, conditions=conditions))
        return msgspec.structs.replace(moved, allocation=after)
    if not _is_news(before.status.ranks, ranks):
        return moved
    due_at = view.written_at + view.policy.rank_detail_interval_s
    if view.now < due_at and not moved.urgent:
        return msgspec.structs.replace(moved, at=due_at if moved.at is None else min(moved.at, due_at))
    status = msgspec.structs.replace(after.status, ranks=ranks)
    return msgspec.structs.replace(moved, allocation=with_status(after, status))


def _is_news(before: list[RankStatus] | None, after: list[RankStatus] | None) -> bool:
    """Whether the change of the ranks needs its own write; the first nodes are written with the next transition."""
    if before is None:
        return any(rank.phase in RANK_ENDS or rank.reason for rank in after or ())
    return before != after
