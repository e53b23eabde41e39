"""LeastAllocated: spreads. Mean over resources of floor((allocatable - requested) * 100 / allocatable).

Source: kube-scheduler 1.36 noderesources/least_allocated.go.
"""

import numpy as np

from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.nodes import At, Ints
from slipway.scheduler.plan.scores.base import SCORE_MAX, scored_columns, weighted_mean
from slipway.scheduler.plan.usage import Usage

NAME = "LeastAllocated"


def score(ask: Ask, usage: Usage, at: At, extra: int) -> Ints:
    """0 where a resource would be more than full."""
    parts: list[tuple[Ints, Ints]] = []
    for allocatable, requested in scored_columns(ask, usage, at, extra):
        left = np.maximum(allocatable - requested, 0)
        parts.append((allocatable, left * SCORE_MAX // np.maximum(allocatable, 1)))
    return weighted_mean(parts)
