"""NodeUnschedulable: a cordoned node takes nothing new, unless the cordon is tolerated."""

from slipway.model.facts import Taint
from slipway.scheduler.plan.ask import Ask
from slipway.scheduler.plan.filters.base import Refusal, Refused
from slipway.scheduler.plan.filters.taint_toleration import tolerates
from slipway.scheduler.plan.nodes import At
from slipway.scheduler.plan.usage import Usage

NAME = "NodeUnschedulable"
REFUSAL = Refusal("NodeUnschedulable", "is cordoned", "are cordoned")
CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


def refuse(ask: Ask, usage: Usage, at: At) -> Refused:
    """Cordoned nodes."""
    if not usage.table.is_clear and not tolerates(ask.tolerations, CORDON):
        yield REFUSAL, usage.table.unschedulable[at]
