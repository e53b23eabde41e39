"""deletecollection: which objects are deleted, which stay, and the answer."""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_config, a_pod, a_widget, owned_by

OTHER_UID = "11111111-1111-1111-1111-111111111111"


async def _fill(kube: KubeHttp, ns: NamespacePaths, *names: str, **meta: Any) -> list[Json]:
    """Create ConfigMaps, each with its own name as the label `name`."""
    made: list[Json] = []
    for name in names:
        answer = await kube.post(ns.of("configmaps"), a_config(name, labels={"name": name, "own": "yes"}, **meta))
        assert answer.code == 201, answer.body
        made.append(answer.body)
    return made


async def _left(kube: KubeHttp, ns: NamespacePaths) -> list[str]:
    return (await kube.get(ns.of("configmaps"), labelSelector="own=yes")).names


async def test_everything_goes(kube: KubeHttp, ns: NamespacePaths) -> None:
    """All objects are deleted, and the answer is a list of them."""
    await _fill(kube, ns, "a", "b")
    gone = await kube.delete(ns.of("configmaps"), labelSelector="own=yes")
    assert (gone.code, gone.body["kind"], gone.body["apiVersion"]) == (200, "ConfigMapList", "v1")
    assert gone.names == ["a", "b"]
    assert await _left(kube, ns) == []
    again = await kube.delete(ns.of("configmaps"), labelSelector="own=yes")
    assert (again.code, again.names) == (200, [])


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ({"labelSelector": "name=a"}, ["b", "c"]),
        ({"labelSelector": "name in (a, b)"}, ["c"]),
        ({"labelSelector": "name!=c,own=yes"}, ["c"]),
        ({"fieldSelector": "metadata.name=b"}, ["a", "c"]),
        ({"labelSelector": "own=yes", "fieldSelector": "metadata.name!=b"}, ["b"]),
        ({"labelSelector": "name=none"}, ["a", "b", "c"]),
    ],
)
async def test_selectors_choose(kube: KubeHttp, ns: NamespacePaths, query: dict[str, str], left: list[str]) -> None:
    """Label and field selectors choose the objects, as in a list."""
    await _fill(kube, ns, "a", "b", "c")
    assert (await kube.delete(ns.of("configmaps"), **query)).code == 200
    assert await _left(kube, ns) == left


async def test_bad_selector_deletes_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A bad selector gets 400, and nothing is deleted."""
    await _fill(kube, ns, "a")
    answers = [
        await kube.delete(ns.of("configmaps"), labelSelector="name in"),
        await kube.delete(ns.of("configmaps"), fieldSelector="data.a=1"),
    ]
    assert [answer.code for answer in answers] == [400, 400]
    assert await _left(kube, ns) == ["a"]


async def test_other_namespaces_are_not_touched(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Only the path's namespace is affected; a delete over all namespaces is not allowed."""
    await _fill(kube, ns, "a")
    name = f"contract-{ns.name}"
    labels = {"own": "yes"}
    await kube.post("/api/v1/namespaces/default/configmaps", a_config(name, labels=labels))
    await kube.delete(ns.of("configmaps"), labelSelector="own=yes")
    assert (await kube.get(f"/api/v1/namespaces/default/configmaps/{name}")).code == 200
    assert (await kube.delete("/api/v1/configmaps", labelSelector="own=yes")).code == 405
    await kube.delete(f"/api/v1/namespaces/default/configmaps/{name}")


