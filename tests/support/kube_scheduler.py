"""A model of kube-scheduler: pods with a scheduler name other than ours get a node that their affinity admits and that
has room.

Owns when a pod is bound and when it is marked Unschedulable. Knows nothing of releases. Event-driven on virtual time,
like the model of the kubelets. It considers cpu, cordons and the names of nodes only; the real scheduler considers
more. The pods of a group are placed whole or not at all, as by the real one (schedule_one_podgroup.go, v1.37): no pod
is bound before `minCount` of them have a place. A pod without a place gets the reason; the other pods of the group get
the message that they wait for the group.
"""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from slipway.crd.meta import LABEL_ATTEMPT, LABEL_RANK
from slipway.facts.core_objects import requests_of
from slipway.kube.objects import Node, Pod
from slipway.local.apiserver.core import ClusterCore, StatusError
from slipway.local.apiserver.objects import Json, clone
from slipway.local.apiserver.podgroups import POD_GROUPS, named_group
from slipway.local.apiserver.store import Commit
from slipway.model.resources import CPU, Resources
from slipway.pods.podspec import is_pinned
from slipway.runtime.clock import Random

OURS = "slipway"
NO_ROOM = "0/2 nodes are available: 1 Insufficient cpu."
CYCLE_S = 0.01
"""Time to schedule one pod, in seconds."""


class KubeScheduler:
    """One scheduler for all pods that Slipway does not bind. While `refuses(attempt, rank)` is true, it finds no room
    for that rank."""

    def __init__(self, core: ClusterCore, random: Random) -> None:
        self._core = core
        self._random = random
        self._changed = asyncio.Event()
        self.refuses: Callable[[int, int], bool] = lambda _attempt, _rank: False
        core.subscribe(self._note)

    async def run(self) -> None:
        """Schedule one pod after the other, for ever."""
        while True:
            self._changed.clear()
            groups: dict[tuple[str, str], None] = {}
            for record in list(self._core.store.scan("pods")):
                pod: Json = clone(record.obj)
                if group := named_group(pod):
                    groups[str(pod["metadata"]["namespace"]), group] = None
                else:
                    await self._schedule(pod)
            for namespace, group in groups:
                await self._schedule_group(namespace, group)
            await self._changed.wait()

    def _note(self, change: Commit) -> None:
        if change.resource in ("pods", "nodes", POD_GROUPS):
            self._changed.set()

    async def _schedule(self, seen: Json) -> None:
        pod = msgspec.convert(seen, Pod)
        if not _is_waiting(pod):
            return
        await asyncio.sleep(CYCLE_S * self._random.uniform(0.5, 1.5))
        node = self._place(pod, {})
        self._tell(seen, node)

    async def _schedule_group(self, namespace: str, name: str) -> None:
        """Place a group whose pods all exist; explain on the others why they are not placed."""
        record = self._core.store.find(POD_GROUPS, namespace, name)
        if record is None:
            return
        minimum = int(record.obj["spec"]["schedulingPolicy"].get("gang", {}).get("minCount", 1))
        members = [
            clone(each.obj) for each in self._core.store.scan("pods", namespace) if named_group(each.obj) == name
        ]
        pods = {str(each["metadata"]["name"]): msgspec.convert(each, Pod) for each in members}
        waiting = [each for each in members if _is_waiting(pods[each["metadata"]["name"]])]
        if len(members) < minimum or not waiting:
            return
        await asyncio.sleep(CYCLE_S * len(waiting) * self._random.uniform(0.5, 1.5))
        scheduled = sum(bool(pod.spec.node_name) for pod in pods.values())
        places: dict[str, str] = {}
        reserved: dict[str, int] = {}
        left = len(waiting)
        for each in waiting:
            if scheduled + left < minimum:
                break
            pod = pods[each["metadata"]["name"]]
            node = places[pod.metadata.name] = self._place(pod, reserved)
            left -= 1
            if node:
                scheduled += 1
                reserved[node] = reserved.get(node, 0) + requests_of(pod).get(CPU)
        words = f"minCount ({minimum}) cannot be satisfied: {scheduled} scheduled, {left} remaining"
        for each in waiting:
            node = places.get(str(each["metadata"]["name"]))
            if node is None or (node and scheduled < minimum):
                self._tell(each, "", words)
            else:
                self._tell(each, node)

    def _tell(self, seen: Json, node: str, words: str = NO_ROOM) -> None:
        meta = seen["metadata"]
        try:
            if node:
                body = {"metadata": {"uid": meta["uid"]}, "target": {"name": node}}
                self._core.bind(meta["namespace"], meta["name"], body)
            else:
                self._refuse(seen, words)
        except StatusError:
            return  # the pod has changed, and is scheduled again

    def _place(self, pod: Pod, reserved: Mapping[str, int]) -> str:
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
            used = reserved.get(name, 0) + sum(requests_of(item).get(CPU) for item in live)
            if used + requests_of(pod).get(CPU) <= Resources.parse(node.status.allocatable).get(CPU):
                return name
        return ""

    def _refuse(self, seen: Json, words: str) -> None:
        """Mark the pod Unschedulable, once for each message."""
        said: Json = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
        conditions = [item for item in seen["status"].get("conditions", []) if item["type"] != "PodScheduled"]
        if said not in seen["status"].get("conditions", []):
            seen["status"]["conditions"] = [*conditions, said]
            meta = seen["metadata"]
            self._core.update_status("pods", meta["namespace"], meta["name"], seen)


def _is_waiting(pod: Pod) -> bool:
    """Whether the pod waits for this scheduler now."""
    spec = pod.spec
    is_its = spec.scheduler_name != OURS and not spec.scheduling_gates and not spec.node_name
    return is_its and pod.metadata.deletion_timestamp is None and pod.status.phase == "Pending"
