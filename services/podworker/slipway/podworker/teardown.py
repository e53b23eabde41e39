"""Tears down attempts: deletes their pods, Service and ConfigMap; a Service that other allocations share stays.

Owns which objects belong to an attempt, and the order in which they are deleted. Must not decide whether an attempt is
over.

Promises: an object is deleted only if it has the allocation's uid as label and as owner, or if the release names it;
always with the uid as precondition, so that a new object of the same name is safe. Pods get their own grace period (the
API server gives none to pods that never ran). An object that is being deleted is left alone. The watcher deletes pods
that ended by themselves, because it reads their logs first. A teardown can be repeated at any time. What this process
remembers only saves calls: a repeated teardown reads and deletes again.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from slipway.crd.members import members, rank_count
from slipway.crd.meta import LABEL_ALLOCATION_UID, ObjectMeta
from slipway.crd.transitions import id_of, is_released
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import NotFoundError, StaleError
from slipway.kube.objects import Pod
from slipway.kube.resources import CONFIG_MAPS, PODS, SERVICES, Resource
from slipway.kube.wire import metadata_of
from slipway.model import ids
from slipway.model.lifecycle import Phase
from slipway.pods import manifest
from slipway.pods.ended import attempt_of, recorded, waits_for_reader
from slipway.podworker.concurrency import PriorityLimiter
from slipway.podworker.created_objects import CreatedObjects
from slipway.podworker.intent import is_ours
from slipway.podworker.ports import Kube
from slipway.podworker.service_sharing import ServiceSharing
from slipway.podworker.steps import step
from slipway.runtime.clock import Clock

BY_NAME_MAX = 8
"""Up to so many objects are read by name; for more, a LIST is cheaper for us and for the API server."""
ASKED_MAX = 16_384
"""The number of teardowns that are remembered; an entry uses some 200 bytes."""


class AttemptRemover:
    """Carries out teardowns."""

    def __init__(
        self, kube: Kube, limiter: PriorityLimiter, clock: Clock, created: CreatedObjects, sharing: ServiceSharing
    ) -> None:
        self._kube = kube
        self._sharing = sharing
        self._limiter = limiter
        self._clock = clock
        self._created = created
        self._asked: OrderedDict[str, int] = OrderedDict()
        """{uid of a torn-down allocation: the attempt that was Terminating then; 0 if it was not Terminating}"""

    async def remove(self, allocation: Allocation, through: int) -> int:
        """Delete the remaining objects of the attempts up to `through`; return how many deletes were sent.

        While the current attempt is Terminating, its ConfigMap and Service stay, because containers may still run.
        """
        is_current = through >= allocation.status.attempt
        keeps_bundle = is_current and allocation.status.phase is Phase.TERMINATING
        # The entry is used only once, because a caller that repeats the same teardown wants it to be done again.
        asked = self._asked.pop(allocation.metadata.uid, None)
        with step("deletes", self._clock, through=through) as span:
            found = await self._pods(allocation, through, asked)
            doomed: list[tuple[Resource[Any], ObjectMeta]] = [(PODS, meta) for meta in found]
            if is_current and not keeps_bundle and allocation.spec.service is not None:
                # The ConfigMap is deleted later: while it exists, the next worker sees that work is left.
                await self._sharing.leave(allocation, allocation.spec.service)
            if not keeps_bundle:
                bundle: list[Resource[Any]] = [SERVICES, CONFIG_MAPS] if rank_count(allocation) > 1 else [CONFIG_MAPS]
                for resource in bundle:
                    metas = await self._bundle(resource, allocation, through)
                    doomed.extend((resource, meta) for meta in metas)
            waiting = [(resource, meta) for resource, meta in doomed if meta.deletion_timestamp is None]
            await self._limiter.run_all(
                [partial(self._delete, allocation, resource, meta) for resource, meta in waiting]
            )
            self._remember(allocation, through if keeps_bundle else 0)
            span.set(deletes=len(waiting))
        return len(waiting)

    async def delete_ranks(self, allocation: Allocation, ranks: Iterable[int]) -> int:
        """Delete the pods of some ranks of the current release, with their own grace period; return how many."""
        known = _released(allocation)
        names = [manifest.pod_name(allocation, rank) for rank in ranks]
        metas = [ObjectMeta(name=name, uid=known[name]) for name in names if name in known]
        await self._limiter.run_all([partial(self._delete, allocation, PODS, meta) for meta in metas])
        return len(metas)

    def _remember(self, allocation: Allocation, attempt: int) -> None:
        self._asked[allocation.metadata.uid] = attempt
        if len(self._asked) > ASKED_MAX:
            self._asked.popitem(last=False)

    async def _pods(self, allocation: Allocation, through: int, asked: int | None) -> Sequence[ObjectMeta]:
        if allocation.status.phase is Phase.TERMINATED and asked == through:
            # The API server accepted all deletes while the attempt was Terminating.
            return []
        known, count = _released(allocation), rank_count(allocation)
        if through * count <= BY_NAME_MAX:
            return await self._named_pods(allocation, through, looks=asked is not None)
        if through == 1 and len(known) == count and asked is None and not _was_terminating(allocation):
            ended = recorded(allocation)
            return [ObjectMeta(name=name, uid=uid) for name, uid in known.items() if uid not in ended]
        return await self._listed(PODS, allocation, through)

    async def _named_pods(self, allocation: Allocation, through: int, *, looks: bool) -> list[ObjectMeta]:
        """Return the pods by name, without a LIST. Pods of the current release are known by uid and need no read.

        With `looks`, the names of ended pods are read too: a create whose response was lost may have used a name again.
        """
        found: list[ObjectMeta] = []
        alloc = id_of(allocation)
        known, ended = _released(allocation), recorded(allocation)
        for attempt in range(1, through + 1):
            for rank in range(rank_count(allocation)):
                name = ids.pod_name(alloc, attempt, rank)
                if name in known and known[name] not in ended:
                    found.append(ObjectMeta(name=name, uid=known[name]))
                elif name not in known or looks:
                    found.extend(await self._own(PODS, allocation, name))
        return found

    async def _bundle(self, resource: Resource[Any], allocation: Allocation, through: int) -> list[ObjectMeta]:
        """Return the ConfigMaps, or the Services, of the attempts: one of each for an attempt."""
        if through > BY_NAME_MAX:
            return await self._listed(resource, allocation, through)
        found: list[ObjectMeta] = []
        for attempt in range(1, through + 1):
            name = ids.bundle_name(id_of(allocation), attempt)
            known = self._created.pop(resource, allocation.metadata.namespace, name)
            found.extend(await self._own(resource, allocation, name) if known is None else (known,))
        return found

    async def _own(self, resource: Resource[Any], allocation: Allocation, name: str) -> Iterable[ObjectMeta]:
        try:
            item = await self._kube.get(resource, name, namespace=allocation.metadata.namespace)
        except NotFoundError:
            return ()
        return (metadata_of(item),) if _is_to_delete(item, allocation) else ()

    async def _listed(self, resource: Resource[Any], allocation: Allocation, through: int) -> list[ObjectMeta]:
        uid = allocation.metadata.uid
        listed = await self._kube.list(
            resource, namespace=allocation.metadata.namespace, label_selector=f"{LABEL_ALLOCATION_UID}={uid}"
        )
        metas = (metadata_of(item) for item in listed.items if _is_to_delete(item, allocation))
        return [meta for meta in metas if attempt_of(meta) <= through]

    async def _delete(self, allocation: Allocation, resource: Resource[Any], meta: ObjectMeta) -> None:
        namespace = allocation.metadata.namespace
        try:
            await self._kube.delete(resource, meta.name, namespace=namespace, uid=meta.uid)
        except NotFoundError:
            return
        except StaleError:
            # Another object has the name by now: a late create of ours made it, or another program.
            for found in await self._own(resource, allocation, meta.name):
                if found.deletion_timestamp is None:
                    with contextlib.suppress(NotFoundError, StaleError):
                        await self._kube.delete(resource, found.name, namespace=namespace, uid=found.uid)


def _is_to_delete(item: Any, allocation: Allocation) -> bool:
    """Whether the object belongs to the allocation, and the pod worker has to delete it."""
    is_kept = isinstance(item, Pod) and waits_for_reader(item, allocation)
    return is_ours(metadata_of(item), allocation.metadata.uid) and not is_kept


def _was_terminating(allocation: Allocation) -> bool:
    """Whether the attempt was Terminating before it ended: its pods were deleted then, so a LIST finds few of them."""
    ring = allocation.status.transitions
    is_over = allocation.status.phase is Phase.TERMINATED
    return is_over and any(entry.phase is Phase.TERMINATING for entry in ring)


def _released(allocation: Allocation) -> dict[str, str]:
    """Return {pod name: uid} of the released ranks of the current attempt."""
    if not is_released(allocation):
        return {}
    released = (member for member in members(allocation) if member.pod_uid)
    return {manifest.pod_name(allocation, member.rank): member.pod_uid for member in released}
