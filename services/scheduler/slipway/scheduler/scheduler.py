"""The scheduler as a whole: one candidate for each pool that there is.

Owns finding pools as they come and go. Built from parts by `main.py`, and by the simulation with other parts.
"""

import math

from slipway.kube.lease import LeaseElector, LeaseTiming
from slipway.kube.resources import RESOURCE_POOLS
from slipway.runtime import log
from slipway.runtime.service import ServiceStop
from slipway.scheduler.leader import PoolScheduler
from slipway.scheduler.standby import SchedulerDeps

LIST_S = 30.0
"""The pools are listed so often at least, whatever the feed tells."""
LEASE_PREFIX = "slipway-scheduler-"

_log = log.get_logger(__name__)


class Scheduler:
    """Makes the candidates."""

    def __init__(self, parts: SchedulerDeps) -> None:
        self._parts = parts
        self._stops: dict[str, ServiceStop] = {}
        self._candidates: dict[str, PoolScheduler] = {}
        self._there: frozenset[str] = frozenset()
        """the pools of the last LIST"""
        self._listed_at = -math.inf

    async def discover(self) -> list[tuple[PoolScheduler, ServiceStop]]:
        """Candidates for the pools that are new since the last call; those of pools that are gone are told to stop.

        What a candidate hears by the feed says when to look; a LIST says what there is.

        Raises:
            TransientError: the API server cannot be reached.
        """
        if not self._is_listed():
            began_at = self._parts.clock.monotonic()
            listed = await self._parts.kube.list(RESOURCE_POOLS)
            self._there, self._listed_at = frozenset(pool.metadata.name for pool in listed.items), began_at
        wanted = {name.strip() for name in self._parts.settings.pools.split(",") if name.strip()}
        names = self._there & wanted if wanted else self._there
        for name in sorted(self._stops.keys() - names):
            _log.info("pool is gone", pool=name)
            self._stops.pop(name).set()
            del self._candidates[name]
        fresh = sorted(names - self._stops.keys())
        for name in fresh:
            self._stops[name] = ServiceStop()
            self._candidates[name] = self._candidate(name)
        return [(self._candidates[name], self._stops[name]) for name in fresh]

    def _is_listed(self) -> bool:
        """Whether the last LIST still holds."""
        if self._parts.clock.monotonic() >= self._listed_at + LIST_S:
            return False
        return any(candidate.pools == self._there for candidate in self._candidates.values())

    def not_ready(self) -> str | None:
        """Why it could not take over soon, if so: whoever ends one scheduler after the other waits for the next."""
        if self._listed_at == -math.inf:
            return "which pools there are is not known yet"
        cold = sorted(name for name, candidate in self._candidates.items() if not candidate.has_been_warm)
        return f"the cluster is being read, for {', '.join(cold)}" if cold else None

    def stop(self) -> None:
        """Tell every candidate to give its lease back and end."""
        for stop in self._stops.values():
            stop.set()

    def _candidate(self, pool: str) -> PoolScheduler:
        parts = self._parts
        settings = parts.settings
        timing = LeaseTiming(
            duration_s=settings.lease_duration_s,
            renew_deadline_s=settings.lease_renew_deadline_s,
            retry_s=settings.lease_retry_s,
            steady_s=min(settings.lease_steady_s, settings.lease_duration_s),
        )
        elector = LeaseElector(
            parts.kube,
            f"{LEASE_PREFIX}{pool}",
            parts.identity,
            namespace=settings.namespace,
            clock=parts.clock,
            random=parts.random,
            timing=timing,
            health=parts.health,
        )
        return PoolScheduler(pool, elector, parts)
