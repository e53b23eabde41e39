"""The recent past of a pool, for estimates: how long work ran, when it arrived, and what it requested.

Owns which part of the past is read. The past comes from the view of allocations (`seen_allocations.py`). Kubernetes is
read only for the last few ended allocations, because the view does not keep their specs. The past reaches back as far
as ended allocations are retained. Must not know what an estimate is.
"""

from typing import Any, Final

import msgspec

from slipway.api.seen_allocations import SeenAllocations
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation
from slipway.model.duration import stored_duration
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time

DAY_S: Final = 86_400.0
RUNS_MAX: Final = 1_000
"""Number of the last ended allocations whose run times are returned."""
PIECES_MAX: Final = 50
"""Number of the last ended allocations that are returned whole, as samples of the work that arrives."""


class PastWork(msgspec.Struct, frozen=True, kw_only=True):
    """The past of a pool. Times are epoch seconds."""

    runs: list[dict[str, Any]] = []
    """of ended allocations, the last to end first: queue, user, gpus, ran_s and limit_s"""
    since: float = 0.0
    """`arrivals` is complete from this time on"""
    arrivals: list[float] = []
    """times of creation, ascending"""
    ended: list[Allocation] = []
    """the last ended allocations with their whole specs, the last to end first"""


async def past_work(seen: SeenAllocations, pool: str, now: float) -> PastWork:
    """Return the past of this pool; an empty one while the view of allocations cannot answer."""
    listed = await seen.all()
    if listed is None:
        return PastWork()
    own = [each for each in listed.items if each.spec.pool == pool]
    arrivals = sorted(parse_time(each.metadata.creation_timestamp) for each in own)
    ended = [each for each in own if each.status.phase is Phase.TERMINATED and ran_s(each) > 0]
    ended.sort(key=lambda each: each.status.ended_at, reverse=True)
    return PastWork(
        runs=[_run(each) for each in ended[:RUNS_MAX]],
        since=max(now - DAY_S, arrivals[0]) if arrivals else now,
        arrivals=[at for at in arrivals if at > now - DAY_S],
        ended=await seen.whole(ended[:PIECES_MAX]) or [],
    )


def ran_s(allocation: Allocation) -> float:
    """Return how long the last attempt of an ended allocation ran, in seconds; 0 when it did not run."""
    status = allocation.status
    if not status.started_at or not status.ended_at:
        return 0.0
    return max(0.0, parse_time(status.ended_at) - parse_time(status.started_at))


def _run(allocation: Allocation) -> dict[str, Any]:
    limit = allocation.spec.max_runtime
    return {
        "queue": allocation.spec.queue,
        "user": user_of(allocation),
        "gpus": allocation.status.slots,
        "ran_s": ran_s(allocation),
        "limit_s": stored_duration(limit) if limit else None,
    }
