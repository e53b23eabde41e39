"""The Kubernetes API server without IO: every verb is a plain function call.

Owns the verbs. Knows no HTTP and no asyncio. Time and uids are injected, so equal calls return equal answers. The local
cluster serves this core over HTTP, and the simulation uses it as its model of Kubernetes. Invariants: all objects share
one resourceVersion counter; a write with a stale version, uid or precondition changes nothing; objects change without a
caller's verb only in `run_controllers`; all calls come from one thread.

Returned objects are the stored objects: callers read them and never change them. Objects passed in are copied.
"""

from collections.abc import Callable, Sequence
from typing import Any

from slipway.local.apiserver import custom, deletion, paging, patch, pods, rbac, status
from slipway.local.apiserver import disruption as evictions
from slipway.local.apiserver.builtin import builtin_kinds, pod_group_kinds
from slipway.local.apiserver.controllers import Controllers
from slipway.local.apiserver.objects import (
    Json,
    clone,
    format_time,
    is_deleting,
    metadata,
    uid_of,
)
from slipway.local.apiserver.options import DeleteOptions, WriteOptions, read_delete_options
from slipway.local.apiserver.paging import Listing
from slipway.local.apiserver.podadmission import ACCOUNTS, DEFAULT_ACCOUNT
from slipway.local.apiserver.registry import KindRegistry, ResourceKind
from slipway.local.apiserver.selectors import selector
from slipway.local.apiserver.status import StatusError
from slipway.local.apiserver.store import (
    ApiStore,
    ChangeType,
    Commit,
    CompactedError,
    ObjectVersion,
    ServedEvent,
    visible,
)
from slipway.local.apiserver.structural import RuleTwins
from slipway.local.apiserver.writes import Patch, StoreWriter

__all__ = ["ClusterCore", "DeleteOptions", "Listing", "ServedEvent", "StatusError", "WriteOptions"]

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_NAMESPACES = "namespaces"
_PODS = "pods"


