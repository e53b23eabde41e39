"""The form of a score: a module with `NAME` and one function `score`, which returns integers 0..100 per node.

`score(request, usage, at, extra)` rates each node of `at` for one more rank of `request`, when `extra` ranks of it (a
number, or one per node) are there in addition to the usage. A score with a `Normalise` other than NONE returns raw
counts, which are scaled to 0..100 over the feasible nodes. Ratios are computed in integers, or in float64 by exactly
the operations that kube-scheduler uses. So values agree number for number and are the same on every machine.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec
import numpy as np

from slipway.scheduler.plan.state.nodes import At, Bools, Ints, NodeTable
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage, pick

SCORE_MAX = 100
RESOURCES, SHAPE, HARD_WEIGHT, DEFAULTING = "resources", "shape", "hardPodAffinityWeight", "defaulting"
MIX = "mix"
"""Names of args; `args.py` defines the permitted values."""
NO_ARGS: Mapping[str, Any] = {}
Extra = int | Ints
ScoreNodes = Callable[[RankRequest, NodeUsage, At, Extra], Ints]
ScoreWhole = Callable[[RankRequest, NodeUsage, Bools], Ints]
"""(request, usage, feasible nodes) -> 0..100 over all nodes"""


def zeros(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return 0 for every node."""
    return np.zeros(usage.table.ready[at].shape, dtype=np.int64)


class Normalise(Enum):
    """How raw values are scaled to 0..100 over the feasible nodes."""

    NONE = "none"
    MAX = "max"
    """value * 100 / max"""
    REVERSE = "reverse"
    """100 - value * 100 / max; all 100 when max is 0"""


class Score(msgspec.Struct, frozen=True):
    """One entry of the registry. A static score does not depend on usage.

    A score of domains depends on the usage of all nodes of a topology domain; for ranks without a topology it is 0
    everywhere. So placing a rank changes its values on other nodes too.

    Scores that read the pods beside a node have `whole` instead of `score`. They are computed over all feasible nodes
    at once, and only for coupled requests (`feasibility.py`); for other requests they are 0 everywhere.
    """

    name: str
    score: ScoreNodes = zeros
    is_static: bool = False
    is_of_domains: bool = False
    is_by_device: bool = False
    """whether it reads single GPUs, which is expensive for many nodes at once"""
    is_of_amounts: bool = False
    """whether it depends only on the node's allocatable and used amounts"""
    normalise: Normalise = Normalise.NONE
    args: frozenset[str] = frozenset()
    """names of the args that a pool may set"""
    bind: Callable[[Mapping[str, Any]], ScoreNodes] | None = None
    """returns `score` with args of the pool applied"""
    whole: ScoreWhole | None = None
    bind_whole: Callable[[Mapping[str, Any]], ScoreWhole] | None = None

    def under(self, args: Mapping[str, Any]) -> "Score":
        """Return this score with a pool's args applied."""
        return msgspec.structs.replace(
            self,
            score=self.bind(args) if self.bind else self.score,
            whole=self.bind_whole(args) if self.bind_whole else self.whole,
        )


def normalised(raw: Ints, feasible: Bools, how: Normalise) -> Ints:
    """Return `raw` over all nodes, scaled to 0..100 by its largest feasible value."""
    if how is Normalise.NONE:
        return raw
    most = int(raw[feasible].max()) if feasible.any() else 0
    if how is Normalise.MAX:
        return raw * SCORE_MAX // most if most > 0 else np.zeros_like(raw)
    return SCORE_MAX - raw * SCORE_MAX // most if most > 0 else np.full_like(raw, SCORE_MAX)


def normalised_alike(raw: int, how: Normalise) -> int:
    """Return the normalised value when every node has the same raw value."""
    if how is Normalise.NONE:
        return raw
    return SCORE_MAX if (raw > 0) is (how is Normalise.MAX) else 0


def requested_with(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return the requested amount of each scored resource including the new rank, shape (resources, nodes)."""
    return pick(usage.scored, request.scored_rows, at) + request.scored_amounts * (extra + 1)


def mean_percent(
    request: RankRequest, usage: NodeUsage, at: At, amounts: Ints, args: Mapping[str, Any] = NO_ARGS
) -> Ints:
    """Return the mean over the scored resources of floor(amount * 100 / allocatable), weighted by `args`.

    Without args each weight is 1. A resource that a node lacks is left out for that node.
    """
    table = usage.table
    percents = amounts * SCORE_MAX // pick(table.divisors, request.scored_rows, at)
    if request.is_everywhere and not args:
        return percents.sum(axis=0) // len(percents)
    weights = np.where(pick(table.allocatable, request.scored_rows, at) > 0, weights_of(request, table, args), 0)
    return (percents * weights).sum(axis=0) // np.maximum(weights.sum(axis=0), 1)


def weights_of(request: RankRequest, table: NodeTable, args: Mapping[str, Any]) -> Ints:
    """Return the weight of each scored resource, shape (resources, 1); 0 for resources that the args do not name."""
    named: Mapping[str, int] | None = args.get("resources")
    names = [table.resources[row] for row, _ in request.scored_steps]
    return np.array([[1 if named is None else named.get(name, 0)] for name in names], dtype=np.int64)
