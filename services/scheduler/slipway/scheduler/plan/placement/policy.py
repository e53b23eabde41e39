"""How a pool is scheduled: the weights of scores and the limits of a tick, as one frozen value.

If the pool names no scores, requests for GPUs are packed (MostAllocated), so that whole nodes stay free for large
gangs. A share of a GPU is also placed where it fills a device best (DeviceBestFit 2). All other requests are spread
evenly (LeastAllocated + BalancedAllocation), as kube-scheduler does. NodeAffinity (2), TaintToleration (3),
PodTopologySpread (2) and InterPodAffinity (2) apply to all requests, with kube-scheduler's weights. ImageLocality (1)
applies only where work is spread: for GPUs, a whole free node is worth more than a saved image pull.

A pool that names scores gets exactly those, for all requests. A pool whose nodes an autoscaler adds and removes, and
that names none, packs all requests, because a node with a little work cannot be removed.
"""

from typing import Any

import msgspec

from slipway.model.facts import PREEMPTION_MARGIN_S, ExtenderFact, PoolFact, Toleration
from slipway.model.ledger import DECISIONS_PER_TICK_MAX
from slipway.scheduler.plan.placement.scores import SCORES
from slipway.scheduler.plan.placement.scores.args import faults, sound_args
from slipway.scheduler.plan.placement.scores.pod_topology_spread import spreads_by_default

_BOTH = {"NodeAffinity": 2, "TaintToleration": 3, "PodTopologySpread": 2, "InterPodAffinity": 2}
SPREAD: dict[str, int] = {"LeastAllocated": 1, "BalancedAllocation": 1, "ImageLocality": 1, **_BOTH}
PACK: dict[str, int] = {"MostAllocated": 1, **_BOTH}
SHARE: dict[str, int] = {"DeviceBestFit": 2, **PACK}
CHANGES_PER_TICK_MAX = 4


GPU_FRAGMENTATION = "GpuFragmentation"
IMAGE_LOCALITY = "ImageLocality"
POD_TOPOLOGY_SPREAD = "PodTopologySpread"


class PlacementPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`spread` are the weights for requests without GPUs, `pack` for whole GPUs, `share` for a part of one."""

    spread: dict[str, int] = msgspec.field(default_factory=lambda: dict(SPREAD))
    pack: dict[str, int] = msgspec.field(default_factory=lambda: dict(PACK))
    share: dict[str, int] = msgspec.field(default_factory=lambda: dict(SHARE))
    args: dict[str, dict[str, Any]] = {}
    """{score: its args}"""
    sampling: bool = False
    """whether only some of the feasible nodes are compared, as kube-scheduler does in large clusters"""
    tolerations: tuple[Toleration, ...] = ()
    topology: tuple[str, ...] = ()
    backfill: bool = True
    extenders: tuple[ExtenderFact, ...] = ()
    decisions_max: int = DECISIONS_PER_TICK_MAX
    nomination_margin_s: float = PREEMPTION_MARGIN_S
    """how long places are held for preempting work beyond the grace of its victims (seconds)"""
    changes_max: int = CHANGES_PER_TICK_MAX
    """number of waiting allocations for which one tick computes a smallest change, the first of their queues first"""

    @property
    def is_fragmentation_scored(self) -> bool:
        """Whether GpuFragmentation is used and the pool does not state the expected requests, so they are computed."""
        is_scored = any(GPU_FRAGMENTATION in weights for weights in (self.spread, self.pack, self.share))
        return is_scored and GPU_FRAGMENTATION not in self.args

    @property
    def spreads_by_default(self) -> bool:
        """Whether roles without constraints are spread too."""
        is_scored = POD_TOPOLOGY_SPREAD in self.spread or POD_TOPOLOGY_SPREAD in self.pack
        return is_scored and spreads_by_default(self.args.get(POD_TOPOLOGY_SPREAD, {}))


def policy_of(pool: PoolFact) -> PlacementPolicy:
    """Return the pool's policy. Unknown score names are ignored; `unknown_scores` returns them."""
    weights = {name: weight for name, weight in pool.scores.items() if name in SCORES and weight > 0}
    return PlacementPolicy(
        spread=weights or (SPREAD if pool.autoscaling is None else PACK),
        pack=weights or PACK,
        share=weights or SHARE,
        args=sound_args(pool.args),
        sampling=pool.sampling,
        tolerations=pool.tolerations,
        topology=pool.topology,
        backfill=pool.backfill,
        nomination_margin_s=pool.preemption_margin_s,
        extenders=pool.extenders,
    )


def faults_of(pool: PoolFact) -> tuple[str, ...]:
    """Return everything wrong with the pool's scores, their args and its windows, each with its field path."""
    known = ", ".join(sorted(SCORES))
    found = [f"spec.scores.{name}: there is no such score; known are {known}" for name in unknown_scores(pool)]
    found += [f"spec.windows[{each.name}].{each.invalid}" for each in pool.windows if each.invalid]
    return (*found, *(f"spec.args.{path}: {text}" for path, text in faults(pool.args)))


def unknown_scores(pool: PoolFact) -> tuple[str, ...]:
    """Return the scores that the pool names and no plugin provides."""
    return tuple(sorted(name for name in pool.scores if name not in SCORES))
