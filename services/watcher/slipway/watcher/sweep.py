"""Deletes orphans: objects of allocations that are gone, of past attempts, and of ended allocations.

Owns the last protection against leaks. The pod worker deletes the objects that it created; the sweep finds objects that
the pod worker cannot know.

Pods and allocations are watched, so they are not LISTed in the search for orphans. ConfigMaps and Services are LISTed,
only their metadata. An object that looks like an orphan is read again before it is deleted.

Invariants: an object is read before its owner is read, so an object whose owner is not found has no owner. After any
error of a read nothing is deleted. Every delete carries the uid. Objects of a recently changed owner are left to the
pod worker. A pod that ended by itself is left until its log is read and its finalizer is gone. The watched objects only
show where to look: a watch that is behind delays the sweep of an orphan, and never causes a delete.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID, TRACKING_FINALIZER, ObjectMeta
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import NotFoundError, StaleError, TransientError
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, SERVICES, Resource, brief
from slipway.kube.wire import metadata_of
from slipway.model.lifecycle import Phase
from slipway.model.times import SKEW_S, parse_time
from slipway.pods.ended import attempt_of, waits_for_reader
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher import finalizers
from slipway.watcher.informers import Informers
from slipway.watcher.ports import Kube

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
        # The owners are read last: an object that was read before was created after its owner.
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
        """Return the objects that look like orphans by the watched objects."""
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
        except TransientError as error:
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
