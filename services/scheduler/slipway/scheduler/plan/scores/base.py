"""What every score is: a module with `NAME` and one function `score`, integers 0..100 per node.

`score(ask, usage, at, extra)` says how good each node of `at` is for one more rank of `ask`, when `extra` ranks of
it (a number, or one per node) are there beyond the usage. A score that is `normalised` gives raw counts, brought to
0..100 over the feasible nodes as its `Normalise` says. Ratios are computed in integers, or in float64 by exactly the
operations that kube-scheduler uses, so that values agree number for number and are the same on every machine.
"""

from collections.abc import Callable
from enum import Enum

import msgspec
import numpy as np

from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.nodes import At, Bools, Ints
from slipway.scheduler.plan.usage import Usage, pick

SCORE_MAX = 100
Extra = int | Ints
ScoreNodes = Callable[[Ask, Usage, At, Extra], Ints]


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


def requested_with(ask: Ask, usage: Usage, at: At, extra: Extra) -> Ints:
    """What is requested of each scored resource once the rank is there too, shape (resources, nodes)."""
    return pick(usage.scored, ask.scored_rows, at) + ask.scored_amounts * (extra + 1)


def mean_percent(ask: Ask, usage: Usage, at: At, amounts: Ints) -> Ints:
    """The mean over the scored resources of floor(amount * 100 / allocatable), each of weight 1; a resource of
    which a node has none is left out there."""
    table = usage.table
    percents = amounts * SCORE_MAX // pick(table.divisors, ask.scored_rows, at)
    if ask.is_everywhere:
        return percents.sum(axis=0) // len(percents)
    present = pick(table.allocatable, ask.scored_rows, at) > 0
    return np.where(present, percents, 0).sum(axis=0) // np.maximum(present.sum(axis=0), 1)
