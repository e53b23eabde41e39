"""NodePorts: two pods on one node do not share a host port."""

import numpy as np

from slipway.scheduler.plan.placement.filters.base import Refusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import Ask
from slipway.scheduler.plan.state.usage import Usage

NAME = "NodePorts"
REFUSAL = Refusal("NodePorts", "has the host port in use", "have the host port in use", is_final=False)


def refuse(ask: Ask, usage: Usage, at: At) -> Refused:
    """Nodes where any of the ports is taken."""
    if ask.host_ports:
        yield REFUSAL, np.logical_or.reduce([usage.is_port_taken(port, at) for port in ask.host_ports])
