"""Simulated nodes on a real API server: pods behave as on a real kubelet."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from tests.conformance.cluster.servers import RealCluster
from tests.conformance.kubelets import PLAY, Kubelets, Script, Shape, Taint
from tests.conformance.kubelets.builders import manifest
from tests.conformance.kubelets.objects import Json
from tests.support.clock import wait_until
from tests.support.wait import wait_until as wait_for

WAIT_S = 20.0
NAMESPACE = "kn-test"
"""A namespace of these tests only: other tests use the same cluster."""


class KubectlHarness:
    """A few nodes and the real kubectl."""

    def __init__(self, cluster: RealCluster, kubelets: Kubelets) -> None:
        self.cluster = cluster
        self.kubelets = kubelets

    async def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl and return its output; fail when it fails."""
        done = await asyncio.to_thread(self.cluster.kubectl, "-n", NAMESPACE, *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def run(self, name: str, script: Script | None = None, *, node: str = "kn-0", **spec: Any) -> None:
        """Create a bound pod."""
        body = msgspec.json.encode(manifest(name, script, node=node, namespace=NAMESPACE, **spec)).decode()
        await self.kubectl("create", "--validate=strict", "-f", "-", stdin=body)

    async def pod(self, name: str) -> Json | None:
        """Return the pod as it is now; None when it is gone."""
        text = await self.kubectl("get", "pod", name, "--ignore-not-found", "-o", "json")
        return msgspec.json.decode(text) if text.strip() else None

    async def until(self, name: str, phase: str) -> Json:
        """Wait for a phase, or for `gone`, and return the status."""
        began = time.monotonic()
        while True:
            pod = await self.pod(name)
            found = pod["status"]["phase"] if pod else "gone"
            if found == phase:
                return pod["status"] if pod else {}
            assert time.monotonic() - began < WAIT_S, f"{name} is {found}, not {phase}: {pod}"


@pytest.fixture(scope="module")
def cluster(real: RealCluster) -> Iterator[RealCluster]:
    """The cluster with our namespace; at the end the namespace with its content and our nodes are deleted."""
    real.kubectl("create", "namespace", NAMESPACE)
    account = ("-n", NAMESPACE, "get", "serviceaccount", "default")
    wait_for(lambda: real.kubectl(*account).returncode == 0, "the namespace's account")
    yield real
    real.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    real.kubectl("delete", "nodes", "kn-0", "kn-1")


@pytest.fixture
async def harness(cluster: RealCluster) -> AsyncIterator[KubectlHarness]:
    """Two nodes; at the end the remaining pods are removed."""
    shape = Shape(extended={"nvidia.com/gpu": "2"})
    nodes = Kubelets(cluster.kubeconfig, nodes=["kn-0", "kn-1"], shape=shape, script=Script(starts_s=0), events=True)
    async with nodes as kubelets:
        harness = KubectlHarness(cluster, kubelets)
        yield harness
        await harness.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        await wait_until(lambda: not kubelets.records.live(), "every container ended")


def conditions(status: Json) -> dict[str, str]:
    """{type: status} of a pod."""
    return {item["type"]: item["status"] for item in status["conditions"]}


async def test_a_bound_pod_runs_and_ends(harness: KubectlHarness) -> None:
    """A bound pod has the status that a kubelet writes, and one record of one start."""
    await harness.run("ends", Script(starts_s=0.1, runs_s=1, exit=3))
    status = await harness.until("ends", "Running")
    assert set(conditions(status).values()) == {"True"}
    assert status["containerStatuses"][0]["started"]
    assert status["qosClass"] == "BestEffort"
    status = await harness.until("ends", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert conditions(status)["Ready"] == "False"
    [run] = harness.kubelets.records.of("kn-test/ends")
    assert (run.node, run.code) == ("kn-0", 3)


async def test_a_deleted_pod_is_reported_ended_before_it_is_gone(harness: KubectlHarness) -> None:
    """A deleted pod gets SIGTERM and reports its end before the object is deleted; a finalizer holds the object."""
    await harness.run("dies", Script(starts_s=0, term_s=0.2))
    await harness.until("dies", "Running")
    await harness.kubectl("patch", "pod", "dies", "-p", '{"metadata":{"finalizers":["test.example.org/hold"]}}')
    await harness.kubectl("delete", "pod", "dies", "--wait=false")
    status = await harness.until("dies", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    await harness.kubectl("patch", "pod", "dies", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    await harness.until("dies", "gone")


async def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(harness: KubectlHarness) -> None:
    """A pod that ignores SIGTERM ends with 137 after the grace of its deletion."""
    await harness.run("stubborn", Script(starts_s=0, ignores_term=True))
    await harness.until("stubborn", "Running")
    await harness.kubectl("delete", "pod", "stubborn", "--grace-period=1")
    [run] = harness.kubelets.records.of("kn-test/stubborn")
    assert run.code == 137


async def test_a_pod_deleted_before_its_start_fails_first(harness: KubectlHarness) -> None:
    """A kubelet gives every pod a terminal phase before it confirms the deletion."""
    await harness.run("early", Script(starts_s=60))
    await harness.kubectl("patch", "pod", "early", "-p", '{"metadata":{"finalizers":["test.example.org/hold"]}}')
    await harness.kubectl("delete", "pod", "early", "--wait=false")
    status = await harness.until("early", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    await harness.kubectl("patch", "pod", "early", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    await harness.until("early", "gone")
    assert harness.kubelets.records.of("kn-test/early") == []


async def test_a_pod_that_does_not_fit_is_rejected_in_a_kubelet_s_words(harness: KubectlHarness) -> None:
    """A pod that does not fit is Failed with OutOfcpu, and nothing runs."""
    await harness.run("big", containers=[{"name": "main", "image": "i", "resources": {"requests": {"cpu": "17"}}}])
    status = await harness.until("big", "Failed")
    assert status["reason"] == "OutOfcpu"
    words = "Node didn't have enough resource: cpu, requested: 17000, used: 0, capacity: 16000"
    assert status["message"] == f"Pod was rejected: {words}"
    assert "conditions" not in status
    assert harness.kubelets.records.of("kn-test/big") == []


async def test_a_node_of_the_wrong_kind_rejects_too(harness: KubectlHarness) -> None:
    """A pod is refused with NodeAffinity until its node has the label: the kubelet reads the Node again."""
    await harness.run("picky", nodeSelector={"disk": "fast"})
    assert (await harness.until("picky", "Failed"))["reason"] == "NodeAffinity"
    await harness.kubectl("label", "node", "kn-0", "disk=fast")
    await harness.run("lucky", nodeSelector={"disk": "fast"})
    await harness.until("lucky", "Running")


async def test_kubectl_reads_and_follows_logs(harness: KubectlHarness) -> None:
    """The API server fetches logs from the endpoint of the node, over TLS that it verifies."""
    await harness.run("talks", Script(starts_s=0, logs=("hello", "world"), log_every_s=0.5))
    await harness.until("talks", "Running")
    assert (await harness.kubectl("logs", "talks", "--tail=-1")).startswith("hello\nworld\n")
    assert (await harness.kubectl("logs", "talks", "--limit-bytes=4")) == "hell"
    following = asyncio.ensure_future(harness.kubectl("logs", "-f", "--timestamps", "talks"))
    harness.kubelets.write("kn-test/talks", "by hand")
    while "line 3\n" not in await harness.kubectl("logs", "talks"):
        pass
    assert harness.kubelets.exit("kn-test/talks")
    lines = [line.partition(" ")[2] for line in (await following).splitlines()]
    assert lines[:2] == ["hello", "world"]
    assert "by hand" in lines
    numbered = [line for line in lines if line.startswith("line")]
    assert numbered == [f"line {number}" for number in range(1, len(numbered) + 1)]
    assert len(numbered) >= 3


async def test_a_pod_that_waits_has_no_log(harness: KubectlHarness) -> None:
    """`kubectl logs` of a waiting pod shows the kubelet's own words."""
    await harness.run("mute", Script(starts_s=60))
    await wait_until(lambda: harness.kubelets.count.status_writes, "its status")
    done = await asyncio.to_thread(harness.cluster.kubectl, "-n", NAMESPACE, "logs", "mute")
    assert 'container "main" in pod "mute" is waiting to start: ContainerCreating' in done.stderr


async def test_a_failing_image_is_told_in_status_and_events(harness: KubectlHarness) -> None:
    """Waiting reasons go from ErrImagePull to ImagePullBackOff, and the pod stays Pending."""
    await harness.run("typo", Script(starts_s=0, pull_fails=-1, backoff_s=60))
    await wait_until(lambda: harness.kubelets.count.events >= 4, "the events", timeout_s=WAIT_S)
    status = await harness.until("typo", "Pending")
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "ImagePullBackOff"
    events = await harness.kubectl("events", "--for", "pod/typo")
    assert 'Failed to pull image "busybox"' in events


async def test_a_crashing_pod_is_restarted_and_its_previous_log_kept(harness: KubectlHarness) -> None:
    """A crashed pod shows CrashLoopBackOff with its last state, and `kubectl logs --previous` works."""
    script = Script(starts_s=0, runs_s=0.2, exit=1, backoff_s=60, logs=("once",))
    await harness.run("crash", script, restartPolicy="Always")
    await wait_until(lambda: len(harness.kubelets.records.of("kn-test/crash")) == 2, "a restart", timeout_s=WAIT_S)
    began = time.monotonic()
    while True:
        status = await harness.until("crash", "Running")
        container = status["containerStatuses"][0]
        if container["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff":
            break
        assert time.monotonic() - began < WAIT_S, status
    assert container["lastState"]["terminated"]["exitCode"] == 1
    assert container["restartCount"] == 1
    assert await harness.kubectl("logs", "crash", "--previous") == "once\n"


async def test_a_lost_node_reports_nothing_and_its_containers_are_gone(harness: KubectlHarness) -> None:
    """The pods of a lost node stay unchanged until it is back; then they have failed, as after a reboot."""
    await harness.run("there", node="kn-1")
    await harness.until("there", "Running")
    harness.kubelets.lose("kn-1")
    assert harness.kubelets.records.of("kn-test/there")[0].code == 255
    await harness.run("later", node="kn-1")
    await harness.kubectl("delete", "pod", "there", "--wait=false")
    assert (await harness.pod("there") or {})["status"]["phase"] == "Running"
    await harness.kubelets.recover("kn-1")
    await harness.until("there", "gone")
    await harness.until("later", "Running")


async def test_a_node_that_is_cut_off_ends_its_pods_when_it_is_back(harness: KubectlHarness) -> None:
    """Pods of a node that is cut off run on until it is back, also pods whose objects are gone."""
    await harness.run("alone", node="kn-1")
    await harness.until("alone", "Running")
    harness.kubelets.lose("kn-1", runs_on=True)
    await harness.kubectl("delete", "pod", "alone", "--grace-period=0", "--force")
    await harness.until("alone", "gone")
    assert len(harness.kubelets.records.live()) == 1
    await harness.kubelets.recover("kn-1")
    await wait_until(lambda: not harness.kubelets.records.live(), "the orphan ended", timeout_s=WAIT_S)


async def test_a_node_that_shuts_down_ends_its_pods_in_good_order(harness: KubectlHarness) -> None:
    """Pods on a node that shuts down are Failed with reason Terminated and a disruption condition; later pods are
    rejected."""
    await harness.run("guest", node="kn-1")
    await harness.until("guest", "Running")
    await harness.kubelets.shut_down("kn-1")
    status = await harness.until("guest", "Failed")
    assert status["reason"] == "Terminated"
    assert conditions(status)["DisruptionTarget"] == "True"
    await harness.run("late", node="kn-1")
    assert (await harness.until("late", "Failed"))["reason"] == "NodeShutdown"
    await harness.kubelets.recover("kn-1")


async def test_an_out_of_service_node_is_emptied_by_the_controllers(harness: KubectlHarness) -> None:
    """With the out-of-service taint, controllers delete the pods of a dead node without its kubelet."""
    await harness.run("dead", node="kn-1")
    await harness.until("dead", "Running")
    harness.kubelets.lose("kn-1")
    await harness.kubectl("delete", "pod", "dead", "--wait=false")
    await harness.kubelets.mark_not_ready("kn-1")
    await harness.kubelets.taint(
        "kn-1", Taint(key="node.kubernetes.io/out-of-service", value="nodeshutdown", effect="NoExecute")
    )
    await harness.until("dead", "gone")
    await harness.kubelets.taint("kn-1")
    await harness.kubelets.recover("kn-1")


async def test_a_node_that_was_silent_for_a_while_says_that_it_is_ready(harness: KubectlHarness) -> None:
    """A node and its pods report ready again when the node controller has marked them as not ready."""
    await harness.run("calm", node="kn-1")
    await harness.until("calm", "Running")
    no = '{"status":{"conditions":[{"type":"Ready","status":"False"}]}}'
    for what in ("pod/calm", "node/kn-1"):
        await harness.kubectl("patch", what, "--subresource=status", "-p", no)
        await harness.kubectl("wait", what, "--for=condition=Ready", "--timeout=20s")


async def test_a_drained_node_is_empty(harness: KubectlHarness) -> None:
    """`kubectl drain` evicts the pods, and the kubelet lets them end."""
    await harness.run("moved", Script(starts_s=0, term_s=0.1), node="kn-1")
    await harness.until("moved", "Running")
    await harness.kubectl("drain", "kn-1", "--force", "--timeout=20s")
    assert await harness.pod("moved") is None
    assert harness.kubelets.records.of("kn-test/moved")[0].code == 143
    await harness.kubectl("uncordon", "kn-1")


async def test_another_process_takes_over_what_runs(harness: KubectlHarness) -> None:
    """A second process starts nothing again, and does not record the running pod as a start."""
    await harness.run("stays", Script(starts_s=0), node="kn-1")
    await harness.until("stays", "Running")
    async with Kubelets(harness.cluster.kubeconfig, nodes=["kn-0", "kn-1"], logs=False) as other:
        [run] = other.records.of("kn-test/stays")
        assert run.is_adopted
        assert other.count.started == 0
        # The first nodes still answer for the logs.
        await harness.kubelets.add_nodes()


async def test_an_annotation_that_is_no_script_rejects_the_pod(harness: KubectlHarness) -> None:
    """A pod with an invalid script is rejected, and the error is in its status."""
    body = manifest("typed", node="kn-0", namespace=NAMESPACE)
    body["metadata"]["annotations"][PLAY] = '{"runS": 1}'
    await harness.kubectl("create", "-f", "-", stdin=msgspec.json.encode(body).decode())
    assert "unknown field `runS`" in (await harness.until("typed", "Failed"))["message"]


async def test_gpus_are_devices(harness: KubectlHarness) -> None:
    """The device plugin refuses a pod first, with UnexpectedAdmissionError."""
    gpus = [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "3"}}}]
    await harness.run("gpus", containers=gpus)
    status = await harness.until("gpus", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    words = "requested number of devices unavailable for nvidia.com/gpu. Requested: 3, Available: 2"
    assert status["message"] == f"Pod was rejected: Allocate failed due to {words}, which is unexpected"
