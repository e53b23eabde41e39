"""Deletes what nothing needs any more: orphans, uploaded archives, claims of keys, allocations that ended long ago.

Orphans are objects of allocations that are gone, of past attempts, and of ended allocations. The pod worker deletes the
objects that it created; the sweep is the last protection against leaks, and finds objects that the pod worker cannot
know.

Pods and allocations are watched, so they are not LISTed in the search for orphans. ConfigMaps and Services are LISTed,
only their metadata. An object that looks like an orphan is read again before it is deleted.

A delete may be refused for good, because a policy of the cluster protects the object. Then the object stays, this is
logged, and the other objects are deleted.

Invariants: an object is read before its owner is read, so an object whose owner is not found has no owner. After any
error of a read nothing is deleted. Every delete carries the uid. Objects of a recently changed owner are left to the
pod worker. A pod that ended by itself is left until its log is read and its finalizer is gone. The watched objects only
show where to look: a watch that is behind delays the sweep of an orphan, and never causes a delete.

Uploaded archives: an archive is deleted when no unended allocation names it, and `keep_s` seconds (an hour by default)
have passed since its upload, its last use by a launch, or the end of its last allocation, whichever is latest.
Its pieces belong to its index, and are deleted with it.

The watched allocations show which archives look unused. Only if there are such archives, the allocations are LISTed,
page by page, with only the fields that are needed here.

Invariants: a deleted archive was unused in a LIST of allocations that was made after the archives were LISTed; after
any error in a LIST nothing is deleted; a delete carries uid and resourceVersion, so an archive that is used at this
moment stays.

Claims of Idempotency-Keys: a claim is deleted one hour after its last write, if there is no allocation of the name in
it. The api writes a claim whenever it uses it, so a claim that was not written for an hour is not in use.

Invariants: that the allocation is gone is read from the API server, not from a cache. On any error nothing is deleted.
Each delete carries uid and resourceVersion, so that a claim that is used again at this moment stays.

Allocations that ended long ago are deleted beyond an age, or beyond a number per workspace. The object is the only
record: once it is deleted, the exits of its ranks are gone too, and its stream expires by itself. Usage is kept: an
allocation is deleted only once it is in the daily totals.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_LAUNCH_KEY, TEARDOWN_FINALIZER, TRACKING_FINALIZER, ObjectMeta
from slipway.crd.v1alpha1 import Allocation, Wire
from slipway.errors import NotFoundError, PermanentError, StaleError, TransientError
from slipway.kube.claims import CLAIM_MAPS, KEPT_S, ClaimMap
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, SERVICES, Resource, brief
from slipway.kube.wire import metadata_of
from slipway.model.lifecycle import Phase
from slipway.model.times import SKEW_S, parse_time
from slipway.pods.context import INDEX_MAPS, INDEX_SELECTOR, IndexMap
from slipway.pods.ended import attempt_of, waits_for_reader
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher import finalizers
from slipway.watcher.informers import Informers
from slipway.watcher.ports import Kube, UsageLedger, WatcherWriter

GRACE_S = 15.0
"""How long an ended allocation's objects are left to the pod worker."""
DELETES_MAX = 1000
"""The number of deletes in one sweep; the next sweep deletes the rest."""
GETS_MAX = 16
"""Up to so many objects of a kind are read one by one; for more, all are LISTed."""

_log = log.get_logger(__name__)
T = TypeVar("T")

_BUNDLES = (brief(CONFIG_MAPS), brief(SERVICES))


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """An object to delete; `pod` is the pod itself if the object is one."""

    resource: Resource[Any]
    meta: ObjectMeta
    pod: Pod | None = None


