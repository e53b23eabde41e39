"""Puts an allocation behind the shared Service that it names, and removes it when it has ended.

Owns the writes of a shared Service. The first allocation that names it creates it; each later one is added to its
owners; the last one that ends deletes it. The form of the Service and its owners are in `pods/shared_service.py`.

Promises: a Service that we did not create is never written; the last owner is removed only by a delete of the Service,
so no Service is left without an owner; each write is fenced by the version that was read. Every method may be called
again, by any replica. If a pod worker dies before it has removed an allocation, Kubernetes deletes the Service when the
last of its owners is deleted.
Not promised: that a Service that a user deletes by hand is created again before the next launch of its allocations.

Decision: docs/adr/0071-allocations-share-a-service-by-its-name.md.
"""

from collections.abc import Awaitable, Callable

from slipway.crd.meta import OwnerReference
from slipway.crd.v1alpha1 import Allocation, SharedServiceSpec
from slipway.errors import AlreadyExistsError, NotFoundError, StaleError, UnavailableError
from slipway.kube.objects import Service
from slipway.kube.resources import SERVICES
from slipway.pods.shared_service import is_shared, owner_of, owners_json, refusal_of, service_of
from slipway.podworker.concurrency import KeyedLock
from slipway.podworker.ports import Kube

TRIES_MAX = 8
"""Only writes of other pod workers make a write fail: within a process one write follows the other."""


class ServiceSharing:
    """Carries out the joins and leaves; one per process."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._lock = KeyedLock()

    async def join(self, allocation: Allocation, wanted: SharedServiceSpec) -> None:
        """Make sure that the Service exists, and that the allocation is one of its owners.

        Raises:
            AlreadyExistsError: a Service of that name is not ours, or has another port: this can never be launched.
            UnavailableError: it is being deleted, or other processes keep writing it: try again.
        """
        await self._until_done(self._try_to_join, allocation, wanted)

    async def leave(self, allocation: Allocation, wanted: SharedServiceSpec) -> None:
        """Remove the allocation from the owners of the Service; if it is the last owner, delete the Service.

        Raises:
            UnavailableError: other processes keep writing it: try again.
        """
        await self._until_done(self._try_to_leave, allocation, wanted)

    async def _until_done(
        self,
        attempt: Callable[[Allocation, SharedServiceSpec], Awaitable[bool]],
        allocation: Allocation,
        wanted: SharedServiceSpec,
    ) -> None:
        async with self._lock.hold((allocation.metadata.namespace, wanted.name)):
            for _ in range(TRIES_MAX):
                if await attempt(allocation, wanted):
                    return
        raise UnavailableError(f"Service {wanted.name} was changed at the same time, several times")

    async def _try_to_join(self, allocation: Allocation, wanted: SharedServiceSpec) -> bool:
        """Return False when another write came first: the caller reads the Service again."""
        found = await self._find(allocation, wanted)
        if found is None:
            try:
                await self._kube.create(SERVICES, service_of(allocation, wanted))
            except AlreadyExistsError:
                return False
            return True
        if found.metadata.deletion_timestamp is not None:
            raise UnavailableError(f"Service {wanted.name} is being deleted")
        if why := refusal_of(found, wanted):
            raise AlreadyExistsError(why)
        owners = found.metadata.owner_references
        if any(owner.uid == allocation.metadata.uid for owner in owners):
            return True
        return await self._write_owners(found, [*owners, owner_of(allocation)])

    async def _try_to_leave(self, allocation: Allocation, wanted: SharedServiceSpec) -> bool:
        found = await self._find(allocation, wanted)
        if found is None or found.metadata.deletion_timestamp is not None or not is_shared(found.metadata):
            return True
        owners = found.metadata.owner_references
        others = [owner for owner in owners if owner.uid != allocation.metadata.uid]
        if len(others) == len(owners):
            return True
        return await self._write_owners(found, others) if others else await self._delete(found)

    async def _find(self, allocation: Allocation, wanted: SharedServiceSpec) -> Service | None:
        try:
            return await self._kube.get(SERVICES, wanted.name, namespace=allocation.metadata.namespace)
        except NotFoundError:
            return None

    async def _write_owners(self, found: Service, owners: list[OwnerReference]) -> bool:
        meta = found.metadata
        fence = {"uid": meta.uid, "resourceVersion": meta.resource_version}
        patch = {"metadata": {**fence, "ownerReferences": owners_json(owners)}}
        try:
            await self._kube.patch(SERVICES, meta.name, patch, namespace=meta.namespace)
        except (StaleError, NotFoundError):
            return False
        return True

    async def _delete(self, found: Service) -> bool:
        meta = found.metadata
        try:
            await self._kube.delete(
                SERVICES, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except (StaleError, NotFoundError):
            return False
        return True
