"""Restarts failed ranks of `restart: rank` in their place, while the other ranks continue to run.

Owns when such a restart is written, which limit it is counted against, and how it is reported. Pure. `gang.py` decides
which failures lead to a restart; the pod worker creates the pod.

Invariants: the end of a rank and its restart are one write, so each failure is counted once, whichever replicas see it;
the restart of a rank is written only when its gang has all its nodes, and never in an attempt that has to stop.
"""

from typing import Any

from slipway.crd.members import restarting
from slipway.crd.transitions import record
from slipway.crd.v1alpha1 import Allocation, RankRestart
from slipway.model.lifecycle import Event, Phase
from slipway.model.times import SKEW_S, format_time, parse_time
from slipway.watcher.gang import Rank
from slipway.watcher.view import GRAIN_S, ReductionView

STARTED_AGAIN = "startedAgain"
"""The key in the data of `updated` for the ranks that start again in their place."""
NOTE = "note"
"""The key in the data of `updated` for the same as a sentence."""
_PLACED = (Phase.STARTING, Phase.RUNNING)
_RANKS_SAID_MAX = 8
_TEXT_MAX = 160


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
