"""Groups of pods that kube-scheduler places whole: what a server that serves them accepts, returns and stores.

A launch that leaves its gang to kube-scheduler relies on these rules: a group exists as long as one of its pods may
run, it has the priority of its pods, and it is deleted with its owner.
"""

from typing import Any

import pytest

from tests.contract.kube.client import KubeHttp, Reply
from tests.contract.kube.conftest import Place, eventually
from tests.contract.kube.samples import Json, a_pod

API = "/apis/scheduling.k8s.io/v1beta1"
GANG: Json = {"schedulingPolicy": {"gang": {"minCount": 2}}}


@pytest.fixture(autouse=True)
async def _served(kube: KubeHttp) -> None:
    found = await kube.get(API)
    names = [item["name"] for item in found.body.get("resources", [])] if found.code == 200 else []
    if "podgroups" not in names:
        pytest.skip("this server serves no groups of pods (feature gate GenericWorkload, scheduling.k8s.io/v1beta1)")


def _path(place: Place, name: str = "", sub: str = "") -> str:
    return "/".join(part for part in (f"{API}/namespaces/{place.name}/podgroups", name, sub) if part)


async def _made(kube: KubeHttp, place: Place, spec: Json | None = None, **meta: Any) -> Reply:
    return await kube.post(_path(place), {"metadata": {"name": "g", **meta}, "spec": spec or GANG})


async def test_group_is_completed(kube: KubeHttp, place: Place) -> None:
    """By default its pods are disrupted one by one; it gets a priority and a finalizer, and the status that a client
    sends is dropped."""
    made = await kube.post(
        _path(place), {"metadata": {"name": "g"}, "spec": GANG, "status": {"conditions": [{"type": "x"}]}}
    )
    assert made.code == 201, made.body
    assert made.body["spec"] == {**GANG, "disruptionMode": {"single": {}}, "priority": 0}
    assert made.body["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
    assert not made.body.get("status")
    whole = await kube.post(_path(place), {"metadata": {"name": "h"}, "spec": {**GANG, "disruptionMode": {"all": {}}}})
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
async def test_policy_is_one_of_two(kube: KubeHttp, place: Place, policy: Json, field: str, words: str) -> None:
    """A group with both policies or none gets 422 with the field."""
    answer = await _made(kube, place, {"schedulingPolicy": policy})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert [cause["field"] for cause in answer.causes] == [field]
    assert words in answer.causes[0]["message"]


async def test_priority_is_that_of_its_class(kube: KubeHttp, place: Place) -> None:
    """A missing class is refused, and so is a priority other than that of the class."""
    answer = await _made(kube, place, {**GANG, "priorityClassName": "none-such"})
    assert answer.code == 403
    assert "no PriorityClass with name none-such was found" in answer.message
    answer = await _made(kube, place, {**GANG, "priority": 7})
    assert answer.code == 403
    words = "priority set in the pod group (7) must match the priority computed (0) based on the priority class set in "
    assert words in answer.message
    critical = await _made(kube, place, {**GANG, "priorityClassName": "system-cluster-critical"})
    assert (critical.code, critical.causes[0]["field"]) == (422, "spec.priority")
    assert "Invalid value: 2000000000: must be less than or equal to 1000000000" in critical.message


async def test_what_may_change_is_how_many(kube: KubeHttp, place: Place) -> None:
    """minCount may change; the disruption mode may not."""
    await _made(kube, place)
    changed = await kube.patch(_path(place, "g"), {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}})
    assert (changed.code, changed.body["spec"]["schedulingPolicy"]) == (200, {"gang": {"minCount": 3}})
    changed = await kube.patch(_path(place, "g"), {"spec": {"disruptionMode": {"single": None, "all": {}}}})
    assert (changed.code, changed.causes[0]["field"]) == (422, "spec.disruptionMode")
    assert "field is immutable" in changed.message


async def test_group_outlives_no_pod_that_may_run(kube: KubeHttp, place: Place, controllers: None) -> None:
    """A deleted group stays as long as a pod that has not ended names it."""
    await _made(kube, place)
    pod = a_pod(schedulerName="nobody", schedulingGroup={"podGroupName": "g"})
    made = await kube.post(place.of("pods"), pod)
    assert made.body["spec"]["schedulingGroup"] == {"podGroupName": "g"}
    await kube.delete(_path(place, "g"))
    assert (await kube.get(_path(place, "g"))).body["metadata"]["deletionTimestamp"]
    await kube.delete(place.of("pods", "p"))

    async def is_gone() -> bool:
        return (await kube.get(_path(place, "g"))).code == 404

    await eventually(is_gone, "the group is gone")


async def test_group_goes_with_what_it_belongs_to(kube: KubeHttp, place: Place, controllers: None) -> None:
    """When its owner is deleted, the group is garbage-collected."""
    owner = await kube.post(place.of("configmaps"), {"metadata": {"name": "c"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": owner.body["metadata"]["uid"]}
    await _made(kube, place, ownerReferences=[reference])
    await kube.delete(place.of("configmaps", "c"))

    async def is_gone() -> bool:
        return (await kube.get(_path(place, "g"))).code == 404

    await eventually(is_gone, "the group is gone")


async def test_pod_names_one_group_for_ever(kube: KubeHttp, place: Place) -> None:
    """A pod may name a missing group; the name is never empty, and never changes, gated or not."""
    gate = {"name": "slipway.dev/gate"}
    answer = await kube.post(place.of("pods"), a_pod(schedulingGroup={}))
    assert (answer.code, answer.causes[0]["field"]) == (422, "spec.schedulingGroup.podGroupName")
    made = await kube.post(place.of("pods"), a_pod(schedulingGroup={"podGroupName": "later"}, schedulingGates=[gate]))
    assert made.code == 201, made.body
    changed = await kube.patch(place.of("pods", "p"), {"spec": {"schedulingGroup": {"podGroupName": "other"}}})
    assert changed.code == 422


async def test_table_shows_the_policy(kube: KubeHttp, place: Place) -> None:
    """kubectl's table shows the policy."""
    await _made(kube, place)
    table = (await kube.get(_path(place), accept="application/json;as=Table;g=meta.k8s.io;v=v1")).body
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Policy", "Workload", "Status", "Age"]
    assert table["rows"][0]["cells"][:4] == ["g", "Gang", "<none>", "Pending"]


async def test_status_is_a_resource_of_its_own(kube: KubeHttp, place: Place) -> None:
    """As with pods, a write of the status leaves the spec unchanged, and the other way round."""
    await _made(kube, place)
    condition = {
        "type": "PodGroupInitiallyScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no room",
        "lastTransitionTime": "2026-11-30T00:00:00Z",
    }
    changed = await kube.patch(
        _path(place, "g", "status"), {"status": {"conditions": [condition]}, "spec": {"schedulingPolicy": {}}}
    )
    assert changed.code == 200, changed.body
    found = (await kube.get(_path(place, "g"))).body
    assert found["status"] == {"conditions": [condition]}
    assert found["spec"]["schedulingPolicy"] == GANG["schedulingPolicy"]
