"""MostAllocated: packs. Mean over resources of floor(requested * 100 / allocatable).

Source: kube-scheduler 1.36 noderesources/most_allocated.go.
"""

import numpy as np

from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.nodes import At, Ints
from slipway.scheduler.plan.scores.base import SCORE_MAX, scored_columns, weighted_mean
from slipway.scheduler.plan.usage import Usage

NAME = "MostAllocated"


def score(ask: Ask, usage: Usage, at: At, extra: int) -> Ints:
    """Requested above allocatable counts as full."""
    parts: list[tuple[Ints, Ints]] = []
    for allocatable, requested in scored_columns(ask, usage, at, extra):
        filled = np.minimum(requested, allocatable)
        parts.append((allocatable, filled * SCORE_MAX // np.maximum(allocatable, 1)))
    return weighted_mean(parts)
