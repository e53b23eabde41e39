"""The answer of a simulation as data: the contract of `slipway simulate -o json`. Pure; `table.py` shows it."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from slipway.model.lifecycle import Phase
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, counted_gpus, total
from slipway.scheduler.plan.placement import growth
from slipway.scheduler.plan.state.plan_types import as_data
from slipway.scheduler.simulate.fair_shares import fair_shares
from slipway.scheduler.simulate.forecast import Estimate
from slipway.scheduler.simulate.lower import NAMESPACE
from slipway.scheduler.simulate.run import SimulationOutcome, UseSample
from slipway.scheduler.simulate.world import Life, LostWork

Json = dict[str, Any]
Estimates = Mapping[str, Estimate]


def as_json(outcome: SimulationOutcome, warnings: Sequence[str], estimates: Estimates = MappingProxyType({})) -> Json:
    """The whole answer; `estimates` say when what waits will start."""
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


def allocation_data(outcome: SimulationOutcome, life: Life) -> Json:
    """One allocation of the answer."""
    why = outcome.explanations.get(f"{NAMESPACE}/{life.fact.name}")
    flavor = outcome.world.flavor_of(life)
    is_waiting = life.is_submitted and life.phase is Phase.PENDING and why is not None
    growing = {"growth": growth.told(life.fact)} if life.fact.name in outcome.world.below_count else {}
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


def _estimated(data: Json, estimate: Estimate | None) -> Json:
    explain = data["explain"]
    return (
        data
        if not explain or estimate is None
        else data | {"explain": explain | {"estimatedStart": estimate.as_data()}}
    )


def metrics(outcome: SimulationOutcome) -> Json:
    """utilisation: part of the GPU-seconds (of cpu, where there are none) of the makespan that were in use, without
    work that evictions undid; gpuAllocationRatio: the most GPUs in use at one time, of all; waits of what has started,
    nearest rank."""
    lives = list(outcome.world.lives.values())
    whole = total(node.allocatable for node in outcome.world.nodes)
    gpus = counted_gpus(whole.amounts) / GPU_UNITS
    counted, capacity = (GPU, gpus) if gpus else (CPU, float(whole.get(CPU)))
    starts = [life.part.submit for life in lives if life.is_submitted]
    ends = [life.end for life in lives if life.end is not None]
    waits = sorted(max(0.0, life.first_start - life.part.submit) for life in lives if life.first_start is not None)
    most = max((_used(sample, GPU) for sample in outcome.samples), default=0)
    return {
        "utilisation": _utilisation(outcome, counted, capacity, max(ends, default=outcome.end)),
        "makespan": max(ends) - min(starts) if ends and starts else 0.0,
        "waitP50": _percentile(waits, 50),
        "waitP99": _percentile(waits, 99),
        "gpuAllocationRatio": most / gpus if gpus else 0.0,
        "started": len(waits),
        "ended": len(ends),
        "pending": sum(1 for life in lives if life.is_submitted and life.phase is Phase.PENDING),
        "evictions": len(outcome.world.evictions),
    }


def _used(sample: UseSample | LostWork, name: str) -> float:
    return counted_gpus(sample.used) / GPU_UNITS if name == GPU else sample.used.get(name, 0)


def _utilisation(outcome: SimulationOutcome, name: str, capacity: float, end: float) -> float:
    """From the first tick to `end`."""
    samples = outcome.samples
    if not samples or capacity <= 0 or end <= samples[0].at:
        return 0.0
    begin = samples[0].at
    following = [sample.at for sample in samples[1:]] + [end]
    area = sum(
        _used(sample, name) * max(0.0, min(until, end) - sample.at)
        for sample, until in zip(samples, following, strict=True)
    )
    lost = sum(_used(work, name) * max(0.0, min(work.end, end) - max(work.start, begin)) for work in outcome.world.lost)
    return (area - lost) / (capacity * (end - begin))


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0
