"""The Kubernetes API server without IO: every verb a plain function call.

Owns the order of checks of each verb. Knows no HTTP and no asyncio; time and uids are injected, so equal calls give
equal answers. It is both what the local cluster serves over HTTP and the model of Kubernetes in the simulation.
Invariants: one resourceVersion for everything; a stale version, uid or precondition never writes; a write that
changes nothing is no write; nobody but `run_controllers` acts on its own.

Objects that come back are the stored ones: read them, never change them. Objects that go in are copied.
"""

from collections.abc import Callable, Sequence
from typing import Any

from slipway.local.apiserver import custom, deletion, meta, paging, patch, pods, quota, status
from slipway.local.apiserver.builtin import builtin_kinds
from slipway.local.apiserver.controllers import Controllers
from slipway.local.apiserver.events import WatchEvent, visible
from slipway.local.apiserver.objects import (
    Json,
    clone,
    format_time,
    is_deleting,
    is_map,
    mapping,
    metadata,
    uid_of,
)
from slipway.local.apiserver.options import DeleteOptions, WriteOptions, read_delete_options
from slipway.local.apiserver.paging import Listing
from slipway.local.apiserver.registry import Registry, ResourceKind
from slipway.local.apiserver.selectors import selector
from slipway.local.apiserver.status import Cause, StatusError
from slipway.local.apiserver.store import Change, CompactedError, Record, Store
from slipway.local.apiserver.validation import RuleTwins

__all__ = ["ClusterCore", "DeleteOptions", "Listing", "StatusError", "WatchEvent", "WriteOptions"]

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_NAMESPACES = "namespaces"
_PODS = "pods"


