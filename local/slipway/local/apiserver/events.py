"""Watch events as one watcher sees them.

Owns the translation of a commit for a watcher with a namespace and selectors. Pure. Invariant: an object that leaves
the selection is reported as DELETED in its last selected state, at the version of the change that made it leave.

Source: staging/src/k8s.io/apiserver/pkg/storage/cacher, convertToWatchEvent (behaviour).
"""

import msgspec

from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.selectors import Predicate
from slipway.local.apiserver.store import ChangeType, Commit


class ServedEvent(msgspec.Struct):
    """`change` is the commit behind the event; `obj` may differ from its record when the selection is left."""

    type: ChangeType
    obj: Json
    version: int
    change: Commit

    @property
    def line(self) -> bytes:
        """The event on the wire."""
        if self.type == self.change.type and self.obj is self.change.record.obj:
            return self.change.line
        return b'{"type":"' + self.type.encode() + b'","object":' + msgspec.json.encode(self.obj) + b"}\n"


def visible(change: Commit, namespace: str | None, matches: Predicate | None) -> ServedEvent | None:
    """The event that a watcher gets for a commit, None for none."""
    if namespace is not None and change.key[0] != namespace:
        return None
    obj = change.record.obj
    if matches is None:
        return ServedEvent(change.type, obj, change.version, change)
    was = change.previous is not None and matches(change.previous.obj)
    if change.type == "DELETED":
        return ServedEvent("DELETED", obj, change.version, change) if was else None
    if matches(obj):
        return ServedEvent("MODIFIED" if was else "ADDED", obj, change.version, change)
    if was and change.previous is not None:
        last = change.previous.obj
        gone = {**last, "metadata": {**last["metadata"], "resourceVersion": str(change.version)}}
        return ServedEvent("DELETED", gone, change.version, change)
    return None
