"""The core as a plain object: determinism, history, shared and copied data."""

import msgspec
import pytest

from slipway.local.apiserver.core import ClusterCore, StatusError, WriteOptions
from slipway.local.apiserver.paging import ListQuery
from tests.contract.kube.samples import a_config, a_pod, a_widget, definition
from tests.unit.local.apiserver.support import DEFINITIONS, WIDGETS, HandClock, a_core, meta_of, with_widgets


def _story(core: ClusterCore) -> bytes:
    with_widgets(core)
    core.create("configmaps", "default", {"metadata": {"generateName": "gen-"}})
    core.create(WIDGETS, "default", a_widget())
    core.create("pods", "default", a_pod())
    core.bind("default", "p", {"target": {"name": "n"}})
    core.delete("pods", "default", "p")
    core.settle()
    kinds = ("configmaps", "pods", WIDGETS, "namespaces")
    return msgspec.json.encode([core.list(kind).items for kind in kinds])


def test_equal_calls_give_equal_worlds() -> None:
    """Only the injected clock and uids affect the result: two equal runs are equal to the byte."""
    assert _story(a_core()) == _story(a_core())


def test_input_is_copied() -> None:
    """Changing what was passed in does not change what is stored."""
    core = a_core()
    body = a_config(data={"a": "1"})
    core.create("configmaps", "default", body)
    body["data"]["a"] = "2"
    assert core.get("configmaps", "default", "c")["data"] == {"a": "1"}


def test_a_stored_version_never_changes() -> None:
    """An object that was read before a write does not change."""
    core = a_core()
    before = core.create("configmaps", "default", a_config(data={"a": "1"}))
    kept = msgspec.json.encode(before)
    core.patch("configmaps", "default", "c", {"data": {"a": "2"}, "metadata": {"labels": {"x": "y"}}})
    core.delete("configmaps", "default", "c")
    assert msgspec.json.encode(before) == kept


def test_subscribers_see_every_commit_in_order() -> None:
    """Versions come contiguously, each change once, before the call returns."""
    core = a_core()
    seen: list[tuple[int, str]] = []
    end = core.subscribe(lambda change: seen.append((change.version, change.type)))
    start = core.version
    core.create("configmaps", "default", a_config())
    core.patch("configmaps", "default", "c", {"data": {"a": "1"}})
    core.delete("configmaps", "default", "c")
    end()
    core.create("configmaps", "default", a_config("later"))
    assert seen == [(start + 1, "ADDED"), (start + 2, "MODIFIED"), (start + 3, "DELETED")]


def test_version_out_of_history_is_expired() -> None:
    """410 for a watch and for a next page once the history is compacted; a version within it still works."""
    core = a_core()
    for name in "abc":
        core.create("configmaps", "default", a_config(name))
    page = core.list("configmaps", "default", ListQuery(limit=1))
    start = core.version
    core.create("configmaps", "default", a_config("d"))
    core.store.compact("configmaps")
    with pytest.raises(StatusError) as watch:
        core.watch_since("configmaps", start)
    with pytest.raises(StatusError) as listing:
        core.list("configmaps", "default", ListQuery(limit=1, continue_token=page.continue_token))
    assert (watch.value.code, watch.value.reason) == (410, "Expired")
    assert (listing.value.code, listing.value.reason) == (410, "Expired")
    assert core.watch_since("configmaps", core.version) == []


@pytest.mark.parametrize("objects", [0, 1])
def test_a_watch_from_before_its_kind_was_served_is_expired(objects: int) -> None:
    """A watch from a version before its kind was served gets 410, whether objects of the kind exist or not; from that
    version on it works, and an older list is empty."""
    core = a_core()
    before = core.version
    with_widgets(core)
    served = core.version
    for number in range(objects):
        core.create(WIDGETS, "default", a_widget(f"w-{number}"))
    with pytest.raises(StatusError) as refused:
        core.watch_since(WIDGETS, before)
    assert (refused.value.code, refused.value.reason) == (410, "Expired")
    assert len(core.watch_since(WIDGETS, served)) == objects
    assert core.list(WIDGETS, None, ListQuery(version=before, exact=True)).records == []


