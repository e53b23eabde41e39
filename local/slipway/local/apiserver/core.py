"""The Kubernetes API server without IO: every verb a plain function call.

Owns the verbs. Knows no HTTP and no asyncio; time and uids are injected, so equal calls give
equal answers. It is both what the local cluster serves over HTTP and the model of Kubernetes in the simulation.
Invariants: one resourceVersion for everything; a stale version, uid or precondition never writes; nobody but
`run_controllers` acts on its own; all calls come from one thread.

Objects that come back are the stored ones: read them, never change them. Objects that go in are copied.
"""

from collections.abc import Callable, Sequence
from typing import Any

from slipway.local.apiserver import custom, deletion, paging, patch, pods, policy, status
from slipway.local.apiserver import eviction as evictions
from slipway.local.apiserver.builtin import builtin_kinds, pod_group_kinds
from slipway.local.apiserver.controllers import Controllers
from slipway.local.apiserver.events import ServedEvent, visible
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
from slipway.local.apiserver.store import ApiStore, ChangeType, Commit, CompactedError, ObjectVersion
from slipway.local.apiserver.validation import RuleTwins
from slipway.local.apiserver.writes import Patch, StoreWriter

__all__ = ["ClusterCore", "DeleteOptions", "Listing", "ServedEvent", "StatusError", "WriteOptions"]

SYSTEM_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_NAMESPACES = "namespaces"
_PODS = "pods"


