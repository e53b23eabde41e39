"""The result of a simulation as data: the contract of `slipway simulate -o json`.
Pure; `table.py` formats it as text."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.placement import growth
from slipway.scheduler.plan.state.plan_types import as_data
from slipway.scheduler.simulate.fair_shares import fair_shares
from slipway.scheduler.simulate.forecast import StartEstimate
from slipway.scheduler.simulate.metrics import metrics
from slipway.scheduler.simulate.run import SimulationOutcome
from slipway.scheduler.simulate.scenario_facts import NAMESPACE
from slipway.scheduler.simulate.world import AllocationHistory

Json = dict[str, Any]
Estimates = Mapping[str, StartEstimate]


def as_json(outcome: SimulationOutcome, warnings: Sequence[str], estimates: Estimates = MappingProxyType({})) -> Json:
    """Return the whole answer; `estimates` are the expected starts of waiting allocations."""
    answer: Json = {
        "allocations": {
            name: _estimated(allocation_data(outcome, life), estimates.get(name))
            for name, life in outcome.world.lives.items()
        },
        "evictions": outcome.world.evictions,
        "ticks": outcome.ticks,
        "metrics": metrics(outcome),
        "warnings": list(warnings),
    }
    shares = fair_shares(outcome)
    if shares:
        answer["fairShares"] = shares
    if outcome.scores is not None:
        scores = {name: outcome.scores.get(name, {}) for name in sorted(outcome.world.lives)}
        answer["scores"] = next(iter(scores.values())) if len(scores) == 1 else scores
    return answer


def allocation_data(outcome: SimulationOutcome, life: AllocationHistory) -> Json:
    """Return one allocation of the answer."""
    why = outcome.explanations.get(f"{NAMESPACE}/{life.fact.name}")
    flavor = outcome.world.flavor_of(life)
    is_waiting = life.is_submitted and life.phase is Phase.PENDING and why is not None
    growing = {"growth": growth.lacking_text(life.fact)} if life.fact.name in outcome.world.below_count else {}
    return growing | {
        "phase": life.phase.value,
        "start": life.start,
        "end": life.end,
        "wait": None if life.first_start is None else max(0.0, life.first_start - life.part.submit),
        "attempts": life.fact.attempt,
        "placements": [msgspec.to_builtins(place) for place in life.places],
        **({"flavor": flavor} if flavor else {}),
        "explain": as_data(why) if is_waiting and why else None,
    }


def _estimated(data: Json, estimate: StartEstimate | None) -> Json:
    explain = data["explain"]
    return (
        data
        if not explain or estimate is None
        else data | {"explain": explain | {"estimatedStart": estimate.as_data()}}
    )
