"""The controllers of the cluster: garbage collection, namespaces, definitions, nodes, quotas, budgets, claims, Events.

Decides when dependents, the contents of namespaces and leftovers are deleted. Works only through the core, one
explicit step at a time and in a fixed order, so that the simulation decides when a step runs. Invariants: the garbage
collector deletes no object that has a living owner; in a Terminating namespace pods are deleted first, and other
content only when no pod remains; an owner is absent only when no object of its kind, name and uid exists.

Every volume claim is bound at once, as by a provisioner with unlimited storage. A local node stores a claim's files in
its own folder, so no PersistentVolume object with the volume's name exists.
"""

from itertools import islice
from typing import TYPE_CHECKING

from slipway.local.apiserver import custom, deletion, disruption, quota, rbac
from slipway.local.apiserver.disruption import Budgets
from slipway.local.apiserver.nodelife import NodeLife
from slipway.local.apiserver.objects import (
    Json,
    clone,
    finalizers_of,
    format_time,
    is_deleting,
    listing,
    mapping,
    metadata,
    namespace_of,
    owners_of,
    uid_of,
)
from slipway.local.apiserver.options import DeleteOptions
from slipway.local.apiserver.podadmission import ACCOUNTS
from slipway.local.apiserver.podgroups import GroupProtection
from slipway.local.apiserver.pods import FINISHED_PHASES
from slipway.local.apiserver.rbac import CLUSTER_ROLES
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.store import Commit, ObjectKey, ObjectVersion

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore


CLAIMS = "persistentvolumeclaims"


class Volumes:
    """The controller that binds claims. Stores the claims that changed since the last step."""

    def __init__(self, core: "ClusterCore") -> None:
        self._core = core
        self._waiting: dict[ObjectKey, None] = {}

    def note(self, change: Commit) -> None:
        """Mark a changed claim for the next step."""
        if change.resource == CLAIMS and change.type != "DELETED":
            self._waiting[change.key] = None

    def run(self) -> None:
        """Bind the marked claims that are not bound yet."""
        waiting, self._waiting = self._waiting, {}
        kind = self._core.registry.get(CLAIMS)
        for key in waiting:
            record = self._core.store.find(CLAIMS, *key)
            if kind is not None and record is not None and not _is_bound(record.obj) and not is_deleting(record.obj):
                self._core.commit_update(kind, _bound(record.obj))


def _is_bound(claim: Json) -> bool:
    return mapping(claim, "status").get("phase") == "Bound"


def _bound(claim: Json) -> Json:
    bound: Json = clone(claim)
    spec, status = bound.setdefault("spec", {}), bound.setdefault("status", {})
    spec.setdefault("volumeName", f"pvc-{uid_of(claim)}")
    status["phase"] = "Bound"
    status["accessModes"] = list(spec.get("accessModes") or ["ReadWriteOnce"])
    status["capacity"] = dict(mapping(mapping(spec, "resources"), "requests"))
    return bound


_BACKGROUND = DeleteOptions(propagation="Background")
_EVENTS_PER_STEP = 100
Entry = tuple[str, ObjectKey]


