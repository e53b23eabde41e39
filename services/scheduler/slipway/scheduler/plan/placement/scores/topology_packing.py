"""TopologyPacking: prefers the domain (rack, block, NVLink island) that the rank's topology would be packed into.

Ranks with a topology are placed by domain, whatever the weights (`topology.py`). This score shows the same preference
as a number per node, from the room in each domain: the fullest domain that still has room gets the highest value.
"""

import numpy as np

from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, Extra
from slipway.scheduler.plan.state.nodes import At, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "TopologyPacking"
ROOM_MAX = 1 << 20


def score(request: RankRequest, usage: NodeUsage, at: At, extra: Extra) -> Ints:
    """Return nearly 100 for a domain with little room, down to 1 for the roomiest; 0 for full domains and no domain."""
    if request.topology is None:
        return np.zeros(len(usage.table), dtype=np.int64)[at]
    codes = usage.table.label(request.topology.key).codes
    inside = codes >= 0
    domains = int(codes.max(initial=-1)) + 1
    if domains == 0:
        return np.zeros(len(usage.table), dtype=np.int64)[at]
    room = np.bincount(codes[inside], usage.room(request, slice(None), ROOM_MAX)[inside], domains).astype(np.int64)
    most = max(int(room.max()), 1)
    by_domain = np.where(room > 0, SCORE_MAX - room * (SCORE_MAX - 1) // most, 0)
    return np.where(inside, by_domain[np.maximum(codes, 0)], 0)[at]
