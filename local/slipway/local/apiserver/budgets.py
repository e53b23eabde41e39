"""The controller of disruption budgets: updates their status when their pods change.

Owns the decision when a budget is checked again. Works through the core. Invariant: at rest it writes nothing.
"""

from typing import TYPE_CHECKING

from slipway.local.apiserver import disruption
from slipway.local.apiserver.disruption import BUDGETS, ScaleError
from slipway.local.apiserver.objects import Json, clone, mapping, owners_of, uid_of
from slipway.local.apiserver.store import Commit, ObjectKey, ObjectVersion

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

_PODS = "pods"
_SCALED = frozenset({"replicasets.apps", "deployments.apps", "statefulsets.apps", "replicationcontrollers"})


class Budgets:
    """Stores the namespaces whose budgets may be out of date, and the time at which a budget must be checked again."""

    def __init__(self, core: "ClusterCore") -> None:
        self._core = core
        self._pending: dict[str, None] = {}
        self._due: dict[ObjectKey, float] = {}

    def note(self, change: Commit) -> None:
        if change.resource == BUDGETS or (
            (change.resource == _PODS or change.resource in _SCALED) and self._core.store.count(BUDGETS, change.key[0])
        ):
            self._pending[change.key[0]] = None

    def run(self) -> None:
        now = self._core.clock()
        pending, self._pending = self._pending, {}
        keys = [key for key, due in self._due.items() if due <= now]
        records = [record for namespace in pending for record in self._core.store.scan(BUDGETS, namespace)]
        records += [found for key in keys if (found := self._core.store.find(BUDGETS, *key)) is not None]
        for record in records:
            self._sync(record, now)

    def _sync(self, record: ObjectVersion, now: float) -> None:
        meta = record.obj["metadata"]
        key = (meta["namespace"], meta["name"])
        found = [each.obj for each in self._core.store.scan(_PODS, key[0])]
        status, due = disruption.observe(record.obj, found, self._scale_of, now)
        self._due.pop(key, None)
        if due is not None:
            self._due[key] = due
        current = self._core.store.find(BUDGETS, *key)
        if current is not None and mapping(current.obj, "status") != status:
            self._core.commit_update(self._core.kind(BUDGETS), {**clone(current.obj), "status": status})

    def _scale_of(self, controller: Json, namespace: str) -> int:
        """Return the desired replicas of a controller. Raises: ScaleError; LookupError when it does not exist."""
        kind = self._core.registry.of_kind(str(controller.get("apiVersion")), str(controller.get("kind")))
        if kind is None:
            raise LookupError
        if kind.resource not in _SCALED:
            raise ScaleError(f"{kind.resource} does not implement the scale subresource")
        found = self._core.store.find(kind.resource, namespace, str(controller.get("name")))
        if found is None or uid_of(found.obj) != controller.get("uid"):
            raise LookupError
        above = next((owner for owner in owners_of(found.obj) if owner.get("controller") is True), None)
        if above is not None and kind.resource == "replicasets.apps":
            return self._scale_of(above, namespace)
        return int(mapping(found.obj, "spec").get("replicas", 1))
