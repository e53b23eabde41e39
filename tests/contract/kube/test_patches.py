"""The three media types of PATCH."""

from tests.contract.kube.client import JSON_PATCH, STRATEGIC, KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import a_config, a_pod, a_widget


async def test_merge_patch_merges_maps_and_null_removes(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A merge patch follows RFC 7386."""
    await kube.post(ns.of("configmaps"), a_config(data={"a": "1", "b": "2"}))
    answer = await kube.patch(ns.of("configmaps", "c"), {"data": {"a": None, "c": "3"}})
    assert answer.body["data"] == {"b": "2", "c": "3"}


async def test_json_patch_applies_in_order(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A JSON patch follows RFC 6902."""
    await kube.post(ns.of("configmaps"), a_config(data={"a": "1"}))
    steps = [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "replace", "path": "/data/a", "value": "2"}]
    answer = await kube.patch(ns.of("configmaps", "c"), steps, JSON_PATCH)
    assert answer.body["data"] == {"a": "2"}


async def test_failed_json_patch_test_changes_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A failed `test` gets 422, and the whole patch is dropped."""
    await kube.post(ns.of("configmaps"), a_config(data={"a": "1"}))
    steps = [{"op": "add", "path": "/data/b", "value": "2"}, {"op": "test", "path": "/data/a", "value": "x"}]
    answer = await kube.patch(ns.of("configmaps", "c"), steps, JSON_PATCH)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert (await kube.get(ns.of("configmaps", "c"))).body["data"] == {"a": "1"}


async def test_finalizer_is_removed_by_a_fenced_json_patch(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Controllers remove a finalizer like this: test the resourceVersion, remove the entry."""
    made = await kube.post(ns.of("configmaps"), a_config(finalizers=["slipway.dev/a", "slipway.dev/b"]))
    steps = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": made.version},
        {"op": "test", "path": "/metadata/finalizers/0", "value": "slipway.dev/a"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]
    answer = await kube.patch(ns.of("configmaps", "c"), steps, JSON_PATCH)
    assert answer.body["metadata"]["finalizers"] == ["slipway.dev/b"]
    await kube.patch(ns.of("configmaps", "c"), {"metadata": {"finalizers": None}})


async def test_strategic_merge_joins_lists_by_key(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Conditions merge by type."""
    await kube.post(ns.of("pods"), a_pod())
    path = ns.of("pods", "p", "status")
    await kube.patch(path, {"status": {"conditions": [{"type": "A", "status": "True"}]}}, STRATEGIC)
    answer = await kube.patch(path, {"status": {"conditions": [{"type": "B", "status": "True"}]}}, STRATEGIC)
    assert {item["type"] for item in answer.body["status"]["conditions"]} >= {"A", "B"}


async def test_strategic_merge_of_a_custom_resource_is_unsupported(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A strategic merge patch of a custom resource gets 415."""
    await kube.post(widgets.widgets(), a_widget())
    answer = await kube.patch(widgets.widgets("w"), {"spec": {"size": 2}}, STRATEGIC)
    assert (answer.code, answer.reason) == (415, "UnsupportedMediaType")


async def test_patch_with_a_stale_version_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A resourceVersion in a patch is a precondition."""
    made = await kube.post(ns.of("configmaps"), a_config())
    await kube.patch(ns.of("configmaps", "c"), {"data": {"a": "1"}})
    fenced = {"metadata": {"resourceVersion": made.version}, "data": {"a": "2"}}
    answer = await kube.patch(ns.of("configmaps", "c"), fenced)
    assert (answer.code, answer.reason) == (409, "Conflict")


async def test_patched_object_is_validated(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """The result of a patch must be valid."""
    await kube.post(widgets.widgets(), a_widget())
    answer = await kube.patch(widgets.widgets("w"), {"spec": {"size": 1000}})
    assert (answer.code, answer.reason) == (422, "Invalid")
