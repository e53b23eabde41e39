"""NodeAffinity: the summed weights of the preferred terms that a node matches; 100 for the best feasible node."""

from typing import Any, cast

import numpy as np

from slipway.scheduler.plan.placement.filters.node_affinity import PREFERRED, match_term, node_affinity
from slipway.scheduler.plan.placement.scores.base import Extra
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodeAffinity"


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return the raw sum of weights."""
    weights = np.zeros(len(usage.table), dtype=np.int64)
    for term in cast("list[dict[str, Any]]", node_affinity(request.affinity).get(PREFERRED) or []):
        weight = int(term.get("weight") or 0)
        if weight:
            weights += weight * match_term(term.get("preference") or {}, usage.table)
    return weights[at]
