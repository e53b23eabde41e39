"""Deletes uploaded archives that no allocation needs any more.

Owns when: an archive is deleted when no unended allocation names it, and `keep_s` seconds (an hour by default) have
passed. They begin at its upload, its last use by a launch, or the end of its last allocation, whichever is latest. Its
pieces belong to its index, and are deleted with it.

The watched allocations show which archives look unused. Only if there are such archives, the allocations are LISTed,
page by page, with only the fields that are needed here.

Invariants: a deleted archive was unused in a LIST of allocations that was made after the archives were LISTed; after
any error in a LIST nothing is deleted; a delete carries uid and resourceVersion, so an archive that is used at this
moment stays.
"""

from collections.abc import Iterable, Sequence

from slipway.crd.meta import ObjectMeta
from slipway.crd.v1alpha1 import Allocation, Wire
from slipway.errors import NotFoundError, StaleError, TransientError
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, Resource
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.pods.archive import INDEX_MAPS, INDEX_SELECTOR, IndexMap
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher.informers import Informers
from slipway.watcher.ports import Kube

DELETES_MAX = 200
"""The number of deletes in one sweep; the next sweep, which then follows soon, deletes the rest."""
PAUSE_S, PAUSE_MAX_S, PAUSE_PART = 60.0, 600.0, 1 / 6
"""The pause between two sweeps: this part of the time for which archives are kept, within the two bounds."""
PAGE_SIZE = 500
"""The number of allocations in one page."""

_log = log.get_logger(__name__)


class ArchiveHolderSpec(Wire, kw_only=True, frozen=True):
    context: str | None = None


class ArchiveHolderStatus(Wire, kw_only=True, frozen=True):
    phase: Phase = Phase.PENDING
    ended_at: str | None = None


class ArchiveHolder(Wire, kw_only=True, frozen=True):
    """The fields of an allocation that this module reads."""

    metadata: ObjectMeta
    spec: ArchiveHolderSpec = ArchiveHolderSpec()
    status: ArchiveHolderStatus = ArchiveHolderStatus()


HOLDERS = Resource(
    group=ALLOCATIONS.group,
    version=ALLOCATIONS.version,
    plural=ALLOCATIONS.plural,
    kind=ALLOCATIONS.kind,
    namespaced=True,
    struct=ArchiveHolder,
)


class ArchiveSweeper:
    """Deletes unused archives."""

    def __init__(self, kube: Kube, informers: Informers, clock: Clock, *, keep_s: float) -> None:
        self.pause_s = min(PAUSE_MAX_S, max(PAUSE_S, keep_s * PAUSE_PART))
        """The pause between two sweeps, in seconds."""
        self._kube = kube
        self._informers = informers
        self._clock = clock
        self._keep_s = keep_s

    async def sweep(self) -> int:
        """Make one sweep; return how many archives it deleted.

        Raises:
            ControlPlaneError: a LIST failed, and nothing was deleted.
        """
        found = (await self._kube.list(INDEX_MAPS, label_selector=INDEX_SELECTOR)).items
        before = self._clock.now() - self._keep_s
        suspects = unused(found, self._informers.allocations.items(), before=before)
        if not suspects:
            return 0
        removed = 0
        for item in unused(suspects, await self._holders(), before=before)[:DELETES_MAX]:
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

    async def _holders(self) -> list[ArchiveHolder]:
        """Return the allocations that name an archive, from a LIST."""
        found: list[ArchiveHolder] = []
        token = ""
        while True:
            page = await self._kube.list(HOLDERS, limit=PAGE_SIZE, continue_=token)
            found += [each for each in page.items if each.spec.context is not None]
            liveness.beat()
            token = page.continue_
            if not token:
                return found


def unused(
    found: Iterable[IndexMap], allocations: Sequence[Allocation] | Sequence[ArchiveHolder], *, before: float
) -> list[IndexMap]:
    """Return the archives that no allocation needs, and that were not used since `before` (epoch seconds). Pure."""
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
