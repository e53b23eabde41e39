"""RequestedToCapacityRatio: rates the utilisation of a node by a curve through given points.

Args of the pool: `shape`, a list of {utilization: 0..100, score: 0..10} with rising utilisation, and `resources`.
Without a shape it packs: 0 at 0, 10 at 100. Resources that score 0 are left out of the mean.
Source: kube-scheduler 1.37 noderesources/requested_to_capacity_ratio.go, helper/shape_score.go.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, Extra, ScoreNodes, requested_with, weights_of
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage, pick

NAME = "RequestedToCapacityRatio"
SHAPE_SCORE_MAX = 10
Shape = tuple[tuple[int, int], ...]
"""(utilisation, score 0..100)"""
PACKING: Shape = ((0, 0), (100, SCORE_MAX))


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return the score with the default shape."""
    return _score(request, usage, at, extra, {})


def bind(args: Mapping[str, Any]) -> ScoreNodes:
    """Return the score with a pool's args."""
    return lambda request, usage, at, extra: _score(request, usage, at, extra, args)


def _score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra, args: Mapping[str, Any]) -> Ints:
    allocatable = pick(usage.table.allocatable, request.scored_rows, at)
    requested = requested_with(request, usage, at, extra)
    percents = requested * SCORE_MAX // np.maximum(allocatable, 1)
    utilisation = np.where(requested > allocatable, SCORE_MAX, percents)
    values = _on_curve(_shape_of(args), utilisation)
    weights = np.where((allocatable > 0) & (values > 0), weights_of(request, usage.table, args), 0)
    total = weights.sum(axis=0)
    summed = (values * weights).sum(axis=0)
    # This rounds half away from zero, as Go does; no value here is negative.
    return np.where(total > 0, (2 * summed + total) // np.maximum(2 * total, 1), 0)


def _shape_of(args: Mapping[str, Any]) -> Shape:
    points = args.get("shape")
    if not points:
        return PACKING
    scale = SCORE_MAX // SHAPE_SCORE_MAX
    return tuple((int(point["utilization"]), int(point["score"]) * scale) for point in points)


def _on_curve(shape: Shape, utilisation: Ints) -> Ints:
    """Return values of the polyline through `shape`, constant beyond its ends; divisions truncate towards zero."""
    values = np.full(utilisation.shape, shape[-1][1], dtype=np.int64)
    for index in range(len(shape) - 1, 0, -1):
        (start, low), (end, high) = shape[index - 1], shape[index]
        rise = (high - low) * (utilisation - start)
        step = np.sign(rise) * (np.abs(rise) // (end - start))
        values = np.where(utilisation <= end, low + step, values)
    return np.where(utilisation <= shape[0][0], shape[0][1], values)
