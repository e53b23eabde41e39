"""Extenders: a node is feasible when every extender that manages the request has passed it.

The answers of the extenders are part of the request.
"""

from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "Extenders"


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse the nodes that an extender refused or has not answered for."""
    for saying in request.extender_results.refusals if request.extender_results is not None else ():
        yield NodeRefusal(saying.reason, saying.one, saying.many, is_final=saying.is_final), saying.nodes[at]
