"""Volumes of the local cluster: every claim is bound at once, as by a provisioner with unlimited storage.

Owns the binding of claims. A local node stores a claim's files in its own folder, so no PersistentVolume object with
the volume's name exists. Works only through the core.
"""

from typing import TYPE_CHECKING

from slipway.local.apiserver.objects import Json, clone, is_deleting, mapping, uid_of
from slipway.local.apiserver.store import Commit, ObjectKey

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
