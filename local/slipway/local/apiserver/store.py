"""Versions, objects, history: the counterpart of etcd and of the watch cache in a real server.

Owns the one resourceVersion counter, the current objects, the bounded history per resource, and the index of owners.
Knows no rule of any kind, because the caller of `commit` has checked the object. Invariants: the version rises by one
with every commit; the objects of a resource at any version still in its history can be rebuilt by undoing the later
changes; subscribers receive every change once, in order, before `commit` returns, and do not write.

A watch with a namespace and selectors receives a translation of each commit. Invariant: an object that no longer
matches the selectors is reported as DELETED in its last matching state, at the version of the change.

Source: staging/src/k8s.io/apiserver/pkg/storage/cacher, convertToWatchEvent (behaviour).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from typing import Literal

import msgspec

from slipway.local.apiserver.fields.ownership import UNOWNED, Ownership
from slipway.local.apiserver.objects import Json, name_of, namespace_of, owners_of
from slipway.local.apiserver.selectors import Predicate

ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]
ObjectKey = tuple[str, str]
"""(namespace, name); the namespace is empty for cluster-scoped objects."""


class ObjectVersion(msgspec.Struct):
    """One version of one object. Its JSON is encoded at most once. `ownership`: the field managers of its fields."""

    obj: Json
    version: int
    ownership: Ownership = UNOWNED
    encoded: bytes = b""
    shown: bytes = b""
    is_first: bool = False
    """Whether the object has not been written since its creation."""

    @property
    def raw(self) -> bytes:
        """The object without its managed fields."""
        if not self.encoded:
            self.encoded = msgspec.json.encode(self.obj)
        return self.encoded

    @property
    def whole(self) -> bytes:
        """The object as sent to clients, with its managed fields."""
        if not self.shown:
            self.shown = msgspec.json.encode(self.ownership.shown_on(self.obj))
        return self.shown


class Commit(msgspec.Struct):
    """One commit. `record` is the state after it (for DELETED the last state, at the version of the deletion)."""

    version: int
    type: ChangeType
    resource: str
    key: ObjectKey
    record: ObjectVersion
    previous: ObjectVersion | None
    encoded: bytes = b""

    @property
    def line(self) -> bytes:
        """The watch event of this change, newline included."""
        if not self.encoded:
            self.encoded = b'{"type":"' + self.type.encode() + b'","object":' + self.record.whole + b"}\n"
        return self.encoded


class CompactedError(Exception):
    """The requested version is older than the history of the resource; `floor` is the oldest version still served."""

    def __init__(self, floor: int) -> None:
        super().__init__(f"history starts at {floor}")
        self.floor = floor


class _ResourceStore:
    """The objects and the history of one resource."""

    def __init__(self, floor: int) -> None:
        self.records: dict[ObjectKey, ObjectVersion] = {}
        self.order: list[ObjectKey] = []
        """The sorted keys of `records`, so that a page of a long list needs no sorting."""
        self.by_namespace: dict[str, dict[str, ObjectVersion]] = {}
        self.history: list[Commit] = []
        self.floor = floor
        self.served_from = 0
        """The oldest version from which the kind can be watched, if the kind is younger than the history, else 0."""


Subscriber = Callable[[Commit], None]


class ApiStore:
    """All resources under one version counter. The history has about `history_limit` changes per resource."""

    def __init__(self, history_limit: int = 10_000) -> None:
        self.version = 1
        self.history_limit = history_limit
        self.dependents: dict[str, dict[tuple[str, ObjectKey], None]] = {}
        self._first_floor = 0
        self._stores: dict[str, _ResourceStore] = {}
        self._subscribers: list[Subscriber] = []

    def find(self, resource: str, namespace: str, name: str) -> ObjectVersion | None:
        store = self._stores.get(resource)
        return store.records.get((namespace, name)) if store else None

    def scan(self, resource: str, namespace: str | None = None) -> list[ObjectVersion]:
        """Return the current records in key order; `namespace` None means all."""
        store = self._stores.get(resource)
        return [store.records[key] for key in _selected(store.order, namespace, None)] if store else []

    def count(self, resource: str, namespace: str | None = None) -> int:
        store = self._stores.get(resource)
        if store is None:
            return 0
        return len(store.records) if namespace is None else len(store.by_namespace.get(namespace, {}))

    def scan_at(
        self, resource: str, namespace: str | None, version: int, after: ObjectKey | None = None
    ) -> list[ObjectVersion]:
        """Return the records as they were at `version`, only those after the key `after`. Raises: CompactedError."""
        store, before = self._stores.get(resource), dict[ObjectKey, ObjectVersion | None]()
        if store is None:
            return []
        if version < store.floor:
            raise CompactedError(store.floor)
        for change in reversed(_changes_after(store, version)):
            before[change.key] = change.previous
        keys = _selected(store.order, namespace, after)
        gone = [key for key, record in before.items() if record is not None and key not in store.records]
        if gone:
            keys = sorted([*keys, *_selected(sorted(gone), namespace, after)])
        if not before:
            return [store.records[key] for key in keys]
        found = (before[key] if key in before else store.records[key] for key in keys)
        return [record for record in found if record is not None]

    def changes_since(self, resource: str, version: int) -> list[Commit]:
        """Return the changes after `version`, oldest first. Raises: CompactedError."""
        store = self._stores.get(resource)
        floor = self._first_floor if store is None else max(store.floor, store.served_from)
        if version < floor:
            raise CompactedError(floor)
        return _changes_after(store, version) if store is not None else []

    def commit(self, resource: str, type: ChangeType, obj: Json, ownership: Ownership | None = None) -> Commit:
        """Store `obj` (which the store then owns) at the next version, and call the subscribers.

        Without `ownership` the object keeps its previous ownership.
        """
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        change = self.restore(resource, type, obj, self.version, ownership)
        for subscriber in tuple(self._subscribers):
            subscriber(change)
        return change

    def restore(
        self, resource: str, type: ChangeType, obj: Json, version: int, ownership: Ownership | None = None
    ) -> Commit:
        """Store an earlier change again, without calling the subscribers. Versions must rise from call to call."""
        store = self._store_of(resource)
        key = (namespace_of(obj), name_of(obj))
        previous = store.records.get(key)
        if ownership is None:
            ownership = previous.ownership if previous is not None else UNOWNED
        change = Commit(
            version, type, resource, key, ObjectVersion(obj, version, ownership, is_first=type == "ADDED"), previous
        )
        self._index_owners(change)
        if type == "DELETED":
            if store.records.pop(key, None) is not None:
                del store.order[bisect_left(store.order, key)]
            _forget(store.by_namespace, key)
        else:
            if key not in store.records:
                insort(store.order, key)
            store.records[key] = change.record
            store.by_namespace.setdefault(key[0], {})[key[1]] = change.record
        store.history.append(change)
        if len(store.history) > self.history_limit * 5 // 4:
            self._compact(store, len(store.history) - self.history_limit)
        self.version = max(self.version, version)
        return change

    def compact(self, resource: str | None = None, keep: int = 0) -> None:
        """Drop history now, as the periodic compaction does. The last `keep` changes stay."""
        stores = self._stores.values() if resource is None else [self._store_of(resource)]
        for store in stores:
            self._compact(store, len(store.history) - keep)

    def serve(self, resource: str, version: int) -> None:
        """Record that a kind is served since `version`: no watch of the kind can begin at an older version."""
        self._store_of(resource).served_from = version

    def forget(self, resource: str) -> None:
        """Drop a resource whose kind is no longer served, with its history. Older versions cannot be read again."""
        self._stores[resource] = _ResourceStore(self.version)

    def start_at(self, version: int) -> None:
        """Begin the history at `version`: changes that were restored before are dropped from it."""
        self.version = max(self.version, version)
        self._first_floor = self.version
        for store in self._stores.values():
            store.history.clear()
            store.floor = self.version

    def resources(self) -> list[str]:
        return list(self._stores)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after every commit. The returned function ends the subscription."""
        self._subscribers.append(subscriber)

        def end() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return end

    def _store_of(self, resource: str) -> _ResourceStore:
        store = self._stores.get(resource)
        if store is None:
            store = self._stores[resource] = _ResourceStore(self._first_floor)
        return store

    def _compact(self, store: _ResourceStore, drop: int) -> None:
        if drop > 0:
            store.floor = store.history[drop - 1].version
            del store.history[:drop]

    def _index_owners(self, change: Commit) -> None:
        entry = (change.resource, change.key)
        if change.previous is not None:
            for owner in owners_of(change.previous.obj):
                _forget_entry(self.dependents, str(owner.get("uid")), entry)
        if change.type != "DELETED":
            for owner in owners_of(change.record.obj):
                self.dependents.setdefault(str(owner.get("uid")), {})[entry] = None


