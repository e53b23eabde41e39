"""The registry of scores.

To add a score: write a module with `NAME` and `score` (see `base.py`), an entry here, and a test beside the others.
"""

from collections.abc import Mapping
from typing import Any

from slipway.scheduler.plan.placement.scores import (
    balanced_allocation,
    best_fit,
    device_best_fit,
    gpu_fragmentation,
    image_locality,
    inter_pod_affinity,
    least_allocated,
    most_allocated,
    node_affinity,
    pod_topology_spread,
    requested_to_capacity_ratio,
    taint_toleration,
    topology_packing,
)
from slipway.scheduler.plan.placement.scores.base import (
    DEFAULTING,
    HARD_WEIGHT,
    MIX,
    RESOURCES,
    SCORE_MAX,
    SHAPE,
    Normalise,
    Score,
    normalised,
    normalised_alike,
)

SCORES: dict[str, Score] = {
    entry.name: entry
    for entry in (
        Score(
            least_allocated.NAME,
            least_allocated.score,
            is_of_amounts=True,
            args=frozenset({RESOURCES}),
            bind=least_allocated.bind,
        ),
        Score(
            most_allocated.NAME,
            most_allocated.score,
            is_of_amounts=True,
            args=frozenset({RESOURCES}),
            bind=most_allocated.bind,
        ),
        Score(
            requested_to_capacity_ratio.NAME,
            requested_to_capacity_ratio.score,
            is_of_amounts=True,
            args=frozenset({RESOURCES, SHAPE}),
            bind=requested_to_capacity_ratio.bind,
        ),
        Score(
            balanced_allocation.NAME,
            balanced_allocation.score,
            is_of_amounts=True,
            args=frozenset({RESOURCES}),
            bind=balanced_allocation.bind,
        ),
        Score(image_locality.NAME, image_locality.score, is_static=True),
        Score(
            pod_topology_spread.NAME,
            whole=pod_topology_spread.score_all,
            args=frozenset({DEFAULTING}),
            bind_whole=pod_topology_spread.bind_all,
        ),
        Score(
            inter_pod_affinity.NAME,
            whole=inter_pod_affinity.score_all,
            args=frozenset({HARD_WEIGHT}),
            bind_whole=inter_pod_affinity.bind_all,
        ),
        Score(
            gpu_fragmentation.NAME,
            gpu_fragmentation.score,
            is_by_device=True,
            is_of_amounts=True,
            args=frozenset({MIX}),
            bind=gpu_fragmentation.bind,
        ),
        Score(best_fit.NAME, best_fit.score, is_by_device=True, is_of_amounts=True),
        Score(device_best_fit.NAME, device_best_fit.score, is_by_device=True, is_of_amounts=True),
        Score(node_affinity.NAME, node_affinity.score, is_static=True, normalise=Normalise.MAX),
        Score(taint_toleration.NAME, taint_toleration.score, is_static=True, normalise=Normalise.REVERSE),
        Score(topology_packing.NAME, topology_packing.score, is_of_domains=True),
    )
}


def scores_under(args: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Score]:
    """Return the registry with a pool's args applied, by score."""
    if not args:
        return SCORES
    return SCORES | {name: SCORES[name].under(given) for name, given in args.items() if name in SCORES}


__all__ = ["SCORES", "SCORE_MAX", "Normalise", "Score", "normalised", "normalised_alike", "scores_under"]
