"""What a plan says: admissions, evictions, and for everything that waits the reason why.

Frozen values that `apply` carries out without choosing anything. A Plan is a pure function of (snapshot, policy,
now, seed): equal inputs give equal plans.
"""

from typing import Any

import msgspec

from slipway.model.reasons import Gate, Reason


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


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Take down attempt `attempt` of `allocation` whole; `by` is the allocation it makes room for, if any."""

    allocation: str
    uid: str
    attempt: int
    reason: Reason
    by: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a smallest unblocking change. Only the fields that its `kind` names are set.

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


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an allocation waits: the first blocking gate and one sentence about it."""

    gate: Gate
    message: str
    reasons: dict[str, int] = {}
    """{reason: nodes}, each node once, at its first failing filter"""
    change: tuple[Change, ...] | None = None
    """together, the smallest change that would admit it; None when it is not known"""
    position: int = 0
    """1 for the first that waits in its queue; 0 where there is no queue to stand in"""
    ahead: int = 0
    """how many wait in its queue before it"""
    is_never: bool = False
    """it can never start as the pool and its queues stand"""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now. `explanations` is {allocation key: why it waits}, for all that wait after this plan."""

    admits: tuple[Admit, ...] = ()
    evictions: tuple[Evict, ...] = ()
    explanations: dict[str, Explanation] = {}

    @property
    def is_empty(self) -> bool:
        """Nothing to decide."""
        return not self.admits and not self.evictions


def as_data(explanation: Explanation) -> dict[str, Any]:
    """The explanation as plain data, for JSON."""
    data: dict[str, Any] = {
        "code": explanation.gate.value,
        "message": explanation.message,
        "reasons": explanation.reasons,
        "position": explanation.position,
        "ahead": explanation.ahead,
    }
    if explanation.change is not None:
        data["change"] = [msgspec.to_builtins(change) for change in explanation.change]
    return data
