"""Decides about ranks that change in a running gang: added ranks, and ranks of `restart: rank` that failed. Pure.

Added ranks: this module records that they have started, and withdraws those that cannot start. After a withdrawal the
gang requests no other rank for some time. Invariants: an added rank that has never run does not end its gang, whatever
happens to it: it is evicted like a surplus rank. Each growth is recorded as an event once.

Failed ranks of `restart: rank` start again in their place, while the other ranks continue to run. `gang.py` decides
which failures lead to a restart; the pod worker creates the pod.

Invariants: the end of a rank and its restart are one write, so each failure is counted once, whichever replicas see it;
the restart of a rank is written only when its gang has all its nodes, and never in an attempt that has to stop.
"""

from typing import Any

import msgspec

from slipway.crd.members import growth_of, restarting, unreleased
from slipway.crd.transitions import leaving_ranks, record
from slipway.crd.v1alpha1 import Allocation, RankRestart, Shrink
from slipway.model.growth import GROW_AGAIN_S
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason
from slipway.model.times import SKEW_S, format_time, parse_time
from slipway.watcher import exits
from slipway.watcher.gang import Rank
from slipway.watcher.obstacles import unbound_pod
from slipway.watcher.view import GRAIN_S, ReductionView

_TEXT_MAX = 160


def with_added_ranks(view: ReductionView, allocation: Allocation) -> Allocation:
    """Return the allocation, updated with what happened to the ranks that were added to it."""
    growth = growth_of(allocation)
    if growth is None or allocation.status.phase is not Phase.RUNNING:
        return allocation
    allocation = _withdrawn(view, allocation)
    growth = growth_of(allocation) or growth
    leaving = leaving_ranks(allocation)
    is_on_its_way = any(rank.index not in leaving for rank in view.gang.joining) or bool(unreleased(allocation))
    if growth.told >= growth.n or is_on_its_way:
        return allocation
    ranks = sorted(rank.index for rank in view.gang.ranks if rank.grown and not rank.is_joining)
    slots = view.gang.slots
    data: dict[str, Any] = {"grown": ranks, "slots": slots}
    if growth.not_before:
        data |= {"notStarted": growth.reason, "notBefore": growth.not_before}
    told = msgspec.structs.replace(growth, told=growth.n, reason=growth.reason if growth.not_before else "")
    held: dict[str, Any] = {"slots": slots, "slices": view.gang.slices, "nodes": view.gang.nodes()}
    return record(allocation, Event.UPDATED, now=view.now, data=data, growth=told, **held)


def _withdrawn(view: ReductionView, allocation: Allocation) -> Allocation:
    """Return the allocation; added ranks that cannot start are evicted in it."""
    known, status, growth = leaving_ranks(allocation), allocation.status, growth_of(allocation)
    failed = [
        (rank.index, why)
        for rank in view.gang.joining
        if rank.index not in known and (why := _why_not_started(view, rank))
    ]
    if not failed or growth is None:
        return allocation
    ranks, why = [index for index, _ in failed], failed[0][1][:_TEXT_MAX]
    shrink = Shrink(
        ranks=[*known, *ranks],
        attempt=status.attempt,
        reason=Reason.LAUNCH_STUCK.value,
        at=format_time(view.now),
        told=status.shrink.told if known and status.shrink is not None else 0,
    )
    held = msgspec.structs.replace(growth, not_before=format_time(view.now + GROW_AGAIN_S), reason=why)
    data: dict[str, Any] = {"ranks": ranks, "notStarted": why, "notBefore": held.not_before}
    return record(allocation, Event.UPDATED, now=view.now, data=data, shrink=shrink, growth=held)


def _why_not_started(view: ReductionView, rank: Rank) -> str:
    """Return why an added rank cannot start; empty while it still may."""
    where = f"rank {rank.index} on {rank.node}" if rank.node else f"rank {rank.index}"
    end = rank.exit or rank.loss
    if end is not None:
        return f"{where}: {end.message or end.reason.value}"
    pod = rank.pod
    if pod is None:
        return ""
    node = pod.spec.node_name
    if node and rank.placed_on and node != rank.placed_on:
        return f"rank {rank.index}: bound to {node}, not to {rank.placed_on}"
    held, waits = exits.blocked_start(pod), unbound_pod(pod, view.policy)
    if held is not None and view.now >= view.blocked_until(held):
        return f"{where}: {held.message}"
    return f"{where}: {waits.message}" if waits is not None and view.now >= waits.until else ""