class Controllers:
    """Records the objects that changed since the last step, and handles them in the next step.

    A core that is restored from disk marks all its objects once.
    """

    def __init__(self, core: "ClusterCore", *, pod_gc_delay_s: float, event_ttl_s: float, node_grace_s: float) -> None:
        self._core = core
        self._store = core.store
        self._pod_gc_delay_s = pod_gc_delay_s
        self._event_ttl_s = event_ttl_s
        self._owned: dict[Entry, None] = {}
        self._deleting: dict[Entry, None] = {}
        self._quotas: dict[str, None] = {}
        self._bound: dict[str, dict[ObjectKey, None]] = {}
        self._lost: dict[str, float] = {}
        self._budgets = Budgets(core)
        self._nodes = NodeLife(core, self._bound, grace_s=node_grace_s)
        self._volumes = Volumes(core)
        self._groups = GroupProtection(core)
        self._roles_changed = True
        self._bare: dict[str, None] = {}
        self._events: dict[ObjectKey, float] = {}
        core.store.subscribe(self.note)

    def note(self, change: Commit) -> None:
        """Mark the objects that the next step must check."""
        entry = (change.resource, change.key)
        obj = change.record.obj
        if change.type == "DELETED":
            for dependent in self._store.dependents.get(uid_of(obj), ()):
                self._owned[dependent] = None
            self._deleting.pop(entry, None)
            for owner in owners_of(obj):
                self._recheck_owner(owner, namespace_of(obj))
        else:
            if metadata(obj).get("ownerReferences"):
                self._owned[entry] = None
            if is_deleting(obj):
                self._deleting[entry] = None
        self._budgets.note(change)
        self._nodes.note(change)
        self._volumes.note(change)
        self._groups.note(change)
        if change.resource == "pods":
            self._note_pod(change)
        elif change.resource == "events":
            self._events.pop(change.key, None)
            if change.type != "DELETED":
                self._events[change.key] = self._core.clock()
        elif change.resource == "nodes":
            self._note_node(change)
        elif change.resource in (deletion.NAMESPACES, ACCOUNTS):
            self._bare[change.key[0] or change.key[1]] = None
        elif change.resource == CLUSTER_ROLES:
            self._roles_changed = True
        elif change.resource == "resourcequotas":
            self._quotas[change.key[0]] = None

    def run(self) -> bool:
        """Run one step. Return whether it changed an object."""
        before = self._store.version
        self._collect_owned()
        self._finish_deletions()
        self._collect_pods()
        self._nodes.run()
        self._expire_events()
        self._update_quotas()
        self._budgets.run()
        self._volumes.run()
        self._groups.run()
        bare, self._bare = self._bare, {}
        for namespace in bare:
            self._core.create_default_account(namespace)
        if self._roles_changed:
            self._roles_changed = False
            rbac.aggregate(self._core)
        return self._store.version != before

    def _note_pod(self, change: Commit) -> None:
        self._quotas[change.key[0]] = None
        node = str(mapping(change.record.obj, "spec").get("nodeName") or "")
        if not node:
            return
        if change.type == "DELETED":
            self._bound.get(node, {}).pop(change.key, None)
            return
        self._bound.setdefault(node, {})[change.key] = None
        if self._store.find("nodes", "", node) is None:
            self._lost.setdefault(node, self._core.clock())

    def _note_node(self, change: Commit) -> None:
        name = change.key[1]
        if change.type != "DELETED":
            self._lost.pop(name, None)
        elif self._bound.get(name):
            self._lost.setdefault(name, self._core.clock())

    def _recheck_owner(self, owner: Json, namespace: str) -> None:
        """Mark an owner in foreground deletion, which may have waited for a dependent that is now deleted."""
        kind = self._core.registry.of_kind(str(owner.get("apiVersion")), str(owner.get("kind")))
        if kind is not None:
            key = (namespace if kind.namespaced else "", str(owner.get("name")))
            found = self._store.find(kind.resource, *key)
            if found is not None and is_deleting(found.obj):
                self._deleting[kind.resource, key] = None

    def _collect_owned(self) -> None:
        pending, self._owned = self._owned, {}
        for resource, key in pending:
            kind = self._core.registry.get(resource)
            record = self._store.find(resource, *key)
            if kind is None or record is None:
                continue
            owners = owners_of(record.obj)
            living = [owner for owner in owners if self._lives(owner, key[0])]
            if not owners or len(living) == len(owners):
                continue
            if living:
                new = clone(record.obj)
                new["metadata"]["ownerReferences"] = living
                self._core.commit_update(kind, new)
            elif not is_deleting(record.obj):
                options = DeleteOptions(uid=uid_of(record.obj), propagation=_policy(record.obj))
                self._core.delete(resource, *key, options)

    def _lives(self, owner: Json, namespace: str) -> bool:
        kind = self._core.registry.of_kind(str(owner.get("apiVersion")), str(owner.get("kind")))
        if kind is None:
            return True
        found = self._store.find(kind.resource, namespace if kind.namespaced else "", str(owner.get("name")))
        return found is not None and uid_of(found.obj) == owner.get("uid")

    def _finish_deletions(self) -> None:
        for resource, key in list(self._deleting):
            kind = self._core.registry.get(resource)
            record = self._store.find(resource, *key)
            if kind is None or record is None:
                self._deleting.pop((resource, key), None)
                continue
            finalizers = finalizers_of(record.obj)
            if deletion.ORPHAN in finalizers:
                self._orphan(kind, record)
            elif deletion.FOREGROUND in finalizers:
                self._delete_dependents_first(kind, record)
            elif resource == deletion.NAMESPACES:
                self._empty_namespace(kind, record)
            elif custom.CLEANUP_FINALIZER in finalizers:
                self._empty_definition(kind, record)
            else:
                self._deleting.pop((resource, key), None)

    def _orphan(self, kind: ResourceKind, record: ObjectVersion) -> None:
        uid = uid_of(record.obj)
        for resource, key in list(self._store.dependents.get(uid, ())):
            dependent_kind, dependent = self._core.registry.get(resource), self._store.find(resource, *key)
            if dependent_kind is None or dependent is None:
                continue
            new = clone(dependent.obj)
            new["metadata"]["ownerReferences"] = [owner for owner in owners_of(new) if owner.get("uid") != uid]
            if not new["metadata"]["ownerReferences"]:
                del new["metadata"]["ownerReferences"]
            self._core.commit_update(dependent_kind, new)
        self._core.remove_finalizer(record, kind, deletion.ORPHAN)

    def _delete_dependents_first(self, kind: ResourceKind, record: ObjectVersion) -> None:
        uid = uid_of(record.obj)
        blocking = False
        for resource, key in list(self._store.dependents.get(uid, ())):
            dependent = self._store.find(resource, *key)
            if dependent is None:
                continue
            if not is_deleting(dependent.obj):
                self._core.delete(resource, *key, DeleteOptions(propagation="Foreground" if resource != "pods" else ""))
                dependent = self._store.find(resource, *key)
            if dependent is not None:
                owners = [owner for owner in owners_of(dependent.obj) if owner.get("uid") == uid]
                blocking = blocking or any(owner.get("blockOwnerDeletion") is True for owner in owners)
        if not blocking:
            self._core.remove_finalizer(record, kind, deletion.FOREGROUND)

    def _empty_namespace(self, kind: ResourceKind, record: ObjectVersion) -> None:
        namespace = str(metadata(record.obj)["name"])
        self._delete_all("pods", namespace)
        if self._store.count("pods", namespace):
            return
        resources = [each.resource for each in self._core.registry.storage_kinds() if each.namespaced]
        for resource in resources:
            self._delete_all(resource, namespace)
        if any(self._store.count(resource, namespace) for resource in resources):
            return
        new = clone(record.obj)
        new["spec"]["finalizers"] = [
            name for name in listing(mapping(new, "spec"), "finalizers") if name != "kubernetes"
        ]
        if new != record.obj:
            self._core.commit_update(kind, new)

    def _empty_definition(self, kind: ResourceKind, record: ObjectVersion) -> None:
        resource = str(metadata(record.obj)["name"])
        self._delete_all(resource, None)
        if not self._store.count(resource):
            self._core.remove_finalizer(record, kind, custom.CLEANUP_FINALIZER)

    def _delete_all(self, resource: str, namespace: str | None) -> None:
        for record in self._store.scan(resource, namespace):
            if not is_deleting(record.obj):
                self._core.delete(resource, namespace_of(record.obj), metadata(record.obj)["name"], _BACKGROUND)

    def _collect_pods(self) -> None:
        now = self._core.clock()
        for node, since in list(self._lost.items()):
            if now - since >= self._pod_gc_delay_s:
                for key in list(self._bound.pop(node, ())):
                    self._collect_pod(key)
                self._lost.pop(node, None)

    def _collect_pod(self, key: ObjectKey) -> None:
        """Fail and delete a pod whose node no longer exists, because no kubelet will report its end."""
        record = self._store.find("pods", *key)
        if record is None:
            return
        if mapping(record.obj, "status").get("phase") not in FINISHED_PHASES:
            words = "PodGC: node no longer exists"
            new = disruption.disrupted(record.obj, "DeletionByPodGC", words, format_time(self._core.clock()))
            new["status"]["phase"] = "Failed"
            self._core.commit_update(self._core.kind("pods"), new)
        if not is_deleting(record.obj) or metadata(record.obj).get("deletionGracePeriodSeconds"):
            self._core.delete("pods", *key, DeleteOptions(grace_period_s=0))

    def _expire_events(self) -> None:
        """Delete Events whose last write is older than the time to live."""
        horizon = self._core.clock() - self._event_ttl_s
        for key, written in list(islice(self._events.items(), _EVENTS_PER_STEP)):
            if written > horizon:
                return
            self._core.delete("events", *key)

    def _update_quotas(self) -> None:
        pending, self._quotas = self._quotas, {}
        kind = self._core.kind("resourcequotas")
        for namespace in pending:
            for record in self._store.scan("resourcequotas", namespace):
                shown = quota.observed(self._store, record.obj)
                if record.obj.get("status") != shown:
                    self._core.commit_update(
                        kind, {**record.obj, "status": shown, "metadata": dict(record.obj["metadata"])}
                    )


def _policy(obj: Json) -> str:
    finalizers = finalizers_of(obj)
    if deletion.ORPHAN in finalizers:
        return "Orphan"
    return "Foreground" if deletion.FOREGROUND in finalizers else "Background"
