"""Groups of pods that kube-scheduler places whole: what a server that serves them accepts, returns and stores.

A launch that leaves its gang to kube-scheduler relies on these rules: a group exists as long as one of its pods may
run, it has the priority of its pods, and it is deleted with its owner.
"""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_pod

API = "/apis/scheduling.k8s.io/v1beta1"
GANG: Json = {"schedulingPolicy": {"gang": {"minCount": 2}}}


@pytest.fixture(autouse=True)
async def _served(kube: KubeHttp) -> None:
    found = await kube.get(API)
    names = [item["name"] for item in found.body.get("resources", [])] if found.code == 200 else []
    if "podgroups" not in names:
        pytest.skip("this server serves no groups of pods (feature gate GenericWorkload, scheduling.k8s.io/v1beta1)")


def _path(ns: NamespacePaths, name: str = "", sub: str = "") -> str:
    return "/".join(part for part in (f"{API}/namespaces/{ns.name}/podgroups", name, sub) if part)


async def _made(kube: KubeHttp, ns: NamespacePaths, spec: Json | None = None, **meta: Any) -> Reply:
    return await kube.post(_path(ns), {"metadata": {"name": "g", **meta}, "spec": spec or GANG})


async def test_group_is_completed(kube: KubeHttp, ns: NamespacePaths) -> None:
    """By default its pods are disrupted one by one; it gets a priority and a finalizer, and the status that a client
    sends is dropped."""
    made = await kube.post(
        _path(ns), {"metadata": {"name": "g"}, "spec": GANG, "status": {"conditions": [{"type": "x"}]}}
    )
    assert made.code == 201, made.body
    assert made.body["spec"] == {**GANG, "disruptionMode": {"single": {}}, "priority": 0}
    assert made.body["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
    assert not made.body.get("status")
    whole = await kube.post(_path(ns), {"metadata": {"name": "h"}, "spec": {**GANG, "disruptionMode": {"all": {}}}})
    assert whole.body["spec"]["disruptionMode"] == {"all": {}}


@pytest.mark.parametrize(
    ("policy", "field", "words"),
    [
        ({}, "spec.schedulingPolicy", "must specify one of: `basic`, `gang`"),
        (
            {"basic": {}, "gang": {"minCount": 1}},
            "spec.schedulingPolicy",
            "must specify exactly one of: `basic`, `gang`",
        ),
        ({"gang": {}}, "spec.schedulingPolicy.gang.minCount", "Required value"),
        (
            {"gang": {"minCount": -1}},
            "spec.schedulingPolicy.gang.minCount",
            "Invalid value: -1: must be greater than or equal to 1",
        ),
    ],
)
async def test_policy_is_one_of_two(kube: KubeHttp, ns: NamespacePaths, policy: Json, field: str, words: str) -> None:
    """A group with both policies or none gets 422 with the field."""
    answer = await _made(kube, ns, {"schedulingPolicy": policy})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert [cause["field"] for cause in answer.causes] == [field]
    assert words in answer.causes[0]["message"]


async def test_priority_is_that_of_its_class(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A missing class is refused, and so is a priority other than that of the class."""
    answer = await _made(kube, ns, {**GANG, "priorityClassName": "none-such"})
    assert answer.code == 403
    assert "no PriorityClass with name none-such was found" in answer.message
    answer = await _made(kube, ns, {**GANG, "priority": 7})
    assert answer.code == 403
    words = "priority set in the pod group (7) must match the priority computed (0) based on the priority class set in "
    assert words in answer.message
    critical = await _made(kube, ns, {**GANG, "priorityClassName": "system-cluster-critical"})
    assert (critical.code, critical.causes[0]["field"]) == (422, "spec.priority")
    assert "Invalid value: 2000000000: must be less than or equal to 1000000000" in critical.message


async def test_only_the_minimum_count_may_change(kube: KubeHttp, ns: NamespacePaths) -> None:
    """minCount may change; the disruption mode may not."""
    await _made(kube, ns)
    changed = await kube.patch(_path(ns, "g"), {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
    assert (changed.code, changed.body["spec"]["schedulingPolicy"]) == (200, {"gang": {"minCount": 3}})
    changed = await kube.patch(_path(ns, "g"), {"spec": {"disruptionMode": {"single": None, "all": {}}}})
    assert (changed.code, changed.causes[0]["field"]) == (422, "spec.disruptionMode")
    assert "field is immutable" in changed.message


async def test_group_outlives_no_pod_that_may_run(kube: KubeHttp, ns: NamespacePaths, controllers: None) -> None:
    """A deleted group stays as long as a pod that has not ended names it."""
    await _made(kube, ns)
    pod = a_pod(schedulerName="nobody", schedulingGroup={"podGroupName": "g"})
    made = await kube.post(ns.of("pods"), pod)
    assert made.body["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    await kube.delete(_path(ns, "g"))
    assert (await kube.get(_path(ns, "g"))).body["metadata"]["deletionTimestamp"]
    await kube.delete(ns.of("pods", "p"))

    async def is_gone() -> bool:
        return (await kube.get(_path(ns, "g"))).code == 404

    await eventually(is_gone, "the group is gone")


async def test_group_is_deleted_with_its_owner(kube: KubeHttp, ns: NamespacePaths, controllers: None) -> None:
    """When its owner is deleted, the group is garbage-collected."""
    owner = await kube.post(ns.of("configmaps"), {"metadata": {"name": "c"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": owner.body["metadata"]["uid"]}
    await _made(kube, ns, ownerReferences=[reference])
    await kube.delete(ns.of("configmaps", "c"))

    async def is_gone() -> bool:
        return (await kube.get(_path(ns, "g"))).code == 404

    await eventually(is_gone, "the group is gone")


async def test_pod_names_one_group_for_ever(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A pod may name a missing group; the name is never empty, and never changes, gated or not."""
    gate = {"name": "slipway.dev/gate"}
    answer = await kube.post(ns.of("pods"), a_pod(schedulingGroup={}))
    assert (answer.code, answer.causes[0]["field"]) == (422, "spec.schedulingGroup.podGroupName")
    made = await kube.post(ns.of("pods"), a_pod(schedulingGroup={"podGroupName": "later"}, schedulingGates=[gate]))
    assert made.code == 201, made.body
    changed = await kube.patch(ns.of("pods", "p"), {"spec": {"schedulingGroup": {"podGroupName": "other"}}})
    assert changed.code == 422


async def test_table_shows_the_policy(kube: KubeHttp, ns: NamespacePaths) -> None:
    """kubectl's table shows the policy."""
    await _made(kube, ns)
    table = (await kube.get(_path(ns), accept="application/json;as=Table;g=meta.k8s.io;v=v1")).body
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Policy", "Workload", "Status", "Age"]
    assert table["rows"][0]["cells"][:4] == ["g", "Gang", "<none>", "Pending"]


async def test_status_is_a_resource_of_its_own(kube: KubeHttp, ns: NamespacePaths) -> None:
    """As with pods, a write of the status leaves the spec unchanged, and the other way round."""
    await _made(kube, ns)
    condition = {
        "type": "PodGroupInitiallyScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no room",
        "lastTransitionTime": "2026-11-30T00:00:00Z",
    }
    changed = await kube.patch(
        _path(ns, "g", "status"), {"status": {"conditions": [condition]}, "spec": {"schedulingPolicy": {}}}
    )
    assert changed.code == 200, changed.body
    found = (await kube.get(_path(ns, "g"))).body
    assert found["status"] == {"conditions": [condition]}
    assert found["spec"]["schedulingPolicy"] == GANG["schedulingPolicy"]
