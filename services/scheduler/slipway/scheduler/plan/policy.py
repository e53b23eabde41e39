"""How a pool is scheduled: the weights of scores and the limits of a tick, as one frozen value.

With no scores given by the pool: what asks for GPUs is packed (MostAllocated), so that whole nodes stay free for
large gangs; everything else is spread evenly (LeastAllocated + BalancedAllocation), as kube-scheduler does.
NodeAffinity (2) and TaintToleration (3) count in both, with kube-scheduler's weights. A pool that names scores
gets exactly those, for everything.
"""

import msgspec

from slipway.model.facts import PoolFact, Toleration
from slipway.model.ledger import DECISIONS_PER_TICK_MAX
from slipway.scheduler.plan.scores import SCORES

SPREAD: dict[str, int] = {"LeastAllocated": 1, "BalancedAllocation": 1, "NodeAffinity": 2, "TaintToleration": 3}
PACK: dict[str, int] = {"MostAllocated": 1, "NodeAffinity": 2, "TaintToleration": 3}
CHANGES_PER_TICK_MAX = 4


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """`spread` weighs nodes for asks without GPUs, `pack` for those with."""

    spread: dict[str, int] = msgspec.field(default_factory=lambda: dict(SPREAD))
    pack: dict[str, int] = msgspec.field(default_factory=lambda: dict(PACK))
    tolerations: tuple[Toleration, ...] = ()
    topology: tuple[str, ...] = ()
    backfill: bool = True
    decisions_max: int = DECISIONS_PER_TICK_MAX
    changes_max: int = CHANGES_PER_TICK_MAX
    """how many waiting allocations get a smallest change computed in one tick, the first in their queues first"""


def policy_of(pool: PoolFact) -> Policy:
    """The pool's policy. Score names that nobody knows are left out: `unknown_scores` names them."""
    weights = {name: weight for name, weight in pool.scores.items() if name in SCORES and weight > 0}
    return Policy(
        spread=weights or SPREAD,
        pack=weights or PACK,
        tolerations=pool.tolerations,
        topology=pool.topology,
        backfill=pool.backfill,
    )


def unknown_scores(pool: PoolFact) -> tuple[str, ...]:
    """Scores that the pool names and no plugin provides."""
    return tuple(sorted(name for name in pool.scores if name not in SCORES))
