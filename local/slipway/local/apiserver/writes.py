"""Writes: the order of checks from a client's object to a commit.

Owns create, replace and patch: decoding, fences, admission by the kind's strategy, validation, and the commit. The only
deletion here: a write that removes the last finalizer of an object under deletion removes the object too. Invariants: a
refused write changes nothing; a write without a change makes no commit; a committed object has passed its kind's
checks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from slipway.local.apiserver import decoding, deletion, limitranges, meta, patch, podadmission, quota, services, status
from slipway.local.apiserver.decoding import UndecodableError
from slipway.local.apiserver.fields import applying, ownership
from slipway.local.apiserver.fields.applying import Scopes
from slipway.local.apiserver.fields.ownership import APPLY, UNOWNED, UPDATE, Author, FieldScope, Ownership
from slipway.local.apiserver.objects import Json, clone, format_time, is_deleting, is_map, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.status import FieldCause, StatusError
from slipway.local.apiserver.store import ApiStore, ObjectVersion

_NAMESPACES = "namespaces"
_PODS = "pods"
INVALID = 422
_NAMELESS = "unknown"
ClaimsOf = Callable[[Json], Ownership]


class Patch(msgspec.Struct, frozen=True):
    """A patch document, its media type, and the subresource that it changes."""

    change: Any
    media: str
    subresource: str = ""


class StoreWriter:
    """Writes objects into one store."""

    def __init__(self, store: ApiStore, clock: Callable[[], float], new_uid: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._new_uid = new_uid
        self._scopes = Scopes()

    def record(self, kind: ResourceKind, namespace: str, name: str) -> ObjectVersion:
        """Return the stored version of an object, in the form of `kind`. Raises: StatusError 404."""
        found = self._store.find(kind.resource, namespace if kind.namespaced else "", name)
        if found is None:
            raise status.not_found(kind.resource, name)
        return kind.shown_record(found)

    def create(
        self, kind: ResourceKind, namespace: str, obj: Json, options: WriteOptions, claims: Ownership | None = None
    ) -> Json:
        """Create an object. Raises: StatusError 400, 403, 404, 409 AlreadyExists, 422.

        claims: the ownership of an object that an apply creates; None for other creates.
        """
        scope = self._scopes.of(kind)
        try:
            new = self._decode(kind, scope, namespace, obj, options)
        except StatusError as exc:
            if exc.code == INVALID:  # a real server reports a wrong namespace before an invalid object
                self.check_namespace(kind, namespace, str(metadata(obj).get("name", "")))
            raise
        meta_ = new["metadata"]
        version = meta_.pop("resourceVersion", None)
        self.check_namespace(kind, namespace, str(meta_.get("name", "")))
        uid = self._new_uid()
        if not meta_.get("name") and meta_.get("generateName"):
            meta_["name"] = meta_["generateName"] + meta.random_suffix(uid)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            meta_.pop(field, None)
        meta_["uid"] = uid
        meta_["creationTimestamp"] = format_time(self._clock())
        if kind.strategy.counts_generation:
            meta_["generation"] = 1
        sent = {**new, "metadata": dict(meta_), "spec": dict(new["spec"])} if is_map(new.get("spec")) else new
        if kind.resource == _PODS:
            limitranges.complete_pod(self._store, new, namespace)
        if meta_.get("name"):
            kind.strategy.prepare(new)
        podadmission.admit(self._store, kind.resource, new, namespace)
        self._refuse(kind, new, meta.validate(new, kind.strategy.name_form) + _own_causes(kind, new, None))
        if kind.resource == services.SERVICES:
            new = services.allocated(self._store, new, None)
        self._bound(kind, new, namespace)
        if version not in (None, "", "0"):
            if not options.dry_run:
                raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
            meta_["resourceVersion"] = version
        if self._store.find(kind.resource, meta_.get("namespace", ""), meta_["name"]) is not None:
            raise status.already_exists(kind.resource, meta_["name"])
        options.ownership = claims or UNOWNED.noted(scope, scope.empty, sent, _author(kind, options), self._now_text())
        if not options.dry_run:
            self._store.commit(kind.resource, "ADDED", kind.kept(new), options.ownership)
        return new

    def _bound(self, kind: ResourceKind, new: Json, namespace: str) -> None:
        """Check a new object against its namespace's LimitRanges and quotas. Raises: StatusError 403."""
        if kind.resource == limitranges.CLAIMS:
            limitranges.check_claim(self._store, new, namespace)
        if kind.resource == _PODS:
            limitranges.check_pod(self._store, new, namespace)
            quota.check_pod(self._store, new, namespace)

    def patch(self, kind: ResourceKind, namespace: str, name: str, wanted: Patch, options: WriteOptions) -> Json:
        """Patch an object. Raises: StatusError 400, 404, 409, 415, 422."""
        if wanted.media == patch.APPLY:
            return self._apply(kind, namespace, name, wanted, options)
        if kind.is_custom and wanted.media == patch.STRATEGIC:
            raise status.unsupported_media([patch.JSON, patch.MERGE, patch.APPLY])
        record = self.record(kind, namespace, name)
        shape = self._scopes.of(kind).shape
        base = record.ownership.shown_on(record.obj) if "managedFields" in str(wanted.change) else record.obj
        new = patch.apply_patch(wanted.media, base, wanted.change, shape)
        causes, uid = list[FieldCause](), metadata(new).get("uid")
        if uid not in (None, "", record.obj["metadata"]["uid"]):
            causes = [status.bad_value("metadata.uid", uid, "field is immutable")]
            new = {**new, "metadata": {**metadata(new), "uid": ""}}
        try:
            return self._put(kind, namespace, name, new, options, subresource=wanted.subresource, causes=causes)
        except UndecodableError as exc:
            shown = record.ownership.shown_on(new) if wanted.media != patch.STRATEGIC else wanted.change
            raise decoding.patch_refusal(str(exc), shown) from exc

    def put(
        self, kind: ResourceKind, namespace: str, name: str, obj: Json, options: WriteOptions, *, subresource: str = ""
    ) -> Json:
        """Replace the whole object, or the part of a subresource. Raises: StatusError 400, 404, 409, 422."""
        try:
            return self._put(kind, namespace, name, obj, options, subresource=subresource)
        except UndecodableError as exc:
            raise decoding.refusal(kind, str(exc)) from exc

    def _put(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        obj: Json,
        options: WriteOptions,
        *,
        subresource: str,
        causes: Sequence[FieldCause] = (),
    ) -> Json:
        """As `put`; `causes` are errors that the caller already found. Also raises UndecodableError."""
        scope = self._scopes.of(kind)
        found = self._store.find(kind.resource, namespace if kind.namespaced else "", name)
        if found is None and kind.strategy.allows_create_on_update and not subresource:
            return self.create(kind, namespace, _put_anew(kind, name, obj), options)
        new = decoding.decode(kind, scope.shape, namespace, obj, options)
        record = self.record(kind, namespace, name)
        if not metadata(new).get("name"):
            words = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
            raise status.bad_request(words)
        given = metadata(obj).get("managedFields") if "metadata" in obj else None
        before = record.ownership if subresource or given is None else _given(given, record.ownership)
        writer = _author(kind, options, subresource)

        def claims(after: Json) -> Ownership:
            if after == record.obj or not (before.has_pending or before.claims):
                return before
            return before.noted(scope, record.obj, after, writer, self._now_text())

        return self._replace(kind, record, new, options, subresource=subresource, claims=claims, causes=causes)

    def _apply(self, kind: ResourceKind, namespace: str, name: str, wanted: Patch, options: WriteOptions) -> Json:
        """Apply a document (server-side apply). Creates the object when it does not exist."""
        scope = self._scopes.of(kind)
        document = applying.check(kind, scope.shape, (namespace, name), wanted.change, options)
        found = self._store.find(kind.resource, namespace if kind.namespaced else "", name)
        if found is None and wanted.subresource:
            raise status.not_found(kind.resource, name)
        record = None if found is None else kind.shown_record(found)
        writer = _author(kind, options, wanted.subresource, operation=APPLY)
        applied = applying.apply(scope, record, document, writer, self._now_text(), force=options.force)
        try:
            if record is None:
                fresh: Json = {**applied.obj, "metadata": dict(metadata(applied.obj))}
                fresh["metadata"].pop("resourceVersion", None)
                return self.create(kind, namespace, fresh, options, applied.ownership)
            options.keeps_nulls = True
            new = decoding.decode(kind, scope.shape, namespace, applied.obj, options)
        except UndecodableError as exc:
            raise decoding.refusal(kind, str(exc)) from exc
        return self._replace(
            kind, record, new, options, subresource=wanted.subresource, claims=lambda _: applied.ownership
        )

    def _replace(
        self,
        kind: ResourceKind,
        record: ObjectVersion,
        new: Json,
        options: WriteOptions,
        *,
        subresource: str,
        claims: ClaimsOf,
        causes: Sequence[FieldCause] = (),
    ) -> Json:
        """Replace `record` by `new`. `claims` returns the ownership for the claimed object."""
        strategy, old = kind.strategy, record.obj
        sent = {**new, "spec": dict(new["spec"])} if is_map(new.get("spec")) else new
        self._check_fences(kind, new, old)
        meta.keep_server_fields(new["metadata"], old["metadata"])
        if subresource == "status":
            strategy.prepare_status(new, old)
        elif subresource != "finalize":
            strategy.prepare_update(new, old)
        if strategy.counts_generation and strategy.spec_changed(new, old):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        causes = [*causes, *meta.validate_update(new, old), *meta.validate(new, strategy.name_form)]
        self._refuse(kind, new, causes + strategy.check(new, old))
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        claimed = new if subresource else strategy.claimed(sent, new)
        if kind.resource == services.SERVICES and not subresource:
            new = services.allocated(self._store, new, old)
        options.ownership = claims(claimed)
        if claimed is not new:  # compute the claims now: the next write starts from `new`, not from `claimed`
            options.ownership = Ownership(options.ownership.claims)
        is_late = strategy.completes_late and record.is_first
        if new == old and options.ownership.same_as(record.ownership) and not is_late:
            return old
        if options.dry_run:
            return new
        if deletion.is_over(kind, new):
            # The answer is the new state with the old version. Watches receive the old state.
            self._store.commit(kind.resource, "DELETED", kind.kept(clone(old)))
        else:
            self._store.commit(kind.resource, "MODIFIED", kind.kept(new), options.ownership)
        return new

    def _decode(self, kind: ResourceKind, scope: FieldScope, namespace: str, obj: Any, options: WriteOptions) -> Json:
        try:
            return decoding.decode(kind, scope.shape, namespace, obj, options)
        except UndecodableError as exc:
            raise decoding.refusal(kind, str(exc)) from exc

    def _now_text(self) -> str:
        return format_time(self._clock())

    def check_namespace(self, kind: ResourceKind, namespace: str, name: str) -> None:
        """Check that objects can be created in the namespace. Raises: StatusError 403, 404."""
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
                raise status.invalid(kind.resource, current["name"], [cause])
        elif version != current["resourceVersion"]:
            raise status.modified(kind.resource, current["name"])

    def _refuse(self, kind: ResourceKind, new: Json, causes: Sequence[FieldCause]) -> None:
        if causes:
            raise status.invalid(kind.qualified, str(metadata(new).get("name", "")), causes)


