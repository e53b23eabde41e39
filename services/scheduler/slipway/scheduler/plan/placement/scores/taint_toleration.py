"""TaintToleration: prefers nodes with the fewest untolerated PreferNoSchedule taints; 100 for a node with none."""

import numpy as np

from slipway.model.facts import Taint, Toleration
from slipway.scheduler.plan.placement.filters.taint_toleration import tolerates
from slipway.scheduler.plan.placement.scores.base import Extra
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "TaintToleration"
_SOFT = "PreferNoSchedule"


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return the raw number of such taints."""
    table = usage.table
    if not any(taint.effect == _SOFT for taints in table.taint_sets for taint in taints):
        return np.zeros(table.ready[at].shape, dtype=np.int64)
    soft = tuple(item for item in request.tolerations if item.effect in ("", _SOFT))
    counts = np.array([_count(taints, soft) for taints in table.taint_sets] or [0], dtype=np.int64)
    return counts[table.taint_codes][at]


def _count(taints: tuple[Taint, ...], tolerations: tuple[Toleration, ...]) -> int:
    return sum(1 for taint in taints if taint.effect == _SOFT and not tolerates(tolerations, taint))
