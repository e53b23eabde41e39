"""Which nodes refuse a rank, and why: the counts behind an explanation.

Every node is counted once, at its first failing filter. The counts are for the first rank that found no place, with the
gang's other ranks on the nodes that they would get.
"""

import msgspec
import numpy as np

from slipway.scheduler.plan.placement.filters import DYNAMIC, STATIC, NodeRefusal
from slipway.scheduler.plan.state.nodes import EVERY
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage


class NodeVerdict(msgspec.Struct, frozen=True):
    """The number of nodes per refusal in `refused`, in filter order; `fitting` nodes pass every filter."""

    nodes: int
    fitting: int
    refused: tuple[tuple[NodeRefusal, int], ...]

    def reasons(self) -> dict[str, int]:
        """Return {reason: nodes}, ordered by reason."""
        sums: dict[str, int] = {}
        for refusal, count in self.refused:
            sums[refusal.reason] = sums.get(refusal.reason, 0) + count
        return dict(sorted(sums.items()))

    def phrases(self) -> str:
        """Return text such as `3 lack 2 nvidia.com/gpu free, 1 is cordoned`, the most frequent first."""
        ordered = sorted(self.refused, key=lambda part: (-part[1], part[0].reason, part[0].one))
        return ", ".join(refusal.phrase(count) for refusal, count in ordered)


def diagnose(request: RankRequest, usage: NodeUsage) -> NodeVerdict:
    """Return the verdict on one more rank of `request`."""
    left = np.ones(len(usage.table), dtype=np.bool_)
    refused: list[tuple[NodeRefusal, int]] = []
    for entry in (*STATIC, *DYNAMIC):
        for refusal, mask in entry.refuse(request, usage, EVERY):
            count = int(np.count_nonzero(left & mask))
            if count:
                refused.append((refusal, count))
                left &= ~mask
    return NodeVerdict(len(usage.table), int(np.count_nonzero(left)), tuple(refused))
