"""NodePorts: two pods on one node do not share a host port."""

import numpy as np

from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodePorts"
REFUSAL = NodeRefusal("NodePorts", "has the host port in use", "have the host port in use", is_final=False)


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse nodes where any of the ports is in use."""
    if request.host_ports:
        yield REFUSAL, np.logical_or.reduce([usage.is_port_taken(port, at) for port in request.host_ports])
