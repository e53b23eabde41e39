"""The scheduler's ledger as a value: the decisions that are not settled yet, and the epoch that fences them.

The ledger is `ResourcePool.status`; it is written by compare-and-swap only. A decision is in the ledger before its
admission is written. It is removed when the leader's snapshot contains the Allocation at or above the resource version
of the admission.
"""

from enum import StrEnum

import msgspec

from slipway.model.eviction_rate import EvictionLevel

LEDGER_BYTES_MAX = 256 * 1024
DECISIONS_PER_TICK_MAX = 200


class DecisionKind(StrEnum):
    """The effect of a decision when it is applied."""

    ADMIT = "admit"
    EVICT = "evict"
    NOMINATE = "nominate"
    GROW = "grow"
    """adds ranks to an attempt that runs"""


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One decision. `placements[r]` is rank r's index into the ledger's node table, -1 for a rank not placed."""

    id: str
    epoch: int
    allocation: str
    """`<namespace>/<name>`"""
    uid: str
    attempt: int
    kind: DecisionKind = DecisionKind.ADMIT
    placements: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    """of an eviction: the surplus ranks to evict; empty: the whole allocation"""
    victims: tuple[str, ...] = ()
    """of a nomination: the uids of the allocations whose places it will use"""
    devices: dict[str, tuple[int, ...]] = {}
    spec_hash: str = ""
    reason: str = ""
    by: str = ""
    at: str = ""


class Ledger(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`epoch` and `tick` never fall; `nodes` is the table that the placements index.

    `through` is a resource version of the allocations: a reader that has all of them up to this version knows the
    effect of every decision that was removed from the ledger. 0: not known.

    `evicted` are the eviction buckets that are not full: they are written together with the evictions.
    """

    epoch: int = 0
    tick: int = 0
    nodes: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    through: int = 0
    evicted: tuple[EvictionLevel, ...] = ()
