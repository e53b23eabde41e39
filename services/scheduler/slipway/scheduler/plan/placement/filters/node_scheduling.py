"""NodeScheduling: a node that an operator drains or has disabled accepts no new work.

No toleration overrides it; the operator must enable the node again. The planner evicts what runs on a disabled node.
"""

import numpy as np

from slipway.model.facts import DISABLED, DRAINING, SCHEDULING_LABEL
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "NodeScheduling"
NAMES_SHOWN_MAX = 3
_WORDS = ((DRAINING, "NodeDraining", "draining"), (DISABLED, "NodeDisabled", "disabled"))


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse draining nodes, then disabled nodes; the refusal names them if they are few."""
    column = usage.table.label(SCHEDULING_LABEL)
    for value, reason, word in _WORDS:
        if value not in column.code:
            continue
        mask = column.select((value,))
        first: list[int] = np.flatnonzero(mask)[: NAMES_SHOWN_MAX + 1].tolist()
        names = [usage.table.names[index] for index in first]
        which = f" ({', '.join(names)})" if len(names) <= NAMES_SHOWN_MAX else ""
        yield NodeRefusal(reason, f"is {word}{which}", f"are {word}{which}"), mask[at]
