"""LeastAllocated: spreads work. Mean over resources of floor((allocatable - requested) * 100 / allocatable).

Source: kube-scheduler 1.37 noderesources/least_allocated.go.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipway.scheduler.plan.placement.scores.base import NO_ARGS, Extra, ScoreNodes, mean_percent, requested_with
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage, pick

NAME = "LeastAllocated"


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra, args: Mapping[str, Any] = NO_ARGS) -> Ints:
    """Return the score; a resource that would be more than full adds 0."""
    allocatable = pick(usage.table.allocatable, request.scored_rows, at)
    return mean_percent(
        request, usage, at, np.maximum(allocatable - requested_with(request, usage, at, extra), 0), args
    )


def bind(args: Mapping[str, Any]) -> ScoreNodes:
    """Return the score with a pool's args: `resources`, {name: weight}."""
    return lambda request, usage, at, extra: score(request, usage, at, extra, args)
