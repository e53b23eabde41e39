"""Watches over HTTP."""

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import a_config, a_pod, a_widget


async def _version(kube: KubeHttp, ns: NamespacePaths) -> str:
    return (await kube.get(ns.of("configmaps"))).version


async def test_watch_reports_the_changes_after_its_version(kube: KubeHttp, ns: NamespacePaths) -> None:
    """ADDED, MODIFIED and DELETED events arrive in order, from the version on, history included."""
    version = await _version(kube, ns)
    await kube.post(ns.of("configmaps"), a_config())
    async with kube.watch(ns.of("configmaps"), resourceVersion=version, fieldSelector="metadata.name=c") as events:
        await kube.patch(ns.of("configmaps", "c"), {"data": {"a": "1"}})
        await kube.delete(ns.of("configmaps", "c"))
        assert await events.take(3) == [("ADDED", "c"), ("MODIFIED", "c"), ("DELETED", "c")]


async def test_events_carry_rising_versions(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The object of every event has a higher resourceVersion than the one before, also that of a deletion."""
    version = await _version(kube, ns)
    await kube.post(ns.of("configmaps"), a_config())
    await kube.delete(ns.of("configmaps", "c"))
    async with kube.watch(ns.of("configmaps"), resourceVersion=version, fieldSelector="metadata.name=c") as events:
        versions = [int((await events.next())["object"]["metadata"]["resourceVersion"]) for _ in range(2)]
    assert int(version) < versions[0] < versions[1]


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
async def test_watch_without_a_version_begins_with_the_present(
    kube: KubeHttp, ns: NamespacePaths, query: dict[str, str]
) -> None:
    """With no version, or 0, every object is ADDED first, then changes follow."""
    await kube.post(ns.of("configmaps"), a_config("a", labels={"own": "yes"}))
    await kube.post(ns.of("configmaps"), a_config("b", labels={"own": "yes"}))
    async with kube.watch(ns.of("configmaps"), labelSelector="own", **query) as events:
        assert sorted(await events.take(2)) == [("ADDED", "a"), ("ADDED", "b")]
        await kube.delete(ns.of("configmaps", "a"))
        assert await events.take(1) == [("DELETED", "a")]


async def test_label_watch_reports_entering_and_leaving(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An object that starts to match is ADDED, one that stops is DELETED."""
    version = await _version(kube, ns)
    await kube.post(ns.of("configmaps"), a_config())
    async with kube.watch(ns.of("configmaps"), resourceVersion=version, labelSelector="on=yes") as events:
        await kube.patch(ns.of("configmaps", "c"), {"metadata": {"labels": {"on": "yes"}}})
        await kube.patch(ns.of("configmaps", "c"), {"data": {"a": "1"}})
        await kube.patch(ns.of("configmaps", "c"), {"metadata": {"labels": {"on": "no"}}})
        assert await events.take(3) == [("ADDED", "c"), ("MODIFIED", "c"), ("DELETED", "c")]


async def test_field_watch_reports_a_leaving_object_in_its_old_state(kube: KubeHttp, ns: NamespacePaths) -> None:
    """DELETED with the last selected status, at the version of the change that made it leave."""
    made = await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"))
    query = {"resourceVersion": made.version, "fieldSelector": "status.phase=Pending"}
    async with kube.watch(ns.of("pods"), **query) as events:
        left = await kube.patch(ns.of("pods", "p", "status"), {"status": {"phase": "Running"}})
        event = await events.next()
    assert event["type"] == "DELETED"
    assert event["object"]["status"]["phase"] == "Pending"
    assert event["object"]["metadata"]["resourceVersion"] == left.version


async def test_single_object_watch(kube: KubeHttp, ns: NamespacePaths) -> None:
    """fieldSelector metadata.name watches one object."""
    version = await _version(kube, ns)
    async with kube.watch(ns.of("configmaps"), resourceVersion=version, fieldSelector="metadata.name=b") as events:
        await kube.post(ns.of("configmaps"), a_config("a"))
        await kube.post(ns.of("configmaps"), a_config("b"))
        assert await events.take(1) == [("ADDED", "b")]


async def test_watch_sees_only_its_namespace(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Another namespace's changes are not reported."""
    version = await _version(kube, ns)
    other = f"{ns.name}-other"
    await kube.post("/api/v1/namespaces", {"metadata": {"name": other}})
    query = {"resourceVersion": version, "labelSelector": "own"}
    async with kube.watch(ns.of("configmaps"), **query) as events:
        await kube.post(f"/api/v1/namespaces/{other}/configmaps", a_config("there", labels={"own": "yes"}))
        await kube.post(ns.of("configmaps"), a_config("here", labels={"own": "yes"}))
        assert await events.take(1) == [("ADDED", "here")]
    await kube.delete(f"/api/v1/namespaces/{other}")


async def test_watch_ends_after_its_timeout(kube: KubeHttp, ns: NamespacePaths) -> None:
    """timeoutSeconds ends the answer normally."""
    version = await _version(kube, ns)
    async with kube.watch(ns.of("configmaps"), resourceVersion=version, timeoutSeconds="1") as events:
        found = await events.rest()
    assert [event for event in found if event["type"] not in ("BOOKMARK", "ADDED")] == []


async def test_a_bookmark_comes_before_the_end(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Shortly before its timeout a watch sends a bookmark with its position, if anything has changed."""
    version = await _version(kube, ns)
    query = {"resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "5"}
    async with kube.watch(ns.of("configmaps"), **query) as events:
        made = await kube.post(ns.of("configmaps"), a_config())
        found = await events.rest()
    assert found[-1]["type"] == "BOOKMARK"
    assert int(found[-1]["object"]["metadata"]["resourceVersion"]) >= int(made.version)


async def test_initial_events_end_with_a_bookmark(kube: KubeHttp, ns: NamespacePaths) -> None:
    """sendInitialEvents sends the present objects, then a bookmark annotated k8s.io/initial-events-end."""
    await kube.post(ns.of("configmaps"), a_config("a", labels={"own": "yes"}))
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
        "labelSelector": "own",
    }
    async with kube.watch(ns.of("configmaps"), **query) as events:
        first = await events.next()
        if "RequestWatchProgress is disabled" in first["object"].get("message", ""):
            pytest.skip("the server's etcd tells no progress, so it offers no initial events")
        mark = await events.next()
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "a")
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_watch_of_custom_resources(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """Custom resources are watched like any other, with their status changes."""
    made = await kube.post(widgets.widgets(), a_widget())
    async with kube.watch(widgets.widgets(), resourceVersion=made.version) as events:
        await kube.patch(widgets.widgets("w", "status"), {"status": {"phase": "Seen"}})
        event = await events.next()
    assert (event["type"], event["object"]["status"]["phase"]) == ("MODIFIED", "Seen")
    assert event["object"]["kind"] == "Widget"


async def test_bad_selector_refuses_the_watch(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A bad selector gets 400 before the stream begins."""
    answer = await kube.get(ns.of("configmaps"), watch="true", fieldSelector="data.a=1")
    assert answer.code == 400
