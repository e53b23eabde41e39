"""LeastAllocated: spreads. Mean over resources of floor((allocatable - requested) * 100 / allocatable).

Source: kube-scheduler 1.36 noderesources/least_allocated.go.
"""

import numpy as np

from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.nodes import At, Ints
from slipway.scheduler.plan.scores.base import Extra, mean_percent, requested_with
from slipway.scheduler.plan.usage import Usage, pick

NAME = "LeastAllocated"


def score(ask: Ask, usage: Usage, at: At, extra: Extra) -> Ints:
    """0 where a resource would be more than full."""
    allocatable = pick(usage.table.allocatable, ask.scored_rows, at)
    return mean_percent(ask, usage, at, np.maximum(allocatable - requested_with(ask, usage, at, extra), 0))
