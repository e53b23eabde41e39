"""Our planner and kube-scheduler compute the same free resources of a node, to the last byte.

Random pods of others run on random nodes: with everything that uses resources (sidecars, init steps, overhead, requests
of the pod itself, resizes, host ports) and everything that does not (ended pods). Then kube-scheduler decides: a pod of
exactly the size that we compute must be placed, and one of a single unit more must not, for each resource.
"""

import random
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from slipway.facts.core_objects import node_fact, pod_fact
from slipway.kube.objects import Node, Pod
from slipway.model.facts import PoolFact
from slipway.model.resources import CPU, MEMORY, Resources
from slipway.scheduler.plan.state.nodes import EVERY
from slipway.scheduler.plan.state.pool_state import build
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.conformance.cluster.servers import RealCluster
from tests.conformance.system.operator import Json, Operator
from tests.support.wait import wait_until

PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
LABEL, TOY, HUGE, DISK = "test.example.org/accounting", "example.org/toy", "hugepages-2Mi", "ephemeral-storage"
LOOKED_AT = (CPU, MEMORY, DISK, TOY)
TAKEN, UNUSED = 8080, 8999
ANYWHERE: Json = {"tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
NODE_COUNT, STRANGERS = 5, 7
ROOM = {CPU: "64", MEMORY: "256Gi", DISK: "500Gi", TOY: "40", HUGE: "1Gi", "pods": "30"}


class OtherUsersPods:
    """Random pods of other users."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pod(self, node: str, name: str) -> Json:
        """A random pod on that node; its maker has bound it."""
        spec: Json = {"nodeName": node, **ANYWHERE, "containers": self._containers("main", 3)}
        inits = self._containers("init", 2)
        for item in inits[: self.random.randint(0, 2)]:
            sidecar = {"restartPolicy": "Always"} if self.random.random() < 0.5 else {}
            spec.setdefault("initContainers", []).append({**item, **sidecar})
        if self.random.random() < 0.3:
            spec["runtimeClassName"] = "accounting"
        if self.random.random() < 0.3:
            spec["resources"] = {"requests": {CPU: "2500m", MEMORY: "2Gi"}}
        if name.endswith("-0"):
            spec["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": TAKEN}]
        return {"metadata": {"name": name, "labels": {LABEL: "yes"}}, "spec": spec}

    def status(self, pod: Json) -> Json:
        """The status that a kubelet reports of it, which mostly changes no amount."""
        name = pod["spec"]["containers"][0]["name"]
        asked = pod["spec"]["containers"][0].get("resources", {}).get("requests", {})
        match self.random.randrange(6):
            case 0:
                return {"phase": self.random.choice(["Succeeded", "Failed"])}
            case 1 if CPU in asked:
                return _resize(name, {**asked, CPU: "700m"}, {})
            case 2 if CPU in asked:
                return _resize(name, {**asked, CPU: "1m"}, {"reason": "Infeasible"})
            case _:
                return {"phase": "Running"}

    def _containers(self, name: str, count: int) -> list[Json]:
        return [
            {"name": f"{name}-{index}", "image": "example.org/theirs:1", "resources": self._resources()}
            for index in range(self.random.randint(1, count))
        ]

    def _resources(self) -> Json:
        requests: Json = {}
        if self.random.random() < 0.8:
            requests[CPU] = self.random.choice(["1m", "100m", "0.25", "333m", "1"])
        if self.random.random() < 0.8:
            requests[MEMORY] = self.random.choice(["1", "64Mi", "100M", "0.5Gi", "1e8"])
        if self.random.random() < 0.3:
            requests[DISK] = self.random.choice(["1Gi", "777"])
        limits: Json = {}
        if self.random.random() < 0.3:
            limits[TOY] = "1"
        if self.random.random() < 0.2 and CPU not in requests:
            limits[CPU] = "2"
        return {"requests": requests, "limits": limits}


def _resize(name: str, held: Json, condition: Json) -> Json:
    state: Json = {
        "name": name,
        "image": "i",
        "imageID": "i",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {}},
    }
    pending = [{"type": "PodResizePending", "status": "True", **condition}] if condition else []
    resources = {"resources": {"requests": held}, "allocatedResources": held}
    return {"phase": "Running", "containerStatuses": [{**state, **resources}], "conditions": pending}


@pytest.fixture
def operator(real: RealCluster) -> Generator[Operator]:
    made = Operator(real)
    yield made
    for path in (PODS, NODES):
        for item in made.items(path, LABEL):
            made.delete(f"{path}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})
    made.delete(f"{RUNTIMES}/accounting")
    made.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_both_compute_the_same_free_resources(operator: Operator, seed: int) -> None:
    """A pod with one unit more than the free amount that we compute does not fit; a pod with exactly that amount
    does."""
    names = [f"accounting-{seed}-{index}" for index in range(NODE_COUNT)]
    _furnish(operator, names, OtherUsersPods(seed))
    snapshot = _snapshot(operator, names)
    free = _free(snapshot)
    taken = dict(zip(snapshot.table.names, snapshot.usage.is_port_taken(TAKEN, EVERY).tolist(), strict=True))
    assert any(taken.values())
    too_large: list[tuple[Json, str]] = []
    for node in names:
        assert all(free[node][name] > 0 for name in LOOKED_AT), free[node]
        for resource in LOOKED_AT:
            asked = {resource: free[node][resource] + 1}
            too_large.append((_probe(operator, node, asked), f"Insufficient {resource}"))
        if taken[node]:
            too_large.append((_probe(operator, node, {}, port=TAKEN), "free ports for the requested pod ports"))
    for pod, words in too_large:
        assert words in _refusal(operator, pod), (pod["spec"], words)
    exact = [_probe(operator, node, free[node], port=UNUSED if taken[node] else TAKEN) for node in names]
    for pod, node in zip(exact, names, strict=True):
        assert _placed(operator, pod) == node
    after = _free(_snapshot(operator, names))
    assert all(amount == 0 for node in names for amount in after[node].values()), after


def _furnish(operator: Operator, names: Sequence[str], other_pods: OtherUsersPods) -> None:
    overhead = {"podFixed": {CPU: "250m", MEMORY: "64Mi"}}
    operator.create(RUNTIMES, {"metadata": {"name": "accounting"}, "handler": "none", "overhead": overhead})
    for node in names:
        ready = [{"type": "Ready", "status": "True", "reason": "Here"}]
        operator.create(
            NODES,
            {
                "metadata": {"name": node, "labels": {LABEL: "yes", "kubernetes.io/hostname": node}},
                # A taint keeps all pods away that do not tolerate it.
                "spec": {"taints": [{"key": LABEL, "effect": "NoSchedule"}]},
                "status": {"capacity": ROOM, "allocatable": ROOM, "conditions": ready},
            },
        )
        for index in range(STRANGERS):
            pod = operator.create(PODS, other_pods.pod(node, f"{node}-{index}"))
            operator.change(f"{PODS}/{node}-{index}/status", {"status": other_pods.status(pod)})


def _snapshot(operator: Operator, names: Sequence[str]) -> PoolSnapshot:
    """The snapshot that our scheduler makes of the cluster."""
    nodes = [msgspec.convert(item, Node) for item in operator.items(NODES, LABEL)]
    pods = [msgspec.convert(item, Pod) for item in operator.items(PODS)]
    facts = [node_fact(node) for node in nodes if node.metadata.name in names]
    return build(facts, [pod_fact(pod) for pod in pods], [], pool=PoolFact(name="p"))


def _free(snapshot: PoolSnapshot) -> dict[str, dict[str, int]]:
    """{node: {resource: units}}."""
    table = snapshot.table
    columns: dict[str, Any] = {name: snapshot.usage.free(table.row[name], EVERY) for name in LOOKED_AT}
    return {node: {name: int(columns[name][at]) for name in LOOKED_AT} for at, node in enumerate(table.names)}


def _probe(operator: Operator, node: str, amounts: Mapping[str, int], *, port: int = 0) -> Json:
    """A pod of exactly that size, for that node."""
    quantities = Resources.of(dict(amounts)).quantities()
    limits = {name: value for name, value in quantities.items() if name == TOY}
    ports = [{"containerPort": 80, "hostPort": port}] if port else []
    container = {
        "name": "main",
        "image": "i:1",
        "resources": {"requests": quantities, "limits": limits},
        "ports": ports,
    }
    body = {
        "metadata": {"generateName": f"probe-{node}-", "labels": {LABEL: "yes"}},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container], **ANYWHERE},
    }
    return operator.create(PODS, body)


def _refusal(operator: Operator, pod: Json) -> str:
    """The reason why kube-scheduler refuses it; empty when it places it."""

    def told() -> str:
        now = operator.get(f"{PODS}/{pod['metadata']['name']}")
        if now["spec"].get("nodeName"):
            return "placed"
        conditions: list[Json] = now["status"].get("conditions") or []
        return next((item.get("message", "") for item in conditions if item["type"] == "PodScheduled"), "")

    return wait_until(told, f"a word of kube-scheduler on {pod['metadata']['name']}")


def _placed(operator: Operator, pod: Json) -> str:
    """The node on which kube-scheduler places it, or its reason for refusing."""

    def found() -> str:
        now = operator.get(f"{PODS}/{pod['metadata']['name']}")
        conditions: list[Json] = now["status"].get("conditions") or []
        said = [item.get("message", "") for item in conditions if item.get("reason") == "Unschedulable"]
        return str(now["spec"].get("nodeName") or "") or "".join(said)

    return wait_until(found, f"{pod['metadata']['name']} is placed")
