"""Pods: defaults, binding, what may change, quotas."""

import pytest

from tests.contract.kube.client import JSON_PATCH, KubeHttp, Reply
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_pod

NODE = "contract-node"


def _binding(node: str = NODE, **meta: str) -> Json:
    return {"metadata": {"name": "p", **meta}, "target": {"kind": "Node", "name": node}}


async def test_pod_gets_its_defaults(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Defaults that readers of pods rely on are filled in."""
    made = await kube.post(ns.of("pods"), a_pod(schedulerName=None))
    spec, status = made.body["spec"], made.body["status"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert status["phase"] == "Pending"
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"


async def test_limits_become_requests(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A limit without a request becomes the request."""
    container = {"name": "main", "image": "i:1", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    made = await kube.post(ns.of("pods"), a_pod(containers=[container]))
    assert made.body["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        (2, "2"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("2000", "2k"),
    ],
)
async def test_quantities_are_normalised(kube: KubeHttp, ns: NamespacePaths, sent: str | int, kept: str) -> None:
    """Quantities are returned in their canonical spelling."""
    container = {"name": "main", "image": "i:1", "resources": {"requests": {"memory": sent}}}
    made = await kube.post(ns.of("pods"), a_pod(containers=[container]))
    assert made.body["spec"]["containers"][0]["resources"]["requests"]["memory"] == kept


async def test_number_where_text_is_meant_does_not_decode(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A number as an env value, which is a string, gets 400."""
    container = {"name": "main", "image": "i:1", "env": [{"name": "A", "value": 1}]}
    answer = await kube.post(ns.of("pods"), a_pod(containers=[container]))
    assert (answer.code, answer.reason) == (400, "BadRequest")


async def test_binding_sets_the_node_and_the_condition(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding gets 201, and sets spec.nodeName and PodScheduled=True."""
    made = await kube.post(ns.of("pods"), a_pod())
    answer = await kube.post(ns.of("pods", "p", "binding"), _binding(uid=made.uid))
    assert (answer.code, answer.body["status"]) == (201, "Success")
    pod = (await kube.get(ns.of("pods", "p"))).body
    assert pod["spec"]["nodeName"] == NODE
    scheduled = [item for item in pod["status"]["conditions"] if item["type"] == "PodScheduled"]
    assert [item["status"] for item in scheduled] == ["True"]


async def test_binding_of_another_uid_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding with another uid gets 409, because it is meant for another pod."""
    await kube.post(ns.of("pods"), a_pod())
    answer = await kube.post(ns.of("pods", "p", "binding"), _binding(uid="00000000-0000-0000-0000-000000000000"))
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert "nodeName" not in (await kube.get(ns.of("pods", "p"))).body["spec"]


async def test_second_binding_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A second binding gets 409 'already assigned to node', also for the same node."""
    await kube.post(ns.of("pods"), a_pod())
    await kube.post(ns.of("pods", "p", "binding"), _binding())
    answer = await kube.post(ns.of("pods", "p", "binding"), _binding())
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert f'is already assigned to node "{NODE}"' in answer.message


async def test_binding_of_a_deleting_pod_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding of a deleting pod gets 409 'is being deleted'."""
    await kube.post(ns.of("pods"), a_pod(meta={"finalizers": ["slipway.dev/test"]}))
    await kube.delete(ns.of("pods", "p"))
    answer = await kube.post(ns.of("pods", "p", "binding"), _binding())
    assert answer.code == 409
    assert "is being deleted" in answer.message
    await kube.patch(ns.of("pods", "p"), {"metadata": {"finalizers": None}})


async def test_binding_of_a_gated_pod_is_a_conflict(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding gets 409 while the pod has scheduling gates, and succeeds without."""
    await kube.post(ns.of("pods"), a_pod(schedulingGates=[{"name": "slipway.dev/gate"}]))
    gated = await kube.post(ns.of("pods", "p", "binding"), _binding())
    assert gated.code == 409
    assert "schedulingGates" in gated.message
    opened = await kube.patch(ns.of("pods", "p"), [{"op": "remove", "path": "/spec/schedulingGates"}], JSON_PATCH)
    assert opened.code == 200
    assert (await kube.post(ns.of("pods", "p", "binding"), _binding())).code == 201


async def test_failed_pod_can_be_bound(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding does not check the phase."""
    await kube.post(ns.of("pods"), a_pod())
    await kube.patch(ns.of("pods", "p", "status"), {"status": {"phase": "Failed"}})
    assert (await kube.post(ns.of("pods", "p", "binding"), _binding())).code == 201


async def test_binding_of_a_missing_pod_is_not_found(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding of a missing pod gets 404."""
    assert (await kube.post(ns.of("pods", "none", "binding"), _binding(name="none"))).code == 404


async def test_binding_names_its_pod(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A binding that names another pod, or none, gets 400."""
    await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"))
    other = await kube.post(ns.of("pods", "p", "binding"), _binding(name="q"))
    none = await kube.post(ns.of("pods", "p", "binding"), {"target": {"name": NODE}})
    assert (other.code, none.code) == (400, 400)
    assert other.message == "name in URL does not match name in Binding object"


@pytest.mark.parametrize(
    "change",
    [
        {"nodeName": "other"},
        {"restartPolicy": "Never"},
        {"hostname": "h"},
        {"containers": [{"name": "main", "image": "i:1", "command": ["x"]}]},
    ],
)
async def test_pod_spec_is_fixed(kube: KubeHttp, ns: NamespacePaths, change: Json) -> None:
    """A change of the spec gets 422 with a Forbidden cause."""
    await kube.post(ns.of("pods"), a_pod())
    answer = await kube.patch(ns.of("pods", "p"), {"spec": change})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert "pod updates may not change fields other than" in answer.message


async def test_seconds_of_a_toleration_may_change(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Only the seconds of a toleration may change; tolerations may be added, and none removed."""
    own: Json = {"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}
    made = await kube.post(ns.of("pods"), a_pod(tolerations=[own]))
    others = made.body["spec"]["tolerations"][1:]
    path = ns.of("pods", "p")

    async def sent(toleration: Json) -> Reply:
        return await kube.patch(path, {"spec": {"tolerations": [toleration, *others]}})

    for seconds in (10, None, 30):
        answer = await sent({**own, "tolerationSeconds": seconds})
        assert answer.code == 200, answer.body
        assert answer.body["spec"]["tolerations"][0].get("tolerationSeconds") == seconds
    for changed in ({**own, "key": "other"}, {**own, "effect": "NoSchedule", "tolerationSeconds": None}):
        refused = await sent(changed)
        assert refused.code == 422
        assert "existing toleration can not be modified except its tolerationSeconds" in refused.message


async def test_image_of_a_pod_may_change(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The image is one of the few mutable fields."""
    made = await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"))
    made.body["spec"]["containers"][0]["image"] = "example.invalid/other:2"
    assert (await kube.put(ns.of("pods", "p"), made.body)).code == 200


async def test_pod_status_write_keeps_the_spec(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A PUT on pods/status changes the status only."""
    made = await kube.post(ns.of("pods"), a_pod(schedulerName="nobody"))
    changed = {**made.body, "spec": {**made.body["spec"], "hostname": "h"}, "status": {"phase": "Running"}}
    answer = await kube.put(ns.of("pods", "p", "status"), changed)
    assert answer.body["status"]["phase"] == "Running"
    assert "hostname" not in answer.body["spec"]


async def test_unbound_running_pod_may_be_labelled(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The labels of a running pod may change."""
    await kube.post(ns.of("pods"), a_pod())
    answer = await kube.patch(ns.of("pods", "p"), {"metadata": {"labels": {"a": "b"}}})
    assert (answer.code, answer.body["metadata"]["labels"]) == (200, {"a": "b"})


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "main"}]}, "spec.containers[0].image"),
        ({"containers": [{"name": "Bad_Name", "image": "i:1"}]}, "spec.containers[0].name"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        (
            {"containers": [{"name": "m", "image": "i:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "spec.containers[0].volumeMounts[0].name",
        ),
    ],
)
async def test_bad_pods_are_invalid(kube: KubeHttp, ns: NamespacePaths, spec: Json, field: str) -> None:
    """A bad pod gets 422 with the field in a cause."""
    answer = await kube.post(ns.of("pods"), a_pod(**spec))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in answer.causes]


async def test_extended_resources_need_a_limit(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A request for a device without a limit gets 422."""
    container = {"name": "main", "image": "i:1", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    answer = await kube.post(ns.of("pods"), a_pod(containers=[container]))
    assert answer.code == 422
    assert "Limit must be set for non overcommitable resources" in answer.message


async def test_pods_are_selected_by_phase_and_node(kube: KubeHttp, ns: NamespacePaths) -> None:
    """status.phase and spec.nodeName are field labels."""
    await kube.post(ns.of("pods"), a_pod("p"))
    await kube.post(ns.of("pods"), a_pod("q"))
    await kube.post(ns.of("pods", "p", "binding"), _binding())
    on_node = await kube.get(ns.of("pods"), fieldSelector=f"spec.nodeName={NODE}")
    unbound = await kube.get(ns.of("pods"), fieldSelector="spec.nodeName=,status.phase=Pending")
    assert on_node.names == ["p"]
    assert unbound.names == ["q"]


@pytest.mark.usefixtures("controllers")
async def test_quota_refuses_the_pod_too_many(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Once the hard limit is reached a pod gets 403 'exceeded quota:', also for a name that exists."""
    await kube.post(ns.of("resourcequotas"), {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}})

    async def is_ready() -> bool:
        return bool((await kube.get(ns.of("resourcequotas", "q"))).body.get("status", {}).get("hard"))

    await eventually(is_ready, "the quota is observed")
    assert (await kube.post(ns.of("pods"), a_pod())).code == 201
    answer = await kube.post(ns.of("pods"), a_pod("second"))
    assert (answer.code, answer.reason) == (403, "Forbidden")
    assert "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1" in answer.message


async def test_bindings_collection_binds_too(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A POST of a Binding to /bindings names the pod in its metadata."""
    await kube.post(ns.of("pods"), a_pod())
    body = {"apiVersion": "v1", "kind": "Binding", **_binding()}
    assert (await kube.post(ns.of("bindings"), body)).code == 201
    assert (await kube.get(ns.of("pods", "p"))).body["spec"]["nodeName"] == NODE


async def test_node_reports_its_status(kube: KubeHttp) -> None:
    """A kubelet creates its Node with a status and writes it through nodes/status; a PUT of the object does not
    change it."""
    name = "contract-kubelet"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"capacity": {"cpu": "4"}}}
    await kube.delete(f"/api/v1/nodes/{name}")
    made = await kube.post("/api/v1/nodes", node)
    seen = await kube.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": {"cpu": "8"}}})
    kept = await kube.patch(f"/api/v1/nodes/{name}", {"status": {"capacity": {"cpu": "2"}}})
    assert [each.body["status"]["capacity"]["cpu"] for each in (made, seen, kept)] == ["4", "8", "8"]
    await kube.delete(f"/api/v1/nodes/{name}")
