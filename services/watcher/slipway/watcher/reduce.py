"""One allocation and its pods -> the allocation as it should be recorded, and what else is to be done.

Owns when a phase moves. Pure: no clock, no IO. `exits.py` reads a pod, `gang.py` joins ranks, `causes.py` says why an
attempt ends and `ends.py` what that comes to; `crd/transitions.py` writes the ring.

Promises
- Level-triggered: the answer depends on what is, not on what happened; reducing its own answer changes nothing more.
- Only legal transitions, several in one write if need be; Terminated is absorbing; an exit is written once.
- The rank of one pod never goes back: pods as they were before the record say nothing.
- Absence is no evidence: a pod that is not seen changes nothing until `consistent` says that it was looked for.
- A pod's finalizer is given up only when its exit is in the allocation that this reduction answers (which the caller
  writes first), or when the pod never ran.
- Another attempt is recorded only from a recorded Terminating (or an attempt that never started), on a consistent
  read that shows no pod of an earlier attempt that is not over.
"""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import msgspec

from slipway.crd.facts import run_limit
from slipway.crd.members import unreleased
from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.transitions import HELD, is_released, is_told_held, leaving_ranks, record, with_status
from slipway.crd.usage import carried
from slipway.crd.v1alpha1 import Allocation, RankStatus
from slipway.kube.objects import Pod
from slipway.model.duration import stored_duration
from slipway.model.lifecycle import RANK_ENDS, Event, Kind, Phase, has_reached
from slipway.model.reasons import Reason
from slipway.model.times import SKEW_S, format_time, parse_time
from slipway.watcher import (
    causes,
    cleanup,
    clocks,
    dependencies,
    ends,
    exits,
    gang,
    joining,
    obstacles,
    restarting,
    usage,
)
from slipway.watcher.conditions import conditions_of
from slipway.watcher.dependencies import NOTHING_SEEN, Seen
from slipway.watcher.ends import Again, End, LifecyclePolicy
from slipway.watcher.podwarnings import PodWarning
from slipway.watcher.view import GRAIN_S, ReductionView, last_transition_at