async def test_dry_run_deletes_nothing(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A dry run, by query or options, deletes nothing and returns the objects that would be deleted."""
    await _fill(kube, ns, "a")
    for body, query in ((None, {"dryRun": "All"}), ({"dryRun": ["All"]}, {})):
        answer = await kube.delete(ns.of("configmaps"), body, labelSelector="own=yes", **query)
        assert (answer.code, answer.names) == (200, ["a"])
    assert await _left(kube, ns) == ["a"]


async def test_preconditions_hold_for_each(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The first object with another uid gets 409; the object with that uid is deleted."""
    made = await _fill(kube, ns, "a", "b")
    refused = await kube.delete(ns.of("configmaps"), {"preconditions": {"uid": OTHER_UID}}, labelSelector="own=yes")
    assert (refused.code, refused.reason) == (409, "Conflict")
    assert await _left(kube, ns) == ["a", "b"]
    right = {"preconditions": {"uid": made[0]["metadata"]["uid"]}}
    assert (await kube.delete(ns.of("configmaps"), right, labelSelector="name=a")).code == 200
    assert await _left(kube, ns) == ["b"]


async def test_finalizers_hold(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Objects with finalizers are marked as deleted and stay."""
    await _fill(kube, ns, "a", finalizers=["slipway.dev/test"])
    gone = await kube.delete(ns.of("configmaps"), labelSelector="own=yes")
    found = await kube.get(ns.of("configmaps", "a"))
    assert (gone.code, found.code) == (200, 200)
    assert "deletionTimestamp" in found.body["metadata"]
    await kube.patch(ns.of("configmaps", "a"), {"metadata": {"finalizers": None}})
    assert (await kube.get(ns.of("configmaps", "a"))).code == 404


async def test_pods_keep_their_grace(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A bound pod is marked with its own grace, an unbound one is deleted; grace 0 deletes both."""
    for name in ("bound", "free"):
        await kube.post(ns.of("pods"), a_pod(name))
    target = {"target": {"kind": "Node", "name": "contract-nowhere"}}
    await kube.post(ns.of("pods", "bound", "binding"), {"metadata": {"name": "bound"}, **target})
    await kube.delete(ns.of("pods"))
    left = await kube.get(ns.of("pods"))
    assert left.names == ["bound"]
    assert left.body["items"][0]["metadata"]["deletionGracePeriodSeconds"] == 30
    await kube.delete(ns.of("pods"), {"gracePeriodSeconds": 0})
    assert (await kube.get(ns.of("pods"))).names == []


@pytest.mark.usefixtures("controllers")
@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
async def test_propagation_reaches_the_dependents(kube: KubeHttp, ns: NamespacePaths, policy: str) -> None:
    """Background and Foreground delete the dependents too, Orphan removes their owner reference."""
    owner = (await _fill(kube, ns, "owner"))[0]
    reference = owned_by(owner, blockOwnerDeletion=True)
    await kube.post(ns.of("configmaps"), a_config("child", ownerReferences=[reference]))
    answer = await kube.delete(ns.of("configmaps"), {"propagationPolicy": policy}, labelSelector="name=owner")
    assert answer.code == 200

    async def is_done() -> bool:
        if (await kube.get(ns.of("configmaps", "owner"))).code != 404:
            return False
        child = await kube.get(ns.of("configmaps", "child"))
        if policy == "Orphan":
            return child.code == 200 and "ownerReferences" not in child.body["metadata"]
        return child.code == 404

    await eventually(is_done, f"the dependent follows {policy}", within_s=30)


async def test_custom_objects_go_by_their_own_fields(kube: KubeHttp, widgets: NamespacePaths) -> None:
    """selectableFields select the objects; the list is of the custom kind."""
    for name, color in (("a", "red"), ("b", "blue")):
        await kube.post(widgets.widgets(), a_widget(name, color=color))
    gone = await kube.delete(widgets.widgets(), fieldSelector="spec.color=blue")
    assert (gone.code, gone.body["kind"], gone.names) == (200, "WidgetList", ["b"])
    assert (await kube.get(widgets.widgets())).names == ["a"]


async def test_namespaces_go_one_by_one(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Namespaces have no deletecollection, and discovery does not list it."""
    listed = {each["name"]: each["verbs"] for each in (await kube.get("/api/v1")).body["resources"]}
    assert ("deletecollection" in listed["namespaces"], "deletecollection" in listed["configmaps"]) == (False, True)
    assert (await kube.delete("/api/v1/namespaces", labelSelector=f"none={ns.name}")).code == 405


async def test_watchers_see_each(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Watchers get one DELETED event per object."""
    await _fill(kube, ns, "a", "b")
    start = (await kube.get(ns.of("configmaps"))).version
    query = {"resourceVersion": start, "labelSelector": "own=yes"}
    async with kube.watch(ns.of("configmaps"), **query) as watched:
        await kube.delete(ns.of("configmaps"), labelSelector="own=yes")
        assert sorted(await watched.take(2)) == [("DELETED", "a"), ("DELETED", "b")]
