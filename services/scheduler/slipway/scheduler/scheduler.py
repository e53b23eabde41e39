"""The scheduler as a whole: one candidate for each pool that there is.

Owns finding pools as they come and go. Built from parts by `main.py`, and by the simulation with other parts.
"""

from slipway.kube.lease import LeaseElector, LeaseTiming
from slipway.kube.resources import RESOURCE_POOLS
from slipway.runtime import log
from slipway.runtime.service import Stop
from slipway.scheduler.leader import PoolScheduler
from slipway.scheduler.standby import Parts

LEASE_PREFIX = "slipway-scheduler-"

_log = log.get_logger(__name__)


class Scheduler:
    """Makes the candidates."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._stops: dict[str, Stop] = {}

    async def discover(self) -> list[tuple[PoolScheduler, Stop]]:
        """Candidates for the pools that are new since the last call; those of pools that are gone are told to stop.

        Raises:
            TransientError: the API server can not be reached.
        """
        listed = await self._parts.kube.list(RESOURCE_POOLS)
        wanted = {name.strip() for name in self._parts.settings.pools.split(",") if name.strip()}
        names = {pool.metadata.name for pool in listed.items}
        names = names & wanted if wanted else names
        for name in sorted(self._stops.keys() - names):
            _log.info("pool is gone", pool=name)
            self._stops.pop(name).set()
        fresh = sorted(names - self._stops.keys())
        for name in fresh:
            self._stops[name] = Stop()
        return [(self._candidate(name), self._stops[name]) for name in fresh]

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
        )
        elector = LeaseElector(
            parts.kube,
            f"{LEASE_PREFIX}{pool}",
            parts.identity,
            namespace=settings.namespace,
            clock=parts.clock,
            random=parts.random,
            timing=timing,
        )
        return PoolScheduler(pool, elector, parts)
