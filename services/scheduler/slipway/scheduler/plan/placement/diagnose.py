"""Which node refuses a rank, and why: the counts behind an explanation.

Every node is counted once, at its first failing filter, for the first rank that found no place: with the gang's other
ranks standing where they would go.
"""

import msgspec
import numpy as np

from slipway.scheduler.plan.placement.filters import DYNAMIC, STATIC, NodeRefusal
from slipway.scheduler.plan.state.nodes import EVERY
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage


class NodeVerdict(msgspec.Struct, frozen=True):
    """`refused` nodes per refusal, in filter order; `fitting` nodes pass every filter."""

    nodes: int
    fitting: int
    refused: tuple[tuple[NodeRefusal, int], ...]

    def reasons(self) -> dict[str, int]:
        """{reason: nodes}, by reason."""
        sums: dict[str, int] = {}
        for refusal, count in self.refused:
            sums[refusal.reason] = sums.get(refusal.reason, 0) + count
        return dict(sorted(sums.items()))

    def phrases(self) -> str:
        """`3 lack 2 nvidia.com/gpu free, 1 is cordoned`, most first."""
        ordered = sorted(self.refused, key=lambda part: (-part[1], part[0].reason, part[0].one))
        return ", ".join(refusal.phrase(count) for refusal, count in ordered)


def diagnose(ask: RankRequest, usage: NodeUsage) -> NodeVerdict:
    """The verdict on one more rank of `ask`."""
    left = np.ones(len(usage.table), dtype=np.bool_)
    refused: list[tuple[NodeRefusal, int]] = []
    for entry in (*STATIC, *DYNAMIC):
        for refusal, mask in entry.refuse(ask, usage, EVERY):
            count = int(np.count_nonzero(left & mask))
            if count:
                refused.append((refusal, count))
                left &= ~mask
    return NodeVerdict(len(usage.table), int(np.count_nonzero(left)), tuple(refused))
