"""Kinds that charts use: workloads and their scale, Services and their addresses, priorities."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract.kube.client import STRATEGIC, KubeHttp
from tests.contract.kube.conftest import NamespacePaths
from tests.contract.kube.samples import Json, a_pod

APP: Json = {"app": "web"}
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def _at(ns: NamespacePaths, group: str, plural: str, name: str = "", sub: str = "") -> str:
    base = f"/apis/{group}/namespaces/{ns.name}/{plural}"
    return "/".join(part for part in (base, name, sub) if part)


def a_template(labels: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "example.invalid/none:1"}
    return {"metadata": {"labels": labels or APP}, "spec": {"containers": [container], **spec}}


def a_deployment(name: str = "d", **spec: Any) -> Json:
    # Without pods: a controller beside the real server would create some.
    fixed = {"replicas": 0, "selector": {"matchLabels": APP}, "template": a_template()}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {**fixed, **spec}}


def a_service(name: str = "s", **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], "selector": APP, **spec}}


async def test_deployment_is_defaulted(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A Deployment gets a strategy, history, a deadline, and a template with the defaults of a pod."""
    made = await kube.post(_at(ns, "apps/v1", "deployments"), a_deployment())
    assert made.code == 201, made.body
    spec = made.body["spec"]
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert (spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (10, 600)
    assert made.body["metadata"]["generation"] == 1
    assert spec["template"]["spec"] == {
        "containers": [
            {
                "name": "main",
                "image": "example.invalid/none:1",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "securityContext": {},
        "schedulerName": "default-scheduler",
    }


async def test_recreate_has_no_rolling_update(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A strategy does not get the defaults of another one."""
    made = await kube.post(_at(ns, "apps/v1", "deployments"), a_deployment(strategy={"type": "Recreate"}))
    assert made.body["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"selector": None}, "spec.selector"),
        ({"template": a_template({"app": "other"})}, "spec.template.metadata.labels"),
        ({"template": a_template(restartPolicy="Never")}, "spec.template.spec.restartPolicy"),
        ({"template": a_template(containers=[])}, "spec.template.spec.containers"),
    ],
)
async def test_invalid_deployments(kube: KubeHttp, ns: NamespacePaths, spec: Json, field: str) -> None:
    """An invalid Deployment gets 422 with the field."""
    answer = await kube.post(_at(ns, "apps/v1", "deployments"), a_deployment(**spec))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert field in [cause["field"] for cause in answer.causes]


async def test_selector_of_a_deployment_is_fixed(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Another selector gets 422; other changes raise the generation."""
    path = _at(ns, "apps/v1", "deployments", "d")
    await kube.post(_at(ns, "apps/v1", "deployments"), a_deployment())
    labels = {**APP, "more": "yes"}
    change = {"spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}}
    refused = await kube.patch(path, change)
    assert (refused.code, refused.causes[0]["field"]) == (422, "spec.selector")
    assert "field is immutable" in refused.message
    image = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "example.invalid/none:2"}]}}}}
    changed = await kube.patch(path, image, STRATEGIC)
    assert (changed.code, changed.body["metadata"]["generation"]) == (200, 2)
    container = changed.body["spec"]["template"]["spec"]["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("example.invalid/none:2", "IfNotPresent")


async def test_scale_is_read_and_written(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A Scale object is served; PUT and PATCH change the replicas and nothing else; a stale version gets 409."""
    path = _at(ns, "apps/v1", "deployments", "d")
    made = await kube.post(_at(ns, "apps/v1", "deployments"), a_deployment(paused=True))
    scale = await kube.get(f"{path}/scale")
    assert (scale.body["kind"], scale.body["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale.uid, scale.body["spec"], scale.body["status"]["replicas"]) == (made.uid, {}, 0)
    assert scale.body["status"]["selector"] == "app=web"
    patched = await kube.patch(f"{path}/scale", {"spec": {"replicas": 2}})
    assert (patched.code, patched.body["kind"], patched.body["spec"]) == (200, "Scale", {"replicas": 2})
    assert (await kube.get(path)).body["spec"]["replicas"] == 2
    stale = await kube.put(f"{path}/scale", {**scale.body, "spec": {"replicas": 3}})
    assert (stale.code, stale.reason) == (409, "Conflict")
    negative = await kube.patch(f"{path}/scale", {"spec": {"replicas": -1}})
    assert (negative.code, negative.causes[0]["field"]) == (422, "spec.replicas")
    await kube.patch(f"{path}/scale", {"spec": {"replicas": 0}})


async def test_job_is_selected_by_its_uid(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The server sets the selector and the labels of the template."""
    spec = {"suspend": True, "template": a_template(restartPolicy="Never")}
    made = await kube.post(_at(ns, "batch/v1", "jobs"), {"metadata": {"name": "j"}, "spec": spec})
    assert made.code == 201, made.body
    found = made.body["spec"]
    assert found["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": made.uid}}
    assert found["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert [found[field] for field in ("completions", "parallelism", "backoffLimit")] == [1, 1, 6]
    assert (found["completionMode"], found["podReplacementPolicy"]) == ("NonIndexed", "TerminatingOrFailed")
    refused = await kube.post(
        _at(ns, "batch/v1", "jobs"), {"metadata": {"name": "k"}, "spec": {"template": a_template()}}
    )
    assert "spec.template.spec.restartPolicy" in [cause["field"] for cause in refused.causes]


@pytest.mark.parametrize(
    ("group", "plural", "spec", "expected"),
    [
        ("networking.k8s.io/v1", "networkpolicies", {"podSelector": {}}, {"policyTypes": ["Ingress"]}),
        ("autoscaling/v2", "horizontalpodautoscalers",
         {"scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "maxReplicas": 2},
         {"minReplicas": 1}),
        ("batch/v1", "cronjobs",
         {"schedule": "0 0 1 1 *", "suspend": True,
          "jobTemplate": {"spec": {"template": a_template(restartPolicy="Never")}}},
         {"concurrencyPolicy": "Allow", "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}),
        ("apps/v1", "statefulsets",
         {"replicas": 0, "serviceName": "s", "selector": {"matchLabels": APP}, "template": a_template()},
         {"podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10}),
        ("networking.k8s.io/v1", "ingresses",
         {"rules": [{"http": {"paths": [{"path": "/", "pathType": "Prefix",
                                         "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}, {}),
    ],
)  # fmt: skip
async def test_other_kinds_of_charts(
    kube: KubeHttp, ns: NamespacePaths, group: str, plural: str, spec: Json, expected: Json
) -> None:
    """Other kinds are created with their defaults, read, labelled and deleted."""
    made = await kube.post(_at(ns, group, plural), {"metadata": {"name": "x"}, "spec": spec})
    assert made.code == 201, made.body
    assert {field: made.body["spec"].get(field) for field in expected} == expected
    path = _at(ns, group, plural, "x")
    labelled = await kube.patch(path, {"metadata": {"labels": {"a": "b"}}})
    assert (labelled.code, labelled.body["metadata"]["labels"]) == (200, {"a": "b"})
    assert (await kube.get(_at(ns, group, plural), labelSelector="a=b")).names == ["x"]
    assert (await kube.delete(path)).code == 200


async def test_service_is_given_an_address(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A Service gets its own address, and keeps it when a replacement does not repeat it."""
    made = await kube.post(ns.of("services"), a_service())
    spec = made.body["spec"]
    assert (made.code, spec["clusterIPs"]) == (201, [spec["clusterIP"]])
    assert spec["clusterIP"] not in ("", "None")
    shown = {field: spec[field] for field in ("type", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy")}
    assert shown == {
        "type": "ClusterIP",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
    }
    assert spec["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    again = await kube.put(ns.of("services", "s"), a_service(sessionAffinity="ClientIP"))
    assert (again.code, again.body["spec"]["clusterIP"]) == (200, spec["clusterIP"])


async def test_address_is_given_once(kube: KubeHttp, ns: NamespacePaths) -> None:
    """An address that is in use, out of range or changed gets 422."""
    first = (await kube.post(ns.of("services"), a_service())).body["spec"]["clusterIP"]
    taken = await kube.post(ns.of("services"), a_service("t", clusterIP=first))
    assert (taken.code, taken.causes[0]["field"]) == (422, "spec.clusterIPs")
    assert f"failed to allocate IP {first}: provided IP is already allocated" in taken.message
    outside = await kube.post(ns.of("services"), a_service("t", clusterIP="192.0.2.1"))
    assert outside.code == 422
    assert "failed to allocate IP 192.0.2.1: the provided network does not match" in outside.message
    changed = await kube.patch(ns.of("services", "s"), {"spec": {"clusterIP": "None", "clusterIPs": ["None"]}})
    assert (changed.code, changed.causes[0]["field"]) == (422, "spec.clusterIPs[0]")
    assert "may not change once set" in changed.message


async def test_released_address_is_free(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The address of a deleted Service is free again."""
    first = (await kube.post(ns.of("services"), a_service())).body["spec"]["clusterIP"]
    await kube.delete(ns.of("services", "s"))
    again = await kube.post(ns.of("services"), a_service("t", clusterIP=first))
    assert (again.code, again.body["spec"]["clusterIP"]) == (201, first)


async def test_a_headless_service_stays_headless(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Any number of Services may have the address None; they need no ports."""
    made = [await kube.post(ns.of("services"), a_service(name, clusterIP="None")) for name in ("s", "t")]
    bare = await kube.post(
        ns.of("services"), {"metadata": {"name": "u"}, "spec": {"clusterIP": "None", "selector": APP}}
    )
    assert [answer.code for answer in (*made, bare)] == [201] * 3
    assert [answer.body["spec"]["clusterIPs"] for answer in (*made, bare)] == [["None"]] * 3


async def test_external_names_have_no_address(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A Service of the type ExternalName has no address."""
    made = await kube.post(
        ns.of("services"), {"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "a.test"}}
    )
    assert (made.code, "clusterIP" in made.body["spec"]) == (201, False)


async def test_node_ports_are_given_once(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A Service gets a port of the range; the same port in a second Service gets 422."""
    made = await kube.post(ns.of("services"), a_service(type="NodePort"))
    port = made.body["spec"]["ports"][0]["nodePort"]
    assert 30000 <= port < 32768
    twice = await kube.post(ns.of("services"), a_service("t", type="NodePort", ports=[{"port": 1, "nodePort": port}]))
    assert (twice.code, twice.causes[0]["field"]) == (422, "spec.ports[0].nodePort")
    assert "provided port is already allocated" in twice.message


@pytest.mark.parametrize("address", ["foo", "10.96.0", "10.96.0.0/24"])
async def test_address_is_an_ip_address(kube: KubeHttp, ns: NamespacePaths, address: str) -> None:
    """Any other text than an IP address gets 422 with the field; only `None` is accepted too."""
    specs: list[Json] = [{"clusterIP": address}, {"clusterIP": address, "clusterIPs": [address]}]
    for spec in specs:
        answer = await kube.post(ns.of("services"), a_service(**spec))
        assert (answer.code, answer.causes[0]["field"]) == (422, "spec.clusterIPs[0]")
        assert "must be a valid IP address" in answer.message


@pytest.mark.parametrize("port", [80, 40000])
async def test_node_ports_are_of_the_range(kube: KubeHttp, ns: NamespacePaths, port: int) -> None:
    """A node port outside of the range gets 422."""
    answer = await kube.post(ns.of("services"), a_service(type="NodePort", ports=[{"port": 1, "nodePort": port}]))
    assert (answer.code, answer.causes[0]["field"]) == (422, "spec.ports[0].nodePort")
    assert "provided port is not in the valid range. The range of valid ports is 30000-32767" in answer.message


async def test_change_of_the_type_gives_a_node_port(kube: KubeHttp, ns: NamespacePaths) -> None:
    """NodePort adds a port, and ClusterIP removes it; the address stays. The writer that changed the type does not
    own the port."""
    made = await kube.post(ns.of("services"), a_service())
    path = ns.of("services", "s")
    opened = await kube.patch(path, {"spec": {"type": "NodePort"}}, fieldManager="opener")
    spec = opened.body["spec"]
    assert (opened.code, spec["externalTrafficPolicy"]) == (200, "Cluster")
    assert 30000 <= spec["ports"][0]["nodePort"] < 32768
    assert spec["clusterIP"] == made.body["spec"]["clusterIP"]
    assert "f:nodePort" not in str(opened.body["metadata"]["managedFields"])
    closed = await kube.patch(path, {"spec": {"type": "ClusterIP"}})
    assert (closed.code, closed.body["spec"]) == (200, made.body["spec"])


async def test_node_port_stays_with_the_name_of_its_port(kube: KubeHttp, ns: NamespacePaths) -> None:
    """A replacement without the node port keeps it, also with another port number; an added port gets a new node
    port."""
    made = await kube.post(ns.of("services"), a_service(type="NodePort", ports=[{"port": 80, "name": "web"}]))
    kept = made.body["spec"]["ports"][0]["nodePort"]
    ports = [{"port": 70, "name": "more"}, {"port": 81, "name": "web"}]
    again = await kube.put(ns.of("services", "s"), a_service(type="NodePort", ports=ports))
    more, web = (port["nodePort"] for port in again.body["spec"]["ports"])
    assert (again.code, web) == (200, kept)
    assert 30000 <= more < 32768
    assert more != kept


async def test_change_cannot_take_the_node_port_of_another(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Such a change gets 422, as for a new Service; a Service of the type ClusterIP may have no node port."""
    made = await kube.post(ns.of("services"), a_service(type="NodePort"))
    taken = made.body["spec"]["ports"][0]["nodePort"]
    await kube.post(ns.of("services"), a_service("t"))
    change = a_service("t", type="NodePort", ports=[{"port": 80, "nodePort": taken}])
    refused = await kube.put(ns.of("services", "t"), change)
    assert (refused.code, refused.causes[0]["field"]) == (422, "spec.ports[0].nodePort")
    assert "provided port is already allocated" in refused.message
    plain = await kube.post(ns.of("services"), a_service("u", ports=[{"port": 80, "nodePort": 32767}]))
    assert (plain.code, plain.causes[0]["field"]) == (422, "spec.ports[0].nodePort")
    assert "may not be used when `type` is 'ClusterIP'" in plain.message


async def test_ports_with_one_number_share_a_node_port(kube: KubeHttp, ns: NamespacePaths) -> None:
    """TCP and UDP ports with one number of a new Service share a node port."""
    ports = [{"port": 53, "protocol": protocol, "name": protocol.lower()} for protocol in ("TCP", "UDP")]
    made = await kube.post(ns.of("services"), a_service(type="NodePort", ports=ports))
    assert made.code == 201, made.body
    assert len({port["nodePort"] for port in made.body["spec"]["ports"]}) == 1


async def test_load_balancer_may_do_without_node_ports(kube: KubeHttp, ns: NamespacePaths) -> None:
    """With allocateLoadBalancerNodePorts=false no node port is assigned."""
    spec: Json = {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False}
    made = await kube.post(ns.of("services"), a_service(**spec))
    assert (made.code, "nodePort" in made.body["spec"]["ports"][0]) == (201, False)


async def test_external_name_gives_its_address_back(kube: KubeHttp, ns: NamespacePaths) -> None:
    """The type ExternalName releases the address; another type gets a new one."""
    made = await kube.post(ns.of("services"), a_service())
    path = ns.of("services", "s")
    named = await kube.patch(path, {"spec": {"type": "ExternalName", "externalName": "a.test"}})
    fields = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy")
    assert (named.code, [field for field in fields if field in named.body["spec"]]) == (200, [])
    other = await kube.post(ns.of("services"), a_service("t", clusterIP=made.body["spec"]["clusterIP"]))
    assert other.code == 201, other.body
    again = await kube.patch(path, {"spec": {"type": "ClusterIP", "externalName": None}})
    spec = again.body["spec"]
    assert (again.code, spec["clusterIPs"], spec["ipFamilies"]) == (200, [spec["clusterIP"]], ["IPv4"])
    assert spec["clusterIP"] not in ("", "None", made.body["spec"]["clusterIP"])


async def test_address_of_a_service_is_not_changed_by_the_older_field(kube: KubeHttp, ns: NamespacePaths) -> None:
    """Another clusterIP without clusterIPs gets 422, as with both fields."""
    await kube.post(ns.of("services"), a_service())
    changed = await kube.patch(ns.of("services", "s"), {"spec": {"clusterIP": "None"}})
    assert (changed.code, [cause["field"] for cause in changed.causes]) == (422, ["spec.clusterIPs[0]"])
    assert "may not change once set" in changed.message


@pytest.fixture
async def level(kube: KubeHttp) -> AsyncIterator[str]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    made = await kube.post(PRIORITIES, {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"})
    assert made.code == 201, made.body
    yield name
    await kube.delete(f"{PRIORITIES}/{name}")


async def test_pod_is_given_its_priority(kube: KubeHttp, ns: NamespacePaths, level: str) -> None:
    """A pod gets the value and policy of its class; without a class its priority is zero."""
    ranked = await kube.post(ns.of("pods"), a_pod("p", priorityClassName=level))
    plain = await kube.post(ns.of("pods"), a_pod("q"))
    system = await kube.post(ns.of("pods"), a_pod("r", priorityClassName="system-node-critical"))
    shown = [(each.body["spec"]["priority"], each.body["spec"]["preemptionPolicy"]) for each in (ranked, plain, system)]
    assert shown == [(1000, "Never"), (0, "PreemptLowerPriority"), (2000001000, "PreemptLowerPriority")]


async def test_a_client_cannot_set_the_numeric_priority(kube: KubeHttp, ns: NamespacePaths, level: str) -> None:
    """A missing class gets 403, and so does a priority other than that of the class."""
    absent = await kube.post(ns.of("pods"), a_pod(priorityClassName="none"))
    assert (absent.code, absent.message) == (403, 'pods "p" is forbidden: no PriorityClass with name none was found')
    wrong = await kube.post(ns.of("pods"), a_pod(priorityClassName=level, priority=7, preemptionPolicy="Never"))
    words = (
        "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed "
    )
    assert (wrong.code, wrong.message) == (403, f'pods "p" is forbidden: {words}1000 from the given PriorityClass name')


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"value": 1000000001}, "value"),
        ({"value": 1, "preemptionPolicy": "Sometimes"}, "preemptionPolicy"),
    ],
)
async def test_invalid_priority_classes(kube: KubeHttp, body: Json, field: str) -> None:
    """An invalid priority class gets 422 with the field."""
    answer = await kube.post(PRIORITIES, {"metadata": {"name": f"contract-{uuid.uuid4().hex[:8]}"}, **body})
    assert (answer.code, answer.causes[0]["field"]) == (422, field)


async def test_system_priority_classes(kube: KubeHttp) -> None:
    """The cluster has two system classes, and no further one can be created."""
    found = [await kube.get(f"{PRIORITIES}/system-{name}-critical") for name in ("node", "cluster")]
    assert [each.body["value"] for each in found] == [2000001000, 2000000000]
    refused = await kube.post(PRIORITIES, {"metadata": {"name": "system-mine"}, "value": 1})
    assert (refused.code, refused.causes[0]["field"]) == (422, "metadata.name")
