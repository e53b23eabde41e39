"""Plans with a second policy on the leader's real snapshots, and counts the decisions that differ.

Owns the rate: a shadow plan is made at the end of a tick, after all its writes, and only so often that it uses a small
part of the time. Ticks that follow too soon are skipped and counted. The shadow plan is used only for metrics and the
decision log.
"""

from typing import Final

import msgspec

from slipway.runtime import telemetry
from slipway.runtime.clock import Clock
from slipway.scheduler.decisions.plan_comparison import divergences
from slipway.scheduler.decisions.record import ShadowComparison, policy_hash
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.extender_results import Answers
from slipway.scheduler.plan.state.plan_cache import PlanCache
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

PART: Final = 10
"""Shadow plans use at most 1/PART of the time."""
KEPT_MAX: Final = 32
"""The number of different decisions of one tick that are in the log."""


class ShadowPlanner:
    """The shadow policy of one pool, during one leadership."""

    def __init__(self, pool: str, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._not_before_s = 0.0
        self._cache = PlanCache()
        self._cache_of: PlanCache | None = None

    def compare(
        self, snapshot: PoolSnapshot, live: Plan, seed: int, answers: Answers | None = None
    ) -> ShadowComparison | None:
        """Return the shadow plan's differences from `live`, on the same snapshot;
        None without a shadow policy, or when skipped."""
        if snapshot.pool.shadow is None:
            return None
        begun_s = self._clock.monotonic()
        if begun_s < self._not_before_s:
            telemetry.SHADOW_TICKS.labels(pool=self._pool, outcome="skipped").inc()
            return None
        shadowed = self._plan(snapshot, live, seed, answers)
        ended_s = self._clock.monotonic()
        self._not_before_s = ended_s + (PART - 1) * (ended_s - begun_s)
        telemetry.SHADOW_TICKS.labels(pool=self._pool, outcome="planned").inc()
        telemetry.SHADOW_DECISIONS.labels(pool=self._pool, outcome="same").inc(shadowed.same)
        telemetry.SHADOW_DECISIONS.labels(pool=self._pool, outcome="different").inc(shadowed.different)
        return shadowed

    def _plan(self, snapshot: PoolSnapshot, live: Plan, seed: int, answers: Answers | None) -> ShadowComparison:
        pool = snapshot.pool.shadow or snapshot.pool
        policy = policy_of(pool)
        if snapshot.cache is not self._cache_of:
            # The cache of the live policy must be neither used nor changed, so the shadow has its own.
            self._cache_of, self._cache = snapshot.cache, PlanCache()
        seen = msgspec.structs.replace(snapshot, pool=pool, cache=self._cache)
        same, different = divergences(live, plan(seen, policy, snapshot.now, seed, answers=answers, grows=True))
        return ShadowComparison(
            policy_hash=policy_hash(policy),
            same=same,
            different=len(different),
            divergences=tuple(different[:KEPT_MAX]),
        )
