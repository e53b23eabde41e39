"""The store never goes back, distinguishes objects by uid, calls its listeners, and knows when our own writes have been
seen."""

import pytest

from slipway.crd.meta import ObjectMeta
from slipway.kube.objects import ConfigMap
from slipway.kube.store import Key, ObjectStore, by_label

Heard = list[tuple[int | None, int | None]]


def a_map(
    name: str = "a", uid: str = "u1", version: int = 1, labels: dict[str, str] | None = None, text: str = ""
) -> ConfigMap:
    metadata = ObjectMeta(name=name, namespace="n", uid=uid, resource_version=str(version), labels=labels or {})
    return ConfigMap(metadata=metadata, data={"x": text} if text else {})


def heard_by(store: ObjectStore[ConfigMap]) -> Heard:
    heard: Heard = []
    store.on_change(lambda old, new: heard.append((old and old.metadata.version, new and new.metadata.version)))
    return heard


def test_put_get_and_uid() -> None:
    """An object is found by name and by uid."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    assert store.put(a_map())
    assert store.get("a", "n") == store.by_uid("u1") == a_map()
    assert store.get("a") is None
    assert store.by_uid("other") is None
    assert len(store) == 1


def test_an_older_version_never_replaces_a_newer_one() -> None:
    """Replayed and late events change nothing and call no listener."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    heard = heard_by(store)
    store.put(a_map(version=5))
    assert not store.put(a_map(version=4))
    assert not store.put(a_map(version=5))
    assert not store.put(a_map(uid="old", version=3))
    assert not store.remove(a_map(version=4))
    assert heard == [(None, 5)]


def test_a_recreated_name_is_a_deletion_and_a_creation() -> None:
    """A recreated name is a deletion and a creation, so that listeners that key by uid receive both."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    heard = heard_by(store)
    store.put(a_map(uid="u1", version=5))
    store.put(a_map(uid="u2", version=9))
    assert heard == [(None, 5), (5, None), (None, 9)]
    assert store.by_uid("u1") is None


def test_the_deletion_of_an_older_object_keeps_its_successor() -> None:
    """A late DELETED of the first uid does not remove the second one of that name."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    store.put(a_map(uid="u2", version=9))
    assert not store.remove(a_map(uid="u1", version=12))
    assert store.by_uid("u2") is not None
    assert store.remove(a_map(uid="u2", version=13))
    assert not store.remove(a_map(uid="u2", version=13))


def test_replace_tells_the_difference() -> None:
    """A relist creates, changes and deletes exactly what differs."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    store.put(a_map("kept", "k", 1))
    store.put(a_map("changed", "c", 2))
    store.put(a_map("gone", "g", 3))
    heard = heard_by(store)
    store.replace([a_map("kept", "k", 1), a_map("changed", "c", 8), a_map("new", "n", 9)], 10)
    assert sorted(heard, key=str) == sorted([(3, None), (2, 8), (None, 9)], key=str)
    assert (store.synced, store.version) == (True, 10)


def test_indexes_follow_every_change() -> None:
    """An index holds the latest version under its present values only."""
    store: ObjectStore[ConfigMap] = ObjectStore({"colour": by_label("colour"), "text": lambda item: item.data.values()})
    store.put(a_map("a", "u1", 1, {"colour": "red"}, "x"))
    store.put(a_map("b", "u2", 2, {"colour": "red"}))
    store.put(a_map("a", "u1", 3, {"colour": "blue"}, "y"))
    assert [item.metadata.name for item in store.indexed("colour", "red")] == ["b"]
    assert [item.metadata.version for item in store.indexed("colour", "blue")] == [3]
    assert store.indexed("text", "x") == []
    store.remove(a_map("b", "u2", 4))
    assert store.index_values("colour") == ["blue"]
    store.put(a_map("a", "u9", 9))
    assert store.index_values("colour") == []
    with pytest.raises(KeyError):
        store.indexed("unknown", "x")


def test_a_snapshot_does_not_change() -> None:
    """Later changes do not show in a snapshot."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    store.replace([a_map(version=1)], 4)
    snapshot = store.snapshot()
    store.put(a_map(version=7))
    assert snapshot.objects == {Key("n", "a"): a_map(version=1)}
    assert snapshot.version == 4


def test_own_writes_are_awaited() -> None:
    """After `expect` an object is not current until its version, a later one, or its deletion is seen."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    store.put(a_map(version=1))
    store.expect("u1", 5)
    store.put(a_map(version=3))
    assert not store.is_current("u1")
    store.put(a_map(version=5))
    assert store.is_current("u1")
    store.expect("u1", 8)
    store.remove(a_map(version=9))
    assert store.is_current("u1")


def test_a_position_past_the_write_satisfies_it() -> None:
    """Bookmarks and lists count: the object may have come and gone, or lie outside the selection."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    store.expect("elsewhere", 5)
    store.advance(4)
    assert not store.is_current("elsewhere")
    store.advance(5)
    assert store.is_current("elsewhere")
    store.expect("elsewhere", 5)
    assert store.is_current("elsewhere")


def test_a_listener_can_leave() -> None:
    """`on_change` returns a function that removes the listener."""
    store: ObjectStore[ConfigMap] = ObjectStore()
    heard: list[ConfigMap | None] = []
    end = store.on_change(lambda _, new: heard.append(new))
    store.put(a_map(version=1))
    end()
    store.put(a_map(version=2))
    assert len(heard) == 1
