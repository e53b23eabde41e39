"""Looking at a part of the feasible nodes only: kube-scheduler's way to be quick in large clusters, off by default.

For each rank the first so many feasible nodes from a place in the order of nodes are compared, and the next rank begins
where this one stopped looking. The first place comes from the tick's seed, so a tick can be replayed.
Source: kube-scheduler 1.37 schedule_one.go (numFeasibleNodesToFind, nextStartNodeIndex).
"""

import numpy as np

from slipway.scheduler.plan.state.nodes import Ints

NODES_MIN = 100
"""All are looked at in pools with fewer, and at least so many in all others."""
PERCENT_MIN = 5
PERCENT_TOP = 50
NODES_PER_PERCENT = 125


class SampleCursor:
    """Where the next look begins; it moves with every look."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.size = feasible_to_find(nodes)
        self.start = seed % nodes if nodes else 0

    def of(self, total: Ints) -> Ints:
        """`total` with all but the sample made infeasible (-1)."""
        nodes = total.size
        order = (np.arange(nodes) + self.start) % nodes
        found = np.flatnonzero(total[order] >= 0)
        if found.size < self.size:
            return total
        looked_at = int(found[self.size - 1]) + 1
        limited = np.full(nodes, -1, dtype=np.int64)
        chosen = order[:looked_at]
        limited[chosen] = total[chosen]
        self.start = (self.start + looked_at) % nodes
        return limited


def feasible_to_find(nodes: int) -> int:
    """How many feasible nodes are enough in a pool of `nodes`."""
    if nodes < NODES_MIN:
        return nodes
    percent = max(PERCENT_TOP - nodes // NODES_PER_PERCENT, PERCENT_MIN)
    return max(nodes * percent // 100, NODES_MIN)