def _own_causes(kind: ResourceKind, new: Json, old: Json | None) -> list[FieldCause]:
    """Return the errors that the kind's own checks find; an object without a name is not checked."""
    return kind.strategy.check(new, old) if metadata(new).get("name") else []


def _put_anew(kind: ResourceKind, name: str, obj: Json) -> Json:
    """Return the object that a replace of a missing object creates. Raises: StatusError 400, 409."""
    meta_ = {"name": name, **metadata(obj)}
    if meta_["name"] != name:
        words = f"the name of the object ({meta_['name']}) does not match the name on the URL ({name})"
        raise status.bad_request(words)
    if meta_.get("uid"):
        why = f"Precondition failed: UID in precondition: {meta_['uid']}, UID in object meta: "
        raise status.conflict(kind.resource, name, why)
    meta_.pop("resourceVersion", None)
    return {**obj, "metadata": meta_}


def _author(kind: ResourceKind, options: WriteOptions, subresource: str = "", *, operation: str = UPDATE) -> Author:
    name = options.writer or _NAMELESS
    return Author(name=name, operation=operation, api_version=kind.api_version, subresource=subresource)


def _given(entries: Any, current: Ownership) -> Ownership:
    """Return the ownership that the managed fields of a replace request.

    An empty list, or one empty entry, removes all claims. Entries that cannot be read change nothing.
    """
    if entries in ([], [{}]):
        return UNOWNED
    told = ownership.read(entries if isinstance(entries, list) else ())  # pyright: ignore[reportUnknownArgumentType]
    return told if told.claims else current
