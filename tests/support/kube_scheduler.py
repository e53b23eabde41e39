"""A model of kube-scheduler: pods of other names than ours get a node that their affinity admits and that has room.

Owns when a pod is bound and when it is said to be Unschedulable. Knows nothing of releases. Event-driven on virtual
time, like the model of the kubelets. It looks at cpu, cordons and the names of nodes only: more is the real one's.
"""

import asyncio
from collections.abc import Callable

import msgspec

from slipway.crd.meta import LABEL_ATTEMPT, LABEL_RANK
from slipway.kube.objects import Node, Pod
from slipway.kube.podrequests import requests_of
from slipway.local.apiserver.core import ClusterCore, StatusError
from slipway.local.apiserver.objects import Json, clone
from slipway.local.apiserver.store import Commit
from slipway.model.resources import CPU, Resources
from slipway.pods.pin import is_pinned
from slipway.runtime.clock import Random

OURS = "slipway"
CYCLE_S = 0.01
"""How long one pod takes."""


class KubeScheduler:
    """One scheduler for all pods that are not ours to bind. `refuses(attempt, rank)` has it find no room for a rank."""

    def __init__(self, core: ClusterCore, random: Random) -> None:
        self._core = core
        self._random = random
        self._changed = asyncio.Event()
        self.refuses: Callable[[int, int], bool] = lambda _attempt, _rank: False
        core.subscribe(self._note)

    async def run(self) -> None:
        """For ever: one pod after the other."""
        while True:
            self._changed.clear()
            for record in list(self._core.store.scan("pods")):
                await self._schedule(clone(record.obj))
            await self._changed.wait()

    def _note(self, change: Commit) -> None:
        if change.resource in ("pods", "nodes"):
            self._changed.set()

    async def _schedule(self, seen: Json) -> None:
        pod = msgspec.convert(seen, Pod)
        meta, spec = pod.metadata, pod.spec
        is_its = spec.scheduler_name != OURS and not spec.scheduling_gates and not spec.node_name
        if not is_its or meta.deletion_timestamp is not None or pod.status.phase != "Pending":
            return
        await asyncio.sleep(CYCLE_S * self._random.uniform(0.5, 1.5))
        node = self._place(pod)
        try:
            if node:
                self._core.bind(meta.namespace, meta.name, {"metadata": {"uid": meta.uid}, "target": {"name": node}})
            else:
                self._refuse(seen)
        except StatusError:
            return  # it has changed meanwhile, and is looked at again

    def _place(self, pod: Pod) -> str:
        labels = pod.metadata.labels
        if self.refuses(int(labels.get(LABEL_ATTEMPT, 0)), int(labels.get(LABEL_RANK, 0))):
            return ""
        nodes = [msgspec.convert(record.obj, Node) for record in self._core.store.scan("nodes")]
        others = [msgspec.convert(record.obj, Pod) for record in self._core.store.scan("pods")]
        for node in nodes:
            name = node.metadata.name
            if node.spec.unschedulable or (pod.spec.affinity and not is_pinned(pod.spec.affinity, name)):
                continue
            live = [
                item for item in others if item.spec.node_name == name and item.status.phase in ("Pending", "Running")
            ]
            used = sum(requests_of(item).get(CPU) for item in live)
            if used + requests_of(pod).get(CPU) <= Resources.parse(node.status.allocatable).get(CPU):
                return name
        return ""

    def _refuse(self, seen: Json) -> None:
        """Says so, once."""
        words = {"reason": "Unschedulable", "message": "0/2 nodes are available: 1 Insufficient cpu."}
        said: Json = {"type": "PodScheduled", "status": "False", **words}
        conditions = [item for item in seen["status"].get("conditions", []) if item["type"] != "PodScheduled"]
        if said not in seen["status"].get("conditions", []):
            seen["status"]["conditions"] = [*conditions, said]
            meta = seen["metadata"]
            self._core.update_status("pods", meta["namespace"], meta["name"], seen)
