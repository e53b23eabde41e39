"""The real kubectl against the local cluster's API server: nodes, access, and the kinds that charts bring."""

import base64
from pathlib import Path

import msgspec
import pytest
import trustme

from slipway.local.apiserver.core import ClusterCore
from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import eventually
from tests.contract.kube.samples import Json, a_pod, a_widget, definition
from tests.contract.kube.target import serving
from tests.integration.kubectl.conftest import ADMIN, Command, Kubectl, write_config

PODS = "/api/v1/namespaces/default/pods"
RUNNING: Json = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
APP: Json = {"app": "web"}
DEPLOYMENT: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": APP},
        "template": {"metadata": {"labels": APP}, "spec": {"containers": [{"name": "main", "image": "i:1"}]}},
    },
}


async def _running(kube: KubeHttp, name: str = "p", node: str = "n") -> None:
    """A ready pod of the application on a node of that name."""
    await kube.post("/api/v1/nodes", {"metadata": {"name": node}, "status": {"capacity": {"cpu": "4"}}})
    await kube.post(PODS, a_pod(name, {"labels": APP}))
    await kube.post(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": node}})
    await kube.patch(f"{PODS}/{name}/status", RUNNING)


async def test_drain_empties_a_node(kubectl: Kubectl, kube: KubeHttp, core: ClusterCore) -> None:
    """`drain` cordons the node, evicts its pods and waits until they are gone."""
    await _running(kube)

    def obey() -> bool:
        record = core.store.find("pods", "default", "p")
        if record is not None and "deletionTimestamp" in record.obj["metadata"]:
            core.delete("pods", "default", "p", {"gracePeriodSeconds": 0})
        return controllers()

    # The part of the kubelet: evicted pods end.
    controllers = core.run_controllers
    core.run_controllers = obey
    said = await kubectl("drain", "n", "--force", "--timeout=20s")
    assert "node/n drained" in said.out
    assert (await kube.get(f"{PODS}/p")).code == 404
    assert (await kube.get("/api/v1/nodes/n")).body["spec"]["unschedulable"] is True
    await kubectl("uncordon", "n")
    assert "unschedulable" not in (await kube.get("/api/v1/nodes/n")).body["spec"]


async def test_drain_respects_a_budget(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`drain` shows the budget that it waits for, and the pod stays."""
    await _running(kube)
    await kubectl("create", "pdb", "guard", "--min-available=1", "--selector=app=web")
    said = await kubectl("drain", "n", "--force", "--timeout=3s", code=1)
    assert "Cannot evict pod as it would violate the pod's disruption budget" in said.err
    assert "deletionTimestamp" not in (await kube.get(f"{PODS}/p")).body["metadata"]
    assert "Allowed disruptions:  0" in (await kubectl("describe", "pdb", "guard")).out


async def test_taints_labels_and_annotations(kubectl: Kubectl, kube: KubeHttp) -> None:
    """They are set and removed again."""
    await kube.post("/api/v1/nodes", {"metadata": {"name": "n"}})
    for words in (
        ("taint", "nodes", "n", "a=b:NoSchedule"),
        ("label", "node", "n", "x=y"),
        ("annotate", "node", "n", "z=1"),
    ):
        await kubectl(*words)
    node = (await kube.get("/api/v1/nodes/n")).body
    assert node["spec"]["taints"] == [{"key": "a", "value": "b", "effect": "NoSchedule"}]
    assert (node["metadata"]["labels"], node["metadata"]["annotations"]) == ({"x": "y"}, {"z": "1"})
    await kubectl("taint", "nodes", "n", "a-")
    await kubectl("label", "node", "n", "x-")
    node = (await kube.get("/api/v1/nodes/n")).body
    assert ("taints" in node["spec"], "labels" in node["metadata"]) == (False, False)


async def test_describe_node_lists_its_pods(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`describe` shows conditions, capacity, and the pods by field selector."""
    await _running(kube)
    said = await kubectl("describe", "node", "n")
    assert "Non-terminated Pods:" in said.out
    assert "default                     p" in said.out


async def test_describe_pod_and_custom_object(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`describe` shows Events of both forms."""
    await kubectl("apply", "-f", "-", stdin=[definition()])
    await kubectl("apply", "-f", "-", stdin=[a_widget()])
    widget = await kube.get("/apis/contract.slipway.dev/v1/namespaces/default/widgets/w")
    identity = {
        "kind": "Widget",
        "namespace": "default",
        "name": "w",
        "uid": widget.uid,
        "apiVersion": "contract.slipway.dev/v1",
    }
    event = {
        "metadata": {"name": "e"},
        "regarding": identity,
        "eventTime": "2026-11-21T12:00:00.000000Z",
        "reportingController": "slipway.dev/test",
        "reportingInstance": "test-0",
        "action": "Paint",
        "reason": "Painted",
        "note": "it is red now",
        "type": "Normal",
    }
    made = await kube.post("/apis/events.k8s.io/v1/namespaces/default/events", event)
    assert made.code == 201, made.body
    described = await kubectl("describe", "widget", "w")
    assert ("Size:" in described.out, "it is red now" in described.out) == (True, True)
    assert "it is red now" in (await kubectl("events", "--for", "widget/w")).out
    assert "it is red now" in (await kubectl("get", "events", "--field-selector", "involvedObject.name=w")).out


async def test_explain_knows_every_kind(kubectl: Kubectl) -> None:
    """`explain` works for built-in kinds to any depth, and for custom kinds recursively."""
    await kubectl("apply", "-f", "-", stdin=[definition()])
    container = await kubectl("explain", "pod.spec.containers.resources")
    strategy = await kubectl("explain", "deployments.spec.strategy.rollingUpdate")
    widget = await kubectl("explain", "widget", "--recursive")
    assert "limits\t<map[string]string>" in container.out
    assert "maxSurge\t<" in strategy.out
    assert "doors\t<[]Object>" in widget.out
    assert "wide\t<boolean>" in widget.out
    unknown = await kubectl("explain", "pod.spec.colour", code=1)
    assert 'field "colour" does not exist' in unknown.err


async def test_diff_shows_what_apply_would_do(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`diff` returns 1 and shows the changed line without writing; it returns 0 when nothing would change."""
    await kubectl("apply", "-f", "-", stdin=[DEPLOYMENT])
    before = await kube.get("/apis/apps/v1/namespaces/default/deployments/web")
    same = await kubectl("diff", "-f", "-", stdin=[DEPLOYMENT])
    spec = {**DEPLOYMENT["spec"], "replicas": 2}
    other = await kubectl("diff", "-f", "-", stdin=[{**DEPLOYMENT, "spec": spec}], code=1)
    server_side = await kubectl("diff", "--server-side", "-f", "-", stdin=[{**DEPLOYMENT, "spec": spec}], code=None)
    assert (same.out, "+  replicas: 2" in other.out) == ("", True)
    assert "replicas: 2" in server_side.out + server_side.err
    assert (await kube.get("/apis/apps/v1/namespaces/default/deployments/web")).version == before.version


async def test_output_forms(kubectl: Kubectl, kube: KubeHttp) -> None:
    """jsonpath, custom columns, sorting, field and label selectors, names and templates work."""
    for name, tier in (("b", "front"), ("a", "back")):
        await kube.post(PODS, a_pod(name, {"labels": {"tier": tier}}))
    shown = "custom-columns=N:.metadata.name,T:.metadata.labels.tier"
    columns = await kubectl("get", "pods", "-o", shown, "--sort-by=.metadata.name")
    assert [line.split() for line in columns.out.splitlines()] == [["N", "T"], ["a", "back"], ["b", "front"]]
    path = await kubectl("get", "pods", "-o", "jsonpath={range .items[*]}{.metadata.name}:{.status.phase} {end}")
    assert path.out == "a:Pending b:Pending "
    assert (await kubectl("get", "pods", "-l", "tier=back", "-o", "name")).out == "pod/a\n"
    assert (await kubectl("get", "pods", "--field-selector", "metadata.name=b", "-o", "name")).out == "pod/b\n"
    template = await kubectl("get", "pod", "a", "-o", "go-template={{.metadata.labels.tier}}")
    assert template.out == "back"
    assert "TIER" in (await kubectl("get", "pods", "-L", "tier")).out


async def test_workloads(kubectl: Kubectl, kube: KubeHttp) -> None:
    """Workloads are applied, scaled, patched, given a new image, exposed, described and listed."""
    await kubectl("apply", "-f", "-", stdin=[DEPLOYMENT])
    await kubectl("scale", "deployment", "web", "--replicas=3")
    await kubectl("set", "image", "deployment/web", "main=i:2")
    await kubectl("patch", "deployment", "web", "-p", '{"spec":{"paused":true}}')
    await kubectl("expose", "deployment", "web", "--port=80")
    spec = (await kube.get("/apis/apps/v1/namespaces/default/deployments/web")).body["spec"]
    assert (spec["replicas"], spec["paused"]) == (3, True)
    assert spec["template"]["spec"]["containers"][0]["image"] == "i:2"
    assert "3 desired" in (await kubectl("describe", "deployment", "web")).out
    address = (await kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")).out
    assert address in (await kubectl("get", "services")).out
    assert {"deployment.apps/web", "service/web"} <= {
        line.split()[0] for line in (await kubectl("get", "all")).out.splitlines() if line
    }


async def test_bodies_in_protobuf(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`kubectl create` and `run` send protobuf."""
    await kubectl("create", "deployment", "d", "--image=i:1", "--replicas=2")
    await kubectl("create", "job", "j", "--image=i:1", "--", "sh", "-c", "true")
    await kubectl("create", "cronjob", "c", "--image=i:1", "--schedule=0 0 1 1 *")
    await kubectl("create", "ingress", "i", "--rule=example.test/=d:80")
    await kubectl("create", "quota", "q", "--hard=pods=20,services=4")
    await kubectl("create", "service", "nodeport", "s", "--tcp=80:8080")
    await kubectl("run", "r", "--image=i:1", "--restart=Never", "--env=A=b", "--labels=x=y", "--port=8080")
    job = (await kube.get("/apis/batch/v1/namespaces/default/jobs/j")).body["spec"]["template"]["spec"]
    pod = (await kube.get(f"{PODS}/r")).body
    service = (await kube.get("/api/v1/namespaces/default/services/s")).body["spec"]["ports"][0]
    ingress = (await kube.get("/apis/networking.k8s.io/v1/namespaces/default/ingresses/i")).body["spec"]["rules"][0]
    assert (job["containers"][0]["command"], job["restartPolicy"]) == (["sh", "-c", "true"], "Never")
    assert pod["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
    assert pod["spec"]["containers"][0]["ports"] == [{"containerPort": 8080, "protocol": "TCP"}]
    assert (service["port"], service["targetPort"]) == (80, 8080)
    assert ingress["http"]["paths"][0]["backend"] == {"service": {"name": "d", "port": {"number": 80}}}
    hard = (await kube.get("/api/v1/namespaces/default/resourcequotas/q")).body["spec"]["hard"]
    assert hard == {"pods": "20", "services": "4"}


async def test_roles_are_asked(kubectl: Kubectl) -> None:
    """create role, create rolebinding, can-i for another user, and whoami work."""
    account = "system:serviceaccount:default:default"
    await kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods,configmaps")
    await kubectl("create", "rolebinding", "reads", "--role=reader", "--serviceaccount=default:default")
    assert (await kubectl("auth", "can-i", "list", "pods", "--as", account)).out.strip() == "yes"
    assert (await kubectl("auth", "can-i", "delete", "pods", "--as", account, code=1)).out.strip() == "no"
    assert (
        await kubectl("auth", "can-i", "list", "pods", "--as", account, "-n", "kube-system", code=1)
    ).out.strip() == "no"
    listed = await kubectl("auth", "can-i", "--list", "--as", account)
    assert "configmaps" in listed.out
    assert account in (await kubectl("auth", "whoami", "--as", account)).out
    assert "reader" in (await kubectl("describe", "rolebinding", "reads")).out


async def test_created_token_says_whose_it_is(kubectl: Kubectl) -> None:
    """`create token` prints a JWT of the account."""
    token = (await kubectl("create", "token", "default", "--duration", "1h")).out.strip()
    payload = token.split(".")[1]
    claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert claims["sub"] == "system:serviceaccount:default:default"
    assert claims["exp"] - claims["iat"] == 3600


async def test_enforced_rules(core: ClusterCore, binary: str, tmp_path: Path) -> None:
    """With --authorization rbac an account can do what its role allows, and is refused everything else."""
    authority, certificate, ca = trustme.CA(), tmp_path / "server.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    with serving(core, certificate, authorization="rbac", token=ADMIN) as url:
        admin = Command(binary, write_config(tmp_path / "admin", url, ADMIN, ca), tmp_path)
        await admin.run("create", "role", "reader", "--verb=get,list", "--resource=pods")
        await admin.run("create", "rolebinding", "reads", "--role=reader", "--serviceaccount=default:default")
        token = (await admin.run("create", "token", "default")).out.strip()
        robot = Command(binary, write_config(tmp_path / "robot", url, token, ca), tmp_path)
        assert "No resources found" in (await robot.run("get", "pods")).err
        refused = await robot.run("get", "secrets", code=1)
        stranger = Command(binary, write_config(tmp_path / "stranger", url, "nonsense", ca), tmp_path)
        unknown = await stranger.run("get", "pods", code=1)
    words = (
        'User "system:serviceaccount:default:default" cannot list resource "secrets" in API group "" in the namespace'
    )
    assert f"secrets is forbidden: {words}" in refused.err
    assert "You must be logged in to the server" in unknown.err


async def test_edit_writes_what_the_editor_leaves(command: Command, kube: KubeHttp, tmp_path: Path) -> None:
    """`edit` writes the change that the editor made."""
    await command.run("apply", "-f", "-", stdin=[DEPLOYMENT])
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/replicas: 1/replicas: 5/" "$1"\n')
    editor.chmod(0o700)
    said = await command.run("edit", "deployment", "web", editor=str(editor))
    assert "edited" in said.out
    spec = (await kube.get("/apis/apps/v1/namespaces/default/deployments/web")).body["spec"]
    assert spec["replicas"] == 5


@pytest.mark.parametrize(
    "what", ["quota", "namespace", "serviceaccount", "configmap", "secret", "service", "priorityclass"]
)
async def test_describe_of_the_rest(kubectl: Kubectl, kube: KubeHttp, what: str) -> None:
    """`describe` of the other kinds works although this server lacks some APIs."""
    await kubectl("create", "quota", "default", "--hard=pods=1")
    await kubectl("create", "configmap", "default", "--from-literal=a=b")
    await kubectl("create", "secret", "generic", "default", "--from-literal=a=b")
    await kubectl("create", "service", "clusterip", "default", "--tcp=80")
    name = "system-node-critical" if what == "priorityclass" else "default"

    async def is_described() -> bool:
        return "default" in (await kubectl("describe", what, name)).out or what == "priorityclass"

    await eventually(is_described, f"{what} is described")
    assert name in (await kubectl("get", what, "-o", "wide")).out
