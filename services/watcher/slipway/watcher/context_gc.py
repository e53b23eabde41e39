"""Clears away uploaded archives that no allocation needs any more.

Owns when: an archive goes when no allocation that has not ended names it, and an hour has passed since it was uploaded
or launched with, and since the last of its allocations ended. Its pieces belong to its index and go with it.

Invariants: the archives were LISTed before the allocations were, and any error in a LIST means that nothing is
deleted; a delete carries uid and resourceVersion, so that an archive that is used in this moment stays.
"""

from collections.abc import Iterable

from slipway.crd.v1alpha1 import Allocation
from slipway.errors import NotFoundError, StaleError, TransientError
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.pods.archive import INDEX_MAPS, INDEX_SELECTOR, IndexMap
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher.ports import Kube

DELETES_MAX = 200
"""Deletes of one sweep; the rest follow in the next one, which then comes soon."""

_log = log.get_logger(__name__)


class ArchiveSweeper:
    """Sweeps archives."""

    def __init__(self, kube: Kube, clock: Clock, *, keep_s: float) -> None:
        self._kube = kube
        self._clock = clock
        self._keep_s = keep_s

    async def sweep(self) -> int:
        """One sweep; answers how many it deleted.

        Raises:
            ControlPlaneError: a LIST failed, and nothing was deleted.
        """
        found = (await self._kube.list(INDEX_MAPS, label_selector=INDEX_SELECTOR)).items
        if not found:
            return 0
        allocations = (await self._kube.list(ALLOCATIONS)).items
        removed = 0
        for item in unused(found, allocations, before=self._clock.now() - self._keep_s)[:DELETES_MAX]:
            liveness.beat()
            meta = item.metadata
            try:
                await self._kube.delete(
                    CONFIG_MAPS,
                    meta.name,
                    namespace=meta.namespace,
                    uid=meta.uid,
                    resource_version=meta.resource_version,
                )
            except (NotFoundError, StaleError):
                continue
            except TransientError as error:
                _log.warning("archive not swept yet", object=meta.name, error=str(error))
                break
            telemetry.SWEPT.labels(kind="Context").inc()
            removed += 1
        if removed:
            _log.info("archives swept", removed=removed)
        return removed


def unused(found: Iterable[IndexMap], allocations: Iterable[Allocation], *, before: float) -> list[IndexMap]:
    """Those that nothing needs and nothing has used since `before` (epoch seconds). Pure."""
    needed: set[tuple[str, str]] = set()
    ended: dict[tuple[str, str], float] = {}
    for each in allocations:
        if each.spec.context is None:
            continue
        key = (each.metadata.namespace, each.spec.context)
        if each.status.phase is not Phase.TERMINATED:
            needed.add(key)
        elif each.status.ended_at:
            ended[key] = max(ended.get(key, 0.0), parse_time(each.status.ended_at))
    return [item for item in found if not _is_in_use(item, needed, ended, before)]


def _is_in_use(
    item: IndexMap, needed: set[tuple[str, str]], ended: dict[tuple[str, str], float], before: float
) -> bool:
    if item.used_at > before:
        return True
    if item.index is None:
        return False
    key = (item.metadata.namespace, item.index.id)
    return key in needed or ended.get(key, 0.0) > before
