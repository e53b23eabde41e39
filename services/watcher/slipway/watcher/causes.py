"""Finds out why a released attempt has to end now, if it has to: first by decisions about it, then by its ranks.

Owns the order of the causes and the course of a preemption. Pure. `ends.py` decides what follows from an end.

Invariants: a user's cancel takes precedence over every other cause; an attempt that has completed is never reported as
preempted or timed out; preempted ranks get their whole grace period unless they all end sooner.
"""

from typing import Any

import msgspec

from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Allocation
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Reason
from slipway.model.times import format_time
from slipway.watcher import ends, exits, obstacles, rank_changes
from slipway.watcher.exits import RankExit
from slipway.watcher.gang import ObservedGang, Rank
from slipway.watcher.obstacles import unbound_pod
from slipway.watcher.view import ReductionView

_MESSAGE_IN_RING_MAX = 160


class EndCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why the attempt ends; with `rank` and `end` when one rank is the cause."""

    reason: Reason
    rank: Rank | None = None
    end: RankExit | None = None
    by: str = ""
    """the allocation for which the attempt is preempted; else empty"""
    said: str = ""
    """the decision of the allocation's failure or success policy, in words; empty without one"""
    target: int | None = None
    """the index of the target in the success policy that is met; None without one"""

    @property
    def at(self) -> float | None:
        """When the rank ended (epoch seconds); None when no rank is the cause, or it has not ended."""
        return self.end.at if self.end is not None and self.rank is not None and self.rank.exit is not None else None

    def data(self) -> dict[str, Any]:
        """The data of the transition for the ring in the status."""
        data: dict[str, Any] = {"by": self.by} if self.by else {}
        if self.target is not None:
            data["target"] = self.target
        if self.rank is not None:
            data["rank"] = self.rank.index
            if self.rank.rule is not None and self.said:
                data["rule"] = self.rank.rule
            if self.rank.node:
                data["node"] = self.rank.node
        if self.end is not None:
            if self.end.code is not None:
                data["exitCode"] = self.end.code
            if self.end.message:
                data["message"] = self.end.message[:_MESSAGE_IN_RING_MAX]
        return data

    def sentence(self) -> str:
        """Return a sentence for users about the cause; empty when the reason alone is enough."""
        if self.end is None:
            return f"preempted for {self.by}" if self.by else self.said
        if self.rank is None:
            return self.end.message
        where = f" on {self.rank.node}" if self.rank.node else ""
        text = f"rank {self.rank.index}{where}: {self.end.message or self.end.reason.value}"
        said = f"; {self.said}" if self.said else ""
        return text[: exits.MESSAGE_CHARS_MAX - len(said)] + said


def preempted(view: ReductionView, allocation: Allocation) -> tuple[Allocation, EndCause | None]:
    """Start a requested preemption; return the allocation, and the cause if the preemption ends the attempt now."""
    preempt, found = ends.preemption(allocation), view.gang
    if preempt is None or view.stop in ends.CANCELS:
        return allocation, None
    if ends.is_preempting(allocation):
        return allocation, _preemption_over(view, allocation, preempt)
    if found.has_succeeded:
        return allocation, None
    is_heard = any(rank.has_started for rank in found.ranks)
    if preempt.by_system:
        is_heard = allocation.status.ready and allocation.status.phase is Phase.RUNNING
    if not is_heard or found.is_broken:
        return allocation, EndCause(reason=preempt.reason, by=preempt.by)
    deadline = format_time(view.now + ends.preemption_grace_s(allocation, view.policy))
    data: dict[str, Any] = {"n": preempt.n, "requeue": preempt.requeue, "deadline": deadline}
    if preempt.by:
        data["by"] = preempt.by
    told = record(
        allocation,
        Event.PREEMPTING,
        now=view.now,
        reason=preempt.reason.value,
        data=data,
        deadlines={**allocation.status.deadlines, ends.DEADLINE_PREEMPTION: deadline},
    )
    return told, _preemption_over(view, told, preempt)


def ending(view: ReductionView, allocation: Allocation) -> EndCause | None:
    """Return why the attempt has to end now; None when it does not."""
    stop, found = view.stop, view.gang
    if stop is not None and stop in ends.CANCELS:
        return EndCause(reason=stop)
    refused = ends.refusal(allocation)
    if refused is not None:
        end = RankExit(state=RankState.FAILED, reason=refused.reason, message=refused.message)
        return EndCause(reason=refused.reason, end=end)
    preempt = ends.preemption(allocation)
    is_preempting = preempt is not None and ends.is_preempting(allocation)
    if found.has_succeeded:
        reason = Reason.USER_STOPPED if is_preempting else Reason.COMPLETED
        return EndCause(reason=reason, said=_why_succeeded(found), target=found.success.target)
    if stop is not None and not (preempt is not None and preempt.by_system) and not _is_early(view, allocation):
        return EndCause(reason=stop, end=_obstacle_of_start(allocation, stop))
    is_excused = is_preempting and preempt is not None and ends.is_acknowledged(allocation, preempt)
    first = found.cause
    if found.is_broken and first is not None and first.failure is not None and not is_excused:
        is_over = is_preempting and preempt is not None and preempt.is_time_up
        reason = preempt.reason if preempt is not None and is_over else first.failure.reason
        said = found.rule_text(first) if reason is first.failure.reason else ""
        return EndCause(reason=reason, rank=first, end=first.failure, said=said)
    stuck_until = ends.stuck_until(allocation, view.policy)
    if stuck_until is not None and view.now >= stuck_until:
        return EndCause(reason=Reason.LAUNCH_STUCK)
    return _misplaced(view) or _blocked(view) or _refused(view) or _blocked_too_long(view, allocation)