class ClusterCore:
    """One cluster.

    clock: epoch seconds. new_uid: a fresh uid at each call. twins: the Python twins of the CEL rules that definitions
    may use; a definition with another rule is refused unless allow_unknown_rules. history_limit: changes kept per
    resource for watches. pod_gc_delay_s: how long a pod outlives its node. event_ttl_s: how long Events are kept.
    node_grace_s: how old a node's Lease may be before the node counts as silent.
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
        """From now on serves the groups of kube-scheduler, as a Kubernetes does where that is asked for."""
        self.registry.install(pod_group_kinds())

    def bootstrap(self) -> None:
        """Creates the system namespaces and the roles that are missing. A new cluster's history begins after that."""
        is_new = not self.store.resources()
        for name in SYSTEM_NAMESPACES:
            if self.store.find(_NAMESPACES, "", name) is None:
                self.create(_NAMESPACES, "", {"metadata": {"name": name}})
        policy.bootstrap(self)
        if is_new:
            self.store.start_at(self.store.version)

    def kind(self, resource: str) -> ResourceKind:
        """Raises: StatusError 404."""
        found = self.registry.get(resource)
        if found is None:
            raise status.no_such_path()
        return found

    def get(self, resource: str, namespace: str, name: str) -> Json:
        return self.record(self.kind(resource), namespace, name).obj

    def record(self, kind: ResourceKind, namespace: str, name: str) -> ObjectVersion:
        """Raises: StatusError 404."""
        return self._writer.record(kind, namespace, name)

    def list(self, resource: str, namespace: str | None = None, query: paging.ListQuery | None = None) -> Listing:
        """Namespace None means all. Raises: StatusError 400 (selector), 410 (continue or version too old)."""
        kind = self.kind(resource)
        return paging.read(self.store, kind, namespace if kind.namespaced else None, query or paging.ListQuery())

    def create(self, resource: str, namespace: str, obj: Json, options: WriteOptions | None = None) -> Json:
        """Raises: StatusError 400, 403, 404, 409 AlreadyExists, 422."""
        made = self._writer.create(self.kind(resource), namespace, obj, options or WriteOptions())
        if resource == _NAMESPACES:
            self.furnish(metadata(made)["name"])
        return made

    def update(self, resource: str, namespace: str, name: str, obj: Json, options: WriteOptions | None = None) -> Json:
        """PUT. Raises: StatusError 400, 404, 409 Conflict, 422."""
        return self._writer.put(self.kind(resource), namespace, name, obj, options or WriteOptions())

    def update_status(
        self, resource: str, namespace: str, name: str, obj: Json, options: WriteOptions | None = None
    ) -> Json:
        """PUT on /status: nothing but the status changes. Raises: as `update`."""
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
        """PATCH of one of the media types of `patch`; an apply creates what is missing. Raises: as `update`, 415."""
        patched = Patch(change, media, subresource)
        return self._writer.patch(self.kind(resource), namespace, name, patched, options or WriteOptions())

    def delete(self, resource: str, namespace: str, name: str, options: DeleteOptions | Json | None = None) -> Json:
        """Answers the object while it remains (and last), or a success Status. Raises: StatusError 404, 409."""
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
        """The last that is told of the object: what goes at once goes unmarked, but a pod is marked in any case."""
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
        """Stores a copy; `obj` gets its version."""
        change = self.store.commit(kind.resource, type, kind.kept(clone(obj)))
        obj["metadata"]["resourceVersion"] = str(change.version)

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
        self._writer.check_namespace(self.kind(_PODS), namespace, name)
        pods.check_binding(binding)
        record = self.record(self.kind(_PODS), namespace, name)
        bound = pods.bind(record.obj, binding, self._now_text())
        if not dry_run:
            self.store.commit(_PODS, "MODIFIED", bound)
        return status.success(code=201)

    def evict(self, namespace: str, name: str, eviction: Json, *, dry_run: bool = False) -> Json:
        """Lets a pod go if its disruption budget can spare it. Raises: StatusError 400, 404, 409, 429."""
        self._writer.check_namespace(self.kind(_PODS), namespace, name)
        return evictions.evict(self, namespace, name, eviction, dry_run=dry_run)

    def finalize(self, name: str, obj: Json) -> Json:
        """PUT on a namespace's /finalize: its spec.finalizers change."""
        return self._writer.put(self.kind(_NAMESPACES), "", name, obj, WriteOptions(), subresource="finalize")

    def watch_since(
        self, resource: str, version: int, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Sequence[ServedEvent]:
        """The events after `version` as a selecting watcher sees them. Raises: StatusError 410, 400."""
        kind = self.kind(resource)
        matches = selector(labels, fields, kind.readers)
        seen = (visible(change, namespace, matches) for change in self.changes_since(resource, version))
        return [event for event in seen if event is not None]

    def changes_since(self, resource: str, version: int) -> Sequence[Commit]:
        """Raises: StatusError 410 when `version` has left the history."""
        try:
            return self.store.changes_since(resource, version)
        except CompactedError as exc:
            raise status.expired(f"too old resource version: {version} ({exc.floor})") from exc

    def subscribe(self, subscriber: Callable[[Commit], None]) -> Callable[[], None]:
        """Calls `subscriber` at every commit; it must not write. The answer ends it."""
        return self.store.subscribe(subscriber)

    def furnish(self, namespace: str) -> None:
        """Gives a namespace the account that its pods run as unless they name another."""
        found = self.store.find(_NAMESPACES, "", namespace)
        is_open = found is not None and not is_deleting(found.obj)
        if is_open and self.store.find(ACCOUNTS, namespace, DEFAULT_ACCOUNT) is None:
            self._writer.create(self.kind(ACCOUNTS), namespace, {"metadata": {"name": DEFAULT_ACCOUNT}}, WriteOptions())

    def run_controllers(self) -> bool:
        """Garbage collection, namespaces, definitions, orphaned pods: one step. Whether anything changed."""
        return self.controllers.run()

    def settle(self, steps_max: int = 1000) -> None:
        """Runs the controllers until they have nothing to do."""
        for _ in range(steps_max):
            if not self.run_controllers():
                return

    def remove_finalizer(self, record: ObjectVersion, kind: ResourceKind, name: str) -> None:
        """For controllers: drops one finalizer, and the object with the last one."""
        new = clone(record.obj)
        new["metadata"]["finalizers"] = [item for item in metadata(new).get("finalizers", []) if item != name]
        self.commit_update(kind, new)

    def commit_update(self, kind: ResourceKind, new: Json) -> None:
        """For controllers: stores a new state without admission."""
        if not metadata(new).get("finalizers"):
            new["metadata"].pop("finalizers", None)
        found = self.store.find(kind.resource, str(metadata(new).get("namespace") or ""), metadata(new)["name"])
        if deletion.is_over(kind, new):
            self.store.commit(kind.resource, "DELETED", clone(found.obj) if found is not None else new)
        else:
            self.store.commit(kind.resource, "MODIFIED", new)

    def follow_definitions(self, change: Commit) -> None:
        """Serves, or stops serving, the kinds of a definition."""
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
