"""Reserved: refuses the nodes of a window to work of other queues that would not end before the window begins.

The planner determines first which windows are closed to a rank (`state/windows.py`), from its run limit and its queue.
The filter only looks up the nodes of these windows. A window ends by itself, so work that only this filter refuses can
still start later.
"""

from slipway.model.times import format_time
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage, WindowNodes

NAME = "Reserved"


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse the nodes of each window that is closed to the rank."""
    for name in request.role.closed:
        window = usage.windows.get(name)
        if window is not None:
            text = _words(window)
            yield NodeRefusal(NAME, f"is reserved {text}", f"are reserved {text}"), window.nodes[at]


def _words(window: WindowNodes) -> str:
    start, end = (format_time(time, "seconds") for time in (window.start, window.end))
    text = f"for {window.owners} from {start} until {end}"
    return text if window.is_begun else f"{text} (only work that ends by {start} may start there)"
