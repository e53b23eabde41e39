"""NodeName: a rank that names one node can only be placed there."""

from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodeName"
REFUSAL = NodeRefusal("NodeName", "is not the requested node", "are not the requested node")


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse all nodes but the named one."""
    if request.role.node_name:
        yield REFUSAL, ~usage.table.name_column().select((request.role.node_name,))[at]
