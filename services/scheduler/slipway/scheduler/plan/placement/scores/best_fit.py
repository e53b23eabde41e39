"""BestFit: prefers the node with the least free cpu and GPU afterwards, relative to the largest node of the pool.

Unlike MostAllocated it compares amounts and not fractions of the node itself, so small nodes fill up before large ones.
"""

import numpy as np

from slipway.model.resources import CPU, GPU, MILLI
from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, Extra
from slipway.scheduler.plan.placement.scores.gpu_fragmentation import after_ranks, devices_left
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "BestFit"
_HALF = SCORE_MAX // 2


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return 100 when nothing would be free; cpu and GPU each have half the weight."""
    table = usage.table
    cpu = usage.free(table.row[CPU], at) - request.requests.get(CPU) * (extra + 1)
    most = max(int(table.allocatable[table.row[CPU]].max(initial=0)), 1)
    left = np.maximum(cpu, 0) * _HALF
    if GPU not in table.row:
        return SCORE_MAX - left // most
    gpus = after_ranks(devices_left(usage, at), request, extra + 1).sum(axis=0)
    most_gpus = max(int(table.allocatable[table.row[GPU]].max(initial=0)) * MILLI, 1)
    return SCORE_MAX - (left * most_gpus + gpus * _HALF * most) // (most * most_gpus)
