"""What HTTP extenders say of one ask, over all nodes of a table: part of the ask that filters and scores read; and what
they are offered where others would have to go."""

import msgspec

from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.nodes import Bools, Ints


class Leaver(msgspec.Struct, frozen=True):
    """A rank that would have to go."""

    allocation: AllocationFact
    rank: int

    @property
    def id(self) -> str:
        """The same for as long as this rank of this attempt stands."""
        return f"{self.allocation.uid}-{self.allocation.attempt}-{self.rank}"


class Offer(msgspec.Struct, frozen=True):
    """A node with the ranks that would have to go from it, least important first."""

    node: str
    leavers: tuple[Leaver, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """Of those that would go."""
        return tuple(leaver.id for leaver in self.leavers)


class Saying(msgspec.Struct, frozen=True):
    """Nodes that may not be used and why: `reason` is counted, `one` and `many` are its verb phrases."""

    reason: str
    one: str
    many: str
    is_final: bool
    """no eviction would help"""
    nodes: Bools


class Outside(msgspec.Struct, frozen=True, eq=False):
    """The outcome of asking all of them."""

    allowed: Bools
    sayings: tuple[Saying, ...]
    """in the order in which they count"""
    bonus: Ints
    """added to the weighted sum of the scores"""
    scores: tuple[tuple[str, Ints], ...]
    """(extender, its 0..100 before its weight)"""
