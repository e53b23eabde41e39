"""The events of an object's end, and the writes that a terminating namespace still accepts."""

from tests.contract.kube.client import JSON_PATCH, KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import a_config, a_pod


async def test_a_pod_that_goes_at_once_is_marked_first(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The delete of a pod that runs nowhere makes two versions all the same, and the last state has the deletion
    mark."""
    made = await kube.post(ns.of("pods"), a_pod())
    assert made.code == 201, made.body
    async with kube.watch(ns.of("pods"), resourceVersion=made.version) as watched:
        await kube.delete(ns.of("pods", "p"))
        marked, gone = await watched.next(), await watched.next()
    assert (marked["type"], gone["type"]) == ("MODIFIED", "DELETED")
    assert all("deletionTimestamp" in event["object"]["metadata"] for event in (marked, gone))


async def test_an_object_is_deleted_in_the_version_that_removes_its_last_finalizer(
    kube: KubeHttp, ns: NamespacePaths
) -> None:
    """The DELETED event shows the state stored last, not the state that the last write made."""
    held = a_config(finalizers=["example.com/hold"])
    made = await kube.post(ns.of("configmaps"), held)
    await kube.delete(ns.of("configmaps", "c"))
    # A controller of the real cluster creates a ConfigMap in each new namespace.
    mine = {"resourceVersion": made.version, "fieldSelector": "metadata.name=c"}
    async with kube.watch(ns.of("configmaps"), **mine) as watched:
        drop = [{"op": "remove", "path": "/metadata/finalizers/0"}]
        answer = await kube.patch(ns.of("configmaps", "c"), drop, JSON_PATCH)
        marked, gone = await watched.next(), await watched.next()
    assert "finalizers" not in answer.body["metadata"]
    assert (marked["type"], gone["type"]) == ("MODIFIED", "DELETED")
    assert gone["object"]["metadata"]["finalizers"] == ["example.com/hold"]


async def test_no_pod_is_bound_or_evicted_in_a_terminating_namespace(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding and an eviction are creates, so they get 403 with the cause NamespaceTerminating."""
    await kube.post(ns.of("pods"), a_pod(meta={"finalizers": ["example.com/hold"]}))
    await kube.delete(ns.path)
    target = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    for answer in (
        await kube.post(ns.of("pods", "p", "binding"), target),
        await kube.post(ns.of("pods", "p", "eviction"), {"metadata": {"name": "p"}}),
    ):
        assert (answer.code, [cause["reason"] for cause in answer.causes]) == (403, ["NamespaceTerminating"])
    await kube.patch(ns.of("pods", "p"), {"metadata": {"finalizers": None}})


async def test_a_replace_that_is_no_object_of_the_kind_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A replace with a body of the wrong shape gets 400, as a create does."""
    await kube.post(ns.of("configmaps"), a_config())
    answer = await kube.put(ns.of("configmaps", "c"), {**a_config(), "data": {"a": 1}})
    assert (answer.code, answer.reason) == (400, "BadRequest")
