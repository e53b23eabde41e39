"""What every filter answers with. A filter is a module with `NAME` and one function `refuse`.

`refuse(ask, usage, at)` yields (Refusal, mask over `at`) pairs in the order in which they count; a node is counted
once, at its first True. Filters are pure, and see the usage of the what-if copy they are given.
"""

from collections.abc import Callable, Iterator

import msgspec

from slipway.scheduler.plan.state.nodes import At, Bools
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage


class NodeRefusal(msgspec.Struct, frozen=True):
    """Why a node does not do. `reason` is the stable word; `one` and `many` are its verb phrases in a sentence.

    `is_final` refusals are not cured by freeing what is used on the node.
    """

    reason: str
    one: str
    many: str
    is_final: bool = True

    def phrase(self, count: int) -> str:
        """`3 lack 2 nvidia.com/gpu free`."""
        return f"{count} {self.one if count == 1 else self.many}"


Refused = Iterator[tuple[NodeRefusal, Bools]]
Refuse = Callable[[RankRequest, NodeUsage, At], Refused]


class NodeFilter(msgspec.Struct, frozen=True):
    """One entry of the registry. A static filter does not look at what is used; a passing state is expected to
    end by itself, so that what only it refuses is not hopeless."""

    name: str
    refuse: Refuse
    is_static: bool = True
    is_passing: bool = False
    is_coupled: bool = False
    """looks at the pods beside a node: placing one rank changes its answer for other nodes"""
