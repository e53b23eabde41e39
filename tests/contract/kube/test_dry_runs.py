"""dryRun=All on every verb that writes: it is checked and answered like a real write, and nothing is stored."""

from collections.abc import Awaitable, Callable

import pytest

from tests.contract.kube.client import JSON_PATCH, MERGE, STRATEGIC, KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import a_config, a_pod, a_widget

Write = Callable[[KubeHttp, str], Awaitable[Reply]]
CHANGED = {"data": {"a": "2"}}

WRITES: dict[str, Write] = {
    "replace": lambda kube, path: kube.put(path, a_config(data={"a": "2"}), dryRun="All"),
    "merge": lambda kube, path: kube.patch(path, CHANGED, MERGE, dryRun="All"),
    "strategic": lambda kube, path: kube.patch(path, CHANGED, STRATEGIC, dryRun="All"),
    "json": lambda kube, path: kube.patch(
        path, [{"op": "replace", "path": "/data/a", "value": "2"}], JSON_PATCH, dryRun="All"
    ),
}


@pytest.mark.parametrize("write", sorted(WRITES))
async def test_changes_are_shown_and_not_kept(kube: KubeHttp, ns: NamespacePaths, write: str) -> None:
    """The answer has the change, the store does not."""
    made = await kube.post(ns.of("configmaps"), a_config(data={"a": "1"}))
    answer = await WRITES[write](kube, ns.of("configmaps", "c"))
    found = await kube.get(ns.of("configmaps", "c"))
    assert (answer.code, answer.body["data"]) == (200, {"a": "2"})
    assert (found.body["data"], found.version) == ({"a": "1"}, made.version)


async def test_create_is_checked(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A dry create of an invalid object or of an existing name is refused."""
    assert (await kube.post(widgets.widgets(), a_widget(size=1000), dryRun="All")).code == 422
    await kube.post(widgets.widgets(), a_widget())
    assert (await kube.post(widgets.widgets(), a_widget(), dryRun="All")).code == 409


async def test_stale_replace_conflicts(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A stale resourceVersion conflicts in a dry run too."""
    made = await kube.post(ns.of("configmaps"), a_config())
    await kube.patch(ns.of("configmaps", "c"), CHANGED)
    assert (await kube.put(ns.of("configmaps", "c"), made.body, dryRun="All")).code == 409


async def test_status_stays(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """A dry write through the status subresource stores nothing."""
    made = await kube.post(widgets.widgets(), a_widget())
    wanted = {**made.body, "status": {"phase": "Seen"}}
    answer = await kube.put(widgets.widgets("w", "status"), wanted, dryRun="All")
    assert answer.body["status"]["phase"] == "Seen"
    assert (await kube.get(widgets.widgets("w"))).body["status"]["phase"] == "New"


@pytest.mark.parametrize("in_body", [True, False])
async def test_deleted_object_stays(kube: KubeHttp, ns: NamespacePaths, in_body: bool) -> None:
    """A dry delete, by query or options, keeps the object."""
    await kube.post(ns.of("configmaps"), a_config())
    path = ns.of("configmaps", "c")
    answer = await (kube.delete(path, {"dryRun": ["All"]}) if in_body else kube.delete(path, dryRun="All"))
    assert (answer.code, answer.body["status"]) == (200, "Success")
    found = await kube.get(path)
    assert (found.code, "deletionTimestamp" in found.body["metadata"]) == (200, False)


async def test_deleted_pod_shows_when_it_would_go(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The mark of the deletion is only in the answer."""
    await kube.post(ns.of("pods"), a_pod(schedulerName="nobody", nodeName="nowhere"))
    answer = await kube.delete(ns.of("pods", "p"), dryRun="All")
    assert answer.body["metadata"]["deletionGracePeriodSeconds"] == 30
    assert "deletionTimestamp" not in (await kube.get(ns.of("pods", "p"))).body["metadata"]


async def test_collection_stays(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A dry deletecollection keeps the objects."""
    await kube.post(ns.of("configmaps"), a_config(labels={"own": "yes"}))
    assert (await kube.delete(ns.of("configmaps"), dryRun="All", labelSelector="own")).code == 200
    assert (await kube.get(ns.of("configmaps"), labelSelector="own")).names == ["c"]


async def test_pod_is_not_bound(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A dry binding is checked, and leaves the pod unbound."""
    await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"))
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "nowhere"}}
    assert (await kube.post(ns.of("pods", "p", "binding"), binding, dryRun="All")).code == 201
    assert "nodeName" not in (await kube.get(ns.of("pods", "p"))).body["spec"]


async def test_unknown_dry_run_is_refused(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An unknown value of dryRun gets 422 with a cause."""
    answer = await kube.post(ns.of("configmaps"), a_config(), dryRun="Some")
    assert (answer.code, answer.causes[0]["field"]) == (422, "dryRun")
