"""BalancedAllocation: prefers where the rank makes resources more evenly used.

S = (1 - standard deviation of the used fractions) * 100, truncated, before and after; the score is
50 + (50 + S_after - S_before) / 2 in integers. A rank that asks for nothing is not scored.
Source: kube-scheduler 1.36 noderesources/balanced_allocation.go, whose float64 operations these are, one by one.
"""

import numpy as np
import numpy.typing as npt

from slipway.model.resources import CPU, MEMORY
from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.nodes import At, Ints
from slipway.scheduler.plan.scores.base import SCORE_MAX
from slipway.scheduler.plan.usage import Usage

NAME = "BalancedAllocation"
_HALF = SCORE_MAX // 2
Floats = npt.NDArray[np.float64]


def score(ask: Ask, usage: Usage, at: At, extra: int) -> Ints:
    """From 50 (makes it worse) to 100."""
    table = usage.table
    rows = [table.row[CPU], table.row[MEMORY], *(row for row, _ in ask.extended)]
    requests = [ask.requests.get(CPU), ask.requests.get(MEMORY), *(amount for _, amount in ask.extended)]
    if not any(requests):
        return np.zeros(table.allocatable[0, at].shape, dtype=np.int64)
    before = _evenness(
        [
            (table.allocatable[row, at], usage.used[row, at] + request * extra)
            for row, request in zip(rows, requests, strict=True)
        ]
    )
    after = _evenness(
        [
            (table.allocatable[row, at], usage.used[row, at] + request * (extra + 1))
            for row, request in zip(rows, requests, strict=True)
        ]
    )
    return _HALF + (_HALF + after - before) // 2


def _evenness(columns: list[tuple[Ints, Ints]]) -> Ints:
    present = [allocatable > 0 for allocatable, _ in columns]
    fractions: list[Floats] = [
        np.where(has, np.minimum(used / np.maximum(allocatable, 1), 1.0), 0.0)
        for has, (allocatable, used) in zip(present, columns, strict=True)
    ]
    if len(columns) == 2 and bool(present[0].all()) and bool(present[1].all()):
        deviation = np.abs((fractions[0] - fractions[1]) / 2)
        return ((1 - deviation) * SCORE_MAX).astype(np.int64)
    count = np.add.reduce([has.astype(np.float64) for has in present])
    safe = np.maximum(count, 1.0)
    mean = np.add.reduce(fractions) / safe
    square = np.zeros_like(mean)
    for has, fraction in zip(present, fractions, strict=True):
        square = square + np.where(has, (fraction - mean) * (fraction - mean), 0.0)
    deviation = np.sqrt(square / safe)
    two = _spread_of_two(present, fractions)
    deviation = np.where(count == 2, two, np.where(count < 2, 0.0, deviation))
    return ((1 - deviation) * SCORE_MAX).astype(np.int64)


def _spread_of_two(present: list[npt.NDArray[np.bool_]], fractions: list[Floats]) -> Floats:
    """|f1 - f2| / 2 where exactly two resources are present: the largest less the smallest of those present."""
    high = np.maximum.reduce([np.where(has, part, 0.0) for has, part in zip(present, fractions, strict=True)])
    low = np.minimum.reduce([np.where(has, part, 1.0) for has, part in zip(present, fractions, strict=True)])
    return np.abs((high - low) / 2)
