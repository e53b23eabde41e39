"""Simulated nodes on a real API server: what happens to pods is what a kubelet would have made of them."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.conformance.cluster.servers import RealCluster
from tests.conformance.kubelets import Kubelets, Script
from tests.conformance.kubelets.builders import manifest
from tests.conformance.kubelets.objects import Json
from tests.support.clock import wait_until

WAIT_S = 20.0


class Bench:
    """A few nodes and the real kubectl."""

    def __init__(self, cluster: RealCluster, kubelets: Kubelets) -> None:
        self.cluster = cluster
        self.kubelets = kubelets

    async def kubectl(self, *words: str, stdin: str = "") -> str:
        """What it says; fails when it fails."""
        done = await asyncio.to_thread(self.cluster.kubectl, *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def run(self, name: str, script: Script | None = None, *, node: str = "kn-0", **spec: Any) -> None:
        """A pod, bound."""
        body = msgspec.json.encode(manifest(name, script, node=node, **spec)).decode()
        await self.kubectl("create", "--validate=strict", "-f", "-", stdin=body)

    async def pod(self, name: str) -> Json | None:
        """The object now; None when it is gone."""
        text = await self.kubectl("get", "pod", name, "--ignore-not-found", "-o", "json")
        return msgspec.json.decode(text) if text.strip() else None

    async def until(self, name: str, phase: str) -> Json:
        """Waits for a phase; the status. `gone` is one."""
        began = time.monotonic()
        while True:
            pod = await self.pod(name)
            found = pod["status"]["phase"] if pod else "gone"
            if found == phase:
                return pod["status"] if pod else {}
            assert time.monotonic() - began < WAIT_S, f"{name} is {found}, not {phase}: {pod}"


@pytest.fixture
async def bench(real: RealCluster) -> AsyncIterator[Bench]:
    """Two nodes; the pods that are left are removed."""
    async with Kubelets(real.kubeconfig, nodes=["kn-0", "kn-1"], script=Script(starts_s=0)) as kubelets:
        bench = Bench(real, kubelets)
        yield bench
        await bench.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")
        await wait_until(lambda: not kubelets.records.live(), "every container ended")


def conditions(status: Json) -> dict[str, str]:
    """{type: status} of a pod."""
    return {item["type"]: item["status"] for item in status["conditions"]}


async def test_a_bound_pod_runs_and_ends(bench: Bench) -> None:
    """Its status is what a kubelet writes, and there is one record of one start."""
    await bench.run("ends", Script(starts_s=0.1, runs_s=1, exit=3))
    status = await bench.until("ends", "Running")
    assert set(conditions(status).values()) == {"True"}
    assert status["containerStatuses"][0]["started"]
    assert status["qosClass"] == "BestEffort"
    status = await bench.until("ends", "Failed")
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert conditions(status)["Ready"] == "False"
    [run] = bench.kubelets.records.of("default/ends")
    assert (run.node, run.code) == ("kn-0", 3)


async def test_a_deleted_pod_is_reported_ended_before_it_is_gone(bench: Bench) -> None:
    """SIGTERM, the end in the status, and only then the object goes; a finalizer still holds it."""
    await bench.run("dies", Script(starts_s=0, term_s=0.2))
    await bench.until("dies", "Running")
    await bench.kubectl("patch", "pod", "dies", "-p", '{"metadata":{"finalizers":["test.example.org/hold"]}}')
    await bench.kubectl("delete", "pod", "dies", "--wait=false")
    status = await bench.until("dies", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    await bench.kubectl("patch", "pod", "dies", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    await bench.until("dies", "gone")


async def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(bench: Bench) -> None:
    """137 after the grace of the deletion."""
    await bench.run("stubborn", Script(starts_s=0, ignores_term=True))
    await bench.until("stubborn", "Running")
    await bench.kubectl("delete", "pod", "stubborn", "--grace-period=1")
    [run] = bench.kubelets.records.of("default/stubborn")
    assert run.code == 137


async def test_a_pod_deleted_before_its_start_fails_first(bench: Bench) -> None:
    """A kubelet gives every pod a terminal phase before it confirms the deletion."""
    await bench.run("early", Script(starts_s=60))
    await bench.kubectl("patch", "pod", "early", "-p", '{"metadata":{"finalizers":["test.example.org/hold"]}}')
    await bench.kubectl("delete", "pod", "early", "--wait=false")
    status = await bench.until("early", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "ContainerStatusUnknown"
    await bench.kubectl("patch", "pod", "early", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    await bench.until("early", "gone")
    assert bench.kubelets.records.of("default/early") == []


async def test_a_pod_that_does_not_fit_is_rejected_in_a_kubelet_s_words(bench: Bench) -> None:
    """Failed, OutOfcpu, and nothing runs."""
    await bench.run("big", containers=[{"name": "main", "image": "i", "resources": {"requests": {"cpu": "17"}}}])
    status = await bench.until("big", "Failed")
    assert status["reason"] == "OutOfcpu"
    words = "Node didn't have enough resource: cpu, requested: 17000, used: 0, capacity: 16000"
    assert status["message"] == f"Pod was rejected: {words}"
    assert "conditions" not in status
    assert bench.kubelets.records.of("default/big") == []


async def test_a_node_of_the_wrong_kind_rejects_too(bench: Bench) -> None:
    """NodeAffinity, until the node has the label: the kubelet looks again."""
    await bench.run("picky", nodeSelector={"disk": "fast"})
    assert (await bench.until("picky", "Failed"))["reason"] == "NodeAffinity"
    await bench.kubectl("label", "node", "kn-0", "disk=fast")
    await bench.run("lucky", nodeSelector={"disk": "fast"})
    await bench.until("lucky", "Running")
