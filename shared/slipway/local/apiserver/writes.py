"""Writes: the order of checks from a client's object to a commit.

Owns create, replace and patch: decoding, fences, admission by the kind's strategy, validation, and the commit. It
deletes nothing by itself, but an object whose last finalizer goes with a write goes with it. Invariants: a refused
write leaves no trace; a write that changes nothing is no write; what is committed has passed its kind's checks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from slipway.local.apiserver import deletion, meta, patch, quota, status
from slipway.local.apiserver.objects import Json, clone, format_time, is_deleting, is_map, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.status import Cause, StatusError
from slipway.local.apiserver.store import Record, Store

_NAMESPACES = "namespaces"
_PODS = "pods"


class Patch(msgspec.Struct, frozen=True):
    """A change, the media type that says how to read it, and the part of the object it is for."""

    change: Any
    media: str
    subresource: str = ""


class Writer:
    """Writes into one store."""

    def __init__(self, store: Store, clock: Callable[[], float], new_uid: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_uid = new_uid

    def record(self, kind: ResourceKind, namespace: str, name: str) -> Record:
        """Raises: StatusError 404."""
        found = self._store.find(kind.resource, namespace if kind.namespaced else "", name)
        if found is None:
            raise status.not_found(kind.resource, name)
        return kind.shown_record(found)

    def create(self, kind: ResourceKind, namespace: str, obj: Json, options: WriteOptions) -> Json:
        """Raises: StatusError 400, 403, 404, 409 AlreadyExists, 422."""
        new = self._decode(kind, namespace, obj, options)
        meta_ = new["metadata"]
        if meta_.pop("resourceVersion", None) not in (None, "", "0"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        self._check_namespace(kind, namespace, str(meta_.get("name", "")))
        uid = self._new_uid()
        if not meta_.get("name") and meta_.get("generateName"):
            meta_["name"] = meta_["generateName"] + meta.random_suffix(uid)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            meta_.pop(field, None)
        meta_["uid"] = uid
        meta_["creationTimestamp"] = format_time(self._clock())
        if kind.strategy.counts_generation:
            meta_["generation"] = 1
        if meta_.get("name"):
            kind.strategy.prepare(new)
        self._refuse(kind, new, meta.validate(new, kind.strategy.name_form) or kind.strategy.check(new, None))
        if kind.resource == _PODS:
            quota.check_pod(self._store, new, namespace)
        if self._store.find(kind.resource, meta_.get("namespace", ""), meta_["name"]) is not None:
            raise status.already_exists(kind.resource, meta_["name"])
        if not options.dry_run:
            self._store.commit(kind.resource, "ADDED", kind.kept(new))
        return new

    def patch(self, kind: ResourceKind, namespace: str, name: str, wanted: Patch, options: WriteOptions) -> Json:
        """Raises: StatusError 400, 404, 409, 415, 422."""
        media = wanted.media
        found = self._store.find(kind.resource, namespace if kind.namespaced else "", name)
        if media == patch.APPLY and found is None and not wanted.subresource:
            return self.create(kind, namespace, wanted.change, options)
        if kind.is_custom and media == patch.STRATEGIC:
            raise status.unsupported_media([patch.JSON, patch.MERGE, patch.APPLY])
        record = self.record(kind, namespace, name)
        if media == patch.APPLY and not kind.is_custom:
            media = patch.STRATEGIC
        new = patch.apply_patch(media, record.obj, wanted.change)
        if not metadata(new).get("resourceVersion"):
            new = {**new, "metadata": {**metadata(new), "resourceVersion": str(record.version)}}
        return self.put(kind, namespace, name, new, options, subresource=wanted.subresource)

    def put(
        self, kind: ResourceKind, namespace: str, name: str, obj: Json, options: WriteOptions, *, subresource: str = ""
    ) -> Json:
        """The whole object, or with a subresource that part of it. Raises: StatusError 400, 404, 409, 422."""
        strategy = kind.strategy
        new = self._decode(kind, namespace, obj, options)
        found = self._store.find(kind.resource, namespace if kind.namespaced else "", name)
        if found is None and strategy.allows_create_on_update and not subresource:
            return self.create(kind, namespace, {**new, "metadata": {**new["metadata"], "name": name}}, options)
        old = self.record(kind, namespace, name).obj
        self._check_fences(kind, new, old)
        meta.keep_server_fields(new["metadata"], old["metadata"])
        if subresource == "status":
            strategy.prepare_status(new, old)
        elif subresource != "finalize":
            strategy.prepare_update(new, old)
        if strategy.counts_generation and strategy.spec_changed(new, old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        causes = meta.validate_update(new, old) + meta.validate(new, strategy.name_form)
        self._refuse(kind, new, causes or strategy.check(new, old))
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if new == old:
            return old
        if not options.dry_run:
            self._store.commit(kind.resource, "DELETED" if deletion.is_over(kind, new) else "MODIFIED", kind.kept(new))
        return new

    def _decode(self, kind: ResourceKind, namespace: str, obj: Any, options: WriteOptions) -> Json:
        if not is_map(obj):
            raise status.bad_request("the body of the request is not an object")
        new: Json = {"apiVersion": kind.api_version, "kind": kind.kind, **clone(obj)}
        if (new["apiVersion"], new["kind"]) != (kind.api_version, kind.kind):
            got = f"{new['apiVersion']}, Kind={new['kind']}"
            words = f"the object provided is unrecognized (must be of type {kind.kind}): got {got}"
            raise status.bad_request(f"{words}, expected {kind.api_version}, Kind={kind.kind}")
        meta.check_shape(new)
        own = new["metadata"].get("namespace")
        if kind.namespaced:
            if own and own != namespace:
                words = "the namespace of the provided object does not match the namespace sent on the request"
                raise status.bad_request(words)
            new["metadata"]["namespace"] = namespace
        else:
            new["metadata"].pop("namespace", None)
        kind.strategy.decode(new, options)
        return new

    def _check_namespace(self, kind: ResourceKind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        found = self._store.find(_NAMESPACES, "", namespace)
        if found is None:
            raise status.not_found(_NAMESPACES, namespace)
        if is_deleting(found.obj):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
            raise status.forbidden(kind.resource, name, why, [{**cause, "field": "metadata.namespace"}])

    def _check_fences(self, kind: ResourceKind, new: Json, old: Json) -> None:
        wanted, current = metadata(new), metadata(old)
        if wanted.get("name") and wanted["name"] != current["name"]:
            words = f"the name of the object ({wanted['name']}) does not match the name on the URL ({current['name']})"
            raise status.bad_request(words)
        if wanted.get("uid") and wanted["uid"] != current["uid"]:
            why = f"Precondition failed: UID in precondition: {wanted['uid']}, UID in object meta: {current['uid']}"
            raise status.conflict(kind.resource, current["name"], why)
        version = wanted.get("resourceVersion")
        if version in (None, "", "0"):
            if not kind.strategy.allows_unconditional_update:
                cause = status.bad_value("metadata.resourceVersion", 0, "must be specified for an update")
                raise status.invalid(kind.qualified, current["name"], [cause])
        elif version != current["resourceVersion"]:
            raise status.modified(kind.resource, current["name"])

    def _refuse(self, kind: ResourceKind, new: Json, causes: Sequence[Cause]) -> None:
        if causes:
            raise status.invalid(kind.qualified, str(metadata(new).get("name", "")), causes)
