"""GpuSharing: a share of a GPU is available only on nodes whose GPUs the scheduler gives out device by device.

On other nodes the device plugin chooses devices and does not know shares. There a share could be placed on a device
that another pod uses as a whole. NodeResourcesFit refuses nodes without GPUs, with a clearer reason.
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


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse nodes that have GPUs and do not share them."""
    table = usage.table
    if request.gpu_milli and GPU in table.row:
        yield NOT_SHARED, ~table.shares[at] & (table.allocatable[table.row[GPU], at] > 0)
