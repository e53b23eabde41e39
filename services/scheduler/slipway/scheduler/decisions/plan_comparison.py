"""Extracts the recorded part of a plan, and compares two plans. Pure."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from slipway.scheduler.decisions.record import Divergence, RecordedDecisions, canonical
from slipway.scheduler.plan.explanation.explanations import Explanations, WaitingGroup
from slipway.scheduler.plan.placement.plan_trace import PlanTrace
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Grow, Plan, as_data

REASONS_MAX = 32
"""The most groups of waiting allocations whose reason is recorded for one tick."""


def decisions_of(plan: Plan, trace: PlanTrace) -> RecordedDecisions:
    """Return the recorded part of `plan` and its trace; of the waiting allocations, one of each group."""
    waiting: dict[str, int] = {}
    reasons: dict[str, dict[str, Any]] = {}
    for waiting_group in _groups(plan):
        gate = waiting_group.why.gate.value
        waiting[gate] = waiting.get(gate, 0) + len(waiting_group.members)
        if len(reasons) < REASONS_MAX and waiting_group.members:
            reasons[waiting_group.members[0][1].key] = _explanation_data(as_data(waiting_group.why))
    admitted = {admit.allocation for admit in plan.admits}
    return RecordedDecisions(
        admits=plan.admits,
        evictions=plan.evictions,
        grows=plan.grows,
        deferred=tuple(sorted(plan.deferred)),
        dropped=plan.dropped,
        kept=plan.kept,
        looked=tuple(trace.looked),
        scores={key: scores for key, scores in trace.scores.items() if key in admitted},
        waiting=dict(sorted(waiting.items())),
        reasons=reasons,
    )


def divergences(live: RecordedDecisions | Plan, other: RecordedDecisions | Plan) -> tuple[int, list[Divergence]]:
    """Return (number of decisions that both plans made, the other decisions of either plan), by allocation."""
    of_live, of_other = _decisions(live), _decisions(other)
    same, found = 0, list[Divergence]()
    for kind, allocation in sorted(of_live.keys() | of_other.keys()):
        one, two = of_live.get((kind, allocation), {}), of_other.get((kind, allocation), {})
        if canonical(one) == canonical(two):
            same += 1
        else:
            found.append(Divergence(allocation=allocation, kind=kind, live=one, other=two))
    return same, sorted(found, key=lambda each: (each.allocation, each.kind))


def _decisions(plan: RecordedDecisions | Plan) -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(kind, allocation): the decision as plain data}."""
    found = {("admit", admit.allocation): _data(admit) for admit in plan.admits}
    for evict in plan.evictions:
        found["evict", evict.allocation] = _data(evict)
    for grow in plan.grows:
        found["grow", grow.allocation] = _data(grow)
    return found


def _data(decision: Admit | Evict | Grow) -> dict[str, Any]:
    return msgspec.to_builtins(decision, str_keys=True)


def _groups(plan: Plan) -> Iterable[WaitingGroup]:
    """Return the groups of waiting allocations, without a loop over all of them."""
    if isinstance(plan.explanations, Explanations):
        return plan.explanations.groups()
    return ()


def _explanation_data(data: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation without the position in the queue, which differs within the group."""
    return dict(islice(((key, value) for key, value in data.items() if key not in ("position", "ahead")), 16))
