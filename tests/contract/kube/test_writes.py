"""Creating and replacing objects: versions, preconditions, fields that the server fills in."""

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import a_config, a_pod, a_widget


async def test_create_fills_in_the_servers_fields(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A created object has uid, creationTimestamp, resourceVersion, its namespace; with a spec also generation 1."""
    made = await kube.post(widgets.widgets(), a_widget())
    meta = made.body["metadata"]
    assert made.code == 201
    assert meta["uid"]
    assert meta["creationTimestamp"].endswith("Z")
    assert int(meta["resourceVersion"]) > 0
    assert meta["namespace"] == widgets.name
    assert meta["generation"] == 1


async def test_versions_rise_over_all_kinds(kube: KubeHttp, ns: NamespacePaths) -> None:
    """All kinds share one counter: a later write of any kind has a higher resourceVersion."""
    first = await kube.post(ns.of("configmaps"), a_config())
    second = await kube.post(ns.of("pods"), a_pod())
    assert int(second.version) > int(first.version)


async def test_create_of_an_existing_name_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A create of an existing name gets 409 AlreadyExists."""
    await kube.post(ns.of("configmaps"), a_config())
    again = await kube.post(ns.of("configmaps"), a_config())
    assert (again.code, again.reason) == (409, "AlreadyExists")
    assert again.message == 'configmaps "c" already exists'


async def test_generate_name_appends_five_characters(kube: KubeHttp, ns: NamespacePaths) -> None:
    """generateName gives distinct names with the prefix."""
    body = {"metadata": {"generateName": "gen-"}, "data": {}}
    names = {(await kube.post(ns.of("configmaps"), body)).body["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("gen-") and len(name) == 9 for name in names)


async def test_create_with_a_version_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A create with a resourceVersion is refused."""
    answer = await kube.post(ns.of("configmaps"), a_config(resourceVersion="5"))
    assert answer.code == 500
    assert "resourceVersion should not be set on objects to be created" in answer.message


async def test_client_sent_server_fields_have_no_effect(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The server replaces the uid and creationTimestamp that a client sends in a create."""
    body = a_config(uid="mine", creationTimestamp="2001-01-01T00:00:00Z")
    made = await kube.post(ns.of("configmaps"), body)
    assert made.uid != "mine"
    assert not made.body["metadata"]["creationTimestamp"].startswith("2001")


async def test_stale_replace_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A PUT with an old resourceVersion gets 409 Conflict and changes nothing."""
    made = await kube.post(ns.of("configmaps"), a_config())
    newer = await kube.put(ns.of("configmaps", "c"), {**made.body, "data": {"a": "1"}})
    stale = await kube.put(ns.of("configmaps", "c"), {**made.body, "data": {"a": "2"}})
    assert newer.code == 200
    assert (stale.code, stale.reason) == (409, "Conflict")
    assert "the object has been modified" in stale.message
    assert (await kube.get(ns.of("configmaps", "c"))).body["data"] == {"a": "1"}


async def test_config_map_can_be_replaced_unconditionally(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Without a resourceVersion a PUT of a ConfigMap overwrites."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.put(ns.of("configmaps", "c"), a_config(data={"a": "2"}))
    assert (answer.code, answer.body["data"]) == (200, {"a": "2"})


async def test_custom_resource_needs_a_version_to_be_replaced(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A PUT of a custom resource without resourceVersion gets 422."""
    await kube.post(widgets.widgets(), a_widget())
    answer = await kube.put(widgets.widgets("w"), a_widget(size=2))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "metadata.resourceVersion" in answer.message
    assert "must be specified for an update" in answer.message


async def test_replace_of_another_uid_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A uid in the body is a precondition."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.put(ns.of("configmaps", "c"), a_config(uid="00000000-0000-0000-0000-000000000000"))
    assert (answer.code, answer.reason) == (409, "Conflict")


async def test_replace_that_changes_nothing_keeps_the_version(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A PUT that changes nothing keeps the resourceVersion. (A default that was never stored is stored by the first
    write.)"""
    made = await kube.post(widgets.of("configmaps"), a_config())
    answer = await kube.put(widgets.of("configmaps", "c"), made.body)
    assert (answer.code, answer.version) == (200, made.version)
    await kube.post(widgets.widgets(), a_widget())
    observed = await kube.patch(widgets.widgets("w", "status"), {"status": {"seen": 1}})
    answer = await kube.put(widgets.widgets("w"), observed.body)
    assert (answer.code, answer.version) == (200, observed.version)


async def test_generation_counts_spec_changes_only(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Changes of labels and status keep the generation; a change of the spec raises it."""
    made = await kube.post(widgets.widgets(), a_widget())
    labelled = await kube.patch(widgets.widgets("w"), {"metadata": {"labels": {"a": "b"}}})
    observed = await kube.patch(widgets.widgets("w", "status"), {"status": {"seen": 1}})
    grown = await kube.patch(widgets.widgets("w"), {"spec": {"size": 2}})
    counts = [each.body["metadata"]["generation"] for each in (made, labelled, observed, grown)]
    assert counts == [1, 1, 1, 2]


async def test_status_is_written_only_through_its_subresource(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A PUT and a create of the object ignore the status."""
    made = await kube.post(widgets.widgets(), {**a_widget(), "status": {"phase": "Mine"}})
    assert made.body["status"] == {"phase": "New"}
    answer = await kube.put(widgets.widgets("w"), {**made.body, "status": {"phase": "Mine"}})
    assert answer.body["status"] == {"phase": "New"}


async def test_status_write_changes_nothing_else(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A PUT on /status ignores spec and labels of a custom resource."""
    made = await kube.post(widgets.widgets(), a_widget())
    changed = {**made.body, "spec": {"size": 9}, "status": {"phase": "Seen"}}
    changed["metadata"] = {**made.body["metadata"], "labels": {"a": "b"}}
    answer = await kube.put(widgets.widgets("w", "status"), changed)
    assert answer.body["status"] == {"phase": "Seen"}
    assert answer.body["spec"] == made.body["spec"]
    assert "labels" not in answer.body["metadata"]


async def test_stale_status_write_is_a_conflict(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A PUT on /status with an old version conflicts."""
    made = await kube.post(widgets.widgets(), a_widget())
    await kube.put(widgets.widgets("w", "status"), {**made.body, "status": {"seen": 1}})
    stale = await kube.put(widgets.widgets("w", "status"), {**made.body, "status": {"seen": 2}})
    assert (stale.code, stale.reason) == (409, "Conflict")


async def test_merge_patch_of_status_without_a_version_bypasses_the_fence(
    kube: KubeHttp, widgets: NamespacePaths
) -> None:
    """A merge patch without a resourceVersion always applies; with a stale one it conflicts."""
    made = await kube.post(widgets.widgets(), a_widget())
    await kube.patch(widgets.widgets("w", "status"), {"status": {"seen": 1}})
    free = await kube.patch(widgets.widgets("w", "status"), {"status": {"seen": 2}})
    fenced = {"metadata": {"resourceVersion": made.version}, "status": {"seen": 3}}
    stale = await kube.patch(widgets.widgets("w", "status"), fenced)
    assert (free.code, free.body["status"]["seen"]) == (200, 2)
    assert stale.code == 409


async def test_dry_run_checks_and_stores_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """dryRun=All returns the resulting object, which does not exist afterwards."""
    answer = await kube.post(ns.of("configmaps"), a_config(), dryRun="All")
    assert answer.code == 201
    assert answer.body["metadata"]["name"] == "c"
    assert (await kube.get(ns.of("configmaps", "c"))).code == 404


async def test_missing_object_is_not_found(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Each verb on a missing object gets 404 with the resource in the details."""
    answer = await kube.get(ns.of("configmaps", "none"))
    assert (answer.code, answer.reason) == (404, "NotFound")
    assert answer.body["details"] == {"name": "none", "kind": "configmaps"}
    assert (await kube.delete(ns.of("configmaps", "none"))).code == 404
    assert (await kube.put(ns.of("configmaps", "none"), a_config("none"))).code == 404
    assert (await kube.patch(ns.of("configmaps", "none"), {"data": {}})).code == 404


async def test_create_in_a_missing_namespace_is_not_found(kube: KubeHttp) -> None:
    """A create in a missing namespace gets 404, which names the namespace."""
    answer = await kube.post("/api/v1/namespaces/contract-nowhere/pods", a_pod())
    assert (answer.code, answer.reason) == (404, "NotFound")
    assert answer.message == 'namespaces "contract-nowhere" not found'


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "a" * 254])
async def test_bad_names_are_invalid(kube: KubeHttp, ns: NamespacePaths, name: str) -> None:
    """A bad name gets 422 with a cause for metadata.name."""
    answer = await kube.post(ns.of("configmaps"), a_config(name))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes[0]["field"] == "metadata.name"


async def test_missing_name_is_invalid(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An object with neither name nor generateName gets 422."""
    answer = await kube.post(ns.of("configmaps"), {"data": {}})
    assert answer.code == 422
    assert "name or generateName is required" in answer.message


async def test_bad_label_is_invalid(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A bad label value is invalid."""
    answer = await kube.post(ns.of("configmaps"), a_config(labels={"a": "not ok"}))
    assert answer.code == 422
    assert answer.causes[0]["field"] == "metadata.labels"


async def test_label_of_a_wrong_type_does_not_decode(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A number as a label value gets 400, not 422."""
    answer = await kube.post(ns.of("configmaps"), a_config(labels={"a": 1}))
    assert (answer.code, answer.reason) == (400, "BadRequest")


async def test_namespace_in_the_body_must_match_the_path(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Another namespace in the body gets 400."""
    answer = await kube.post(ns.of("configmaps"), a_config(namespace="default"))
    assert (answer.code, answer.reason) == (400, "BadRequest")


async def test_body_that_is_no_json_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A body that is no JSON gets 400."""
    answer = await kube.send_raw("POST", ns.of("configmaps"), b"{", "application/json")
    assert answer.code == 400


async def test_huge_body_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A body over 3 MiB gets 413 RequestEntityTooLarge."""
    body = b'{"metadata":{"name":"c"},"data":{"a":"' + b"x" * (3 * 1024 * 1024) + b'"}}'
    answer = await kube.send_raw("POST", ns.of("configmaps"), body, "application/json")
    assert (answer.code, answer.reason) == (413, "RequestEntityTooLarge")


async def test_immutable_config_map_keeps_its_data(kube: KubeHttp, ns: NamespacePaths) -> None:
    """With `immutable: true` a change of the data gets 422."""
    await kube.post(ns.of("configmaps"), {**a_config(data={"a": "1"}), "immutable": True})
    answer = await kube.patch(ns.of("configmaps", "c"), {"data": {"a": "2"}})
    assert answer.code == 422
    assert "field is immutable when `immutable` is set" in answer.message


async def test_lease_is_fenced(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A Lease cannot be replaced without its resourceVersion, nor with a stale one."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{ns.name}/leases"
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}}
    made = await kube.post(path, lease)
    free = await kube.put(f"{path}/l", lease)
    taken = await kube.put(f"{path}/l", {**made.body, "spec": {"holderIdentity": "b"}})
    stale = await kube.put(f"{path}/l", {**made.body, "spec": {"holderIdentity": "c"}})
    assert (made.code, free.code, taken.code, stale.code) == (201, 422, 200, 409)


async def test_put_of_a_missing_lease_creates_it(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Leases and Events may be created by PUT."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{ns.name}/leases/l"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {}}
    assert (await kube.put(path, lease)).code in (200, 201)
    assert (await kube.get(path)).code == 200
