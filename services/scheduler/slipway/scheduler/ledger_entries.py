"""Converts a plan to entries of the ledger: admissions, nominations, and which of them are committed together.

Pure. Owns only the conversion: the planner decides, and `ledger.py` encodes.

Invariant: an allocation that needs the room of an eviction is nominated, and is admitted only after that room is free.
An eviction and its nomination are committed together or not at all.
"""

from collections.abc import Sequence

from slipway.model.ledger import DecisionKind, Ledger
from slipway.scheduler import ledger
from slipway.scheduler.plan.deferred import bundles
from slipway.scheduler.plan.state.plan_types import Admit, Plan


def decisions_of(plan: Plan) -> list[ledger.PlacedDecision]:
    """Return the decisions of a plan. Evictions come first, so that their room is free when the rest is applied."""
    evictions = [
        ledger.PlacedDecision(
            kind=DecisionKind.EVICT,
            allocation=evict.allocation,
            uid=evict.uid,
            attempt=evict.attempt,
            ranks=evict.ranks,
            reason=evict.reason.value,
            by=evict.by,
        )
        for evict in plan.evictions
    ]
    admits = [_placed(admit, is_deferred=admit.uid in plan.deferred) for admit in plan.admits]
    grows = [
        ledger.PlacedDecision(
            kind=DecisionKind.GROW,
            allocation=grow.allocation,
            uid=grow.uid,
            attempt=grow.attempt,
            placements=grow.placements,
            devices=grow.devices,
        )
        for grow in plan.grows
    ]
    return [*evictions, *admits, *grows]


def atomic_groups(plan: Plan, placed: Sequence[ledger.PlacedDecision]) -> list[list[int]]:
    """Return the indexes into `placed` of the decisions that are committed together or not at all."""
    return [[at for at, item in enumerate(placed) if item.uid in bundle] for bundle in bundles(plan)]


def without_replaced(before: Ledger, plan: Plan) -> Ledger:
    """Return the ledger without the nominations that the plan drops or replaces."""
    decided = {admit.uid for admit in plan.admits}
    over = [
        decision.id
        for decision in before.decisions
        if decision.kind is DecisionKind.NOMINATE and (decision.uid in decided or decision.id in plan.dropped)
    ]
    return ledger.settle(before, over)


def _placed(admit: Admit, *, is_deferred: bool) -> ledger.PlacedDecision:
    return ledger.PlacedDecision(
        kind=DecisionKind.NOMINATE if is_deferred else DecisionKind.ADMIT,
        allocation=admit.allocation,
        uid=admit.uid,
        attempt=admit.attempt,
        placements=admit.placements,
        devices=admit.devices,
        spec_hash=admit.spec_hash,
        victims=admit.victims if is_deferred else (),
    )
