"""Clears away what nobody owns any more: objects of allocations that are gone, of past attempts, of ended ones.

Owns the last line against leaks. The pod worker deletes what it made; this finds what it cannot know of.

Invariants: what is to be deleted was LISTed before the allocations were, so that an object whose owner is not among
them has no owner; any error in a LIST means that nothing is deleted; every delete carries the uid; a recent object is
left to its owner, and a pod that ended by itself to whoever reads its log, until the finalizer is gone.
"""

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID, TRACKING_FINALIZER, ObjectMeta
from slipway.crd.v1alpha1 import Allocation, Wire
from slipway.errors import NotFoundError, StaleError, TransientError
from slipway.kube.objects import Pod
from slipway.kube.resources import ALLOCATIONS, CONFIG_MAPS, PODS, SERVICES, Resource
from slipway.model.lifecycle import Phase
from slipway.model.times import SKEW_S, parse_time
from slipway.pods.ended import attempt_of, waits_for_reader
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.watcher import finalizers
from slipway.watcher.ports import Kube

GRACE_S = 15.0
"""How long an ended allocation's objects are left to the pod worker."""
DELETES_MAX = 1000
"""Deletes of one sweep; the rest follow in the next one."""

_log = log.get_logger(__name__)


class _Bare(Wire, kw_only=True, frozen=True):
    """An object of which only the metadata matters."""

    metadata: ObjectMeta


def _bare(resource: Resource[Any]) -> Resource[_Bare]:
    return Resource(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        kind=resource.kind,
        namespaced=resource.namespaced,
        struct=_Bare,
    )


_BUNDLES = (_bare(CONFIG_MAPS), _bare(SERVICES))


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """An object to delete; `pod` when it is one."""

    resource: Resource[Any]
    meta: ObjectMeta
    pod: Pod | None = None


class Sweeper:
    """Sweeps."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock

    async def sweep(self) -> int:
        """One sweep; answers how many objects it deleted or let go.

        Raises:
            ControlPlaneError: a LIST failed, and nothing was deleted.
        """
        pods = await self._kube.list(PODS, label_selector=LABEL_ALLOCATION_UID)
        bundles = [
            (resource, await self._kube.list(resource, label_selector=LABEL_ALLOCATION_UID)) for resource in _BUNDLES
        ]
        # The owners come last: whatever was listed above had its owner by then.
        owners = {item.metadata.uid: item for item in (await self._kube.list(ALLOCATIONS)).items}
        found = orphans(
            [Orphan(resource=PODS, meta=pod.metadata, pod=pod) for pod in pods.items]
            + [Orphan(resource=resource, meta=item.metadata) for resource, listed in bundles for item in listed.items],
            owners,
            now=self._clock.now(),
        )
        removed = 0
        for orphan in found[:DELETES_MAX]:
            removed += await self._remove(orphan, owners.get(_owner_of(orphan.meta)))
            liveness.beat()
        if removed:
            _log.info("swept", removed=removed)
        return removed

    async def _remove(self, orphan: Orphan, owner: Allocation | None) -> bool:
        meta = orphan.meta
        try:
            if meta.deletion_timestamp is None:
                await self._kube.delete(orphan.resource, meta.name, namespace=meta.namespace, uid=meta.uid)
                telemetry.SWEPT.labels(kind=orphan.resource.kind).inc()
            if orphan.pod is not None and owner is None:
                # Nobody is left to record its exit.
                await finalizers.drop(self._kube, PODS, meta, TRACKING_FINALIZER)
        except (NotFoundError, StaleError):
            return False
        except TransientError as error:
            _log.warning("not swept yet", object=meta.name, error=str(error))
            return False
        return True


def orphans(found: Iterable[Orphan], owners: dict[str, Allocation], *, now: float) -> list[Orphan]:
    """Of the objects, those that nobody needs: no owner, a past attempt, or an owner that ended a while ago. Pure."""
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
    """Since when the owner stands as it stands, in seconds; longer than any grace when that is still to come: a clock
    that was wrong has written it."""
    ring = owner.status.transitions
    age_s = now - parse_time(ring[-1].time) if ring else 0.0
    return age_s if age_s >= -SKEW_S else math.inf


def _owner_of(meta: ObjectMeta) -> str:
    return meta.labels.get(LABEL_ALLOCATION_UID, "")
