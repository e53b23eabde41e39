"""The cache that a Reflector fills: the objects of one resource as last observed, with indexes and listeners.

Owns the latest version of each object by (namespace, name), the indexes, and the expected versions of our own writes.
Must not know the API, tasks or time.

Promises
- Objects are frozen structs that are shared and never copied: a `snapshot` is a dictionary of references.
- An object is never replaced by an older version of itself or by an older object of its name. The deletion of an older
  object never removes a newer one of the same name. `rewind` suspends this rule for the next `replace`, which then
  replaces all objects.
- An object with the name of another one but a new uid is reported as a deletion followed by a creation.
- Listeners run synchronously, in the order of registration, after the indexes are updated; they must not change the
  store.
- After `expect(uid, version)`, `is_current(uid)` is False until the store has reached that version.

Not promised
- Every intermediate version: changes coalesce. A deletion found by a LIST has the last state that was seen, not the
  final one.
- A current view: only `is_current` after an own write guarantees that the write is included.
- A size limit: the store contains all objects of the cluster.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from slipway.errors import InvariantError
from slipway.kube.wire import metadata_of

T = TypeVar("T")

Indexer = Callable[[T], Iterable[str]]
Listener = Callable[[T | None, T | None], None]
"""Called with (old, new); old is None for a creation, new is None for a deletion."""


class Key(NamedTuple):
    """The key of an object; the namespace is empty for cluster-scoped objects."""

    namespace: str
    name: str


class StoreSnapshot(NamedTuple, Generic[T]):
    """The objects at one time, and the resource version that the store had reached."""

    objects: Mapping[Key, T]
    version: int


def by_label(label: str) -> Callable[[object], Iterable[str]]:
    """Return an indexer over the values of a label; objects without the label are not in the index."""

    def index(obj: object) -> Iterable[str]:
        value = metadata_of(obj).labels.get(label)
        return () if value is None else (value,)

    return index


def key_of(obj: object) -> Key:
    """Return the key of an object."""
    metadata = metadata_of(obj)
    return Key(metadata.namespace, metadata.name)


class ObjectStore(Generic[T]):
    """The object cache; the module lists its promises."""

    def __init__(self, indexers: Mapping[str, Indexer[T]] | None = None) -> None:
        self.version = 0
        """The store contains every change up to this resource version."""
        self.synced = False
        """Whether a first LIST is in the store."""
        self._objects: dict[Key, T] = {}
        self._keys_by_uid: dict[str, Key] = {}
        self._indexers = dict(indexers or {})
        self._indexes: dict[str, dict[str, dict[Key, T]]] = {name: {} for name in self._indexers}
        self._listeners: list[Listener[T]] = []
        self._expected: dict[str, int] = {}
        self._is_rewound = False
        """whether the stored objects have versions of a history that the server has lost"""
        self.on_expected: Callable[[str], object] = lambda _: None
        """Called with the uid of each expected own write; `on_observed` is called when that write arrives as a
        change."""
        self.on_observed: Callable[[str], object] = lambda _: None

    # --- reads --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, name: str, namespace: str = "") -> T | None:
        """Return the object of that name, or None."""
        return self._objects.get(Key(namespace, name))

    def by_uid(self, uid: str) -> T | None:
        """Return the object with that uid, or None."""
        key = self._keys_by_uid.get(uid)
        return None if key is None else self._objects[key]

    def items(self) -> list[T]:
        """Return all objects, in no particular order."""
        return list(self._objects.values())

    def indexed(self, index: str, value: str) -> list[T]:
        """Return the objects under one value of an index."""
        return list(self._indexes[index].get(value, {}).values())

    def count(self, index: str, value: str) -> int:
        """Return the number of objects under one value of an index."""
        return len(self._indexes[index].get(value, ()))

    def index_values(self, index: str) -> list[str]:
        """Return the values that the index contains now."""
        return list(self._indexes[index])

    def snapshot(self) -> StoreSnapshot[T]:
        """Return the current objects; later changes do not affect it. Copies O(n) references."""
        return StoreSnapshot(dict(self._objects), self.version)

    # --- own writes ---------------------------------------------------------------------------------------------

    def expect(self, uid: str, version: int) -> None:
        """Report an own write of that version: the store is not current for this object until it has seen the
        version."""
        held = self.by_uid(uid)
        if version > self.version and (held is None or metadata_of(held).version < version):
            self._expected[uid] = max(version, self._expected.get(uid, 0))
            self.on_expected(uid)

    def is_current(self, uid: str) -> bool:
        """Whether the store has observed our last write of that object."""
        return uid not in self._expected

    # --- changes ------------------------------------------------------------------------------------------------

    def on_change(self, listener: Listener[T]) -> Callable[[], None]:
        """Call `listener` with every change from now on. Return a function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def put(self, obj: T) -> bool:
        """Store a created or changed object. Return False when the store has this or a newer version."""
        key, new = key_of(obj), metadata_of(obj)
        old = self._objects.get(key)
        if old is not None:
            held = metadata_of(old)
            if _is_older(new.version, held.version):
                return False
            if held.uid != new.uid:
                self._drop(key, old)
                old = None
            elif held.resource_version == new.resource_version and new.resource_version:
                return False
        self._objects[key] = obj
        self._keys_by_uid[new.uid] = key
        self._reindex(key, old, obj)
        self._satisfy(new.uid, new.version)
        self._tell(old, obj)
        return True

    def remove(self, obj: T) -> bool:
        """Process a deletion; `obj` is the last state. Return False when the store has no such object or a newer
        one."""
        key, gone = key_of(obj), metadata_of(obj)
        self._expected.pop(gone.uid, None)
        old = self._objects.get(key)
        if old is None:
            return False
        held = metadata_of(old)
        if held.uid != gone.uid or _is_older(gone.version, held.version):
            return False
        self._drop(key, old)
        return True

    def replace(self, objects: Iterable[T], version: int) -> None:
        """Process a complete LIST at `version`: objects that are not in it were deleted; their final state is
        unknown."""
        listed = list(objects)
        keys = {key_of(obj) for obj in listed}
        for key in [key for key in self._objects if key not in keys]:
            self._drop(key, self._objects[key])
        if self._is_rewound:
            self._is_rewound = False
            for obj in listed:
                self._put_over(obj)
        else:
            for obj in listed:
                self.put(obj)
        self.synced = True
        self.advance(version)

    def rewind(self) -> None:
        """Report that the server has gone back in time: stored objects and expected writes are of a history that is
        lost.

        The stored objects remain until the next `replace`, which replaces them all; listeners are called for the
        changes.
        """
        self._is_rewound = True
        self.version = 0
        self._expected.clear()

    def advance(self, version: int) -> None:
        """Record that the store contains every change up to `version`."""
        if version <= self.version:
            return
        self.version = version
        if self._expected:
            self._expected = {uid: wanted for uid, wanted in self._expected.items() if wanted > version}

    def _put_over(self, obj: T) -> None:
        """Store an object even if the store has a newer version of it, or a newer object of its name."""
        key = key_of(obj)
        old = self._objects.get(key)
        if old is None or metadata_of(old).uid != metadata_of(obj).uid:
            if old is not None:
                self._drop(key, old)
            self.put(obj)
        elif metadata_of(old).resource_version != metadata_of(obj).resource_version or old != obj:
            self._objects[key] = obj
            self._reindex(key, old, obj)
            self._tell(old, obj)

    def _drop(self, key: Key, old: T) -> None:
        uid = metadata_of(old).uid
        del self._objects[key]
        if self._keys_by_uid.get(uid) == key:
            del self._keys_by_uid[uid]
        self._reindex(key, old, None)
        self._expected.pop(uid, None)
        self._tell(old, None)

    def _satisfy(self, uid: str, version: int) -> None:
        wanted = self._expected.get(uid)
        if wanted is not None and version >= wanted:
            del self._expected[uid]
            self.on_observed(uid)

    def _reindex(self, key: Key, old: T | None, new: T | None) -> None:
        for name, indexer in self._indexers.items():
            index = self._indexes[name]
            before = set(indexer(old)) if old is not None else set[str]()
            after = dict.fromkeys(indexer(new)) if new is not None else {}
            for value in before - after.keys():
                entries = index.get(value)
                if entries is None or key not in entries:
                    raise InvariantError(f"index {name!r} has lost {key}; its function is not pure")
                del entries[key]
                if not entries:
                    del index[value]
            if new is not None:
                for value in after:
                    index.setdefault(value, {})[key] = new

    def _tell(self, old: T | None, new: T | None) -> None:
        for listener in tuple(self._listeners):
            listener(old, new)


def _is_older(version: int, than: int) -> bool:
    """Whether one resource version is below another; False for versions that are no numbers, which are 0 here."""
    return 0 < version < than
