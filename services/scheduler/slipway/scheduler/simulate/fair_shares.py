"""The usage of queues and users at the end of a simulation, and the shares that the queues then deserve. Pure.

Only for a pool with `fairShare`; the tree is the planner's own.
"""

from typing import Any

from slipway.model.mig import GPU_UNITS
from slipway.model.resources import GPU
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.simulate.run import SimulationOutcome

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