def next_check_at(view: ReductionView, allocation: Allocation) -> float | None:
    """Return when the passing of time alone changes the decision (epoch seconds); None when it does not."""
    times = [
        ends.stuck_until(allocation, view.policy),
        ends.preemption_deadline(allocation, now=view.now),
        obstacles.given_up_at(allocation),
        rank_changes.next_at(view, allocation),
    ]
    for rank in view.gang.ranks:
        held = exits.blocked_start(rank.pod) if rank.pod is not None and rank.exit is None else None
        if held is not None:
            times.append(view.blocked_until(held))
        waits = unbound_pod(rank.pod, view.policy) if rank.pod is not None and rank.exit is None else None
        if waits is not None:
            times.append(waits.until)
    return min((at for at in times if at is not None and at > view.now), default=None)


def _why_succeeded(found: ObservedGang) -> str:
    """Return the policies that made it a success, in words; empty when every rank has ended with 0."""
    parts = [found.success.text] if found.success.is_met else []
    if found.ignored:
        first = found.ignored[0]
        how = first.exit.message if first.exit is not None else ""
        more = f", and {len(found.ignored) - 1} more" if len(found.ignored) > 1 else ""
        parts.append(f"rank {first.index}: {how or 'failed'}; {found.rule_text(first)}{more}")
    return "; ".join(parts)[: exits.MESSAGE_CHARS_MAX]


def _preemption_over(view: ReductionView, allocation: Allocation, preempt: ends.PreemptionRequest) -> EndCause | None:
    found, deadline = view.gang, ends.preemption_deadline(allocation, now=view.now)
    is_acknowledged = ends.is_acknowledged(allocation, preempt)
    if is_acknowledged and (found.has_ended or _is_lost_to_infrastructure(found)):
        return EndCause(reason=preempt.reason, by=preempt.by)
    if deadline is not None and view.now >= deadline and not found.has_succeeded:
        return EndCause(reason=preempt.overdue, by=preempt.by)
    return None


def _is_early(view: ReductionView, allocation: Allocation) -> bool:
    """Whether the stop states that a grace period is over, but by our clock it is not.

    One of the two clocks is wrong, and work that is killed within its grace period is lost. So the attempt ends only
    when it is over by our clock too.
    """
    deadline = ends.preemption_deadline(allocation, now=view.now)
    return view.stop is Reason.PREEMPTION_GRACE and deadline is not None and view.now < deadline


def _misplaced(view: ReductionView) -> EndCause | None:
    """Return the cause if another program bound a rank to a node that was not planned, where it has no reserved
    room."""
    for rank in _needed_ranks(view):
        node = rank.pod.spec.node_name if rank.pod is not None and rank.exit is None else ""
        if node and rank.placed_on and node != rank.placed_on:
            message = f"bound to {node}, not to {rank.placed_on}"
            end = RankExit(state=RankState.FAILED, reason=Reason.LAUNCH_STUCK, message=message)
            return EndCause(reason=Reason.LAUNCH_STUCK, rank=rank, end=end)
    return None


def _blocked(view: ReductionView) -> EndCause | None:
    """Return the cause if the container of a rank could not be started for longer than the limit."""
    for rank in _needed_ranks(view):
        held = exits.blocked_start(rank.pod) if rank.pod is not None and rank.exit is None else None
        if held is not None and view.now >= view.blocked_until(held):
            end = RankExit(state=RankState.FAILED, reason=held.reason, message=held.message)
            return EndCause(reason=held.reason, rank=rank, end=end)
    return None


def _refused(view: ReductionView) -> EndCause | None:
    """Return the cause if another scheduler has not placed a rank within the limit: a gang starts only as a whole."""
    for rank in _needed_ranks(view):
        waits = unbound_pod(rank.pod, view.policy) if rank.pod is not None and rank.exit is None else None
        if waits is not None and view.now >= waits.until:
            end = RankExit(state=RankState.FAILED, reason=waits.reason, message=waits.message)
            return EndCause(reason=waits.reason, rank=rank, end=end)
    return None


def _needed_ranks(view: ReductionView) -> list[Rank]:
    """Return the ranks that the gang needs. Added ranks that have not run are left out: they can be withdrawn."""
    return [rank for rank in view.gang.ranks if not rank.is_joining]


def _blocked_too_long(view: ReductionView, allocation: Allocation) -> EndCause | None:
    """Return the cause if an obstacle has blocked the start for longer than the limit."""
    over = obstacles.end_of_expired(view, allocation)
    return EndCause(reason=over.reason, end=over) if over is not None else None


def _obstacle_of_start(allocation: Allocation, stop: Reason) -> RankExit | None:
    """Return the obstacle of a start that took longer than its pendingTimeout."""
    known = obstacles.recorded(allocation) if stop is Reason.PENDING_TIMEOUT else None
    return RankExit(state=RankState.FAILED, reason=stop, message=known.message) if known is not None else None


def _is_lost_to_infrastructure(found: ObservedGang) -> bool:
    first = found.cause
    return found.is_broken and first is not None and first.failure is not None and first.failure.is_infrastructure
