"""Sampling: only some of the feasible nodes are compared, as kube-scheduler does in large clusters. Off by default.

For each rank, a limited number of feasible nodes is compared, beginning at one place in the order of nodes. The next
rank begins where this one stopped. The first place is derived from the tick's seed, so a tick can be replayed.
Source: kube-scheduler 1.37 schedule_one.go (numFeasibleNodesToFind, nextStartNodeIndex).
"""

import numpy as np

from slipway.scheduler.plan.state.nodes import Ints

NODES_MIN = 100
"""In a pool with fewer nodes all are compared; in larger pools at least so many feasible ones."""
PERCENT_MIN = 5
PERCENT_TOP = 50
NODES_PER_PERCENT = 125


class SampleCursor:
    """The node at which the next sample begins; it moves with every sample."""

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.size = feasible_to_find(nodes)
        self.start = seed % nodes if nodes else 0

    def of(self, total: Ints) -> Ints:
        """Return `total` with all nodes outside the sample made infeasible (-1)."""
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
    """Return how many feasible nodes are enough in a pool of `nodes`."""
    if nodes < NODES_MIN:
        return nodes
    percent = max(PERCENT_TOP - nodes // NODES_PER_PERCENT, PERCENT_MIN)
    return max(nodes * percent // 100, NODES_MIN)
