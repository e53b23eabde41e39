"""The order of nodes, queues, jobs and allocations in a scenario does not change its result."""

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario import decode
from tests.property.planner.test_evictions_over_time import a_queue

SETTINGS = settings(max_examples=40, deadline=None)
GPUS = 4


def a_document(seed: int) -> dict[str, Any]:
    """Nodes that share their GPUs, some of them in use from the beginning; queues that reclaim from each other; more
    allocations than fit, also with parts of a GPU, in gangs that may shrink, and equal except for the name."""
    chance = random.Random(seed)
    queues = [a_queue(chance, name) for name in ("a", "b")]
    nodes = [
        {"name": f"n{number}", "cpu": 16, "gpus": GPUS, "memory": "64Gi"} for number in range(chance.randint(1, 4))
    ]
    allocations = [some_work(chance, f"w{number}", queues) for number in range(chance.randint(4, 16))]
    for node in nodes:
        left = GPUS
        while left and chance.random() < 0.7:
            gpus = chance.randint(1, left)
            left -= gpus
            standing = some_work(chance, f"p{len(allocations)}", queues) | {
                "submit": 0,
                "ranks": [{"cpu": 1, "gpus": gpus}],
                "placed": [{"rank": 0, "node": node["name"], "since": -10}],
            }
            standing.pop("minAvailable", None)
            allocations.append(standing)
    jobs = [{"name": name, "maxSlots": chance.randint(2, 8)} for name in ("j", "k")]
    for each in allocations:
        if "placed" not in each and chance.random() < 0.3:
            each["job"] = chance.choice(["j", "k"])
    return {"nodes": nodes, "queues": queues, "jobs": jobs, "allocations": allocations, "until": 5000}


def some_work(chance: random.Random, name: str, queues: list[dict[str, Any]]) -> dict[str, Any]:
    count = chance.choice([1, 1, 1, 2, 3])
    ask = chance.choice([{"gpus": 1}, {"gpus": 2}, {"gpuMilli": 500}, {"gpuMilli": 300}, {}])
    found: dict[str, Any] = {
        "name": name,
        "queue": chance.choice(queues)["name"],
        "priority": chance.randint(0, 2),
        "submit": chance.choice([0, 0, 50, chance.randint(0, 500)]),
        "duration": chance.choice([20, 100, 700]),
        "preemptible": chance.random() < 0.7,
        "ranks": [{"count": count, "cpu": chance.randint(1, 3), **ask}],
    }
    if count > 1 and chance.random() < 0.5:
        found["minAvailable"] = 1
    if chance.random() < 0.6:
        found["maxRuntime"] = chance.choice([30, 200, 800])
    return found


def result_of(outcome: SimulationOutcome) -> dict[str, Any]:
    """Everything that the result of a run shows."""
    return {
        "lives": {
            name: (
                life.phase,
                life.start,
                life.end,
                life.fact.attempt,
                [(place.rank, place.node, place.device, place.start, place.end) for place in life.places],
            )
            for name, life in outcome.world.lives.items()
        },
        "evictions": outcome.world.evictions,
        "ticks": outcome.ticks,
        "why": dict(outcome.explanations),
        "kept": outcome.kept,
    }


@given(st.integers(0, 2**32))
@SETTINGS
def test_the_order_of_a_scenario_changes_nothing(seed: int) -> None:
    """Places, device numbers, victims and their order, reservations and explanations are equal."""
    document = a_document(seed)
    chance = random.Random(seed)
    shuffled = dict(document)
    for kind in ("nodes", "queues", "jobs", "allocations"):
        shuffled[kind] = chance.sample(document[kind], len(document[kind]))
    assert result_of(simulate(decode(json.dumps(document)))) == result_of(simulate(decode(json.dumps(shuffled))))
