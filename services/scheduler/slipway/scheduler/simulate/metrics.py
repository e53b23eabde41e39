"""Measures the quality of a simulated schedule, over all its allocations. Pure.

Owns the definition of each figure; docs/scenarios.md explains them to users.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slipway.model.lifecycle import Phase
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import CPU, GPU, counted_gpus, total
from slipway.scheduler.simulate.run import SimulationOutcome, UseSample
from slipway.scheduler.simulate.world import AllocationHistory, LostWork

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
