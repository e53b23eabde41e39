"""DeviceBestFit: prefers the node with the GPU that a share fills best: the less is free afterwards, the higher.

It only affects shares of a GPU; for other requests all nodes are equal.
"""

import numpy as np

from slipway.model.resources import MILLI
from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, Extra, zeros
from slipway.scheduler.plan.placement.scores.gpu_fragmentation import after_ranks
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "DeviceBestFit"


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return 100 when nothing of the device would be free; 0 when no device fits, or nearly all of it would be free."""
    if not request.gpu_milli or usage.devices is None:
        return zeros(request, usage, at, extra)
    left = after_ranks(usage.devices.left[:, at], request, extra)
    tightest = np.where(left >= request.gpu_milli, left - request.gpu_milli, MILLI).min(axis=0, initial=MILLI)
    return SCORE_MAX - tightest * SCORE_MAX // MILLI