class Sweeper:
    """Finds and deletes orphans."""

    def __init__(self, kube: Kube, informers: Informers, clock: Clock) -> None:
        self._kube = kube
        self._informers = informers
        self._clock = clock

    async def sweep(self) -> int:
        """Make one sweep; return how many objects it deleted, or removed the finalizer of.

        Raises:
            ControlPlaneError: a read failed, and nothing was deleted.
        """
        suspects = await self._suspects()
        if not suspects:
            return 0
        # The owners are read last: an owner exists before its objects, so an owner that is not found then was deleted.
        suspects = await self._read_again(suspects)
        owners = await self._owners_of(suspects)
        removed = 0
        for orphan in orphans(suspects, owners, now=self._clock.now())[:DELETES_MAX]:
            removed += await self._remove(orphan, owners.get(_owner_of(orphan.meta)))
            liveness.beat()
        if removed:
            _log.info("swept", removed=removed)
        return removed

    async def _suspects(self) -> list[Orphan]:
        """Return the objects that look like orphans, judged by the watched allocations."""
        found = [
            Orphan(resource=PODS, meta=pod.metadata, pod=pod)
            for pod in self._informers.pods.items()
            if LABEL_ALLOCATION_UID in pod.metadata.labels
        ]
        for resource in _BUNDLES:
            listed = await self._kube.list(resource, label_selector=LABEL_ALLOCATION_UID)
            found += [Orphan(resource=resource, meta=item.metadata) for item in listed.items]
        known = {item.metadata.uid: item for item in self._informers.allocations.items()}
        return orphans(found, known, now=self._clock.now())

    async def _read_again(self, suspects: list[Orphan]) -> list[Orphan]:
        """Return the suspects with their pods read again,
        without pods that are gone or no longer have an owner's label."""
        pods = [item.meta for item in suspects if item.pod is not None]
        others = [item for item in suspects if item.pod is None]
        found = await self._read(PODS, {(meta.namespace, meta.name) for meta in pods})
        now = [found[meta.uid] for meta in pods if meta.uid in found and _owner_of(found[meta.uid].metadata)]
        return [*(Orphan(resource=PODS, meta=pod.metadata, pod=pod) for pod in now), *others]

    async def _owners_of(self, suspects: list[Orphan]) -> dict[str, Allocation]:
        """Return {uid: allocation} of the owners that exist now."""
        names = {_name_of_owner(item.meta) for item in suspects}
        return await self._read(ALLOCATIONS, None if None in names else {name for name in names if name is not None})

    async def _read(self, resource: Resource[T], names: set[tuple[str, str]] | None) -> dict[str, T]:
        """Return {uid: object} of the objects with one of these (namespace, name), or of all for None. A consistent
        read."""
        if names is None or len(names) > GETS_MAX:
            selector = LABEL_ALLOCATION_UID if resource is PODS else ""
            return {
                metadata_of(item).uid: item for item in (await self._kube.list(resource, label_selector=selector)).items
            }
        items: list[T] = []
        for namespace, name in sorted(names):
            with suppress(NotFoundError):
                items.append(await self._kube.get(resource, name, namespace=namespace))
        return {metadata_of(item).uid: item for item in items}

    async def _remove(self, orphan: Orphan, owner: Allocation | None) -> bool:
        meta = orphan.meta
        try:
            if meta.deletion_timestamp is None:
                await self._kube.delete(orphan.resource, meta.name, namespace=meta.namespace, uid=meta.uid)
                telemetry.SWEPT.labels(kind=orphan.resource.kind).inc()
            if orphan.pod is not None and owner is None:
                # Without an owner, no exit can be recorded, so the finalizer is not needed.
                await finalizers.drop(self._kube, PODS, meta, TRACKING_FINALIZER)
        except (NotFoundError, StaleError):
            return False
        except (TransientError, PermanentError) as error:
            _log.warning("not swept yet", object=meta.name, error=str(error))
            return False
        return True


def orphans(found: Iterable[Orphan], owners: dict[str, Allocation], *, now: float) -> list[Orphan]:
    """Return the objects without an owner, of a past attempt, or of an owner that ended a while ago. Pure."""
    return [item for item in found if _is_orphan(item, owners.get(_owner_of(item.meta)), now=now)]


def _is_orphan(item: Orphan, owner: Allocation | None, *, now: float) -> bool:
    is_leaving = item.meta.deletion_timestamp is not None
    if owner is None:
        return not is_leaving or TRACKING_FINALIZER in item.meta.finalizers
    if is_leaving or _age_s(owner, now) < GRACE_S:
        return False
    if item.pod is not None and TRACKING_FINALIZER in item.meta.finalizers and waits_for_reader(item.pod, owner):
        return False
    return attempt_of(item.meta) < owner.status.attempt or owner.status.phase is Phase.TERMINATED


def _age_s(owner: Allocation, now: float) -> float:
    """Return the seconds since the owner's last transition.

    Return infinity when that is in the future, because a wrong clock has written it.
    """
    ring = owner.status.transitions
    age_s = now - parse_time(ring[-1].time) if ring else 0.0
    return age_s if age_s >= -SKEW_S else math.inf


def _name_of_owner(meta: ObjectMeta) -> tuple[str, str] | None:
    """Return (namespace, name) of its allocation from its owner reference; None without one."""
    return next(((meta.namespace, owner.name) for owner in meta.owner_references if owner.uid == _owner_of(meta)), None)


