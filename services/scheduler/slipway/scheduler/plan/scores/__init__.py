"""The registry of scores.

To add one: a module with `NAME` and `score` (see `base.py`), a line here, a test beside the others.
"""

from slipway.scheduler.plan.scores import (
    balanced_allocation,
    least_allocated,
    most_allocated,
    node_affinity,
    taint_toleration,
    topology_packing,
)
from slipway.scheduler.plan.scores.base import SCORE_MAX, Normalise, Score, normalised

SCORES: dict[str, Score] = {
    entry.name: entry
    for entry in (
        Score(least_allocated.NAME, least_allocated.score),
        Score(most_allocated.NAME, most_allocated.score),
        Score(balanced_allocation.NAME, balanced_allocation.score),
        Score(node_affinity.NAME, node_affinity.score, is_static=True, normalise=Normalise.MAX),
        Score(taint_toleration.NAME, taint_toleration.score, is_static=True, normalise=Normalise.REVERSE),
        Score(topology_packing.NAME, topology_packing.score, is_static=True),
    )
}

__all__ = ["SCORES", "SCORE_MAX", "Normalise", "Score", "normalised"]
