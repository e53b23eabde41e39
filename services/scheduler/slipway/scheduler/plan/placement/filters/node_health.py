"""NodeHealth: a node that is not Ready takes nothing new."""

from slipway.scheduler.plan.placement.filters.base import Refusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import Ask
from slipway.scheduler.plan.state.usage import Usage

NAME = "NodeHealth"
REFUSAL = Refusal("NodeNotReady", "is not ready", "are not ready")


def refuse(ask: Ask, usage: Usage, at: At) -> Refused:
    """Nodes that are not ready."""
    if not usage.table.is_ready:
        yield REFUSAL, ~usage.table.ready[at]
