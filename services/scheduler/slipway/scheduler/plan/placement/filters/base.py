"""The form of a filter: a module with `NAME` and one function `refuse`.

`refuse(ask, usage, at)` yields pairs (NodeRefusal, mask over `at`), the most specific first; a node is counted once, at
its first True. Filters are pure, and read the usage of the what-if copy that they are given.
"""

from collections.abc import Callable, Iterator

import msgspec

from slipway.scheduler.plan.state.nodes import At, Bools
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage


class NodeRefusal(msgspec.Struct, frozen=True):
    """Why a node is not feasible. `reason` is a stable identifier; `one` and `many` are its verb phrases in a sentence.

    An `is_final` refusal stays when the resources that are used on the node are freed.
    """

    reason: str
    one: str
    many: str
    is_final: bool = True

    def phrase(self, count: int) -> str:
        """Return the phrase for `count` nodes, such as `3 lack 2 nvidia.com/gpu free`."""
        return f"{count} {self.one if count == 1 else self.many}"


Refused = Iterator[tuple[NodeRefusal, Bools]]
Refuse = Callable[[RankRequest, NodeUsage, At], Refused]


class NodeFilter(msgspec.Struct, frozen=True):
    """One entry of the registry.

    A static filter does not read usage. A passing refusal is expected to end by itself, so work that has only passing
    refusals can still start later.
    """

    name: str
    refuse: Refuse
    is_static: bool = True
    is_passing: bool = False
    is_coupled: bool = False
    """whether it reads the pods near a node, so that placing one rank changes its result for other nodes"""
