"""What HTTP extenders say of one ask, over all nodes of a table: part of the ask that filters and scores read; and what
they are offered where others would have to go."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from slipway.model.extenders import ExtenderFact
from slipway.model.facts import AllocationFact, RoleFact
from slipway.scheduler.plan.state.nodes import Bools, Ints


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


class ExtenderVerb(StrEnum):
    """What is asked."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"


Key = tuple[str, ExtenderVerb, bytes]
"""(the extender's url, verb, key of the ask)"""


class ExtenderAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One extender's word on one ask; with a `fault` it has not given any."""

    asked: frozenset[str] = frozenset()
    """the nodes that it was asked about"""
    passed: frozenset[str] = frozenset()
    reasons: dict[str, str] = {}
    """{node: why not}, of nodes that did not pass"""
    final: frozenset[str] = frozenset()
    """refused nodes that no eviction would help"""
    scores: dict[str, int] = {}
    """{node: 0..10}"""
    offered: dict[str, tuple[str, ...]] = {}
    """{node: the ids of those that would go} of a question about who goes"""
    fault: str = ""
    is_stale: bool = False
    """it still counts, and is asked for again"""


Answers = Mapping[Key, ExtenderAnswer]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """To be asked: `extender` about ranks of `role` on `nodes`, in the order of the table."""

    extender: ExtenderFact
    verb: ExtenderVerb
    ask: bytes
    role: RoleFact
    owner: AllocationFact | None
    """one of those that ask so"""
    nodes: tuple[str, ...]
    offers: tuple[Offer, ...] = ()
    """who would go from each of them, where that is asked"""

    @property
    def key(self) -> Key:
        """What its answer is kept under."""
        return (self.extender.url, self.verb, self.ask)
