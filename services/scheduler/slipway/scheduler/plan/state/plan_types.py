"""The result of a plan: admissions, evictions, and the reason why each other allocation waits.

Frozen values that `apply` carries out without making any choice. A Plan is a pure function of (snapshot, policy,
now, seed): equal inputs give equal plans.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.model.reasons import Gate, Reason
from slipway.scheduler.plan.state.extender_results import Question


class Admit(msgspec.Struct, frozen=True, kw_only=True):
    """Start attempt `attempt` of `allocation`; a rank that is not in `placements` is not part of the attempt."""

    allocation: str
    """`<namespace>/<name>`"""
    uid: str
    attempt: int
    placements: dict[int, str]
    """{rank: node name}, ascending ranks"""
    devices: dict[int, tuple[int, ...]] = {}
    """{rank: device numbers} where the planner chose devices"""
    spec_hash: str = ""
    victims: tuple[str, ...] = ()
    """uids that this plan evicts and whose places this allocation gets; it starts when they have left"""


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Evict attempt `attempt` of `allocation`, whole or only `ranks`.

    `by` is the key of the allocation that gets the room, if there is one.
    """

    allocation: str
    uid: str
    attempt: int
    reason: Reason
    by: str = ""
    ranks: tuple[int, ...] = ()
    """surplus ranks of an elastic gang, which continues with the others; empty when the whole attempt is evicted"""


class Grow(msgspec.Struct, frozen=True, kw_only=True):
    """Give places to ranks of a running elastic gang (attempt `attempt`) that have none; the other ranks stay."""

    allocation: str
    uid: str
    attempt: int
    placements: dict[int, str]
    """{rank: node name} of the new ranks, ascending"""
    devices: dict[int, tuple[int, ...]] = {}
    """{rank: device numbers} where the planner chose devices"""


class Remedy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a smallest unblocking change. Only the fields that its `kind` names are set.

    maxRuntime: the allocation sets a run limit of at most `seconds`, or with `until` one that ends it by then.
    uncordon: `node` accepts new work again. tolerate: the allocation tolerates the taint `name` (`key=value:effect`).

    free: `amounts` more are free on `node`. limit | nominal | borrowing: that bound of queue `name` is raised by
    `amounts`. maxSlots: job `name` gets `slots` more. release: `hold` is false. wait: wait until `until` (epoch
    seconds).
    """

    kind: str
    node: str = ""
    name: str = ""
    amounts: dict[str, int] = {}
    """base units: milli-cpu for cpu"""
    slots: int = 0
    until: float = 0.0
    seconds: float = 0.0


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an allocation waits: the first blocking gate and one sentence about it."""

    gate: Gate
    message: str
    reasons: dict[str, int] = {}
    """{reason: nodes}, each node once, at its first failing filter"""
    change: tuple[Remedy, ...] | None = None
    """all parts together are the smallest change that would admit it; None when that is unknown"""
    position: int = 0
    """1 for the first pending allocation of the queue; 0 when the allocation is in no queue"""
    ahead: int = 0
    """number of pending allocations before it in its queue"""
    ahead_slots: int = 0
    """the whole GPUs that those request"""
    is_never: bool = False
    """whether it can never start with the pool and its queues as they are"""


class ReservedPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Places that are reserved for the blocked head of a queue."""

    allocation: str
    """`<namespace>/<name>`"""
    uid: str
    start: float | None
    """epoch seconds: the latest time of the start; None: as soon as the places are free, at an unknown time"""
    placements: dict[int, str]
    """{rank: node name}, ascending ranks; no other nodes that are free then are better"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now. `explanations` is {allocation key: why it waits}, for all that wait after this plan."""

    admits: tuple[Admit, ...] = ()
    evictions: tuple[Evict, ...] = ()
    grows: tuple[Grow, ...] = ()
    explanations: Mapping[str, Explanation] = {}
    deferred: frozenset[str] = frozenset()
    """uids of `admits` that need what `evictions` release; they start once that is free"""
    dropped: tuple[str, ...] = ()
    """nominations (ids of decisions) that are not valid any more"""
    look_again: float = 0.0
    """when the plan may change only because time passes, apart from deadlines and backoffs (epoch seconds); 0: never"""
    kept: tuple[ReservedPlaces, ...] = ()
    """the reservations that were valid in this tick, in the order of their heads"""
    questions: tuple[Question, ...] = ()
    """questions that extenders have to answer before more can be decided"""

    @property
    def is_empty(self) -> bool:
        """Whether the plan decides nothing."""
        return not (self.admits or self.evictions or self.grows)


def as_data(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as plain data, for JSON."""
    data: dict[str, Any] = {
        "code": explanation.gate.value,
        "message": explanation.message,
        "reasons": explanation.reasons,
        "position": explanation.position,
        "ahead": explanation.ahead,
        "aheadSlots": explanation.ahead_slots,
    }
    if explanation.change is not None:
        data["change"] = [msgspec.to_builtins(change) for change in explanation.change]
    return data


def encoded(plan: Plan) -> bytes:
    """Return the plan's decisions and explanations as bytes, equal for equal plans."""
    parts = (plan.admits, plan.evictions, dict(plan.explanations), plan.grows)
    return msgspec.json.encode(msgspec.to_builtins(parts, str_keys=True), order="sorted")
