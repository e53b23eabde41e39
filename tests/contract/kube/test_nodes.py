"""Nodes: the taints of conditions and cordons, and the effect of taints on pods."""

import uuid
from collections.abc import AsyncIterator

import pytest

from tests.contract.kube.client import STRATEGIC, KubeHttp
from tests.contract.kube.conftest import Place, eventually
from tests.contract.kube.samples import Json, a_pod

pytestmark = pytest.mark.usefixtures("controllers")
LOST: Json = {"key": "contract.slipway.dev/lost", "value": "yes", "effect": "NoExecute"}


class Machine:
    """A node of the test's own."""

    def __init__(self, kube: KubeHttp, place: Place) -> None:
        self.kube = kube
        self.place = place
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
        await self.kube.post(self.place.of("pods"), a_pod(name, tolerations=list(tolerations)))
        target = {"target": {"kind": "Node", "name": self.name}}
        bound = await self.kube.post(self.place.of("pods", name, "binding"), {"metadata": {"name": name}, **target})
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
        return "deletionTimestamp" in (await self.kube.get(self.place.of("pods", name))).body["metadata"]

    async def wait_going(self, name: str) -> None:
        async def check() -> bool:
            return await self.is_going(name)

        await eventually(check, f"{name} is being deleted", within_s=20)


@pytest.fixture
async def machine(kube: KubeHttp, place: Place) -> AsyncIterator[Machine]:
    made = Machine(kube, place)
    await made.start()
    yield made
    await kube.delete(made.path)


async def test_cordon_is_a_taint(machine: Machine) -> None:
    """spec.unschedulable adds a taint, and the taint is removed with it."""
    await machine.wait_taints()
    await machine.kube.patch(machine.path, {"spec": {"unschedulable": True}})
    taints = await machine.wait_taints(("node.kubernetes.io/unschedulable", "NoSchedule"))
    assert taints[0]["timeAdded"]
    await machine.kube.patch(machine.path, {"spec": {"unschedulable": None}})
    await machine.wait_taints()


@pytest.mark.parametrize(
    ("condition", "key"),
    [
        ("MemoryPressure", "memory-pressure"),
        ("DiskPressure", "disk-pressure"),
        ("PIDPressure", "pid-pressure"),
        ("NetworkUnavailable", "network-unavailable"),
    ],
)
async def test_pressure_is_a_taint(machine: Machine, condition: str, key: str) -> None:
    """The node has the taint while the condition is True."""
    await machine.report(condition, "True")
    await machine.wait_taints((f"node.kubernetes.io/{key}", "NoSchedule"))
    await machine.report(condition, "False")
    await machine.wait_taints()


async def test_taints_of_others_stay(machine: Machine) -> None:
    """Conditions do not change taints of other writers."""
    await machine.taint({"key": "team", "value": "a", "effect": "NoSchedule"})
    await machine.report("MemoryPressure", "True")
    await machine.wait_taints(("team", "NoSchedule"), ("node.kubernetes.io/memory-pressure", "NoSchedule"))
    await machine.report("MemoryPressure", "False")
    await machine.wait_taints(("team", "NoSchedule"))


async def test_strict_taint_evicts(machine: Machine) -> None:
    """A NoExecute taint evicts pods that do not tolerate it, with a condition that gives the reason; tolerating pods
    stay."""
    await machine.run("p")
    await machine.run("calm", {"key": LOST["key"], "operator": "Exists"})
    await machine.taint(LOST)
    await machine.wait_going("p")
    pod = (await machine.kube.get(machine.place.of("pods", "p"))).body
    target = next(item for item in pod["status"]["conditions"] if item["type"] == "DisruptionTarget")
    assert (target["status"], target["reason"]) == ("True", "DeletionByTaintManager")
    assert not await machine.is_going("calm")


async def test_patience_ends(machine: Machine) -> None:
    """A pod is evicted after its tolerationSeconds; the toleration must match key, value and effect."""
    match: Json = {"key": LOST["key"], "operator": "Equal", "value": "yes", "effect": "NoExecute"}
    await machine.run("patient", {**match, "tolerationSeconds": 1})
    await machine.run("stranger", {**match, "value": "no"})
    await machine.run("longer", {**match, "tolerationSeconds": 3600})
    await machine.taint(LOST)
    await machine.wait_going("stranger")
    await machine.wait_going("patient")
    assert not await machine.is_going("longer")


async def test_late_pod_is_evicted_too(machine: Machine) -> None:
    """A pod that is bound to a tainted node is evicted too."""
    await machine.taint(LOST)
    await machine.run("p")
    await machine.wait_going("p")


async def test_plain_taints_evict_nobody(machine: Machine) -> None:
    """A NoSchedule taint affects only pods that are not on the node yet."""
    await machine.run("p")
    await machine.taint({**LOST, "effect": "NoSchedule"}, {**LOST, "key": "contract.slipway.dev/other"})
    await machine.wait_going("p")
    await machine.run("q", {"key": "contract.slipway.dev/other", "operator": "Exists"})
    await machine.taint({**LOST, "effect": "NoSchedule"})
    assert not await machine.is_going("q")
