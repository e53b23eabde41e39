"""Evictions over virtual time: the simulator with random arrivals ends, and no allocations evict each other in
circles."""

import itertools
import json
import random
from collections import defaultdict
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipway.scheduler.plan.preemption import preemptor
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario import decode

SETTINGS = settings(max_examples=25, deadline=None)
TICKS_PER_EVENT = 12


TYPES = ("h100", "a100")


def a_document(seed: int, *, is_typed: bool = False) -> dict[str, Any]:
    """A few queues that may reclaim from each other, on few nodes, with more allocations than fit. `is_typed`: the
    nodes have two types, and some allocations are limited to one."""
    chance = random.Random(seed)
    queues = [a_queue(chance, name) for name in ("a", "b", "c")[: chance.randint(1, 3)]]
    node = {"cpu": 4, "gpus": 4, "memory": "64Gi"}
    if is_typed:
        nodes = [{"name": kind, "count": chance.randint(1, 3), "labels": {"gpu": kind}, **node} for kind in TYPES]
    else:
        nodes = [{"name": "n", "count": chance.randint(1, 4), **node}]
    found: dict[str, Any] = {
        "nodes": nodes,
        "pool": {"scores": {chance.choice(["LeastAllocated", "MostAllocated"]): 1}},
        "queues": queues,
        "allocations": [an_allocation(chance, f"w{number}", queues) for number in range(chance.randint(4, 24))],
    }
    for each in found["allocations"] if is_typed else ():
        if chance.random() < 0.6:
            each["ranks"][0]["nodeSelector"] = {"gpu": chance.choice(TYPES)}
    return found


def a_queue(chance: random.Random, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "weight": chance.randint(1, 3),
        "priority": chance.randint(0, 1),
        "ordering": chance.choice(["StrictFIFO", "BestEffortFIFO", "Backfill"]),
        "preemption": {
            "withinQueue": chance.choice(["Never", "LowerPriority", "LowerOrNewerEqual"]),
            "reclaim": chance.choice(["Never", "LowerPriority", "Any", "Any"]),
        },
    }
    if chance.random() < 0.4:
        found["nominal"] = {"cpu": chance.randint(0, 8), "gpus": chance.randint(0, 8)}
    if chance.random() < 0.3:
        found["minRuntime"] = chance.choice([1, 60, 900])
    return found


def an_allocation(chance: random.Random, name: str, queues: list[dict[str, Any]]) -> dict[str, Any]:
    count = chance.choice([1, 1, 1, 2, 4])
    found: dict[str, Any] = {
        "name": name,
        "queue": chance.choice(queues)["name"],
        "priority": chance.randint(0, 3),
        "submit": chance.randint(0, 2000),
        "duration": chance.choice([5, 100, 1000, 4000]),
        "preemptible": chance.random() < 0.85,
        "ranks": [{"count": count, "cpu": chance.randint(1, 4), "gpus": chance.choice([0, 1, 2, 4])}],
    }
    if count > 1 and chance.random() < 0.5:
        found["minAvailable"] = chance.randint(1, count)
    if chance.random() < 0.3:
        found["checkpointEvery"] = chance.choice([10, 60])
    return found


def outcome_of(seed: int, *, is_typed: bool = False) -> SimulationOutcome:
    """The outcome of the run."""

    return simulate(decode(json.dumps(a_document(seed, is_typed=is_typed))))


def check(outcome: SimulationOutcome) -> None:
    """Check what must be true of any run."""
    told: dict[str, list[float]] = defaultdict(list)
    pairs: dict[tuple[str, str], float] = {}
    again: dict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in outcome.world.evictions:
        victim, by, at = entry["allocation"], entry["for"], entry["time"]
        if by is None:
            continue
        assert outcome.world.lives[victim].fact.preemptible
        assert outcome.world.lives[by].first_start is not None
        if not told[victim] or told[victim][-1] != at:
            told[victim].append(at)
        back = pairs.get((victim, by))
        assert back is None or at - back >= preemptor.TURN_WITHIN_S, (victim, by)
        pairs[by, victim] = at
        times = again[victim, by]
        if not times or times[-1] != at:
            times.append(at)
    for times in told.values():
        for first, fourth in zip(times, times[preemptor.MANY :], strict=False):
            assert fourth - first >= preemptor.MANY_WITHIN_S
    for times in again.values():
        waits = [later - earlier for earlier, later in itertools.pairwise(times)][preemptor.REPEATS - 1 :]
        for number, wait in enumerate(waits):
            assert wait >= preemptor.TURN_WITHIN_S * 2**number
    assert outcome.ticks <= TICKS_PER_EVENT * (2 * len(outcome.world.lives) + len(outcome.world.evictions) + 1)


@given(st.integers(0, 2**32))
@example(3995208616)
@SETTINGS
def test_runs_end_without_preemption_loops(seed: int) -> None:
    """An allocation is not evicted for a while by one that it has evicted. None is evicted four times an hour, or by
    the same one again and again without growing pauses. An allocation for which others were evicted has started, and
    every allocation that can end does."""
    outcome = outcome_of(seed)
    check(outcome)


@given(st.integers(0, 2**32))
@SETTINGS
def test_runs_end_with_two_types_of_nodes(seed: int) -> None:
    """The same is true when queues also reclaim their shares of a type."""
    check(outcome_of(seed, is_typed=True))
