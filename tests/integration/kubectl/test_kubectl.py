"""The real kubectl against the local cluster's API server: objects and their life."""

import asyncio

import msgspec
import yaml

from tests.contract.kube.client import KubeHttp
from tests.contract.kube.conftest import eventually
from tests.contract.kube.samples import a_config, a_pod, a_widget, definition
from tests.integration.kubectl.conftest import DEADLINE_S, Command, Kubectl

PODS = "/api/v1/namespaces/default/pods"
CONFIGS = "/api/v1/namespaces/default/configmaps"


async def test_apply_configures_and_leaves_alone(kubectl: Kubectl) -> None:
    """Built-in and custom kinds are created, unchanged, then configured."""
    await kubectl("apply", "-f", "-", stdin=[definition()])
    both = [a_config(data={"a": "1"}), a_widget(), a_pod()]
    made = await kubectl("apply", "-f", "-", stdin=both)
    again = await kubectl("apply", "-f", "-", stdin=both)
    changed = [a_config(data={"a": "2"}), a_widget(size=2), a_pod(meta={"labels": {"new": "yes"}})]
    third = await kubectl("apply", "-f", "-", stdin=changed)
    for said, word in ((made, "created"), (again, "unchanged"), (third, "configured")):
        assert [line.rpartition(" ")[2] for line in said.out.split("\n")[:3]] == [word] * 3
    size = await kubectl("get", "widget", "w", "-o", "jsonpath={.spec.size}")
    assert size.out == "2"


async def test_apply_refuses_a_typo(kubectl: Kubectl) -> None:
    """Server-side validation names the unknown field."""
    await kubectl("apply", "-f", "-", stdin=[definition()])
    said = await kubectl("apply", "-f", "-", stdin=[a_widget(colour="red")], code=1)
    assert 'unknown field "spec.colour"' in said.err


async def test_get_prints_the_declared_columns(kubectl: Kubectl) -> None:
    """`get` prints tables, accepts short names, and prints wide pods."""
    await kubectl("apply", "-f", "-", stdin=[definition()])
    await kubectl("apply", "-f", "-", stdin=[a_widget(), a_pod()])
    widgets = await kubectl("get", "wid")
    pods = await kubectl("get", "pods", "-o", "wide")
    assert [line.split() for line in widgets.out.splitlines()] == [["NAME", "SIZE", "PHASE"], ["w", "1", "New"]]
    assert pods.out.splitlines()[0].split()[:5] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert pods.out.splitlines()[1].split()[:3] == ["p", "0/1", "Pending"]


async def test_get_as_yaml_and_json(kubectl: Kubectl) -> None:
    """`get` prints the objects as YAML and JSON."""
    await kubectl("apply", "-f", "-", stdin=[a_config(data={"a": "1"})])
    as_yaml = await kubectl("get", "configmap", "c", "-o", "yaml")
    as_json = await kubectl("get", "configmaps", "-o", "json")
    assert yaml.safe_load(as_yaml.out)["data"] == {"a": "1"}
    assert msgspec.json.decode(as_json.out)["items"][0]["data"] == {"a": "1"}


async def test_get_watches(kubectl: Kubectl, command: Command) -> None:
    """`get -w` prints what changes."""
    await kubectl("apply", "-f", "-", stdin=[a_config("first")])
    process = await command.start("get", "configmaps", "-w", "--no-headers")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert (await process.stdout.readline()).split()[0] == b"first"
            await kubectl("create", "configmap", "second", "--from-literal=a=1")
            assert (await process.stdout.readline()).split()[:2] == [b"second", b"1"]
    finally:
        process.kill()
        await process.communicate()


