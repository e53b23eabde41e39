"""The store: the objects at any version, in order and from any key on."""

import random

import pytest

from slipway.local.apiserver.store import ApiStore, ObjectKey

NAMESPACES = ("a", "a-b", "b")
NAMES = ("x", "x-y", "y", "z")


@pytest.mark.parametrize("seed", range(5))
def test_a_list_of_any_version_begins_at_any_key(seed: int) -> None:
    """A list at any version, from any key on, equals a copy that was made at that version, whatever was created,
    changed and deleted since."""
    chance, store = random.Random(seed), ApiStore()
    there: dict[ObjectKey, int] = {}
    written = {store.version: dict(there)}
    for _ in range(60):
        key = chance.choice(NAMESPACES), chance.choice(NAMES)
        type_ = "ADDED" if key not in there else chance.choice(("MODIFIED", "DELETED"))
        change = store.commit("things", type_, {"metadata": {"namespace": key[0], "name": key[1]}})
        there.pop(key, None) if type_ == "DELETED" else there.update({key: change.version})
        written[store.version] = dict(there)
    for version, then in written.items():
        for namespace in (None, *NAMESPACES):
            for after in (None, *((space, name) for space in NAMESPACES for name in NAMES)):
                wanted = [
                    (key, at)
                    for key, at in sorted(then.items())
                    if namespace in (None, key[0]) and (after is None or key > after)
                ]
                found = store.scan_at("things", namespace, version, after)
                assert [
                    ((r.obj["metadata"]["namespace"], r.obj["metadata"]["name"]), r.version) for r in found
                ] == wanted
    assert [record.version for record in store.scan("things")] == [at for _, at in sorted(there.items())]
