"""BalancedAllocation: prefers nodes on which the rank makes the use of resources more even.

S = (1 - standard deviation of the used fractions) * 100, truncated, before and after; the score is
50 + (50 + S_after - S_before) / 2 in integers. A rank that requests nothing gets 0 everywhere.
Source: kube-scheduler 1.37 noderesources/balanced_allocation.go; the float64 operations are the same, one by one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from slipway.scheduler.plan.placement.scores.base import NO_ARGS, SCORE_MAX, Extra, ScoreNodes, weights_of
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage, pick

NAME = "BalancedAllocation"
_HALF = SCORE_MAX // 2
Floats = npt.NDArray[np.float64]


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra, args: Mapping[str, Any] = NO_ARGS) -> Ints:
    """Return 75 when the evenness stays the same, up to 100 when it improves and down to 50 when it gets worse."""
    table = usage.table
    counted = weights_of(request, table, args) > 0 if args else np.True_
    if not (request.plain_amounts * counted).any():
        return np.zeros(table.ready[at].shape, dtype=np.int64)
    divisors = pick(table.divisors, request.scored_rows, at)
    used = pick(usage.used, request.scored_rows, at)
    if not isinstance(extra, int) or extra:
        used = used + request.plain_amounts * extra
    before = np.minimum(used / divisors, 1.0)
    after = np.minimum((used + request.plain_amounts) / divisors, 1.0)
    if request.is_everywhere and not args:
        return _HALF + (_HALF + _evenness(after) - _evenness(before)) // 2
    present = (pick(table.allocatable, request.scored_rows, at) > 0) & counted
    return _HALF + (_HALF + _evenness_of(present, after) - _evenness_of(present, before)) // 2


def bind(args: Mapping[str, Any]) -> ScoreNodes:
    """Return the score with a pool's args: `resources`, {name: weight}; a resource without a weight is ignored."""
    return lambda request, usage, at, extra: score(request, usage, at, extra, args)


def _evenness(fractions: Floats) -> Ints:
    """Return S when every node has every resource."""
    count = len(fractions)
    if count == 2:
        deviation = np.abs((fractions[0] - fractions[1]) / 2)
    else:
        mean = fractions.sum(axis=0) / count
        deviation = np.sqrt(((fractions - mean) * (fractions - mean)).sum(axis=0) / count)
    return ((1 - deviation) * SCORE_MAX).astype(np.int64)


def _evenness_of(present: npt.NDArray[np.bool_], fractions: Floats) -> Ints:
    """Return S over the resources that each node has.

    With two resources the deviation is half their difference; with one or none it is 0.
    """
    count = present.sum(axis=0)
    safe = np.maximum(count, 1)
    mean = np.where(present, fractions, 0.0).sum(axis=0) / safe
    apart = np.where(present, (fractions - mean) * (fractions - mean), 0.0)
    deviation = np.sqrt(apart.sum(axis=0) / safe)
    high = np.where(present, fractions, 0.0).max(axis=0)
    low = np.where(present, fractions, 1.0).min(axis=0)
    deviation = np.where(count == 2, (high - low) / 2, np.where(count < 2, 0.0, deviation))
    return ((1 - deviation) * SCORE_MAX).astype(np.int64)
