"""What a plan says: admissions, evictions, and for everything that waits the reason why.

Frozen values that `apply` carries out without choosing anything. A Plan is a pure function of (snapshot, policy,
now, seed): equal inputs give equal plans.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from slipway.model.reasons import Gate, Reason
from slipway.scheduler.plan.state.extender_results import Question


class Admit(msgspec.Struct, frozen=True, kw_only=True):
    """Start attempt `attempt` of `allocation`; a rank that is not in `placements` does not take part."""

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
    """uids that this plan evicts and whose places it takes: it starts when they are gone"""


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Take down attempt `attempt` of `allocation`, whole or only `ranks`; `by` is the key of the allocation that it
    makes room for, if any."""

    allocation: str
    uid: str
    attempt: int
    reason: Reason
    by: str = ""
    ranks: tuple[int, ...] = ()
    """surplus ranks of an elastic gang, which goes on with the rest; all of it when empty"""


class Grow(msgspec.Struct, frozen=True, kw_only=True):
    """Attempt `attempt` of an elastic gang, which runs, gets places for ranks that have none; the others stay."""

    allocation: str
    uid: str
    attempt: int
    placements: dict[int, str]
    """{rank: node name} of the new ranks, ascending"""
    devices: dict[int, tuple[int, ...]] = {}
    """{rank: device numbers} where the planner chose devices"""


class Remedy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a smallest unblocking change. Only the fields that its `kind` names are set.

    maxRuntime: it asks for a run limit of at most `seconds`; with `until`, for one that ends it by then. uncordon:
    `node` takes new work again. tolerate: it tolerates the taint `name` (`key=value:effect`).

    free: `amounts` more are free on `node`. limit | nominal | borrowing: that bound of queue `name` is raised by
    `amounts`. maxSlots: job `name` gets `slots` more. release: `hold` is false. wait: until `until` (epoch seconds).
    """

    kind: str
    node: str = ""
    name: str = ""
    amounts: dict[str, int] = {}
    """base units: milli for cpu"""
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
    """together, the smallest change that would admit it; None when it is not known"""
    position: int = 0
    """1 for the first that waits in its queue; 0 where there is no queue to stand in"""
    ahead: int = 0
    """how many wait in its queue before it"""
    ahead_slots: int = 0
    """the whole GPUs that those ask for"""
    is_never: bool = False
    """it can never start as the pool and its queues stand"""


class ReservedPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Places that are kept for the blocked head of a queue."""

    allocation: str
    """`<namespace>/<name>`"""
    uid: str
    start: float | None
    """epoch seconds, at the latest; None: as soon as they are free, whenever that is"""
    placements: dict[int, str]
    """{rank: node name}, ascending ranks; as good as any others that are free then"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now. `explanations` is {allocation key: why it waits}, for all that wait after this plan."""

    admits: tuple[Admit, ...] = ()
    evictions: tuple[Evict, ...] = ()
    grows: tuple[Grow, ...] = ()
    explanations: Mapping[str, Explanation] = {}
    deferred: frozenset[str] = frozenset()
    """uids of `admits` that take what `evictions` leave: they start once that is really free"""
    dropped: tuple[str, ...] = ()
    """nominations (ids of decisions) that hold no longer"""
    look_again: float = 0.0
    """when time alone may change the plan, beside deadlines and backoffs (epoch seconds); 0 for never"""
    kept: tuple[ReservedPlaces, ...] = ()
    """the reservations that held in this tick, in the order of their heads"""
    questions: tuple[Question, ...] = ()
    """what extenders have to be asked before more can be decided"""

    @property
    def is_empty(self) -> bool:
        """Nothing to decide."""
        return not (self.admits or self.evictions or self.grows)


def as_data(explanation: Explanation) -> dict[str, Any]:
    """The explanation as plain data, for JSON."""
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
    """The whole plan as bytes, equal for equal plans."""
    parts = (plan.admits, plan.evictions, dict(plan.explanations), plan.grows)
    return msgspec.json.encode(msgspec.to_builtins(parts, str_keys=True), order="sorted")
