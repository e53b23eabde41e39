"""NodeUnschedulable: a cordoned node accepts no new work, unless the rank tolerates the cordon."""

from slipway.model.facts import Taint
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.placement.filters.taint_toleration import tolerates
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodeUnschedulable"
REFUSAL = NodeRefusal("NodeUnschedulable", "is cordoned", "are cordoned")
CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse cordoned nodes."""
    if not usage.table.is_clear and not tolerates(request.tolerations, CORDON):
        yield REFUSAL, usage.table.unschedulable[at]
