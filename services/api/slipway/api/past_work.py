"""What a pool has seen lately: how long work ran, when it arrived, what it asked for: what estimates need.

Owns which past is looked at, and how much of it. It is that of the view of allocations (`seen_allocations.py`), so it
reads Kubernetes only for the last few that have ended, whose specs the view does not keep. It ends where the retention
of ended allocations does. Must not know what an estimate is.
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
"""So many of the last ended allocations say how long work runs."""
PIECES_MAX: Final = 50
"""So many of them say what arrives."""


class PastWork(msgspec.Struct, frozen=True, kw_only=True):
    """The past of a pool. Times are epoch seconds."""

    runs: list[dict[str, Any]] = []
    """of what has ended: queue, user, gpus, ran_s and limit_s"""
    since: float = 0.0
    """from when on `arrivals` has all of them"""
    arrivals: list[float] = []
    """in order"""
    ended: list[Allocation] = []
    """whole"""


async def past_work(seen: SeenAllocations, pool: str, now: float) -> PastWork:
    """The past of this pool; an empty one while the view cannot answer."""
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
    """How long the last attempt of something that has ended ran; 0 when it did not."""
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
