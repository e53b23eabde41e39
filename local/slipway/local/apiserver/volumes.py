"""Volumes of the local cluster: every claim gets one at once, as from a provisioner that never runs out.

Owns the binding of claims. A local node keeps a claim's files in a folder of its own, so there is no object behind the
volume's name. Works only through the core.
"""

from typing import TYPE_CHECKING

from slipway.local.apiserver.objects import Json, clone, is_deleting, mapping, uid_of
from slipway.local.apiserver.store import Commit, ObjectKey

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

CLAIMS = "persistentvolumeclaims"


class Volumes:
    """Remembers the claims that changed since the last step."""

    def __init__(self, core: "ClusterCore") -> None:
        self._core = core
        self._waiting: dict[ObjectKey, None] = {}

    def note(self, change: Commit) -> None:
        """Marks a claim that has no volume yet."""
        if change.resource == CLAIMS and change.type != "DELETED":
            self._waiting[change.key] = None

    def run(self) -> None:
        """Binds what waits."""
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
