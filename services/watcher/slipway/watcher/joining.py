"""Follows ranks that were added to a running gang: records when they have started, and withdraws those that cannot.

Owns when an added rank is given up, and for how long its gang then requests no other rank. Pure.

Invariants: an added rank that has never run does not end its gang, whatever happens to it: it is evicted like a surplus
rank. Each growth is recorded as an event once.
"""

from typing import Any

import msgspec

from slipway.crd.members import growth_of, unreleased
from slipway.crd.transitions import leaving_ranks, record
from slipway.crd.v1alpha1 import Allocation, Shrink
from slipway.model.growth import GROW_AGAIN_S
from slipway.model.lifecycle import Event, Phase
from slipway.model.reasons import Reason
from slipway.model.times import format_time
from slipway.watcher import exits
from slipway.watcher.delegated_binding import unbound_pod
from slipway.watcher.gang import Rank
from slipway.watcher.view import ReductionView

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
    """Return the allocation, with added ranks that cannot start evicted."""
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
