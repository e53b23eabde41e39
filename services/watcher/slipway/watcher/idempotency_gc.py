"""Deletes claims of Idempotency-Keys whose allocation does not exist any more.

Owns when: a claim is deleted one hour after its last write, if there is no allocation of the name in it. The api writes
a claim whenever it uses it, so a claim that was not written for an hour is not in use.

Invariants: that the allocation is gone is read from the API server, not from a cache. On any error nothing is deleted.
Each delete carries uid and resourceVersion, so that a claim that is used again at this moment stays.
"""

from slipway.crd.meta import LABEL_LAUNCH_KEY
from slipway.errors import NotFoundError, StaleError, TransientError
from slipway.kube.claims import CLAIM_MAPS, KEPT_S, ClaimMap
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher.informers import Informers
from slipway.watcher.ports import Kube

DELETES_MAX = 1000
"""The number of deletes in one sweep; the next sweep, which then follows soon, deletes the rest."""

_log = log.get_logger(__name__)


class ClaimSweeper:
    """Deletes unused claims."""

    def __init__(self, kube: Kube, informers: Informers, clock: Clock) -> None:
        self._kube = kube
        self._informers = informers
        self._clock = clock

    async def sweep(self) -> int:
        """Make one sweep; return how many claims it deleted.

        Raises:
            ControlPlaneError: a read failed; the claims that were deleted before had no allocation.
        """
        idle_before = self._clock.now() - KEPT_S
        found = (await self._kube.list(CLAIM_MAPS, label_selector=LABEL_LAUNCH_KEY)).items
        # Allocations in the cache exist, or existed a moment ago, so only the other ones are read from the API server.
        known = {(each.metadata.namespace, each.metadata.name) for each in self._informers.allocations.items()}
        idle = [
            claim
            for claim in found
            if claim.claimed_at < idle_before and (claim.metadata.namespace, claim.launched) not in known
        ]
        removed = 0
        for claim in idle[:DELETES_MAX]:
            liveness.beat()
            if not await self._is_launched(claim):
                removed += await self._remove(claim)
        if removed:
            _log.info("claims of keys swept", removed=removed)
        return removed

    async def _is_launched(self, claim: ClaimMap) -> bool:
        if not claim.launched:
            return False
        try:
            await self._kube.get(ALLOCATIONS, claim.launched, namespace=claim.metadata.namespace)
        except NotFoundError:
            return False
        return True

    async def _remove(self, claim: ClaimMap) -> bool:
        meta = claim.metadata
        try:
            await self._kube.delete(
                CONFIG_MAPS,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
            )
        except (NotFoundError, StaleError):
            return False
        except TransientError as error:
            _log.warning("claim not swept yet", object=meta.name, error=str(error))
            return False
        telemetry.SWEPT.labels(kind="LaunchKey").inc()
        return True
