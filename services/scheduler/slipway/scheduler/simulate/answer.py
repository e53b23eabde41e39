"""The answer of a simulation: as data (the contract of `slipway simulate -o json`) and as a text table. Pure."""

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from slipway.model.lifecycle import Phase
from slipway.model.resources import CPU, GPU, total
from slipway.scheduler.plan.outcome import as_data
from slipway.scheduler.simulate.lower import NAMESPACE
from slipway.scheduler.simulate.run import Outcome, Sample
from slipway.scheduler.simulate.world import Life

Json = dict[str, Any]


def as_json(outcome: Outcome, warnings: Sequence[str]) -> Json:
    """The whole answer."""
    answer: Json = {
        "allocations": {name: _allocation(outcome, life) for name, life in outcome.world.lives.items()},
        "evictions": outcome.world.evictions,
        "ticks": outcome.ticks,
        "metrics": _metrics(outcome),
        "warnings": list(warnings),
    }
    if outcome.scores:
        only = len(outcome.world.lives) == 1
        answer["scores"] = next(iter(outcome.scores.values())) if only else dict(sorted(outcome.scores.items()))
    return answer


def as_table(outcome: Outcome, warnings: Sequence[str]) -> str:
    """For people: one line per allocation, then what waits and why."""
    rows = [("ALLOCATION", "PHASE", "START", "END", "WAIT", "ATTEMPT", "NODES")]
    for name, life in outcome.world.lives.items():
        data = _allocation(outcome, life)
        nodes = ",".join(dict.fromkeys(place["node"] for place in data["placements"]))
        cells = (data["phase"], _number(data["start"]), _number(data["end"]), _number(data["wait"]))
        rows.append((name, *cells, str(data["attempts"]), nodes or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for name, life in outcome.world.lives.items():
        why = outcome.explanations.get(f"{NAMESPACE}/{name}")
        if life.phase is Phase.PENDING and why is not None:
            lines.append(f"{name}: {why.gate}: {why.message}")
    for item in outcome.world.evictions:
        lines.append(f"evicted: {item['allocation']} rank {item['rank']} at {_number(item['time'])}")
    for name, nodes in sorted(outcome.scores.items()):
        for node, plugins in nodes.items():
            lines.append(f"score: {name} {node} " + " ".join(f"{plugin}={value}" for plugin, value in plugins.items()))
    metrics = _metrics(outcome)
    lines.append(f"{outcome.ticks} ticks; " + ", ".join(f"{key} {_number(value)}" for key, value in metrics.items()))
    return "\n".join([*lines, *(f"warning: {warning}" for warning in warnings)]) + "\n"


def _allocation(outcome: Outcome, life: Life) -> Json:
    why = outcome.explanations.get(f"{NAMESPACE}/{life.fact.name}")
    is_waiting = life.is_submitted and life.phase is Phase.PENDING and why is not None
    return {
        "phase": life.phase.value,
        "start": life.start,
        "end": life.end,
        "wait": None if life.first_start is None else max(0.0, life.first_start - life.part.submit),
        "attempts": life.fact.attempt,
        "placements": [msgspec.to_builtins(place) for place in life.places],
        "explain": as_data(why) if is_waiting and why else None,
    }


def _metrics(outcome: Outcome) -> Json:
    """utilisation: part of the time-weighted GPUs (of cpu, where there are none) in use from the first arrival to
    the end; gpuAllocationRatio: the most GPUs in use at one time, of all; waits of what has started, nearest rank."""
    lives = list(outcome.world.lives.values())
    whole = total(node.allocatable for node in outcome.world.nodes)
    counted = GPU if whole.get(GPU) else CPU
    starts = [life.part.submit for life in lives if life.is_submitted]
    ends = [life.end for life in lives if life.end is not None]
    waits = sorted(max(0.0, life.first_start - life.part.submit) for life in lives if life.first_start is not None)
    most = max((sample.used.get(GPU, 0) for sample in outcome.samples), default=0)
    return {
        "utilisation": _utilisation(outcome.samples, counted, whole.get(counted), outcome.end),
        "makespan": max(ends) - min(starts) if ends and starts else 0.0,
        "waitP50": _percentile(waits, 50),
        "waitP99": _percentile(waits, 99),
        "gpuAllocationRatio": most / whole.get(GPU) if whole.get(GPU) else 0.0,
        "started": len(waits),
        "ended": len(ends),
        "pending": sum(1 for life in lives if life.is_submitted and life.phase is Phase.PENDING),
        "evictions": len(outcome.world.evictions),
    }


def _utilisation(samples: Sequence[Sample], name: str, capacity: int, end: float) -> float:
    if not samples or capacity <= 0 or end <= samples[0].at:
        return 0.0
    following = [sample.at for sample in samples[1:]] + [end]
    area = sum(sample.used.get(name, 0) * (until - sample.at) for sample, until in zip(samples, following, strict=True))
    return area / (capacity * (end - samples[0].at))


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
