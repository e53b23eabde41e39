"""The life of nodes: silent nodes lose their Ready condition, conditions become taints, and taints evict pods.

Owns those three steps. Works through the core, one explicit step at a time, and uses the core's clock. Invariants: a
node that never had a Lease is never treated as silent; a taint evicts a pod only when the pod does not tolerate it, or
its toleration has expired; taints with other keys are never removed.

Source: pkg/controller/nodelifecycle, pkg/controller/tainteviction, pkg/controller/podgc (behaviour, v1.37).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slipway.local.apiserver import disruption
from slipway.local.apiserver.objects import (
    Json,
    clone,
    format_time,
    is_deleting,
    listing,
    mapping,
    maps,
    uid_of,
)
from slipway.local.apiserver.options import DeleteOptions
from slipway.local.apiserver.pods import FINISHED_PHASES
from slipway.local.apiserver.store import Commit, ObjectKey

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

LEASES = "leases.coordination.k8s.io"
LEASE_NAMESPACE = "kube-node-lease"
SWEEP_S = 1.0
_PODS, _NODES = "pods", "nodes"
_PREFIX = "node.kubernetes.io/"
OUT_OF_SERVICE = f"{_PREFIX}out-of-service"
_WHEN_TRUE = {
    "MemoryPressure": "memory-pressure",
    "DiskPressure": "disk-pressure",
    "PIDPressure": "pid-pressure",
    "NetworkUnavailable": "network-unavailable",
}
_WHEN_NOT_READY = {"False": "not-ready", "Unknown": "unreachable"}
_SILENT = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_OURS = frozenset(_PREFIX + name for name in (*_WHEN_TRUE.values(), *_WHEN_NOT_READY.values(), "unschedulable"))
Bound = Mapping[str, Mapping[ObjectKey, None]]
"""{node: keys of the pods bound to it}."""


class NodeLife:
    """The controller of nodes. `grace_s`: maximum age in seconds of a node's last Lease update."""

    def __init__(self, core: "ClusterCore", bound: Bound, *, grace_s: float) -> None:
        self._core = core
        self._bound = bound
        self._grace_s = grace_s
        self._heard: dict[str, float] = {}
        self._changed: dict[str, None] = {}
        self._due: dict[ObjectKey, tuple[str, float, float]] = {}
        self._sweep_at = 0.0
        self._down = set[str]()

    def note(self, change: Commit) -> None:
        """Mark the nodes and pods that the next step must check."""
        name = change.key[1]
        if change.resource == _PODS:
            node = str(mapping(change.record.obj, "spec").get("nodeName") or "")
            if change.type == "DELETED":
                self._due.pop(change.key, None)
            elif node and self._has_strict_taints(node):
                self._changed[node] = None
        elif change.resource == _NODES:
            self._changed[name] = None
            if change.type == "DELETED":
                self._heard.pop(name, None)
        elif change.resource == LEASES and change.key[0] == LEASE_NAMESPACE and change.type != "DELETED":
            self._heard[name] = self._core.clock()

    def run(self) -> None:
        now = self._core.clock()
        if now >= self._sweep_at and self._heard:
            self._sweep_at = now + SWEEP_S
            for name, heard in self._heard.items():
                if now - heard > self._grace_s:
                    self._call_silent(name, now)
        changed, self._changed = self._changed, {}
        for name in changed:
            self._follow(name, now)
        for key, (uid, _, due) in list(self._due.items()):
            if due <= now:
                del self._due[key]
                self._evict(key, uid, now)

    def _node(self, name: str) -> Json | None:
        record = self._core.store.find(_NODES, "", name)
        return None if record is None or is_deleting(record.obj) else record.obj

    def _has_strict_taints(self, name: str) -> bool:
        node = self._node(name)
        return node is not None and bool(_strict(node))

    def _call_silent(self, name: str, now: float) -> None:
        """Set the conditions of a silent node to Unknown."""
        node = self._node(name)
        if node is None or _ready(node) == "Unknown":
            return
        new = clone(node)
        status = new.setdefault("status", {})
        old = {str(item.get("type")): item for item in maps(listing(status, "conditions"))}
        for type_ in _SILENT:
            changed = {
                "type": type_,
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": format_time(now),
            }
            old[type_] = {"lastHeartbeatTime": None, **old.get(type_, {}), **changed}
        status["conditions"] = list(old.values())
        self._core.commit_update(self._core.kind(_NODES), new)

    def _follow(self, name: str, now: float) -> None:
        """Update a node's taints from its conditions, and its pods' evictions from its taints."""
        node = self._node(name)
        if node is None:
            return
        taints = _tainted(node, format_time(now))
        if taints != listing(mapping(node, "spec"), "taints"):
            new = clone(node)
            new.setdefault("spec", {})["taints"] = taints
            if not taints:
                del new["spec"]["taints"]
            self._core.commit_update(self._core.kind(_NODES), new)
            node = new
        keys = list(self._bound.get(name, ()))
        if _ready(node) not in _WHEN_NOT_READY:
            self._down.discard(name)
        elif name not in self._down:
            self._down.add(name)
            for key in keys:
                self._mark_not_ready(key, now)
        for key in keys:
            self._follow_pod(key, node, now)

    def _follow_pod(self, key: ObjectKey, node: Json, now: float) -> None:
        record = self._core.store.find(_PODS, *key)
        if record is None:
            return
        pod, ready = record.obj, _ready(node)
        if is_deleting(pod):
            is_out = any(taint.get("key") == OUT_OF_SERVICE for taint in maps(listing(node["spec"], "taints")))
            if is_out and ready in _WHEN_NOT_READY:
                self._bury(key, pod)
            return
        patience_s = _patience(listing(mapping(pod, "spec"), "tolerations"), _strict(node))
        if patience_s is None:
            self._due.pop(key, None)
            return
        known = self._due.get(key)
        since = known[1] if known is not None and known[0] == uid_of(pod) else now
        self._due[key] = (uid_of(pod), since, since + patience_s)

    def _mark_not_ready(self, key: ObjectKey, now: float) -> None:
        """Mark a pod as not ready. This happens once per outage, because a living kubelet may report it ready again."""
        record = self._core.store.find(_PODS, *key)
        if record is None or not disruption.is_ready(record.obj):
            return
        new = clone(record.obj)
        for condition in maps(listing(new["status"], "conditions")):
            if condition.get("type") == "Ready":
                condition |= {"status": "False", "lastTransitionTime": format_time(now)}
        self._core.commit_update(self._core.kind(_PODS), new)

    def _bury(self, key: ObjectKey, pod: Json) -> None:
        """Fail and delete a pod at once, because its node's out-of-service taint states that the machine is gone."""
        if mapping(pod, "status").get("phase") not in FINISHED_PHASES:
            new = clone(pod)
            new["status"]["phase"] = "Failed"
            self._core.commit_update(self._core.kind(_PODS), new)
        self._core.delete(_PODS, *key, DeleteOptions(grace_period_s=0))

    def _evict(self, key: ObjectKey, uid: str, now: float) -> None:
        record = self._core.store.find(_PODS, *key)
        if record is None or uid_of(record.obj) != uid or is_deleting(record.obj):
            return
        words = "Taint manager: deleting due to NoExecute taint"
        marked = disruption.disrupted(record.obj, "DeletionByTaintManager", words, format_time(now))
        self._core.commit_update(self._core.kind(_PODS), marked)
        self._core.delete(_PODS, *key, DeleteOptions(uid=uid))


