"""Watch events as one watch receives them.

Owns the translation of a commit for a watch with a namespace and selectors. Pure. Invariant: an object that no longer
matches the selectors is reported as DELETED in its last matching state, at the version of the change.

Source: staging/src/k8s.io/apiserver/pkg/storage/cacher, convertToWatchEvent (behaviour).
"""

import msgspec

from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.selectors import Predicate
from slipway.local.apiserver.store import ChangeType, Commit


class ServedEvent(msgspec.Struct):
    """One watch event. `change` is its commit; `obj` differs from the commit's record when it no longer matches."""

    type: ChangeType
    obj: Json
    version: int
    change: Commit

    @property
    def line(self) -> bytes:
        """The event as sent to the client: one line of JSON."""
        if self.type == self.change.type and self.obj is self.change.record.obj:
            return self.change.line
        return b'{"type":"' + self.type.encode() + b'","object":' + msgspec.json.encode(self.obj) + b"}\n"


def visible(change: Commit, namespace: str | None, matches: Predicate | None) -> ServedEvent | None:
    """Return the event that a watch receives for a commit, or None when it receives none."""
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
