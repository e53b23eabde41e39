"""Server-side apply: the owners of fields, conflicts, force, and the removal of fields that are no longer applied."""

from typing import Any

from tests.contract.kube.client import APPLY, JSON_PATCH, KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import API_VERSION, Json, a_config, a_pod, a_widget

ONE, TWO = "first", "second"


async def apply(kube: KubeHttp, path: str, document: Json, manager: str = ONE, **query: Any) -> Reply:
    return await kube.patch(path, document, APPLY, fieldManager=manager, **query)


def config(data: dict[str, str], **meta: Any) -> Json:
    """A ConfigMap. Without data it has no such field: an empty map would be an owned value."""
    document = a_config("c", data, **meta)
    return document if data else {name: value for name, value in document.items() if name != "data"}


async def claims(kube: KubeHttp, path: str) -> dict[tuple[str, str, str], Json]:
    """{(manager, operation, subresource): fieldsV1} of an object."""
    entries = (await kube.get(path)).body["metadata"].get("managedFields", [])
    return {(each["manager"], each["operation"], each.get("subresource", "")): each["fieldsV1"] for each in entries}


async def test_apply_creates_what_is_missing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The first apply gets 201 and creates an object that its applier owns; the second gets 200."""
    path = ns.of("configmaps", "c")
    made = await apply(kube, path, config({"a": "1"}))
    again = await apply(kube, path, config({"a": "1"}))
    assert (made.code, again.code) == (201, 200)
    assert await claims(kube, path) == {(ONE, "Apply", ""): {"f:data": {"f:a": {}}}}


async def test_apply_that_changes_nothing_keeps_the_version(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The same document again writes nothing."""
    path = ns.of("configmaps", "c")
    made = await apply(kube, path, config({"a": "1"}))
    again = await apply(kube, path, config({"a": "1"}))
    assert again.version == made.version


