"""Ranks of `restart: rank` that have failed and start again in their place, while the others run on.

Owns when such a restart is written, what it counts as, and how it is told. Pure. Which failures are answered so is
`gang.py`; the pod is made by the pod worker.

Invariants: the end of a rank and its restart are one write, so that each failure is counted once, whoever sees it; the
restart of a rank is written once its gang has all its nodes, and never for an attempt that is to stop.
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
"""In the data of `updated`: the ranks that start again in their place."""
NOTE = "note"
"""In the data of `updated`: the same in words."""
_PLACED = (Phase.STARTING, Phase.RUNNING)
_RANKS_SAID_MAX = 8
_TEXT_MAX = 160


def begun(view: ReductionView, allocation: Allocation) -> Allocation:
    """The allocation with the restarts of the ranks that have failed since."""
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
    data[NOTE] = _words(due, restarts - status.restarts and f"{restarts} of {allocation.spec.max_restarts}")
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
    """When the pod worker may make the next pod (epoch seconds)."""
    waiting = [member for member in restarting(allocation) if member.restart is not None and member.restart.not_before]
    times = [parse_time(member.restart.not_before) for member in waiting if member.restart is not None]
    return min((at for at in times if at > view.now), default=None)


def needs_worker(view: ReductionView, after: Allocation) -> bool:
    """Whether a rank that starts again has no pod yet, or one that is not bound yet."""
    if after.status.phase not in _PLACED:
        return False
    due = [member.restart for member in restarting(after) if member.restart is not None]
    if any(not each.not_before or parse_time(each.not_before) <= view.now for each in due):
        return True
    return any(rank.restarts and rank.uid and not rank.is_bound for rank in view.gang.ranks)


def _not_before(view: ReductionView, rank: Rank) -> float:
    """After a pause that doubles with each restart of this rank. It begins after the last line of the log by the clock
    of the node too: that is how the log of the next pod is told from it."""
    policy = view.policy
    wait_s = min(policy.restart_backoff_s * 2.0 ** min(rank.restarts, 30), policy.restart_backoff_max_s)
    ended_at = rank.retried.at if rank.retried is not None else None
    by_node = min(ended_at + GRAIN_S, view.now + SKEW_S) if ended_at is not None else view.now
    return max(view.now, by_node) + max(wait_s, GRAIN_S)


def _words(due: list[Rank], counted: str | int) -> str:
    """`rank 2 failed: exit code 1; it starts again (1 of 3)`."""
    how = f"({counted})" if counted else "(not counted)"
    first = due[0]
    if len(due) == 1:
        why = first.retried.message if first.retried is not None else ""
        return f"rank {first.index} failed{f': {why}'[:_TEXT_MAX] if why else ''}; it starts again {how}"
    names = ", ".join(str(rank.index) for rank in due[:_RANKS_SAID_MAX])
    more = f" and {len(due) - _RANKS_SAID_MAX} more" if len(due) > _RANKS_SAID_MAX else ""
    return f"ranks {names}{more} failed; they start again {how}"