def _owner_of(meta: ObjectMeta) -> str:
    return meta.labels.get(LABEL_ALLOCATION_UID, "")


CONTEXT_DELETES_MAX = 200
"""The number of deletes in one sweep; the next sweep, which then follows soon, deletes the rest."""
PAUSE_S, PAUSE_MAX_S, PAUSE_PART = 60.0, 600.0, 1 / 6
"""The pause between two sweeps: this part of the time for which archives are kept, within the two bounds."""
PAGE_SIZE = 500
"""The number of allocations in one page."""


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
        for item in unused(suspects, await self._holders(), before=before)[:CONTEXT_DELETES_MAX]:
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
            except PermanentError as error:
                _log.warning("archive not swept yet", object=meta.name, error=str(error))
                continue
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
        except (TransientError, PermanentError) as error:
            _log.warning("claim not swept yet", object=meta.name, error=str(error))
            return False
        telemetry.SWEPT.labels(kind="LaunchKey").inc()
        return True


RETENTION_DELETES_MAX = 500
"""The most deletes of one round."""
AT_ONCE = 8


class Retention:
    """Deletes ended allocations that are too old or too many."""

    def __init__(
        self,
        kube: WatcherWriter,
        informers: Informers,
        accounts: UsageLedger,
        clock: Clock,
        *,
        age_s: float,
        count_max: int,
        deletes_max: int = RETENTION_DELETES_MAX,
    ) -> None:
        self._kube = kube
        self._informers = informers
        self._accounts = accounts
        self._clock = clock
        self._age_s = age_s
        self._count_max = count_max
        self._deletes_max = deletes_max
        self.is_behind = False
        """whether the last round left due allocations: too many for one round, or not in the daily totals yet"""

    async def step(self) -> int:
        """Make one round; return how many allocations were deleted."""
        due = expired(
            self._informers.allocations.items(), now=self._clock.now(), age_s=self._age_s, count_max=self._count_max
        )
        # All due allocations are queued for the totals now, for the next round:
        # one write of a day's totals adds many of them.
        for allocation in due:
            self._accounts.offer(allocation)
        settled = [allocation for allocation in due if self._accounts.is_settled(allocation)][: self._deletes_max]
        deleted, gone, is_refused = 0, 0, False
        for start in range(0, len(settled), AT_ONCE):
            some = settled[start : start + AT_ONCE]
            answers = await asyncio.gather(*(self._delete(allocation) for allocation in some))
            deleted += answers.count(True)
            gone += answers.count(False)
            liveness.beat()
            if is_refused := None in answers:
                break
        self.is_behind = len(due) > deleted + gone and not is_refused
        if deleted:
            _log.info("ended allocations deleted", count=deleted)
        return deleted

    async def _delete(self, allocation: Allocation) -> bool | None:
        """Delete it; return True if that succeeded, False if it was gone or the delete was refused, and None if the API
        server did not answer."""
        meta = allocation.metadata
        try:
            await self._kube.delete(ALLOCATIONS, meta.name, namespace=meta.namespace, uid=meta.uid)
        except (NotFoundError, StaleError):
            return False
        except TransientError as error:
            _log.warning("allocation not deleted yet", allocation=meta.name, error=str(error))
            return None
        except PermanentError as error:
            _log.warning("allocation not deleted", allocation=meta.name, error=str(error))
            return False
        return True


def expired(allocations: Iterable[Allocation], *, now: float, age_s: float, count_max: int) -> list[Allocation]:
    """Return the ended allocations that are too old, or too many in their workspace; the oldest first. Pure.

    An allocation that still has its finalizer is left out: its teardown has not ended.
    """
    by_workspace: dict[str, list[tuple[float, str, Allocation]]] = defaultdict(list)
    for allocation in allocations:
        meta, status = allocation.metadata, allocation.status
        is_over = status.phase is Phase.TERMINATED and status.ended_at
        if is_over and meta.deletion_timestamp is None and TEARDOWN_FINALIZER not in meta.finalizers:
            by_workspace[meta.namespace].append((parse_time(status.ended_at), meta.uid, allocation))
    due: list[tuple[float, str, Allocation]] = []
    for ended in by_workspace.values():
        ended.sort(key=lambda item: item[:2])
        surplus = max(0, len(ended) - count_max)
        due.extend(item for index, item in enumerate(ended) if index < surplus or item[0] < now - age_s)
    return [allocation for _, _, allocation in sorted(due, key=lambda item: item[:2])]