class ClusterCore:
    """One cluster.

    clock: epoch seconds. new_uid: a fresh uid at each call. twins: the Python twins of the CEL rules that definitions
    may use; a definition with another rule is refused unless allow_unknown_rules. history_limit: number of changes
    stored per resource for watches. pod_gc_delay_s: seconds from the loss of a node to the deletion of its pods.
    event_ttl_s: lifetime of an Event in seconds. node_grace_s: age in seconds of a node's Lease from which the node
    is treated as silent.
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
        node_grace_s: float = 40.0,
    ) -> None:
        self.store = ApiStore(history_limit)
        self.clock = clock
        self._twins = twins or {}
        definitions = custom.DefinitionStrategy(self._twins, self._now_text, allow_unknown_rules=allow_unknown_rules)
        self.registry = KindRegistry(builtin_kinds(definitions))
        self._writer = StoreWriter(self.store, clock, new_uid)
        self.store.subscribe(self.follow_definitions)
        self.controllers = Controllers(
            self, pod_gc_delay_s=pod_gc_delay_s, event_ttl_s=event_ttl_s, node_grace_s=node_grace_s
        )

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        return self.store.version

    def serve_pod_groups(self) -> None:
        """Serve the PodGroups of kube-scheduler from now on. In Kubernetes this API is optional too."""
        self.registry.install(pod_group_kinds())

    def bootstrap(self) -> None:
        """Create the missing system namespaces and roles. The history of a new cluster begins after these writes."""
        is_new = not self.store.resources()
        for name in SYSTEM_NAMESPACES:
            if self.store.find(_NAMESPACES, "", name) is None:
                self.create(_NAMESPACES, "", {"metadata": {"name": name}})
        rbac.bootstrap(self)
        if is_new:
            self.store.start_at(self.store.version)

    def kind(self, resource: str) -> ResourceKind:
        """Return the kind of a resource. Raises: StatusError 404."""
        found = self.registry.get(resource)
        if found is None:
            raise status.no_such_path()
        return found

    def get(self, resource: str, namespace: str, name: str) -> Json:
        return self.record(self.kind(resource), namespace, name).obj

    def record(self, kind: ResourceKind, namespace: str, name: str) -> ObjectVersion:
        """Return the stored version of an object. Raises: StatusError 404."""
        return self._writer.record(kind, namespace, name)

    def list(self, resource: str, namespace: str | None = None, query: paging.ListQuery | None = None) -> Listing:
        """Return a list of objects; namespace None means all.

        Raises: StatusError 400 (selector), 410 (continue or version too old).
        """
        kind = self.kind(resource)
        return paging.read(self.store, kind, namespace if kind.namespaced else None, query or paging.ListQuery())

    def create(self, resource: str, namespace: str, obj: Json, options: WriteOptions | None = None) -> Json:
        """POST. Raises: StatusError 400, 403, 404, 409 AlreadyExists, 422."""
        made = self._writer.create(self.kind(resource), namespace, obj, options or WriteOptions())
        if resource == _NAMESPACES:
            self.create_default_account(metadata(made)["name"])
        return made

    def update(self, resource: str, namespace: str, name: str, obj: Json, options: WriteOptions | None = None) -> Json:
        """PUT. Raises: StatusError 400, 404, 409 Conflict, 422."""
        return self._writer.put(self.kind(resource), namespace, name, obj, options or WriteOptions())

    def update_status(
        self, resource: str, namespace: str, name: str, obj: Json, options: WriteOptions | None = None
    ) -> Json:
        """PUT on /status: changes only the status. Raises: as `update`."""
        kind = self.kind(resource)
        return self._writer.put(kind, namespace, name, obj, options or WriteOptions(), subresource="status")

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
        """PATCH with one of the media types of `patch`. An apply creates a missing object. Raises: as `update`, 415."""
        patched = Patch(change, media, subresource)
        return self._writer.patch(self.kind(resource), namespace, name, patched, options or WriteOptions())

    def delete(self, resource: str, namespace: str, name: str, options: DeleteOptions | Json | None = None) -> Json:
        """DELETE. Return the object while it still exists, else a success Status. Raises: StatusError 404, 409.

        Kinds with `returns_deleted` return the object in both cases.
        """
        asked = self.kind(resource)
        kind = self.kind(asked.resource)
        record = self.record(kind, namespace, name)
        wanted = options if isinstance(options, DeleteOptions) else read_delete_options(options or {})
        planned = deletion.plan(kind, record.obj, wanted, self.clock())
        left = self._carry_out(kind, record, planned, dry_run=wanted.dry_run)
        if planned.removes and not kind.strategy.returns_deleted:
            details = {"name": name, "kind": kind.plural, "uid": uid_of(record.obj)}
            return status.success({**details, "group": kind.group} if kind.group else details)
        return asked.shown(left)

    def _carry_out(
        self, kind: ResourceKind, record: ObjectVersion, planned: deletion.Deletion, *, dry_run: bool
    ) -> Json:
        """Store the result of a delete, and return the object as the watches see it last.

        An object that is removed at once gets no deletion mark. A pod is always marked before it is removed.
        """
        marks = ("deletionTimestamp", "deletionGracePeriodSeconds")
        is_new = any(metadata(planned.obj).get(mark) != metadata(record.obj).get(mark) for mark in marks)
        is_marked = not planned.removes or (kind.strategy.is_graceful and is_new)
        left = clone(planned.obj if is_marked else record.obj)
        if dry_run or not planned.changes:
            return left
        if is_marked:
            self._commit(kind, "MODIFIED", left)
        if planned.removes:
            self._commit(kind, "DELETED", left)
        return left

    def _commit(self, kind: ResourceKind, type: ChangeType, obj: Json) -> None:
        """Store a copy of `obj`, and set the new resourceVersion on `obj`."""
        change = self.store.commit(kind.resource, type, kind.kept(clone(obj)))
        obj["metadata"]["resourceVersion"] = str(change.version)

    def delete_collection(
        self,
        resource: str,
        namespace: str | None,
        query: paging.ListQuery | None = None,
        options: DeleteOptions | None = None,
    ) -> Sequence[Json]:
        """Delete the objects that a list with the same query returns. Return them as they were before."""
        found = self.list(resource, namespace, query).items
        for obj in found:
            self.delete(resource, str(metadata(obj).get("namespace") or ""), metadata(obj)["name"], options)
        return found

    def bind(self, namespace: str, name: str, binding: Json, *, dry_run: bool = False) -> Json:
        """Assign a pod to a node. Raises: StatusError 404, 409."""
        self._writer.check_namespace(self.kind(_PODS), namespace, name)
        pods.check_binding(binding)
        record = self.record(self.kind(_PODS), namespace, name)
        bound = pods.bind(record.obj, binding, self._now_text())
        if not dry_run:
            self.store.commit(_PODS, "MODIFIED", bound)
        return status.success(code=201)

    def evict(self, namespace: str, name: str, eviction: Json, *, dry_run: bool = False) -> Json:
        """Evict a pod if its disruption budget allows it. Raises: StatusError 400, 404, 409, 429."""
        self._writer.check_namespace(self.kind(_PODS), namespace, name)
        return evictions.evict(self, namespace, name, eviction, dry_run=dry_run)

    def finalize(self, name: str, obj: Json) -> Json:
        """PUT on a namespace's /finalize: changes its spec.finalizers."""
        return self._writer.put(self.kind(_NAMESPACES), "", name, obj, WriteOptions(), subresource="finalize")

    def watch_since(
        self, resource: str, version: int, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Sequence[ServedEvent]:
        """Return the events after `version` for a watch with these selectors. Raises: StatusError 410, 400."""
        kind = self.kind(resource)
        matches = selector(labels, fields, kind.readers)
        seen = (visible(change, namespace, matches) for change in self.changes_since(resource, version))
        return [event for event in seen if event is not None]

    def changes_since(self, resource: str, version: int) -> Sequence[Commit]:
        """Return the commits after `version`. Raises: StatusError 410 when `version` is older than the history."""
        try:
            return self.store.changes_since(resource, version)
        except CompactedError as exc:
            raise status.expired(f"too old resource version: {version} ({exc.floor})") from exc

    def subscribe(self, subscriber: Callable[[Commit], None]) -> Callable[[], None]:
        """Call `subscriber` at every commit; it must not write. The returned function ends the subscription."""
        return self.store.subscribe(subscriber)

    def create_default_account(self, namespace: str) -> None:
        """Create a namespace's default service account, which its pods use unless they name another account."""
        found = self.store.find(_NAMESPACES, "", namespace)
        is_open = found is not None and not is_deleting(found.obj)
        if is_open and self.store.find(ACCOUNTS, namespace, DEFAULT_ACCOUNT) is None:
            self._writer.create(self.kind(ACCOUNTS), namespace, {"metadata": {"name": DEFAULT_ACCOUNT}}, WriteOptions())

    def run_controllers(self) -> bool:
        """Run one step of all controllers. Return whether it changed an object."""
        return self.controllers.run()

    def settle(self, steps_max: int = 1000) -> None:
        """Run the controllers until a step changes nothing, at most `steps_max` steps."""
        for _ in range(steps_max):
            if not self.run_controllers():
                return

    def remove_finalizer(self, record: ObjectVersion, kind: ResourceKind, name: str) -> None:
        """For controllers: remove one finalizer. With its last finalizer an object under deletion is removed too."""
        new = clone(record.obj)
        new["metadata"]["finalizers"] = [item for item in metadata(new).get("finalizers", []) if item != name]
        self.commit_update(kind, new)

    def commit_update(self, kind: ResourceKind, new: Json) -> None:
        """For controllers: store a new state without admission."""
        if not metadata(new).get("finalizers"):
            new["metadata"].pop("finalizers", None)
        found = self.store.find(kind.resource, str(metadata(new).get("namespace") or ""), metadata(new)["name"])
        if deletion.is_over(kind, new):
            self.store.commit(kind.resource, "DELETED", clone(found.obj) if found is not None else new)
        else:
            self.store.commit(kind.resource, "MODIFIED", new)

    def follow_definitions(self, change: Commit) -> None:
        """Start or stop serving the kinds of a definition that has changed."""
        if change.resource != custom.CRD_RESOURCE:
            return
        resource = change.key[1]
        self.registry.remove(resource)
        if change.type == "DELETED":
            self.store.forget(resource)
        else:
            if change.type == "ADDED":
                self.store.serve(resource, change.version)
            self.registry.install(custom.read_kinds(change.record.obj, self._twins))

    def _now_text(self) -> str:
        return format_time(self.clock())