async def test_a_managed_fields_entry_has_manager_time_and_version(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An entry has manager, operation, apiVersion, time and fieldsType."""
    made = await apply(kube, ns.of("configmaps", "c"), config({"a": "1"}))
    (entry,) = made.body["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == (ONE, "Apply", "v1")
    assert (entry["fieldsType"], entry["time"]) == ("FieldsV1", made.body["metadata"]["creationTimestamp"])


async def test_apply_needs_a_field_manager(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An apply without a field manager gets 422 with a cause."""
    answer = await kube.patch(ns.of("configmaps", "c"), config({}), APPLY)
    assert (answer.code, answer.causes[0]["field"]) == (422, "fieldManager")
    assert answer.message == (
        'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
    )


async def test_force_is_for_applies_only(kube: KubeHttp, ns: NamespacePaths) -> None:
    """`force` on any other patch gets 422."""
    await kube.post(ns.of("configmaps"), config({}))
    answer = await kube.patch(ns.of("configmaps", "c"), {"data": {"a": "1"}}, force="true")
    assert answer.code == 422
    assert "may not be specified for non-apply patch" in answer.message


async def test_apply_takes_yaml(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The media type is YAML; JSON is accepted because it is YAML too."""
    text = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  a: '1'\n"
    answer = await kube.send_raw("PATCH", ns.of("configmaps", "c") + f"?fieldManager={ONE}", text, APPLY)
    assert (answer.code, answer.body["data"]) == (201, {"a": "1"})


async def test_field_of_another_applier_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An apply of another owner's field gets 409, which names the field and its owner; nothing changes."""
    path = ns.of("configmaps", "c")
    await apply(kube, path, config({"a": "1"}))
    answer = await apply(kube, path, config({"a": "2"}), TWO)
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert answer.message == f'Apply failed with 1 conflict: conflict with "{ONE}": .data.a'
    assert answer.causes == [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{ONE}"', "field": ".data.a"}
    ]
    assert (await kube.get(path)).body["data"] == {"a": "1"}


async def test_several_conflicts_are_listed_by_owner(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The answer has one cause for each field; an updater is named with its version."""
    path = ns.of("configmaps", "c")
    await kube.post(ns.of("configmaps"), config({"a": "1", "b": "1"}), fieldManager="maker")
    answer = await apply(kube, path, config({"a": "2", "b": "2"}))
    assert answer.code == 409
    assert answer.message == 'Apply failed with 2 conflicts: conflicts with "maker" using v1:\n- .data.a\n- .data.b'
    assert [cause["field"] for cause in answer.causes] == [".data.a", ".data.b"]


async def test_force_takes_the_field(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The new owner gets the forced field, and the former owner keeps its other fields."""
    path = ns.of("configmaps", "c")
    await apply(kube, path, config({"a": "1", "b": "1"}))
    answer = await apply(kube, path, config({"a": "2"}), TWO, force="true")
    assert (answer.code, answer.body["data"]) == (200, {"a": "2", "b": "1"})
    assert await claims(kube, path) == {
        (ONE, "Apply", ""): {"f:data": {"f:b": {}}},
        (TWO, "Apply", ""): {"f:data": {"f:a": {}}},
    }


async def test_equal_values_are_shared(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Two appliers of the same value both own it, without conflict."""
    path = ns.of("configmaps", "c")
    await apply(kube, path, config({"a": "1"}))
    answer = await apply(kube, path, config({"a": "1"}), TWO)
    assert answer.code == 200
    found = await claims(kube, path)
    assert found[ONE, "Apply", ""] == found[TWO, "Apply", ""] == {"f:data": {"f:a": {}}}


async def test_field_that_its_only_owner_drops_goes(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A field that is no longer applied is removed, unless another manager owns it too."""
    path = ns.of("configmaps", "c")
    await apply(kube, path, config({"mine": "1", "ours": "1"}))
    await apply(kube, path, config({"ours": "1"}), TWO)
    answer = await apply(kube, path, config({}))
    assert answer.body["data"] == {"ours": "1"}
    assert (await claims(kube, path)).keys() == {(TWO, "Apply", "")}


async def test_field_of_an_updater_stays_when_dropped(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An update takes over the field, so its applier no longer removes the field by dropping it."""
    path = ns.of("configmaps", "c")
    await apply(kube, path, config({"a": "1"}))
    await kube.patch(path, {"data": {"a": "2"}}, fieldManager=TWO)
    assert (await claims(kube, path))[TWO, "Update", ""] == {"f:data": {"f:a": {}}}
    answer = await apply(kube, path, config({}))
    assert answer.body["data"] == {"a": "2"}


async def test_create_records_its_writer(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A create makes an Update entry with every field that was sent, maps themselves included."""
    await kube.post(ns.of("configmaps"), config({"a": "1"}, labels={"l": "1"}), fieldManager="maker")
    assert await claims(kube, ns.of("configmaps", "c")) == {
        ("maker", "Update", ""): {"f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:labels": {".": {}, "f:l": {}}}}
    }


async def test_writer_without_a_name_goes_by_its_user_agent(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A writer without a manager name is named by its user agent, up to the first slash."""
    await kube.post(ns.of("configmaps"), config({"a": "1"}))
    assert (await claims(kube, ns.of("configmaps", "c"))).keys() == {("python-httpx2", "Update", "")}


async def test_update_owns_what_it_changes_only(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A replace by another manager takes over the changed fields and no others."""
    path = ns.of("configmaps", "c")
    made = await kube.post(ns.of("configmaps"), config({"a": "1", "b": "1"}), fieldManager=ONE)
    await kube.put(path, {**made.body, "data": {"a": "1", "b": "2", "c": "3"}}, fieldManager=TWO)
    found = await claims(kube, path)
    assert found[ONE, "Update", ""] == {"f:data": {".": {}, "f:a": {}}}
    assert found[TWO, "Update", ""] == {"f:data": {"f:b": {}, "f:c": {}}}


async def test_removed_field_has_no_owner(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A removed field has no owner, whichever manager removed it."""
    path = ns.of("configmaps", "c")
    await kube.post(ns.of("configmaps"), config({"a": "1", "b": "1"}), fieldManager=ONE)
    await kube.patch(path, {"data": {"b": None}}, fieldManager=TWO)
    assert await claims(kube, path) == {(ONE, "Update", ""): {"f:data": {".": {}, "f:a": {}}}}


async def test_same_writer_applies_and_updates_apart(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Apply and Update of one manager are two entries, and may conflict."""
    path = ns.of("configmaps", "c")
    await kube.post(ns.of("configmaps"), config({"a": "1"}), fieldManager=ONE)
    answer = await apply(kube, path, config({"a": "2"}))
    assert (answer.code, answer.causes[0]["message"]) == (409, f'conflict with "{ONE}" using v1')


async def test_status_has_owners_of_its_own(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A write through /status is an entry with that subresource, and contains status fields only."""
    made = await kube.post(widgets.widgets(), a_widget(), fieldManager=ONE)
    observed = {**made.body, "status": {"phase": "Seen", "seen": 1}}
    await kube.put(widgets.widgets("w", "status"), observed, fieldManager=ONE)
    found = await claims(kube, widgets.widgets("w"))
    assert found[ONE, "Update", ""] == {"f:spec": {".": {}, "f:color": {}, "f:size": {}}}
    assert found[ONE, "Update", "status"] == {"f:status": {"f:phase": {}, "f:seen": {}}}


async def test_status_can_be_applied(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Through /status an apply sets the status and nothing else."""
    await kube.post(widgets.widgets(), a_widget(), fieldManager="maker")
    document: Json = {**a_widget(size=9), "status": {"phase": "Seen"}}
    answer = await apply(kube, widgets.widgets("w", "status"), document, force="true")
    assert (answer.code, answer.body["status"]["phase"], answer.body["spec"]["size"]) == (200, "Seen", 1)
    assert (await claims(kube, widgets.widgets("w")))[ONE, "Apply", "status"] == {"f:status": {"f:phase": {}}}


async def test_status_of_what_is_missing_is_not_applied(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """An apply to the status of a missing object gets 404: only an apply to the object itself creates it."""
    answer = await apply(kube, widgets.widgets("none", "status"), {**a_widget("none"), "status": {"phase": "x"}})
    assert answer.code == 404


async def test_items_of_a_map_list_are_owned_one_by_one(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Items of a map list are owned by their keys, with their fields."""
    path = widgets.widgets("w")
    await apply(kube, path, a_widget(doors=[{"name": "a", "wide": True}]))
    answer = await apply(kube, path, a_widget(doors=[{"name": "b"}]), TWO)
    assert [door["name"] for door in answer.body["spec"]["doors"]] == ["a", "b"]
    fields = (await claims(kube, path))[ONE, "Apply", ""]["f:spec"]["f:doors"]
    assert fields == {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:wide": {}}}


async def test_item_that_is_dropped_goes(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """An item that its applier drops is removed, and the other applier's item stays."""
    path = widgets.widgets("w")
    await apply(kube, path, a_widget(doors=[{"name": "a"}, {"name": "c"}]))
    await apply(kube, path, a_widget(doors=[{"name": "b"}]), TWO)
    answer = await apply(kube, path, a_widget(doors=[{"name": "c"}]))
    assert sorted(door["name"] for door in answer.body["spec"]["doors"]) == ["b", "c"]


async def test_map_that_an_apply_empties_is_null(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """An apply of an empty map sets the field to null, which a custom kind refuses unless it is nullable; a map that
    is not applied at all is removed."""
    path = widgets.widgets("w")
    await apply(kube, path, a_widget(labels={"a": "1"}))
    emptied = await apply(kube, path, a_widget(labels={}))
    assert emptied.code == 422
    assert {"reason": "FieldValueTypeInvalid", "field": "spec.labels"}.items() <= emptied.causes[0].items()
    assert "labels" not in (await apply(kube, path, a_widget())).body["spec"]


async def test_set_lists_are_owned_by_value(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A set list is merged, and each value has owners."""
    path = widgets.widgets("w")
    await apply(kube, path, a_widget(tags=["a"]))
    answer = await apply(kube, path, a_widget(tags=["b"]), TWO)
    assert sorted(answer.body["spec"]["tags"]) == ["a", "b"]
    assert (await claims(kube, path))[TWO, "Apply", ""]["f:spec"]["f:tags"] == {'v:"b"': {}}


async def test_atomic_lists_are_one_value(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A list without a list type has one owner for the whole."""
    path = widgets.widgets("w")
    await apply(kube, path, a_widget(parts=["a"]))
    answer = await apply(kube, path, a_widget(parts=["b"]), TWO)
    assert (answer.code, answer.causes[0]["field"]) == (409, ".spec.parts")


async def test_duplicate_keys_can_not_be_applied(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Two items with one key are refused."""
    answer = await apply(kube, widgets.widgets("w"), a_widget(doors=[{"name": "a"}, {"name": "a"}]))
    assert answer.code >= 400
    assert 'duplicate entries for key [name="a"]' in answer.message


async def test_an_atomic_map_is_one_value(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """An atomic map is owned as one path; the keys of a list in it must be unique all the same."""
    path = widgets.widgets("w")
    await apply(kube, path, a_widget(frame={"height": 1, "bars": [{"name": "a"}]}))
    assert (await claims(kube, path))[ONE, "Apply", ""]["f:spec"]["f:frame"] == {}
    answer = await apply(kube, path, a_widget(frame={"height": 2}), TWO)
    assert (answer.code, answer.causes[0]["field"]) == (409, ".spec.frame")
    twins = await apply(kube, path, a_widget(frame={"bars": [{"name": "b"}, {"name": "b"}]}))
    assert twins.code >= 400
    assert 'duplicate entries for key [name="b"]' in twins.message


async def test_undeclared_fields_can_not_be_applied(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """An apply with an undeclared field is refused, whatever the field validation."""
    answer = await apply(kube, widgets.widgets("w"), a_widget(nothing=1))
    assert answer.code >= 400
    assert ".spec.nothing: field not declared in schema" in answer.message
    built_in = await apply(kube, widgets.of("configmaps", "c"), {**config({}), "nothing": 1})
    assert built_in.code >= 400
    assert ".nothing: field not declared in schema" in built_in.message


async def test_containers_and_their_parts_merge_by_key(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Containers, ports and variables of built-in kinds merge by their own keys too."""
    container: Json = {"name": "main", "image": "example.invalid/none:1"}
    pod = a_pod(
        schedulerName="nobody", containers=[{**container, "ports": [{"containerPort": 80}], "env": [_var("A")]}]
    )
    made = await apply(kube, ns.of("pods", "p"), pod)
    assert made.code == 201, made.message
    main = (await claims(kube, ns.of("pods", "p")))[ONE, "Apply", ""]["f:spec"]["f:containers"]['k:{"name":"main"}']
    assert main["f:ports"] == {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}}
    assert main["f:env"] == {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}}


def _var(name: str) -> Json:
    return {"name": name, "value": "1"}


async def test_created_pod_shows_what_was_sent_and_defaulted(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The writer owns the defaults; fields that admission adds have no owner."""
    await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"), fieldManager=ONE)
    spec = (await claims(kube, ns.of("pods", "p")))[ONE, "Update", ""]["f:spec"]
    assert {"f:restartPolicy", "f:dnsPolicy", "f:schedulerName", "f:containers"} <= spec.keys()
    assert not {"f:tolerations", "f:priority", "f:serviceAccountName", "."} & spec.keys()


async def test_a_replace_is_owned_as_it_was_sent(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Tolerations that admission restores do not change the object, but the writer that left them out owns the list,
    so it is a write."""
    path = ns.of("pods", "p")
    given = [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]
    made = await apply(kube, path, a_pod(tolerations=given))
    body = {**made.body, "spec": {**made.body["spec"], "tolerations": given}}
    body["metadata"] = {name: made.body["metadata"][name] for name in ("name", "uid", "resourceVersion")}
    put = await kube.put(path, body, fieldManager=TWO)
    assert (put.code, put.body["spec"]) == (200, made.body["spec"])
    assert int(put.version) > int(made.version)
    assert (await claims(kube, path))[TWO, "Update", ""] == {"f:spec": {"f:tolerations": {}}}
    body["metadata"]["resourceVersion"] = put.version
    assert (await kube.put(path, body, fieldManager=TWO)).version == put.version


async def test_fields_set_by_admission_have_no_owner(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Tolerations that no writer sent can be left out without a write."""
    made = await kube.post(ns.of("pods"), a_pod())
    left_out = await kube.patch(ns.of("pods", "p"), {"spec": {"tolerations": None}})
    assert (left_out.version, left_out.body["spec"]) == (made.version, made.body["spec"])


async def test_stale_version_in_an_apply_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A resourceVersion in the document is a precondition."""
    path = ns.of("configmaps", "c")
    made = await apply(kube, path, config({"a": "1"}))
    await apply(kube, path, config({"a": "2"}))
    stale = await apply(kube, path, config({"a": "3"}, resourceVersion=made.version))
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert "the object has been modified" in stale.message


async def test_name_and_version_of_the_document_are_checked(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A document with another name, another version or managed fields gets 400."""
    path = ns.of("configmaps", "c")
    other = await apply(kube, path, a_config("other"))
    version = await apply(kube, path, {**config({}), "apiVersion": "v9"})
    fields = await apply(kube, path, config({}, managedFields=[{"manager": "x"}]))
    assert (other.code, version.code, fields.code) == (400, 400, 400)
    assert "metadata.managedFields must be nil" in fields.message


async def test_dry_run_apply_returns_the_result_and_stores_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """dryRun=All returns the resulting object or the conflict, and stores nothing."""
    path = ns.of("configmaps", "c")
    dry = await apply(kube, path, config({"a": "1"}), dryRun="All")
    assert (dry.code, dry.body["data"]) == (201, {"a": "1"})
    assert (await kube.get(path)).code == 404
    await apply(kube, path, config({"a": "1"}))
    assert (await apply(kube, path, config({"a": "2"}), TWO, dryRun="All")).code == 409
    tried = await apply(kube, path, config({"a": "2"}), TWO, dryRun="All", force="true")
    assert tried.body["data"] == {"a": "2"}
    assert (await kube.get(path)).body["data"] == {"a": "1"}


async def test_managed_fields_can_be_forgotten(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An empty entry clears the managed fields; then an apply begins anew from the present fields."""
    path = ns.of("configmaps", "c")
    await kube.post(ns.of("configmaps"), config({"a": "1"}), fieldManager="maker")
    clear: list[Json] = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
    assert (await kube.patch(path, clear, JSON_PATCH)).code == 200
    assert await claims(kube, path) == {}
    answer = await apply(kube, path, config({"a": "2"}))
    assert (answer.code, answer.causes[0]["message"]) == (409, 'conflict with "before-first-apply" using v1')


async def test_generation_counts_applied_specs(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """An apply that changes the spec raises the generation; one that only takes over ownership does not."""
    path = widgets.widgets("w")
    made = await apply(kube, path, a_widget())
    owned = await apply(kube, path, a_widget(), TWO)
    grown = await apply(kube, path, a_widget(size=2), TWO, force="true")
    assert [each.body["metadata"]["generation"] for each in (made, owned, grown)] == [1, 1, 2]


async def test_rules_hold_for_applies(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A transition rule refuses an apply as it refuses an update."""
    path = widgets.widgets("w")
    await apply(kube, path, a_widget(size=3))
    answer = await apply(kube, path, a_widget(size=2))
    assert answer.code == 422
    assert "a widget never shrinks" in answer.message


async def test_finalizers_are_a_set(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Appliers add and remove their own finalizers."""
    path = ns.of("configmaps", "c")
    await apply(kube, path, config({}, finalizers=["contract.slipway.dev/a"]))
    both = await apply(kube, path, config({}, finalizers=["contract.slipway.dev/b"]), TWO)
    left = await apply(kube, path, config({}))
    assert sorted(both.body["metadata"]["finalizers"]) == ["contract.slipway.dev/a", "contract.slipway.dev/b"]
    assert left.body["metadata"]["finalizers"] == ["contract.slipway.dev/b"]
    await kube.patch(path, {"metadata": {"finalizers": None}})


async def test_only_a_limited_number_of_updaters_is_recorded(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The eleventh updater makes the oldest two share an entry."""
    path = ns.of("configmaps", "c")
    await kube.post(ns.of("configmaps"), config({"m0": "1"}), fieldManager="m0")
    for index in range(1, 11):
        await kube.patch(path, {"data": {f"m{index}": "1"}}, fieldManager=f"m{index}")
    found = await claims(kube, path)
    assert len(found) == 10
    assert ("ancient-changes", "Update", "") in found


async def test_lists_and_watches_tell_owners_too(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """managedFields are part of the object in lists and watches too."""
    made = await apply(kube, widgets.widgets("w"), a_widget())
    shown = made.body["metadata"]["managedFields"]
    (item,) = (await kube.get(widgets.widgets())).body["items"]
    assert item["metadata"]["managedFields"] == shown
    assert shown[0]["apiVersion"] == API_VERSION
    version = str(int(made.version) - 1)
    async with kube.watch(widgets.widgets(), resourceVersion=version) as events:
        event = await events.next()
    assert event["object"]["metadata"]["managedFields"] == shown
