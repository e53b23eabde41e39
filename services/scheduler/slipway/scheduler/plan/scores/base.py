"""What every score is: a module with `NAME` and one function `score`, integers 0..100 per node.

`score(ask, usage, at, extra)` says how good each node of `at` is for one more rank of `ask`, when `extra` ranks of
it are already there beyond the usage. A score that is `normalised` gives raw counts, brought to 0..100 over the
feasible nodes as its `Normalise` says. Ratios are computed in integers, or in float64 by exactly the operations
that kube-scheduler uses, so that values agree number for number and are the same on every machine.
"""

from collections.abc import Callable
from enum import Enum

import msgspec
import numpy as np

from slipway.model.resources import CPU, MEMORY
from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.nodes import At, Bools, Ints
from slipway.scheduler.plan.usage import Usage

SCORE_MAX = 100
ScoreNodes = Callable[[Ask, Usage, At, int], Ints]


class Normalise(Enum):
    """How raw values become 0..100 over the feasible nodes."""

    NONE = "none"
    MAX = "max"
    """value * 100 / max"""
    REVERSE = "reverse"
    """100 - value * 100 / max; all 100 when max is 0"""


class Score(msgspec.Struct, frozen=True):
    """One entry of the registry. A static score does not look at what is used."""

    name: str
    score: ScoreNodes
    is_static: bool = False
    normalise: Normalise = Normalise.NONE


def normalised(raw: Ints, feasible: Bools, how: Normalise) -> Ints:
    """`raw` over all nodes brought to 0..100 by its largest feasible value."""
    if how is Normalise.NONE:
        return raw
    most = int(raw[feasible].max()) if feasible.any() else 0
    if how is Normalise.MAX:
        return raw * SCORE_MAX // most if most > 0 else np.zeros_like(raw)
    return SCORE_MAX - raw * SCORE_MAX // most if most > 0 else np.full_like(raw, SCORE_MAX)


def scored_columns(ask: Ask, usage: Usage, at: At, extra: int) -> list[tuple[Ints, Ints]]:
    """(allocatable, requested with the rank) per resource that Least and Most look at, each of weight 1:
    cpu, memory and the extended resources asked for."""
    table, ranks = usage.table, extra + 1
    columns = [
        (table.allocatable[table.row[CPU], at], usage.scored[0, at] + ask.scored_cpu * ranks),
        (table.allocatable[table.row[MEMORY], at], usage.scored[1, at] + ask.scored_memory * ranks),
    ]
    for row, amount in ask.extended:
        columns.append((table.allocatable[row, at], usage.used[row, at] + amount * ranks))
    return columns


def weighted_mean(parts: list[tuple[Ints, Ints]]) -> Ints:
    """The mean of (allocatable, value) columns, leaving out a resource where a node has none of it."""
    if len(parts) == 0:
        raise ValueError("no resource is scored")
    total = sum(np.where(allocatable > 0, value, 0) for allocatable, value in parts)
    weights = sum((allocatable > 0).astype(np.int64) for allocatable, _ in parts)
    return np.asarray(total, dtype=np.int64) // np.maximum(np.asarray(weights, dtype=np.int64), 1)
