"""Restores a backup: creates missing objects, leaves existing ones as they are, and reports the result for each.

This module owns the order and the form of the writes. First an allocation is created with its spec. Then its observed
status is written. Its cancel, if it had one, is written last, because the rules of the API server require that order.
No service may run during a restore: between the first two writes, an old allocation looks like a new one.

Each write is repeated after a failure. An object that needs a second write and does not get it is deleted again. If
that fails too, the next restore completes the object.

Afterwards the services act on the restored status. Ended allocations stay as they are. Waiting allocations are planned.
For a running allocation no pod is found, so its attempt ends and the next one begins.

A cluster gives each object a new uid, and the AllocationID contains the uid. So the id changes. The old id is stored in
an annotation, by which the api finds the allocation.

A backup has no secret values of launches. An unfinished allocation with such values could not run, so it is restored as
cancelled, and the result states this.
"""

import contextlib
from collections.abc import Awaitable
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from slipway.crd.meta import ANNOTATION_FORMER_IDS, LABEL_WORKSPACE, ObjectMeta, RawObject
from slipway.crd.transitions import requested
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import AlreadyExistsError, ControlPlaneError, NotFoundError, StaleError, TransientError
from slipway.kube.ports import Creates, Deletes, Gets, Lists, Patches, ReplacesStatus
from slipway.kube.resources import LEASES
from slipway.model.ids import allocation_id
from slipway.model.lifecycle import Phase
from slipway.model.position import default_position
from slipway.model.times import parse_time
from slipway.ops.backup import backup
from slipway.ops.backup.backup import BackupLine, BackupObject
from slipway.runtime.clock import Clock

QUIET_S = 5.0
"""Seconds between two reads of the leases; a holder renews its lease at least every four seconds."""
TRIES = 5
PAUSE_S = 0.5


class RestoreOutcome(StrEnum):
    """The result for one object."""

    RESTORED = "restored"
    PRESENT = "already exists"
    LABELLED = "labelled as a workspace"
    LEFT_OUT = "left out"
    FAILED = "failed"


class RestoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object of the backup. `why` is set when it was not simply restored."""

    kind: str
    namespace: str
    name: str
    done: RestoreOutcome
    why: str = ""


class Kube(Gets, Lists, Creates, Patches, ReplacesStatus, Deletes, Protocol):
    """The calls to Kubernetes."""


class RestoreJob:
    """Restores one backup. With `is_dry`, it only reports what it would do."""

    def __init__(self, kube: Kube, clock: Clock, namespace: str, *, is_dry: bool = False) -> None:
        self._kube = kube
        self._clock = clock
        self._namespace = namespace
        self._is_dry = is_dry
        self._uids: dict[str, str] = {}
        """{uid in the backup: uid in this cluster}."""
        self._ending: set[str] = set()
        """Namespaces that were being deleted when the backup was taken, with all their objects."""

    async def running(self) -> list[str]:
        """Return the leases of running services: those that are renewed between two reads."""
        before = await self._leases()
        if not before:
            return []
        await self._clock.sleep(QUIET_S)
        after = await self._leases()
        return sorted(name for name, version in before.items() if after.get(name, version) != version)

    async def restore(self, lines: list[BackupLine]) -> list[RestoredObject]:
        """Restore every object in the order of the backup. A failure is reported, and the other objects are still
        restored.
        """
        return [await self._put(line) for line in lines]

    async def _leases(self) -> dict[str, str]:
        listed = await self._kube.list(LEASES, namespace=self._namespace)
        return {item.metadata.name: item.metadata.resource_version for item in listed.items}

    async def _put(self, line: BackupLine) -> RestoredObject:
        meta = line.object.metadata
        resource = backup.RESOURCES.get(line.kind)
        if resource is None:
            return _outcome(line, RestoreOutcome.FAILED, "this command does not know the kind")
        if meta.deletion_timestamp:
            if line.kind == backup.WORKSPACES.kind:
                self._ending.add(meta.name)
            return _outcome(line, RestoreOutcome.LEFT_OUT, "it was being deleted")
        if meta.namespace in self._ending:
            return _outcome(line, RestoreOutcome.LEFT_OUT, "its namespace was being deleted")
        try:
            found = await self._find(resource, meta)
            if found is not None:
                self._uids[meta.uid] = found.metadata.uid
                return await self._present(line, resource, found)
            if self._is_dry:
                return _outcome(line, RestoreOutcome.RESTORED, _lost_values(line.object))
            return await self._create(line, resource)
        except AlreadyExistsError:
            return _outcome(line, RestoreOutcome.PRESENT)
        except ControlPlaneError as error:
            return _outcome(line, RestoreOutcome.FAILED, str(error))

    async def _present(self, line: BackupLine, resource: Any, found: BackupObject) -> RestoredObject:
        """Keep an existing object. Only a namespace gets the label of a workspace, as the setup does, a pool the epoch
        of its ledger, and an allocation of an interrupted restore its status.
        """
        if line.kind == backup.kind_of(backup.KEPT_POOLS) and (status := _continued(line.object, found)):
            if not self._is_dry:
                await self._write_status(resource, found, status)
            return _outcome(line, RestoreOutcome.PRESENT, f"its ledger continues at epoch {status['epoch']}")
        if line.kind == backup.kind_of(backup.KEPT_ALLOCATIONS) and _is_unfinished(line.object, found):
            lost = _lost_values(line.object)
            if not self._is_dry:
                await self._finish(line.object, found, is_cancelled=bool(lost))
            return _outcome(line, RestoreOutcome.RESTORED, lost or "an earlier restore created it without its status")
        is_unlabelled = found.metadata.labels.get(LABEL_WORKSPACE) != "true"
        if line.kind != backup.WORKSPACES.kind or not is_unlabelled:
            return _outcome(line, RestoreOutcome.PRESENT)
        if not self._is_dry:
            annotations = {**line.object.metadata.annotations, **found.metadata.annotations}
            patch: RawObject = {"metadata": {"labels": {LABEL_WORKSPACE: "true"}, "annotations": annotations}}
            await self._kube.patch(backup.KEPT_NAMESPACES, found.metadata.name, patch)
        return _outcome(line, RestoreOutcome.LABELLED)

    async def _create(self, line: BackupLine, resource: Any) -> RestoredObject:
        kept = line.object
        if line.kind == backup.kind_of(backup.KEPT_ALLOCATIONS):
            lost = _lost_values(kept)
            made = await self._made(resource, self._allocation(kept))
            await self._whole(resource, made, self._finish(kept, made, is_cancelled=bool(lost)))
            self._uids[kept.metadata.uid] = made.metadata.uid
            return _outcome(line, RestoreOutcome.RESTORED, lost)
        body = msgspec.to_builtins(kept)
        body.pop("status", None)
        body["metadata"] = self._meta(kept.metadata)
        if line.kind == backup.WORKSPACES.kind:
            body.pop("spec", None)
        made = await self._made(resource, body)
        if line.kind == backup.kind_of(backup.KEPT_POOLS) and (status := _continued(kept, made)):
            await self._whole(resource, made, self._write_status(resource, made, status))
        self._uids[kept.metadata.uid] = made.metadata.uid
        return _outcome(line, RestoreOutcome.RESTORED)

    async def _made(self, resource: Any, body: RawObject) -> BackupObject:
        """Create an object, with retries.

        The caller found none of that name, and no service runs. So after a lost answer, an object of that name is ours.
        """
        for left in reversed(range(TRIES)):
            try:
                made: BackupObject = await self._kube.create(resource, body)
                return made
            except AlreadyExistsError:
                found = await self._find(resource, msgspec.convert(body["metadata"], ObjectMeta))
                if left == TRIES - 1 or found is None:
                    raise
                return found
            except TransientError:
                if not left:
                    raise
                await self._clock.sleep(PAUSE_S)
        raise AssertionError

    async def _whole(self, resource: Any, made: BackupObject, rest: Awaitable[None]) -> None:
        """Await the other writes of an object. If one fails, the object is deleted again, because it would be taken for
        a new one: an allocation would run, and a ledger would begin with its first epoch.
        """
        try:
            await rest
        except ControlPlaneError:
            await self._forget(resource, made)
            raise

    def _allocation(self, kept: BackupObject) -> RawObject:
        """Return the allocation to create: it is not cancelled yet."""
        meta = self._meta(kept.metadata)
        former = [id_ for id_ in kept.metadata.annotations.get(ANNOTATION_FORMER_IDS, "").split(",") if id_]
        former.append(_id(kept))
        meta["annotations"] = {**kept.metadata.annotations, ANNOTATION_FORMER_IDS: ",".join(former)}
        meta["finalizers"] = list(kept.metadata.finalizers)
        spec = dict(kept.spec)
        spec.pop("desired", None)
        if kept.status.get("phase", Phase.PENDING) == Phase.PENDING and not spec.get("queuePosition"):
            created = parse_time(kept.metadata.creation_timestamp) if kept.metadata.creation_timestamp else 0.0
            spec["queuePosition"] = default_position(created, kept.metadata.uid)
        return {"metadata": meta, "spec": spec}

    async def _finish(self, kept: BackupObject, made: BackupObject, *, is_cancelled: bool) -> None:
        """Write the status of an allocation, then its cancel."""
        if status := _status(kept):
            await self._write_status(backup.KEPT_ALLOCATIONS, made, status)
        if is_cancelled or kept.spec.get("desired", "Running") == "Stopped":
            patch: RawObject = {"spec": {"desired": "Stopped"}}
            name, where = made.metadata.name, made.metadata.namespace
            await self._surely(lambda: self._kube.patch(backup.KEPT_ALLOCATIONS, name, patch, namespace=where))

    async def _write_status(self, resource: Any, made: BackupObject, status: RawObject) -> None:
        """Write a status, with retries. After a lost answer the version may be ours, so it is read again."""
        fence = _fence(made)
        for left in reversed(range(TRIES)):
            try:
                await self._kube.replace_status(resource, {"metadata": fence, "spec": made.spec, "status": status})
                return
            except (TransientError, StaleError):
                if not left:
                    raise
                await self._clock.sleep(PAUSE_S)
            with contextlib.suppress(TransientError):
                found = await self._kube.get(resource, made.metadata.name, namespace=made.metadata.namespace or None)
                fence = {**fence, "resourceVersion": found.metadata.resource_version}

    async def _forget(self, resource: Any, made: BackupObject) -> None:
        name, namespace = made.metadata.name, made.metadata.namespace or None
        patch: RawObject = {"metadata": {"finalizers": None}}
        with contextlib.suppress(NotFoundError):
            if made.metadata.finalizers:
                await self._surely(lambda: self._kube.patch(resource, name, patch, namespace=namespace))
            await self._surely(lambda: self._kube.delete(resource, name, namespace=namespace, uid=made.metadata.uid))

    async def _surely(self, write: Any) -> None:
        """Call an idempotent write, with retries."""
        for left in reversed(range(TRIES)):
            try:
                await write()
                return
            except TransientError:
                if not left:
                    raise
                await self._clock.sleep(PAUSE_S)

    async def _find(self, resource: Any, meta: ObjectMeta) -> BackupObject | None:
        try:
            found: BackupObject = await self._kube.get(resource, meta.name, namespace=meta.namespace or None)
        except NotFoundError:
            return None
        return found

    def _meta(self, kept: ObjectMeta) -> RawObject:
        """Return the metadata that clients set. Owner references are kept only for restored owners, with their new
        uids.
        """
        owners = [
            {**msgspec.to_builtins(each), "uid": self._uids[each.uid]}
            for each in kept.owner_references
            if each.uid in self._uids
        ]
        meta: RawObject = {"name": kept.name, "labels": kept.labels, "annotations": kept.annotations}
        if kept.namespace:
            meta["namespace"] = kept.namespace
        if owners:
            meta["ownerReferences"] = owners
        return meta


def _lost_values(kept: BackupObject) -> str:
    """Return why an allocation is restored as cancelled: it would wait for secret values. Empty when it is not."""
    names = ", ".join(kept.spec.get("secretVariables") or ())
    if not names or kept.status.get("phase") == Phase.TERMINATED:
        return ""
    return f"cancelled: the backup has no secret values ({names}); launch it again with them"


def _status(kept: BackupObject) -> RawObject:
    """Return its status. A missing birth transition is derived from the object."""
    status = dict(kept.status)
    if status and not status.get("transitions"):
        allocation = msgspec.convert(msgspec.to_builtins(kept), Allocation)
        status["transitions"] = [msgspec.to_builtins(requested(allocation))]
        status["seq"] = max(1, int(status.get("seq") or 0))
    return status


def _id(kept: BackupObject) -> str:
    return allocation_id(kept.metadata.name, kept.metadata.uid)


def _is_unfinished(kept: BackupObject, found: BackupObject) -> bool:
    """Whether a restore created the allocation and did not write its status, and no service has seen it since."""
    former = found.metadata.annotations.get(ANNOTATION_FORMER_IDS, "").split(",")
    return _id(kept) in former and bool(kept.status) and not found.status.get("transitions")


def _continued(kept: BackupObject, found: BackupObject) -> RawObject:
    """Return the status with which the ledger of a pool continues its epochs; empty when its epoch is not below that of
    the backup. The decisions of the backup are dropped, because their pods do not exist.
    """
    if kept.status.get("epoch", 0) <= found.status.get("epoch", 0):
        return {}
    ticks = [each.status["tick"] for each in (kept, found) if "tick" in each.status]
    return {**found.status, "epoch": kept.status["epoch"], **({"tick": max(ticks)} if ticks else {})}


def _fence(made: BackupObject) -> RawObject:
    meta = made.metadata
    found: RawObject = {"name": meta.name, "resourceVersion": meta.resource_version, "uid": meta.uid}
    return {**found, "namespace": meta.namespace} if meta.namespace else found


def _outcome(line: BackupLine, done: RestoreOutcome, why: str = "") -> RestoredObject:
    meta = line.object.metadata
    return RestoredObject(kind=line.kind, namespace=meta.namespace, name=meta.name, done=done, why=why)
