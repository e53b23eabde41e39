"""PodTopologySpread: prefers domains that have fewer pods that are alike.

Per constraint `ScheduleAnyway` the value is the pods in the node's domain times ln(domains + 2), plus maxSkew - 1. The
values are summed, rounded, and reversed over the feasible nodes: 100 * (max + min - s) / max. A node without one of the
labels gets 0. With the arg `defaulting: System`, a role without constraints is spread softly over hosts (skew 3) and
zones (5), among the pods of its namespace that have the same labels.
Source: kube-scheduler 1.37 podtopologyspread/scoring.go; the sum uses the same float64 operations.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from slipway.scheduler.plan.placement.filters import domains
from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, ScoreWhole
from slipway.scheduler.plan.state.affinity_terms import HOSTNAME, Spread, default_spreads
from slipway.scheduler.plan.state.nodes import Bools, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "PodTopologySpread"
SYSTEM = "System"


def score_all(request: RankRequest, usage: NodeUsage, feasible: Bools) -> Ints:
    """Return 0..100 over all nodes, by the constraints of the role alone."""
    return _score(request, usage, feasible, {})


def bind_all(args: Mapping[str, Any]) -> ScoreWhole:
    """Return the score with a pool's args."""
    return lambda request, usage, feasible: _score(request, usage, feasible, args)


def spreads_by_default(args: Mapping[str, Any]) -> bool:
    """Whether roles without constraints are spread too."""
    return args.get("defaulting") == SYSTEM


def _score(request: RankRequest, usage: NodeUsage, feasible: Bools, args: Mapping[str, Any]) -> Ints:
    nothing = np.zeros(len(usage.table), dtype=np.int64)
    soft = tuple(spread for spread in request.spread if not spread.is_hard)
    is_default = not request.spread and spreads_by_default(args)
    if is_default:
        soft = default_spreads(request.role.labels)
    if not soft or not feasible.any():
        return nothing
    labelled = domains.has_all(usage, request, soft) if not is_default else np.ones(len(usage.table), dtype=np.bool_)
    scored = feasible & labelled
    if not scored.any():
        return nothing
    raw = np.zeros(len(usage.table), dtype=np.float64)
    for spread in soft:
        column = usage.table.label(spread.key)
        counts = _counts(spread, request, usage, labelled, scored)
        weight = math.log(_domain_count(spread, column.codes, scored) + 2)
        part = counts.astype(np.float64) * weight + float(spread.max_skew - 1)
        raw += np.where(column.codes >= 0, part, 0.0)
    whole = np.floor(raw + 0.5).astype(np.int64)
    most, least = int(whole[scored].max()), int(whole[scored].min())
    if most == 0:
        return np.where(scored, SCORE_MAX, 0)
    return np.where(scored, SCORE_MAX * (most + least - whole) // most, 0)


def _counts(spread: Spread, request: RankRequest, usage: NodeUsage, labelled: Bools, scored: Bools) -> Ints:
    """Return the pods that are alike: on the node itself for a constraint on hosts, else in its domain."""
    alike = domains.matching_pods(spread, request, usage)
    if spread.key == HOSTNAME:
        return alike
    column = usage.table.label(spread.key)
    counted = labelled & domains.included(spread, request, usage)
    return domains.at_nodes(domains.sums_of(alike, column, counted), column)


def _domain_count(spread: Spread, codes: "np.ndarray[tuple[int], np.dtype[np.int32]]", scored: Bools) -> int:
    """Return the number of domains of the feasible nodes; all nodes without the label are one domain."""
    if spread.key == HOSTNAME:
        return int(np.count_nonzero(scored))
    return int(np.count_nonzero(np.bincount(codes[scored] + 1)))
