"""The answers of HTTP extenders to one rank request, over all nodes of a table; and the victims they judge."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from slipway.model.facts import AllocationFact, ExtenderFact, RoleFact
from slipway.scheduler.plan.state.nodes import Bools, Ints


class VictimRank(msgspec.Struct, frozen=True):
    """A rank that would have to be evicted."""

    allocation: AllocationFact
    rank: int

    @property
    def id(self) -> str:
        """An id that stays the same while this rank of this attempt has its place."""
        return f"{self.allocation.uid}-{self.allocation.attempt}-{self.rank}"


class VictimOffer(msgspec.Struct, frozen=True):
    """A node with the ranks that would have to be evicted from it, least important first."""

    node: str
    victims: tuple[VictimRank, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of these ranks."""
        return tuple(victim.id for victim in self.victims)


class ExtenderRefusal(msgspec.Struct, frozen=True):
    """Nodes that must not be used, counted under `reason`; `one` and `many` are the verb phrases of the reason."""

    reason: str
    one: str
    many: str
    is_final: bool
    """whether no eviction would help"""
    nodes: Bools


class ExtenderResults(msgspec.Struct, frozen=True, eq=False):
    """The combined answers of all extenders to one request."""

    allowed: Bools
    refusals: tuple[ExtenderRefusal, ...]
    """in the order in which they are applied"""
    bonus: Ints
    """added to the weighted sum of the scores"""
    scores: tuple[tuple[str, Ints], ...]
    """(extender, its score 0..100 before its weight)"""


class ExtenderVerb(StrEnum):
    """The extender's operation."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"


Key = tuple[str, ExtenderVerb, bytes]
"""(the extender's url, verb, key of the request)"""


class ExtenderAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of one extender about one request; if `fault` is set, the extender gave no answer."""

    asked: frozenset[str] = frozenset()
    """the nodes that the extender was asked about"""
    passed: frozenset[str] = frozenset()
    reasons: dict[str, str] = {}
    """{node: reason for the refusal}"""
    final: frozenset[str] = frozenset()
    """refused nodes for which no eviction would help"""
    scores: dict[str, int] = {}
    """{node: 0..10}"""
    offered: dict[str, tuple[str, ...]] = {}
    """{node: the ids of the ranks that would be evicted}, for a question about victims"""
    fault: str = ""
    is_stale: bool = False
    """the answer is still valid, but is requested again"""


Answers = Mapping[Key, ExtenderAnswer]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to send: to `extender`, about ranks of `role` on `nodes`, in the order of the table."""

    extender: ExtenderFact
    verb: ExtenderVerb
    request_key: bytes
    role: RoleFact
    owner: AllocationFact | None
    """one allocation with this request"""
    nodes: tuple[str, ...]
    offers: tuple[VictimOffer, ...] = ()
    """the victims on each of these nodes, for the verb that asks about victims"""

    @property
    def key(self) -> Key:
        """The key under which the answer is stored."""
        return (self.extender.url, self.verb, self.request_key)