class ClusterCore:
    """One cluster.

    clock: epoch seconds. new_uid: a fresh uid at each call. twins: the Python twins of the CEL rules that definitions
    may use; a definition with another rule is refused unless allow_unknown_rules. history_limit: changes kept per
    resource for watches. pod_gc_delay_s: how long a pod outlives its node. event_ttl_s: how long Events are kept.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        new_uid: Callable[[], str],
        twins: RuleTwins | None = None,
        allow_unknown_rules: bool = False,
        history_limit: int = 10_000,
        pod_gc_delay_s: float = 60.0,
        event_ttl_s: float = 3600.0,
    ) -> None:
        self.store = Store(history_limit)
        self.clock = clock
        self._new_uid = new_uid
        self._twins = twins or {}
        definitions = custom.DefinitionStrategy(self._twins, self._now_text, allow_unknown_rules=allow_unknown_rules)
        self.registry = Registry(builtin_kinds(definitions))
        self.store.subscribe(self._follow_definitions)
        self.controllers = Controllers(self, pod_gc_delay_s=pod_gc_delay_s, event_ttl_s=event_ttl_s)

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self.store.version

    def bootstrap(self) -> None:
        """Creates the system namespaces that are missing."""
        for name in SYSTEM_NAMESPACES:
            if self.store.find(_NAMESPACES, "", name) is None:
                self.create(_NAMESPACES, "", {"metadata": {"name": name}})

    def kind(self, resource: str) -> ResourceKind:
        """Raises: StatusError 404."""
        found = self.registry.get(resource)
        if found is None:
            raise status.no_such_path()
        return found

    def get(self, resource: str, namespace: str, name: str) -> Json:
        return self.record(self.kind(resource), namespace, name).obj

    def record(self, kind: ResourceKind, namespace: str, name: str) -> Record:
        """Raises: StatusError 404."""
        found = self.store.find(kind.resource, namespace if kind.namespaced else "", name)
        if found is None:
            raise status.not_found(kind.resource, name)
        return found

    def list(self, resource: str, namespace: str | None = None, query: paging.ListQuery | None = None) -> Listing:
        """Namespace None means all. Raises: StatusError 400 (selector), 410 (continue or version too old)."""
        kind = self.kind(resource)
        return paging.read(self.store, kind, namespace if kind.namespaced else None, query or paging.ListQuery())

    def create(self, resource: str, namespace: str, obj: Json, options: WriteOptions | None = None) -> Json:
        """Raises: StatusError 400, 403, 404, 409 AlreadyExists, 422."""
        kind = self.kind(resource)
        options = options or WriteOptions()
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
        meta_["creationTimestamp"] = self._now_text()
        if kind.strategy.counts_generation:
            meta_["generation"] = 1
        if meta_.get("name"):
            kind.strategy.prepare(new)
        self._refuse(kind, new, meta.validate(new, kind.strategy.name_form) or kind.strategy.check(new, None))
        if kind.resource == _PODS:
            quota.check_pod(self.store, new, namespace)
        if self.store.find(kind.resource, meta_.get("namespace", ""), meta_["name"]) is not None:
            raise status.already_exists(kind.resource, meta_["name"])
        if not options.dry_run:
            self.store.commit(kind.resource, "ADDED", new)
        return new

    def update(self, resource: str, namespace: str, name: str, obj: Json, options: WriteOptions | None = None) -> Json:
        """PUT. Raises: StatusError 400, 404, 409 Conflict, 422."""
        return self._put(self.kind(resource), namespace, name, obj, options or WriteOptions(), subresource="")

    def update_status(
        self, resource: str, namespace: str, name: str, obj: Json, options: WriteOptions | None = None
    ) -> Json:
        """PUT on /status: nothing but the status changes. Raises: as `update`."""
        return self._put(self.kind(resource), namespace, name, obj, options or WriteOptions(), subresource="status")

    def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        change: Any,
        *,
        media: str = patch.MERGE,
        subresource: str = "",
        options: WriteOptions | None = None,
    ) -> Json:
        """PATCH of one of the media types of `patch`; an apply creates what is missing. Raises: as `update`, 415."""
        kind = self.kind(resource)
        options = options or WriteOptions()
        found = self.store.find(kind.resource, namespace if kind.namespaced else "", name)
        if media == patch.APPLY and found is None and not subresource:
            return self.create(resource, namespace, change, options)
        if kind.is_custom and media == patch.STRATEGIC:
            raise status.unsupported_media([patch.JSON, patch.MERGE, patch.APPLY])
        record = self.record(kind, namespace, name)
        if media == patch.APPLY and not kind.is_custom:
            media = patch.STRATEGIC
        new = patch.apply_patch(media, record.obj, change)
        wanted = metadata(new).get("resourceVersion")
        if not wanted:
            new = {**new, "metadata": {**metadata(new), "resourceVersion": str(record.version)}}
        return self._put(kind, namespace, name, new, options, subresource=subresource)

    def delete(self, resource: str, namespace: str, name: str, options: DeleteOptions | Json | None = None) -> Json:
        """Answers the object while it remains (and last), or a success Status. Raises: StatusError 404, 409."""
        kind = self.kind(resource)
        record = self.record(kind, namespace, name)
        wanted = options if isinstance(options, DeleteOptions) else read_delete_options(options or {})
        planned = deletion.plan(kind, record.obj, wanted, self.clock())
        if planned.changes and not wanted.dry_run:
            self.store.commit(kind.resource, "DELETED" if planned.removes else "MODIFIED", planned.obj)
        if planned.removes and not kind.strategy.returns_deleted:
            details = {"name": name, "kind": kind.plural, "uid": uid_of(record.obj)}
            return status.success({**details, "group": kind.group} if kind.group else details)
        return planned.obj

    def delete_collection(
        self,
        resource: str,
        namespace: str | None,
        query: paging.ListQuery | None = None,
        options: DeleteOptions | None = None,
    ) -> Sequence[Json]:
        """Deletes what a list with the same query answers; the objects as they were."""
        found = self.list(resource, namespace, query).items
        for obj in found:
            self.delete(resource, str(metadata(obj).get("namespace") or ""), metadata(obj)["name"], options)
        return found

    def bind(self, namespace: str, name: str, binding: Json, *, dry_run: bool = False) -> Json:
        """Assigns a pod to a node. Raises: StatusError 404, 409."""
        record = self.record(self.kind(_PODS), namespace, name)
        bound = pods.bind(record.obj, binding, self._now_text())
        if not dry_run:
            self.store.commit(_PODS, "MODIFIED", bound)
        return status.success(code=201)

    def evict(self, namespace: str, name: str, eviction: Json) -> Json:
        """Deletes a pod as the eviction's options ask (there are no disruption budgets here)."""
        self.delete(_PODS, namespace, name, mapping(eviction, "deleteOptions"))
        return status.success(code=201)

    def finalize(self, name: str, obj: Json) -> Json:
        """PUT on a namespace's /finalize: its spec.finalizers change."""
        return self._put(self.kind(_NAMESPACES), "", name, obj, WriteOptions(), subresource="finalize")

    def watch_since(
        self, resource: str, version: int, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Sequence[WatchEvent]:
        """The events after `version` as a selecting watcher sees them. Raises: StatusError 410, 400."""
        kind = self.kind(resource)
        matches = selector(labels, fields, kind.readers)
        seen = (visible(change, namespace, matches) for change in self.changes_since(resource, version))
        return [event for event in seen if event is not None]

    def changes_since(self, resource: str, version: int) -> Sequence[Change]:
        """Raises: StatusError 410 when `version` has left the history."""
        try:
            return self.store.changes_since(resource, version)
        except CompactedError as exc:
            raise status.expired(f"too old resource version: {version} ({exc.floor})") from exc

    def subscribe(self, subscriber: Callable[[Change], None]) -> Callable[[], None]:
        """Calls `subscriber` at every commit; it must not write. The answer ends it."""
        return self.store.subscribe(subscriber)

    def run_controllers(self) -> bool:
        """Garbage collection, namespaces, definitions, orphaned pods: one step. Whether anything changed."""
        return self.controllers.run()

    def settle(self, steps_max: int = 1000) -> None:
        """Runs the controllers until they have nothing to do."""
        for _ in range(steps_max):
            if not self.run_controllers():
                return

    def remove_finalizer(self, record: Record, kind: ResourceKind, name: str) -> None:
        """For controllers: drops one finalizer, and the object with the last one."""
        new = clone(record.obj)
        new["metadata"]["finalizers"] = [item for item in metadata(new).get("finalizers", []) if item != name]
        self.commit_update(kind, new)

    def commit_update(self, kind: ResourceKind, new: Json) -> None:
        """For controllers: stores a new state without admission."""
        if not metadata(new).get("finalizers"):
            new["metadata"].pop("finalizers", None)
        self.store.commit(kind.resource, "DELETED" if deletion.is_over(kind, new) else "MODIFIED", new)

    def _put(
        self, kind: ResourceKind, namespace: str, name: str, obj: Json, options: WriteOptions, *, subresource: str
    ) -> Json:
        strategy = kind.strategy
        new = self._decode(kind, namespace, obj, options)
        found = self.store.find(kind.resource, namespace if kind.namespaced else "", name)
        if found is None and strategy.allows_create_on_update and not subresource:
            return self.create(
                kind.resource, namespace, {**new, "metadata": {**new["metadata"], "name": name}}, options
            )
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
            self.store.commit(kind.resource, "DELETED" if deletion.is_over(kind, new) else "MODIFIED", new)
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
        found = self.store.find(_NAMESPACES, "", namespace)
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

    def _follow_definitions(self, change: Change) -> None:
        if change.resource == custom.CRD_RESOURCE:
            self.follow_definition(change)

    def follow_definition(self, change: Change) -> None:
        """Serves, or stops serving, the kinds of a definition."""
        resource = change.key[1]
        self.registry.remove(resource)
        if change.type == "DELETED":
            self.store.forget(resource)
        else:
            self.registry.install(custom.read_kinds(change.record.obj, self._twins))

    def _now_text(self) -> str:
        return format_time(self.clock())
