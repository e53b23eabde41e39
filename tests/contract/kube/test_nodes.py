"""Nodes: the taints of conditions and cordons, and the effect of taints on pods."""

import uuid
from collections.abc import AsyncIterator

import pytest

from tests.contract.kube.client import STRATEGIC, KubeHttp
from tests.contract.kube.conftest import NamespacePaths, eventually
from tests.contract.kube.samples import Json, a_pod

pytestmark = pytest.mark.usefixtures("controllers")
LOST: Json = {"key": "contract.slipway.dev/lost", "value": "yes", "effect": "NoExecute"}


class OwnNode:
    """A node of the test's own."""

    def __init__(self, kube: KubeHttp, ns: NamespacePaths) -> None:
        self.kube = kube
        self.ns = ns
        self.name = f"contract-{uuid.uuid4().hex[:8]}"
        self.path = f"/api/v1/nodes/{self.name}"

    async def start(self) -> None:
        made = await self.kube.post("/api/v1/nodes", {"metadata": {"name": self.name}})
        assert made.code == 201, made.body
        await self.report("Ready", "True")

    async def report(self, condition: str, status: str) -> None:
        body = {"status": {"conditions": [{"type": condition, "status": status}]}}
        answer = await self.kube.patch(f"{self.path}/status", body, STRATEGIC)
        assert answer.code == 200, answer.body

    async def run(self, name: str, *tolerations: Json) -> None:
        await self.kube.post(self.ns.of("pods"), a_pod(name, tolerations=list(tolerations)))
        target = {"target": {"kind": "Node", "name": self.name}}
        bound = await self.kube.post(self.ns.of("pods", name, "binding"), {"metadata": {"name": name}, **target})
        assert bound.code == 201, bound.body

    async def taint(self, *taints: Json) -> None:
        answer = await self.kube.patch(self.path, {"spec": {"taints": list(taints)}})
        assert answer.code == 200, answer.body

    async def wait_taints(self, *wanted: tuple[str, str]) -> list[Json]:
        """Wait until the node has exactly these (key, effect) taints."""

        async def check() -> bool:
            return set(wanted) == {(taint["key"], taint["effect"]) for taint in await self.taints()}

        await eventually(check, f"the node is tainted {wanted}", within_s=20)
        return await self.taints()

    async def taints(self) -> list[Json]:
        return (await self.kube.get(self.path)).body["spec"].get("taints", [])

    async def is_going(self, name: str) -> bool:
        return "deletionTimestamp" in (await self.kube.get(self.ns.of("pods", name))).body["metadata"]

    async def wait_going(self, name: str) -> None:
        async def check() -> bool:
            return await self.is_going(name)

        await eventually(check, f"{name} is being deleted", within_s=20)


@pytest.fixture
async def own_node(kube: KubeHttp, ns: NamespacePaths) -> AsyncIterator[OwnNode]:
    made = OwnNode(kube, ns)
    await made.start()
    yield made
    await kube.delete(made.path)


async def test_cordon_is_a_taint(own_node: OwnNode) -> None:
    """spec.unschedulable adds a taint, and the taint is removed with it."""
    await own_node.wait_taints()
    await own_node.kube.patch(own_node.path, {"spec": {"unschedulable": True}})
    taints = await own_node.wait_taints(("node.kubernetes.io/unschedulable", "NoSchedule"))
    assert taints[0]["timeAdded"]
    await own_node.kube.patch(own_node.path, {"spec": {"unschedulable": None}})
    await own_node.wait_taints()


@pytest.mark.parametrize(
    ("condition", "key"),
    [
        ("MemoryPressure", "memory-pressure"),
        ("DiskPressure", "disk-pressure"),
        ("PIDPressure", "pid-pressure"),
        ("NetworkUnavailable", "network-unavailable"),
    ],
)
async def test_pressure_is_a_taint(own_node: OwnNode, condition: str, key: str) -> None:
    """The node has the taint while the condition is True."""
    await own_node.report(condition, "True")
    await own_node.wait_taints((f"node.kubernetes.io/{key}", "NoSchedule"))
    await own_node.report(condition, "False")
    await own_node.wait_taints()


async def test_taints_of_others_stay(own_node: OwnNode) -> None:
    """Conditions do not change taints of other writers."""
    await own_node.taint({"key": "team", "value": "a", "effect": "NoSchedule"})
    await own_node.report("MemoryPressure", "True")
    await own_node.wait_taints(("team", "NoSchedule"), ("node.kubernetes.io/memory-pressure", "NoSchedule"))
    await own_node.report("MemoryPressure", "False")
    await own_node.wait_taints(("team", "NoSchedule"))


async def test_strict_taint_evicts(own_node: OwnNode) -> None:
    """A NoExecute taint evicts pods that do not tolerate it, with a condition that gives the reason; tolerating pods
    stay."""
    await own_node.run("p")
    await own_node.run("calm", {"key": LOST["key"], "operator": "Exists"})
    await own_node.taint(LOST)
    await own_node.wait_going("p")
    pod = (await own_node.kube.get(own_node.ns.of("pods", "p"))).body
    target = next(item for item in pod["status"]["conditions"] if item["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "DeletionByTaintManager")
    assert not await own_node.is_going("calm")


async def test_the_toleration_seconds_expire(own_node: OwnNode) -> None:
    """A pod is evicted after its tolerationSeconds; the toleration must match key, value and effect."""
    match: Json = {"key": LOST["key"], "operator": "Equal", "value": "yes", "effect": "NoExecute"}
    await own_node.run("patient", {**match, "tolerationSeconds": 1})
    await own_node.run("stranger", {**match, "value": "no"})
    await own_node.run("longer", {**match, "tolerationSeconds": 3600})
    await own_node.taint(LOST)
    await own_node.wait_going("stranger")
    await own_node.wait_going("patient")
    assert not await own_node.is_going("longer")


async def test_late_pod_is_evicted_too(own_node: OwnNode) -> None:
    """A pod that is bound to a tainted node is evicted too."""
    await own_node.taint(LOST)
    await own_node.run("p")
    await own_node.wait_going("p")


async def test_plain_taints_evict_nobody(own_node: OwnNode) -> None:
    """A NoSchedule taint affects only pods that are not on the node yet."""
    await own_node.run("p")
    await own_node.taint({**LOST, "effect": "NoSchedule"}, {**LOST, "key": "contract.slipway.dev/other"})
    await own_node.wait_going("p")
    await own_node.run("q", {"key": "contract.slipway.dev/other", "operator": "Exists"})
    await own_node.taint({**LOST, "effect": "NoSchedule"})
    assert not await own_node.is_going("q")