def _conditions(node: Json) -> dict[str, str]:
    conditions = maps(listing(mapping(node, "status"), "conditions"))
    return {str(item.get("type")): str(item.get("status")) for item in conditions}


def _ready(node: Json) -> str:
    return _conditions(node).get("Ready", "")


def _strict(node: Json) -> list[Json]:
    return [taint for taint in maps(listing(mapping(node, "spec"), "taints")) if taint.get("effect") == "NoExecute"]


def _tainted(node: Json, now_text: str) -> list[Json]:
    """Return the taints that the node should have: taints with other keys, and those of its own conditions."""
    conditions, spec = _conditions(node), mapping(node, "spec")
    wanted = [(name, "NoSchedule") for condition, name in _WHEN_TRUE.items() if conditions.get(condition) == "True"]
    if spec.get("unschedulable") is True:
        wanted.append(("unschedulable", "NoSchedule"))
    ready = conditions.get("Ready")
    if ready in _WHEN_NOT_READY:
        wanted += [(_WHEN_NOT_READY[ready], "NoSchedule"), (_WHEN_NOT_READY[ready], "NoExecute")]
    left = [(_PREFIX + name, effect) for name, effect in wanted]
    kept = list[Json]()
    for taint in maps(listing(spec, "taints")):
        pair = (str(taint.get("key")), str(taint.get("effect")))
        # A node without a Ready condition keeps the not-ready taint that it was created with.
        if pair[0] not in _OURS or pair in left or (ready is None and pair[0] == f"{_PREFIX}not-ready"):
            kept.append(taint)
            left = [each for each in left if each != pair]
    return kept + [{"key": key, "effect": effect, "timeAdded": now_text} for key, effect in left]


def _patience(tolerations: list[object], taints: list[Json]) -> float | None:
    """Return the seconds for which a pod tolerates the taints; None when it tolerates them forever."""
    if not taints:
        return None
    used = list[Json]()
    for taint in taints:
        matching = [toleration for toleration in maps(tolerations) if _tolerates(toleration, taint)]
        if not matching:
            return 0.0
        used += matching
    limits = [float(each["tolerationSeconds"]) for each in used if each.get("tolerationSeconds") is not None]
    return max(0.0, min(limits)) if limits else None


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == (taint.get("value") or "")