DEFAULT_POLICY = LifecyclePolicy()
NO_WARNINGS: Mapping[str, PodWarning] = {}
_SERVICES = (Kind.NOTEBOOK, Kind.SHELL, Kind.TENSORBOARD)
"""Kinds that are ready when their pods are."""
_GOOD_ENDS = (Reason.COMPLETED, Reason.USER_STOPPED)


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller is to arrange. `recheck_at` is epoch seconds."""

    hint: bool = False
    """the pod worker has something to do"""
    consistent_list: bool = False
    """read the pods from the API server and reduce again"""
    recheck_at: float | None = None


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    """`allocation` is to be written when `changed`; the rest follows that write."""

    allocation: Allocation
    changed: bool = False
    drop_pod_finalizers: tuple[Pod, ...] = ()
    deletes: tuple[Pod, ...] = ()
    """pods that ended by themselves, to delete once their logs are read"""
    force_deletes: tuple[Pod, ...] = ()
    """pods on nodes that are gone: no kubelet will ever confirm their end"""
    hurried: tuple[tuple[Pod, int], ...] = ()
    """pods to delete once more, with a shorter grace (seconds)"""
    drop_cr_finalizer: bool = False
    """it has ended and no pod is seen: look for what is left, then let the object go"""
    needs: Needs = Needs()


class _Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The allocation after the moves; `look` asks for a consistent read, `at` for another look at that time.

    `urgent`: the ends of the ranks are to be recorded now, because the next step waits for that.
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
    """The reduction of `allocation` with all `pods` that carry its uid, at `now` (epoch seconds).

    `nodes_gone` are nodes whose deletion is confirmed; `consistent` says that `pods` come from a consistent read made
    after `allocation` was read; `written_at` is when the status was last written (None: at its last transition).
    `warnings` is what Events said last of the start of these pods; what is not in it is not known here. `awaited` is
    what was seen of the allocations that it waits for.
    """
    found = tuple(pods)
    nodes_gone = nodes_gone | gang.given_up(allocation)
    righted = clocks.put_right(allocation, now=now, policy=policy)
    view = ReductionView(
        allocation=righted,
        pods=found,
        gang=gang.assemble(
            righted,
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
        moved = _Moved(allocation=allocation)
    else:
        moved = _with_details(view, _started(view) if is_released(allocation) else _unstarted(view))
    after = moved.allocation
    is_held = TEARDOWN_FINALIZER in allocation.metadata.finalizers
    return Reduction(
        allocation=after,
        changed=after is not allocation,
        drop_pod_finalizers=cleanup.droppable(view, after),
        deletes=cleanup.deletable(view, after),
        force_deletes=cleanup.unreachable(view),
        hurried=cleanup.hurried(view),
        drop_cr_finalizer=is_held and after.status.phase is Phase.TERMINATED and not view.pods,
        needs=Needs(hint=cleanup.needs_worker(view, after), consistent_list=moved.look, recheck_at=moved.at),
    )


# --- before the release


def _unstarted(view: ReductionView) -> _Moved:
    """Nothing of this attempt can run: it ends, or begins again, without more ado."""
    allocation = view.allocation
    is_waiting = allocation.status.phase is Phase.PENDING
    if is_waiting:
        allocation = dependencies.noted(allocation, view.dependencies, now=view.now)
    decision = ends.unstarted(
        allocation, now=view.now, policy=view.policy, namespace_terminating=view.namespace_terminating
    )
    if decision is None and is_waiting:
        decision = dependencies.problem_of(allocation, view.dependencies)
    match decision:
        case None:
            return _Moved(allocation=_held(view, allocation), at=ends.stuck_until(allocation, view.policy))
        case End():
            return _Moved(allocation=_terminated(view, allocation, decision))
        case Again():
            return _unstarted_again(view, decision)


def _held(view: ReductionView, allocation: Allocation) -> Allocation:
    """Whether it is held is told of what has a pending timeout: while it is held it does not wait."""
    hold = allocation.spec.hold
    is_pending = allocation.status.phase is Phase.PENDING
    if not allocation.spec.pending_timeout or not is_pending or hold == is_told_held(allocation):
        return allocation
    return record(allocation, Event.UPDATED, now=view.now, data={HELD: hold})


def _unstarted_again(view: ReductionView, again: Again) -> _Moved:
    allocation = view.allocation
    if allocation.status.phase is Phase.PENDING:
        # There is nothing to take back; a stop that stands would only keep it from being admitted.
        if ends.standing_stop(allocation) is None:
            return _Moved(allocation=allocation)
        freed = with_status(allocation, msgspec.structs.replace(allocation.status, stop=None))
        return _unstarted(msgspec.structs.replace(view, allocation=freed))
    if not view.live_pods:
        if view.consistent:
            return _Moved(allocation=_restarted(view, allocation, again))
        return _Moved(allocation=allocation, look=True)
    if allocation.status.phase is Phase.TERMINATING:
        return _Moved(allocation=allocation)
    return _Moved(allocation=record(allocation, Event.TERMINATING, now=view.now, reason=again.reason.value))


# --- after it


def _started(view: ReductionView) -> _Moved:
    """The pods of this attempt may run: follow them, and see whether the attempt is to end."""
    if view.allocation.status.phase is Phase.TERMINATING:
        return _finished(view, view.allocation)
    followed = _shrunk(view, _ready(view, _limited(view, _progressed(view, view.allocation))))
    followed = restarting.begun(view, joining.followed(view, followed))
    allocation, cause = causes.preempted(view, followed)
    cause = cause or causes.ending(view, allocation)
    if cause is None:
        allocation = obstacles.told(view, allocation)
        look = bool(view.gang.missing) and not view.consistent
        return _Moved(allocation=allocation, look=look, at=causes.next_look(view, allocation))
    if cause.reason in _GOOD_ENDS and all(rank.exit is not None for rank in view.gang.ranks):
        end = End(result=ends.result_of(cause.reason), reason=cause.reason, message=cause.sentence())
        return _Moved(allocation=_terminated(view, allocation, end))
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
    """Pulling and Starting once all ranks have a node, Running once all run."""
    found = view.gang
    if has_reached(allocation.status.phase, Phase.RUNNING) or not found.is_bound:
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
    # Whatever ended the attempt before this one has been overcome.
    return with_status(running, msgspec.structs.replace(running.status, reason=""))


def _limited(view: ReductionView, allocation: Allocation) -> Allocation:
    """The deadlines of what runs, when a limit of it was changed or a wrong clock had written its start."""
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
    """When it began to run: as it is written, unless that is still to come by our clock and by those of its nodes.

    A clock that was ahead has written it then, and its limits would last longer by as much. Where its nodes say so too,
    ours is behind, and the start stands.
    """
    starts = [exits.started_at(rank.pod) for rank in view.gang.ranks if rank.pod is not None]
    seen = max((start for start in starts if start is not None), default=None)
    latest = view.now + SKEW_S
    return written if written <= latest or seen is None or seen > latest else min(view.now, seen + GRAIN_S)


def _deadlines(allocation: Allocation, since: float) -> dict[str, str]:
    """The deadlines that count from Running. That of idleness is the earliest: use puts it off, unwritten."""
    limits = {
        ends.DEADLINE_MAX_RUNTIME: run_limit(allocation),
        ends.DEADLINE_IDLE: allocation.spec.idle_timeout,
    }
    return {name: format_time(since + stored_duration(limit)) for name, limit in limits.items() if limit}


def _ready(view: ReductionView, allocation: Allocation) -> Allocation:
    """`ready` once it says so itself or, for a service, once its pods do; `waiting` as it says."""
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
    """Told once, when all ranks that make room have ended: the gang holds less from then on."""
    shrink, told = allocation.status.shrink, leaving_ranks(allocation)
    if shrink is None or allocation.status.phase is not Phase.RUNNING or len(told) <= shrink.told:
        return allocation
    gone = [rank for rank in view.gang.ranks if rank.leaving and rank.exit is not None]
    # Those that never had a pod, because their growth was withdrawn, are gone as well.
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


def _finished(view: ReductionView, allocation: Allocation) -> _Moved:
    """The end of a Terminating attempt: once nothing of it runs, and that is certain."""
    found = view.gang
    if found.missing and not view.consistent:
        return _Moved(allocation=allocation, look=True)
    if found.live:
        return _Moved(allocation=allocation)
    decision = ends.outcome(
        allocation,
        ends.cause_of(allocation),
        now=view.now,
        policy=view.policy,
        namespace_terminating=view.namespace_terminating,
    )
    match decision:
        case End():
            return _Moved(allocation=_terminated(view, allocation, decision))
        case Again():
            if view.allocation.status.phase is not Phase.TERMINATING:
                # First the exits are recorded: the next attempt clears the ranks.
                return _Moved(allocation=allocation, at=view.now)
            if gang.is_unrecorded(allocation, found):
                return _Moved(allocation=allocation, at=view.now, urgent=True)
            if not view.consistent:
                return _Moved(allocation=allocation, look=True)
            if view.live_pods:
                return _Moved(allocation=allocation)
            return _Moved(allocation=_restarted(view, allocation, decision))


def _terminated(view: ReductionView, allocation: Allocation, end: End) -> Allocation:
    found, status = view.gang, allocation.status
    times = [rank.exit.at for rank in found.ranks if rank.exit is not None]
    last = max((at for at in times if at is not None), default=None) if end.reason is Reason.COMPLETED else None
    # What was said of an attempt that completes is about its start, until its end has begun.
    is_plain = end.reason is Reason.COMPLETED and status.phase is not Phase.TERMINATING
    at = view.moment(allocation, last)
    data: dict[str, Any] = {"result": end.result.value, **usage.of_attempt(allocation, at)}
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


def _restarted(view: ReductionView, allocation: Allocation, again: Again) -> Allocation:
    status = allocation.status
    said = f": {'; '.join(part for part in (status.message, again.note) if part)}" if status.message else ""
    data: dict[str, Any] = {"counted": again.counted, **usage.of_attempt(allocation, view.now)}
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


# --- what else the write holds


def _with_details(view: ReductionView, moved: _Moved) -> _Moved:
    """Ranks and conditions beside a transition; without one, what changed of the ranks, at most once an interval."""
    before, after = view.allocation, moved.allocation
    same_attempt = after.status.attempt == before.status.attempt
    ranks = view.gang.statuses() if view.gang.ranks and same_attempt else after.status.ranks
    if after.status.seq > before.status.seq:
        # The conditions follow from the rest, so they come last.
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
    """Whether the ranks are worth a write of their own; the first nodes are told with the next transition."""
    if before is None:
        return any(rank.phase in RANK_ENDS or rank.reason for rank in after or ())
    return before != after
