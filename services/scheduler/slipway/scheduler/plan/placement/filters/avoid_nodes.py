"""AvoidNodes: an attempt avoids the nodes that failed an earlier attempt, as long as it can start without them.

It is a preference: the planner tries with this filter, and if there is no place, without it.
"""

import numpy as np

from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "AvoidNodes"
REFUSAL = NodeRefusal("AvoidNodes", "failed an earlier attempt", "failed an earlier attempt")


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse the nodes to avoid."""
    if request.avoid:
        mask = np.zeros(len(usage.table), dtype=np.bool_)
        mask[[usage.table.index[name] for name in request.avoid if name in usage.table.index]] = True
        yield REFUSAL, mask[at]
