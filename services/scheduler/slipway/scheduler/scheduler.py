"""The scheduler as a whole: one candidate for each existing pool.

Owns the discovery of pools that are created and deleted. `main.py` builds it from real parts, the simulation from
models.
"""

import math

from slipway.kube.lease import LeaseElector, LeaseTiming
from slipway.kube.resources import RESOURCE_POOLS
from slipway.runtime import log
from slipway.runtime.service import ServiceStop
from slipway.scheduler.leader import PoolScheduler
from slipway.scheduler.standby import SchedulerDeps

LIST_S = 30.0
"""The pools are listed at least this often, whatever the feed shows."""
LEASE_PREFIX = "slipway-scheduler-"

_log = log.get_logger(__name__)


class Scheduler:
    """Creates and stops the candidates."""

    def __init__(self, deps: SchedulerDeps) -> None:
        self._deps = deps
        self._stops: dict[str, ServiceStop] = {}
        self._candidates: dict[str, PoolScheduler] = {}
        self._there: frozenset[str] = frozenset()
        """the names of the pools in the last LIST"""
        self._listed_at = -math.inf

    async def discover(self) -> list[tuple[PoolScheduler, ServiceStop]]:
        """Return candidates for the pools that are new since the last call, and stop the candidates of deleted pools.

        The feed only shows when to LIST again; the LIST is the truth.

        Raises:
            TransientError: the API server cannot be reached.
        """
        if not self._is_listed():
            began_at = self._deps.clock.monotonic()
            listed = await self._deps.kube.list(RESOURCE_POOLS)
            self._there, self._listed_at = frozenset(pool.metadata.name for pool in listed.items), began_at
        wanted = {name.strip() for name in self._deps.settings.pools.split(",") if name.strip()}
        names = self._there & wanted if wanted else self._there
        for name in sorted(self._stops.keys() - names):
            _log.info("pool deleted", pool=name)
            self._stops.pop(name).set()
            del self._candidates[name]
        fresh = sorted(names - self._stops.keys())
        for name in fresh:
            self._stops[name] = ServiceStop()
            self._candidates[name] = self._candidate(name)
        return [(self._candidates[name], self._stops[name]) for name in fresh]

    def _is_listed(self) -> bool:
        """Whether the last LIST is still valid."""
        if self._deps.clock.monotonic() >= self._listed_at + LIST_S:
            return False
        return any(candidate.pools == self._there for candidate in self._candidates.values())

    def not_ready(self) -> str | None:
        """Return why this process could not take over soon, else None: a rolling update waits for that."""
        if self._listed_at == -math.inf:
            return "the pools are not listed yet"
        cold = sorted(name for name, candidate in self._candidates.items() if not candidate.has_been_warm)
        return f"the first LIST of the cluster has not ended, for {', '.join(cold)}" if cold else None

    def stop(self) -> None:
        """Stop every candidate, which then releases its lease."""
        for stop in self._stops.values():
            stop.set()

    def _candidate(self, pool: str) -> PoolScheduler:
        deps = self._deps
        settings = deps.settings
        timing = LeaseTiming(
            duration_s=settings.lease_duration_s,
            renew_deadline_s=settings.lease_renew_deadline_s,
            retry_s=settings.lease_retry_s,
            steady_s=min(settings.lease_steady_s, settings.lease_duration_s),
        )
        elector = LeaseElector(
            deps.kube,
            f"{LEASE_PREFIX}{pool}",
            deps.identity,
            namespace=settings.namespace,
            clock=deps.clock,
            random=deps.random,
            timing=timing,
            health=deps.health,
        )
        return PoolScheduler(pool, elector, deps)