async def test_wait_for_a_path_and_for_a_condition(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`wait` returns when the status says so, and fails after its timeout."""
    await kube.post(PODS, a_pod())
    await kube.post(PODS, a_pod("q"))
    waiting = asyncio.gather(
        kubectl("wait", "pod/p", "--for=jsonpath={.status.phase}=Running", "--timeout=20s"),
        kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=20s"),
    )
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await kube.patch(f"{PODS}/p/status", ready)
    assert [said.out for said in await waiting] == ["pod/p condition met\n"] * 2
    late = await kubectl("wait", "pod/q", "--for=condition=Ready", "--timeout=1s", code=1)
    assert "timed out waiting for the condition" in late.err


async def test_imperative_verbs(kubectl: Kubectl) -> None:
    """create, label, annotate, patch and delete work."""
    await kubectl("create", "namespace", "team")
    await kubectl("create", "configmap", "c", "-n", "team", "--from-literal=a=1")
    await kubectl("create", "secret", "generic", "s", "-n", "team", "--from-literal=key=value")
    await kubectl("label", "configmap", "c", "-n", "team", "x=y")
    await kubectl("annotate", "configmap", "c", "-n", "team", "note=this")
    await kubectl("patch", "configmap", "c", "-n", "team", "--type=merge", "-p", '{"data":{"b":"2"}}')
    steps = '[{"op":"remove","path":"/data/a"}]'
    await kubectl("patch", "configmap", "c", "-n", "team", "--type=json", "-p", steps)
    found = yaml.safe_load((await kubectl("get", "cm", "c", "-n", "team", "-o", "yaml")).out)
    assert (found["data"], found["metadata"]["labels"]) == ({"b": "2"}, {"x": "y"})
    assert found["metadata"]["annotations"] == {"note": "this"}
    await kubectl("delete", "namespace", "team")
    gone = await kubectl("get", "namespace", "team", code=1)
    assert "NotFound" in gone.err


async def test_delete_waits_for_finalizers(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`delete` returns when the object is gone, after its last finalizer."""
    await kube.post(CONFIGS, a_config(finalizers=["slipway.dev/test"]))
    waiting = asyncio.ensure_future(kubectl("delete", "configmap", "c"))

    async def is_deleting() -> bool:
        return "deletionTimestamp" in (await kube.get(f"{CONFIGS}/c")).body["metadata"]

    await eventually(is_deleting, "kubectl has asked for the delete")
    assert not waiting.done()
    await kube.patch(f"{CONFIGS}/c", {"metadata": {"finalizers": None}})
    assert "deleted" in (await waiting).out


async def test_explain_reads_the_schema(kubectl: Kubectl) -> None:
    """`explain` shows fields, types and enums of a custom kind."""
    await kubectl("apply", "-f", "-", stdin=[definition()])
    said = await kubectl("explain", "widget.spec")
    assert "color\t<string>" in said.out
    assert "enum: red, blue" in said.out


async def test_describe_shows_the_events(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`describe` finds the Events of an object by field selector."""
    pod = (await kube.post(PODS, a_pod())).body
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p", "uid": pod["metadata"]["uid"]},
        "reason": "Pulling",
        "message": "pulling the image",
    }
    await kube.post("/api/v1/namespaces/default/events", event)
    said = await kubectl("describe", "pod", "p")
    assert "pulling the image" in said.out


async def test_scripts_may_ask_who_and_whether(kubectl: Kubectl) -> None:
    """auth can-i, api-resources and version work."""
    assert (await kubectl("auth", "can-i", "create", "pods")).out.strip() == "yes"
    assert "configmaps" in (await kubectl("api-resources", "-o", "name")).out
    assert "v1.37" in (await kubectl("version")).out


async def test_server_side_apply(kubectl: Kubectl) -> None:
    """`apply --server-side` creates and then merges."""
    await kubectl("apply", "-f", "-", stdin=[definition()])
    await kubectl("apply", "--server-side", "-f", "-", stdin=[a_widget()])
    await kubectl("apply", "--server-side", "-f", "-", stdin=[a_widget(size=3)])
    size = await kubectl("get", "widget", "w", "-o", "jsonpath={.spec.size}")
    assert size.out == "3"


async def test_cordon(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`cordon` patches the node with a strategic merge patch, and `get` shows it."""
    await kube.post("/api/v1/nodes", {"metadata": {"name": "n"}})
    await kubectl("cordon", "n")
    assert (await kube.get("/api/v1/nodes/n")).body["spec"]["unschedulable"] is True
    assert "SchedulingDisabled" in (await kubectl("get", "nodes")).out


async def test_logs(kubectl: Kubectl, kube: KubeHttp) -> None:
    """`logs` shows the log of one container, with and without following."""
    await kube.post("/api/v1/nodes", {"metadata": {"name": "n"}})
    await kube.post(PODS, a_pod())
    await kube.post(f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {"name": "n"}})
    assert (await kubectl("logs", "p", "-c", "main")).out == "hello from main\n"
    assert "hello" in (await kubectl("logs", "-f", "p")).out
