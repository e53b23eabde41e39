"""Pools on separate nodes beside the default pool, and neighbours there: pods and rules that are not ours.

Owns the objects that it creates, and deletes them again. The names of nodes and of pods are never reused.
"""

import itertools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tests.conformance.system.operator import GROUP, Json
from tests.conformance.system.system import System, a_body
from tests.support.wait import wait_until

PODS = "/api/v1/namespaces/default/pods"
LABEL = "test.example.org/pool"
NODE_CPUS = 16
"""The CPUs of a simulated node."""
_numbers = itertools.count(1)


class PoolUnderTest:
    """A pool, its queue of the same name, its nodes, and the objects of others there."""

    def __init__(self, system: System, name: str, nodes: list[str]) -> None:
        self.system = system
        self.name = name
        self.nodes = nodes
        self._made: list[str] = []

    # --- ours -------------------------------------------------------------------------------------------------------

    def launch(self, ranks: int = 1, *, cpu: str = "1", script: Json | None = None, **fields: Any) -> str:
        """Launch a gang in this pool."""
        body = a_body("training", ranks, script, pool=self.name, queue=self.name, **fields)
        if "ranks" not in fields:
            body["ranks"] = [{"name": "worker", "count": ranks, "resources": {"cpu": cpu, "memory": "64Mi"}}]
        return self.system.launch(body)

    def planned(self, id_: str) -> dict[str, str]:
        """{pod: its node} in the admission of the present attempt"""
        status = self.system.object(id_)["status"]
        return {
            f"{id_}-{status['attempt']}-{item.get('rank', 0)}": item["node"]
            for item in status["admission"]["placements"]
        }

    def bound(self, id_: str) -> dict[str, str]:
        """{pod: its node} of the bound pods"""
        pods = self.system.pods(id_)
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}

    @contextmanager
    def without_workers(self) -> Generator[None]:
        """Stop the pod worker in this context, so that an admitted allocation is not launched."""
        self.system.installation.halt("podworker")
        try:
            yield
        finally:
            self.system.installation.resume("podworker")

    # --- of others --------------------------------------------------------------------------------------------------

    def stranger(
        self,
        node: str = "",
        *,
        cpu: str = "1",
        bound: bool = False,
        annotations: Json | None = None,
        **spec: Any,
    ) -> Json:
        """A pod of another user: placed by kube-scheduler, on `node` if that is named; or `bound` by its maker."""
        name = f"stranger-{next(_numbers)}"
        pinned: Json = {}
        if node:
            pinned = {"nodeName": node} if bound else {"nodeSelector": {"kubernetes.io/hostname": node}}
        elif not bound:
            pinned = {"nodeSelector": {LABEL: self.name}}
        container = {"name": "main", "image": "example.org/theirs:1", "resources": {"requests": {"cpu": cpu}}}
        body = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **pinned, **spec},
        }
        self._made.append(f"{PODS}/{name}")
        return self.system.operator.create(PODS, body)

    def make(self, path: str, body: Json) -> Json:
        """Create any object, which is deleted at the end."""
        made = self.system.operator.create(path, body)
        self._made.append(f"{path}/{made['metadata']['name']}")
        return made

    def look(self, pod: Json) -> Json:
        """The pod as it is now."""
        return self.system.operator.get(f"{PODS}/{pod['metadata']['name']}")

    def running(self, pod: Json) -> Json:
        """Wait until the pod runs and return it."""

        def found() -> Json | None:
            now = self.look(pod)
            return now if now["status"]["phase"] == "Running" else None

        now = wait_until(found, f"{pod['metadata']['name']} runs")
        assert now is not None
        return now

    def unschedulable(self, pod: Json) -> str:
        """Wait until kube-scheduler reports that it cannot place the pod, and return its message."""

        def found() -> str:
            conditions: list[Json] = self.look(pod)["status"].get("conditions") or []
            told = [item for item in conditions if item["type"] == "PodScheduled" and item["status"] == "False"]
            return told[0].get("message", "") if told and told[0].get("reason") == "Unschedulable" else ""

        return wait_until(found, f"{pod['metadata']['name']} is unschedulable")

    def leave(self) -> None:
        """Delete all objects of others."""
        for path in reversed(self._made):
            self.system.operator.delete(path, {"gracePeriodSeconds": 0})
        pods = [path for path in self._made if path.startswith(PODS)]
        wait_until(lambda: not any(self.system.operator.find(path) for path in pods), "the strangers are gone")
        self._made.clear()

    def cordon(self, node: str, *, on: bool = True) -> None:
        """kubectl cordon, or uncordon."""
        self.system.operator.change(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": on}})


@contextmanager
def a_pool_of_its_own(system: System, *, nodes: int = 2, **spec: Any) -> Generator[PoolUnderTest]:
    """A pool with that many nodes, ready for use."""
    number = next(_numbers)
    # Of the pools that select a node, the first by name gets it, and the default pool selects all nodes.
    name = f"beside-{number}"
    names = [f"{name}-{index}" for index in range(nodes)]
    pool = {"metadata": {"name": name}, "spec": {"nodeSelector": {LABEL: name}, **spec}}
    system.operator.create(f"{GROUP}/resourcepools", {**_typed("ResourcePool"), **pool})
    queue = {"metadata": {"name": name}, "spec": {"pool": name}}
    system.operator.create(f"{GROUP}/queues", {**_typed("Queue"), **queue})
    system.nodes.add(*names)
    for node in names:
        system.operator.change(f"/api/v1/nodes/{node}", {"metadata": {"labels": {LABEL: name}}})
    own_pool = PoolUnderTest(system, name, names)
    try:
        yield own_pool
    finally:
        system.installation.await_ready()
        system.settle()
        own_pool.leave()
        for node in names:
            system.nodes.remove(node)
        for plural in ("queues", "resourcepools"):
            system.operator.delete(f"{GROUP}/{plural}/{name}")


def _typed(kind: str) -> Json:
    return {"apiVersion": "slipway.dev/v1alpha1", "kind": kind}
