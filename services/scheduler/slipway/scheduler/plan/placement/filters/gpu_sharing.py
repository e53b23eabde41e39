"""GpuSharing: a part of a GPU is had only on nodes whose GPUs the scheduler hands out device by device.

Elsewhere the node's device plugin chooses devices and knows nothing of parts, so a part could land on a device that
another pod was given whole. Nodes without GPUs are left to NodeResourcesFit, which says so.
"""

from slipway.model.facts import SHARING_LABEL
from slipway.model.resources import GPU
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "GpuSharing"
NOT_SHARED = NodeRefusal(
    "GpusNotShared",
    f"does not share its GPUs (label {SHARING_LABEL})",
    f"do not share their GPUs (label {SHARING_LABEL})",
)


def refuse(ask: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Nodes that have GPUs and do not share them."""
    table = usage.table
    if ask.gpu_milli and GPU in table.row:
        yield NOT_SHARED, ~table.shares[at] & (table.allocatable[table.row[GPU], at] > 0)
