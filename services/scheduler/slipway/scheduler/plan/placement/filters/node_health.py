"""NodeHealth: a node that is not Ready accepts no new work."""

from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodeHealth"
REFUSAL = NodeRefusal("NodeNotReady", "is not ready", "are not ready")


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse nodes that are not Ready."""
    if not usage.table.is_ready:
        yield REFUSAL, ~usage.table.ready[at]