def _selected(order: list[ObjectKey], namespace: str | None, after: ObjectKey | None) -> list[ObjectKey]:
    """Return the part of the sorted keys that is in the namespace (None: any) and after the key `after`."""
    low = 0 if namespace is None else bisect_left(order, (namespace, ""))
    high = len(order) if namespace is None else bisect_left(order, (f"{namespace}\0", ""))
    return order[low if after is None else max(low, bisect_right(order, after)) : high]


def _version(change: Commit) -> int:
    return change.version


def _changes_after(store: _ResourceStore, version: int) -> list[Commit]:
    return store.history[bisect_right(store.history, version, key=_version) :]


def _forget(groups: dict[str, dict[str, ObjectVersion]], key: ObjectKey) -> None:
    group = groups.get(key[0])
    if group is not None:
        group.pop(key[1], None)
        if not group:
            del groups[key[0]]


def _forget_entry(groups: dict[str, dict[tuple[str, ObjectKey], None]], uid: str, entry: tuple[str, ObjectKey]) -> None:
    group = groups.get(uid)
    if group is not None:
        group.pop(entry, None)
        if not group:
            del groups[uid]


class ServedEvent(msgspec.Struct):
    """One watch event. `change` is its commit; `obj` differs from the commit's object if that no longer matches."""

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