def test_a_watch_from_before_its_definition_was_made_again_is_expired() -> None:
    """A watch from a version before its definition was created again gets 410, because the old definition's objects are
    gone."""
    core = with_widgets(a_core())
    core.create(WIDGETS, "default", a_widget())
    seen = core.version
    core.delete(DEFINITIONS, "", WIDGETS)
    core.settle()
    with_widgets(core)
    for objects in range(2):
        with pytest.raises(StatusError) as refused:
            core.watch_since(WIDGETS, seen)
        assert (refused.value.code, refused.value.reason) == (410, "Expired")
        core.create(WIDGETS, "default", a_widget(f"w-{objects}"))


def test_history_is_bounded() -> None:
    """The history is bounded: old changes are dropped; the newest `history_limit` stay readable."""
    core = a_core(history_limit=10)
    core.create("configmaps", "default", a_config())
    for number in range(100):
        core.patch("configmaps", "default", "c", {"data": {"a": str(number)}})
    assert len(core.watch_since("configmaps", core.version - 10)) == 10
    with pytest.raises(StatusError):
        core.watch_since("configmaps", core.version - 50)


def test_future_version_is_a_timeout() -> None:
    """A list at a version not reached yet is 504 with Retry-After, as after a restored backup."""
    core = a_core()
    with pytest.raises(StatusError) as refused:
        core.list("pods", None, ListQuery(version=core.version + 1))
    assert (refused.value.code, refused.value.details["retryAfterSeconds"]) == (504, 1)


def test_rule_without_a_twin_is_refused_at_registration() -> None:
    """A rule without a twin is refused at registration, so that no rule is silently unchecked, unless the core allows
    it."""
    body = definition("gears", "Gear")
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["x-kubernetes-validations"] = [{"rule": "self.spec.size != 13", "message": "bad luck"}]
    with pytest.raises(StatusError) as refused:
        a_core().create(DEFINITIONS, "", body)
    assert refused.value.code == 422
    assert "self.spec.size != 13" in refused.value.message
    a_core(allow_unknown_rules=True).create(DEFINITIONS, "", body)


def test_transition_rule_on_an_atomic_list_is_refused() -> None:
    """A transition rule on an atomic list is refused, because its items have no old value."""
    body = definition("gears", "Gear")
    spec = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["parts"]["items"]["x-kubernetes-validations"] = [{"rule": "self == oldSelf"}]
    with pytest.raises(StatusError) as refused:
        a_core(allow_unknown_rules=True).create(DEFINITIONS, "", body)
    assert "oldSelf cannot be used on the uncorrelatable portion of the schema" in refused.value.message


def test_schema_change_applies_to_the_next_write() -> None:
    """A definition that is replaced is served at once, its stored objects stay."""
    core = with_widgets(a_core())
    core.create(WIDGETS, "default", a_widget())
    wider = core.get(DEFINITIONS, "", WIDGETS)
    changed = msgspec.json.decode(msgspec.json.encode(wider))
    spec = changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["size"]["maximum"] = 1000
    core.update(DEFINITIONS, "", WIDGETS, changed)
    grown = core.patch(WIDGETS, "default", "w", {"spec": {"size": 500}})
    assert grown["spec"]["size"] == 500


def test_apply_creates_then_merges() -> None:
    """An apply patch of a missing object creates it."""
    core = with_widgets(a_core())
    media = "application/apply-patch+yaml"
    mine = WriteOptions(writer="me")
    made = core.patch(WIDGETS, "default", "w", a_widget(), media=media, options=mine)
    merged = core.patch(WIDGETS, "default", "w", a_widget(size=2), media=media, options=mine)
    assert meta_of(made)["uid"] == meta_of(merged)["uid"]
    assert merged["spec"]["size"] == 2


def test_deletion_time_is_the_clocks() -> None:
    """deletionTimestamp is now plus the grace."""
    clock = HandClock()
    core = a_core(clock)
    core.create("pods", "default", a_pod())
    core.bind("default", "p", {"target": {"name": "n"}})
    pod = core.delete("pods", "default", "p", {"gracePeriodSeconds": 10})
    assert meta_of(pod)["deletionTimestamp"] == "2023-11-14T22:13:30Z"


def test_delete_options_that_do_not_parse_are_refused() -> None:
    """Delete options that do not parse are refused, such as a negative grace."""
    core = a_core()
    core.create("configmaps", "default", a_config())
    with pytest.raises(StatusError) as refused:
        core.delete("configmaps", "default", "c", {"gracePeriodSeconds": -1})
    assert refused.value.code == 400