STARTED_AGAIN = "startedAgain"
"""The key in the data of `updated` for the ranks that start again in their place."""
NOTE = "note"
"""The key in the data of `updated` for a sentence about these restarts."""
_PLACED = (Phase.STARTING, Phase.RUNNING)
_RANKS_SAID_MAX = 8


def with_restarts(view: ReductionView, allocation: Allocation) -> Allocation:
    """Return the allocation with the restarts of the ranks that have failed since the last record."""
    status, due = allocation.status, view.gang.retried
    if not due or status.phase not in _PLACED:
        return allocation
    entries = {each.rank: each for each in status.restarted_ranks}
    for rank in due:
        entries[rank.index] = RankRestart(
            rank=rank.index, n=rank.restarts + 1, not_before=format_time(_not_before(view, rank))
        )
    spared = sum(rank.is_spared for rank in due)
    restarts = status.restarts + len(due) - spared
    first = due[0]
    data: dict[str, Any] = {STARTED_AGAIN: [rank.index for rank in due], "restarts": restarts}
    data[NOTE] = _sentence(due, restarts - status.restarts and f"{restarts} of {allocation.spec.max_restarts}")
    if first.retried is not None and first.retried.code is not None:
        data["exitCode"] = first.retried.code
    if first.rule is not None:
        data["rule"] = first.rule
    return record(
        allocation,
        Event.UPDATED,
        now=view.moment(allocation, first.retried.at if first.retried is not None else None),
        data=data,
        restarts=restarts,
        uncounted_restarts=status.uncounted_restarts + spared,
        restarted_ranks=list(entries.values()),
    )


def next_at(view: ReductionView, allocation: Allocation) -> float | None:
    """Return when the pod worker may create the next pod (epoch seconds); None when no rank waits for that time."""
    waiting = [member for member in restarting(allocation) if member.restart is not None and member.restart.not_before]
    times = [parse_time(member.restart.not_before) for member in waiting if member.restart is not None]
    return min((at for at in times if at > view.now), default=None)


def needs_worker(view: ReductionView, after: Allocation) -> bool:
    """Whether a rank that starts again needs a new pod now, or has a pod that is not bound yet."""
    if after.status.phase not in _PLACED:
        return False
    due = [member.restart for member in restarting(after) if member.restart is not None]
    if any(not each.not_before or parse_time(each.not_before) <= view.now for each in due):
        return True
    return any(rank.restarts and rank.uid and not rank.is_bound for rank in view.gang.ranks)


def _not_before(view: ReductionView, rank: Rank) -> float:
    """Return when the next pod may be created (epoch seconds): after a pause that doubles with each restart of this
    rank.

    The pause begins after the last line of the log, also by the clock of the node. So the log of the next pod can be
    distinguished by its times.
    """
    policy = view.policy
    wait_s = min(policy.restart_backoff_s * 2.0 ** min(rank.restarts, 30), policy.restart_backoff_max_s)
    ended_at = rank.retried.at if rank.retried is not None else None
    by_node = min(ended_at + GRAIN_S, view.now + SKEW_S) if ended_at is not None else view.now
    return max(view.now, by_node) + max(wait_s, GRAIN_S)


def _sentence(due: list[Rank], counted: str | int) -> str:
    """Return a sentence such as `rank 2 failed: exit code 1; it starts again (1 of 3)`."""
    how = f"({counted})" if counted else "(not counted)"
    first = due[0]
    if len(due) == 1:
        why = first.retried.message if first.retried is not None else ""
        return f"rank {first.index} failed{f': {why}'[:_TEXT_MAX] if why else ''}; it starts again {how}"
    names = ", ".join(str(rank.index) for rank in due[:_RANKS_SAID_MAX])
    more = f" and {len(due) - _RANKS_SAID_MAX} more" if len(due) > _RANKS_SAID_MAX else ""
    return f"ranks {names}{more} failed; they start again {how}"
