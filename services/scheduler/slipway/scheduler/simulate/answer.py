"""The result of a simulation as data: the contract of `slipway simulate -o json`. Pure.

`command.py` formats it as text. The figures measure the quality of the schedule, over all its allocations;
docs/scenarios.md explains them to users.

For a pool with `fairShare` the answer has the usage of queues and users at the end, and the shares that the queues then
deserve; the tree is the planner's own.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from slipway.model.lifecycle import Phase
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, counted_gpus, total
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.state.plan_types import as_data
from slipway.scheduler.simulate.forecast import StartEstimate
from slipway.scheduler.simulate.run import SimulationOutcome, UseSample
from slipway.scheduler.simulate.scenario_facts import NAMESPACE
from slipway.scheduler.simulate.world import AllocationHistory, LostWork

Json = dict[str, Any]
GPU_HOUR_MS = 3_600_000
USERS_MAX = 20
"""the number of users of a queue that are shown, those with the most usage"""


def fair_shares(outcome: SimulationOutcome) -> Json:
    """Return {queue: usage of it and all queues below it, and its deserved share}; empty without `fairShare`."""
    world = outcome.world
    world.columns.set_decayed(world.past)
    snapshot = world.columns.snapshot((), outcome.end)
    past = snapshot.past
    if past is None:
        return {}
    tree = queue_tree(snapshot)
    found: Json = {}
    for queue in snapshot.queues:
        if tree.queue(queue.name) is None:
            continue
        below = [name for name in past.used if tree.is_below(name, queue.name)]
        users = sorted(past.used.get(queue.name, {}).items(), key=lambda item: (-item[1], item[0]))
        found[queue.name] = {
            "usedGpuHours": _hours(sum(past.of_queue(name) for name in below)),
            "users": {user: _hours(gpu_ms) for user, gpu_ms in users[:USERS_MAX]},
            "weightFactor": tree.weight_factor(queue.name),
            "deservedGpus": _gpus(float(tree.dues(queue.name).get(GPU, 0))),
            "shiftedGpus": _gpus(float(tree.shifted(queue.name).get(GPU, 0))),
        }
    return found


def _hours(gpu_ms: int) -> float:
    return round(gpu_ms / GPU_HOUR_MS, 3)


def _gpus(units: float) -> float:
    return round(units / GPU_UNITS, 3)


SLOWDOWN_BOUND_S = 10.0
"""An allocation that runs for less is treated as if it ran so long. Otherwise very short ones would dominate the mean
slowdown.

Source: Feitelson and Rudolph, "Metrics and benchmarking for parallel job scheduling", 1998.
"""
_HOUR_S = 3600.0


def metrics(outcome: SimulationOutcome) -> dict[str, Any]:
    """Return {figure: value}; None when no allocation has ended on which the figure is based."""
    lives = list(outcome.world.lives.values())
    whole = total(node.allocatable for node in outcome.world.nodes)
    gpus = counted_gpus(whole.amounts) / GPU_UNITS
    counted, capacity = (GPU, gpus) if gpus else (CPU, float(whole.get(CPU)))
    starts = [life.part.submit for life in lives if life.is_submitted]
    ends = [life.end for life in lives if life.end is not None]
    waits = sorted(max(0.0, life.first_start - life.part.submit) for life in lives if life.first_start is not None)
    slowdowns = sorted(slowdown(life) for life in lives if life.end is not None)
    end = max(ends, default=outcome.end)
    most = max((_used(sample, GPU) for sample in outcome.samples), default=0)
    return {
        "utilisation": _utilisation(outcome, counted, capacity, end),
        "makespan": max(ends) - min(starts) if ends and starts else 0.0,
        "waitMean": _mean(waits) or 0.0,
        "waitP50": percentile(waits, 50),
        "waitP95": percentile(waits, 95),
        "waitP99": percentile(waits, 99),
        "slowdownMean": _mean(slowdowns),
        "slowdownP95": percentile(slowdowns, 95) if slowdowns else None,
        "fairnessUsers": _fairness(lives, lambda life: life.fact.user),
        "fairnessQueues": _fairness(lives, lambda life: life.fact.queue),
        "gpuAllocationRatio": most / gpus if gpus else 0.0,
        "gpuHours": _area(outcome, GPU, end) / _HOUR_S,
        "gpuHoursLost": _lost(outcome, GPU, end) / _HOUR_S,
        "started": len(waits),
        "ended": len(ends),
        "pending": sum(1 for life in lives if life.is_submitted and life.phase is Phase.PENDING),
        "evictions": len(outcome.world.evictions),
    }


def slowdown(life: AllocationHistory) -> float:
    """Return the bounded slowdown of an ended allocation:
    the time from its arrival to its end, divided by its run time without the work that evictions undid."""
    ended, started = life.end or 0.0, life.start or 0.0
    ran = max(life.saved + ended - started, SLOWDOWN_BOUND_S)
    return max(1.0, (ended - life.part.submit) / ran)


def jain(values: Sequence[float]) -> float | None:
    """Return Jain's fairness index: 1 if all values are equal, 1/n if one of n has everything; None for no values.

    Source: Jain, Chiu and Hawe, DEC-TR-301, 1984.
    """
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def _fairness(lives: Iterable[AllocationHistory], owner: Callable[[AllocationHistory], str]) -> float | None:
    """Return Jain's index over the mean speeds (1 / slowdown) of the owners of ended allocations.

    Slowdowns have no upper bound, so an index over slowdowns would depend on a single slow owner.
    """
    found: dict[str, list[float]] = {}
    for life in lives:
        if life.end is not None:
            found.setdefault(owner(life), []).append(1 / slowdown(life))
    return jain([sum(values) / len(values) for values in found.values()])


def _used(sample: UseSample | LostWork, name: str) -> float:
    return counted_gpus(sample.used) / GPU_UNITS if name == GPU else sample.used.get(name, 0)


def _utilisation(outcome: SimulationOutcome, name: str, capacity: float, end: float) -> float:
    """Return the utilisation from the first tick to `end`."""
    samples = outcome.samples
    if not samples or capacity <= 0 or end <= samples[0].at:
        return 0.0
    used = _area(outcome, name, end) - _lost(outcome, name, end)
    return used / (capacity * (end - samples[0].at))


def _area(outcome: SimulationOutcome, name: str, end: float) -> float:
    """Return amount times seconds in use, from the first tick to `end`."""
    samples = outcome.samples
    following = [*(sample.at for sample in samples[1:]), end]
    return sum(
        _used(sample, name) * max(0.0, min(until, end) - sample.at)
        for sample, until in zip(samples, following, strict=False)
    )


def _lost(outcome: SimulationOutcome, name: str, end: float) -> float:
    """Return amount times seconds of the work that evictions undid."""
    if not outcome.samples:
        return 0.0
    begin = outcome.samples[0].at
    return sum(_used(work, name) * max(0.0, min(work.end, end) - max(work.start, begin)) for work in outcome.world.lost)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the percentile by nearest rank: always one of the values; 0 for no values."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


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
    growing = {"growth": gang.lacking_text(life.fact)} if life.fact.name in outcome.world.below_count else {}
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
