"""The Node objects and leases of simulated nodes: their manifests, and how they are created, stay ready and are
deleted.

Owns the manifests and the writes about nodes. Knows nothing of pods.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from slipway.local.apiserver.logs import LOG_ENDPOINT
from slipway.model.resources import PODS, Resources
from slipway.model.times import format_time
from slipway.runtime.clock import Clock
from tests.conformance.kubelets.connections import MERGE, Connections, RefusedError
from tests.conformance.kubelets.objects import Json, Taint

VERSION = "v1.37.2"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
NODES = "/api/v1/nodes"
ALL_NODES = f"{NODES}?pretty=false"
RENEW_MIN_S = 10.0
RENEWALS_PER_S = 20.0
"""The most lease renewals in a second: as many as 200 real kubelets do."""
LEASE_RENEWALS = 4
"""The length of a lease in renewal intervals, as a kubelet's."""
_TROUBLES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}
_ON_START = "node.kubernetes.io/not-ready"
_encode = msgspec.json.encode


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What each node offers, and its labels; quantities as Kubernetes writes them."""

    cpu: str = "16"
    memory: str = "64Gi"
    pods: int = 110
    storage: str = "100Gi"
    extended: Mapping[str, str] = {}
    """such as {"nvidia.com/gpu": "8"}; device plugins offer them"""
    reserved: Mapping[str, str] = {}
    """the part of the capacity that is not allocatable"""
    labels: Mapping[str, str] = {}
    taints: Sequence[Taint] = ()
    per_rack: int = 16
    """nodes with the same topology.kubernetes.io/rack and zone/8 label"""

    def capacity(self) -> Resources:
        """The resources of the node. Raises ValueError for an invalid quantity."""
        amounts = {"cpu": self.cpu, "memory": self.memory, PODS: self.pods, "ephemeral-storage": self.storage}
        return Resources.parse(amounts | dict(self.extended))

    def allocatable(self) -> Resources:
        """The resources that pods may hold."""
        return self.capacity() - Resources.parse(self.reserved)


class KubeletAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the nodes' kubelet."""

    ip: str = "127.0.0.1"
    port: int = 10250
    log_url: str = ""
    """where a local API server fetches logs"""

    def annotations(self) -> dict[str, str]:
        """The annotations of every node."""
        attached = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
        return attached | ({LOG_ENDPOINT: self.log_url} if self.log_url else {})


def labels_of(name: str, index: int, shape: Shape) -> dict[str, str]:
    """The labels of the node of that number."""
    rack = index // max(1, shape.per_rack)
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": f"zone-{rack // 8}",
        "topology.kubernetes.io/rack": f"rack-{rack}",
        **shape.labels,
    }


def manifest(name: str, index: int, shape: Shape, kubelet_address: KubeletAddress, now: float) -> Json:
    """The manifest of a ready Node. The API server accepts the status of a node with its creation."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels_of(name, index, shape),
            "annotations": kubelet_address.annotations(),
        },
        "spec": {"taints": [msgspec.to_builtins(taint) for taint in shape.taints]} if shape.taints else {},
        "status": status(name, shape, kubelet_address, now),
    }


def status(name: str, shape: Shape, kubelet_address: KubeletAddress, now: float) -> Json:
    """The status that a ready node reports."""
    return {
        "capacity": shape.capacity().quantities(),
        "allocatable": shape.allocatable().quantities(),
        "conditions": conditions(now),
        "addresses": [{"type": "InternalIP", "address": kubelet_address.ip}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_address.port}},
        "nodeInfo": {
            "machineID": name,
            "systemUUID": name,
            "bootID": name,
            "kernelVersion": "6.12.0",
            "osImage": "Simulated Linux",
            "containerRuntimeVersion": "containerd://2.2.0",
            "kubeletVersion": VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def conditions(now: float, *, ready: bool = True, words: str = "") -> list[Json]:
    """The four conditions of a node, as its kubelet writes them."""
    stamp = format_time(now, "seconds")
    made: list[Json] = [
        {"type": name, "status": "False", "reason": reason, "message": message}
        for name, (reason, message) in _TROUBLES.items()
    ]
    reason = "KubeletReady" if ready else "KubeletNotReady"
    message = words or "kubelet is posting ready status"
    made.append({"type": "Ready", "status": "True" if ready else "False", "reason": reason, "message": message})
    return [{**each, "lastHeartbeatTime": stamp, "lastTransitionTime": stamp} for each in made]


def renew_interval_s(nodes: int) -> float:
    """How often each of so many nodes renews its lease."""
    return max(RENEW_MIN_S, nodes / RENEWALS_PER_S)


class Registrar:
    """All writes about nodes."""

    def __init__(self, wire: Connections, clock: Clock, shape: Shape) -> None:
        self._wire = wire
        self._clock = clock
        self._shape = shape
        self.kubelet_address = KubeletAddress()
        self.renew_s = RENEW_MIN_S

    async def register(self, names: Sequence[tuple[int, str]], *, leases: bool) -> None:
        """Create the nodes, or update those that exist; as fast as the connections allow."""
        waiting = iter(names)

        async def work() -> None:
            for index, name in waiting:
                await self.register_one(index, name)
                if leases:
                    await self.create_lease(name)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(64, len(names))):
                tasks.create_task(work())

    async def register_one(self, index: int, name: str) -> None:
        """Make the node exist, ready, with exactly its taints."""
        made = manifest(name, index, self._shape, self.kubelet_address, self._clock.now())
        try:
            answer = await self._wire.call("POST", NODES, _encode(made))
        except RefusedError as error:
            if error.code != 409:
                raise
            metadata = {"labels": made["metadata"]["labels"], "annotations": made["metadata"]["annotations"]}
            await self._wire.call("PATCH", f"{NODES}/{name}", _encode({"metadata": metadata}), MERGE)
            await self._wire.call("PATCH", f"{NODES}/{name}/status", _encode({"status": made["status"]}), MERGE)
            return
        if _ON_START.encode() in answer:
            # Admission taints every new node; the controller that removes the taint may be slow, or not run at all.
            await self.set_taints(name, self._shape.taints)

    async def set_taints(self, name: str, taints: Sequence[Taint]) -> None:
        """Set the taints of the node, replacing all others."""
        body = {"spec": {"taints": [msgspec.to_builtins(taint) for taint in taints] or None}}
        await self._wire.call("PATCH", f"{NODES}/{name}", _encode(body), MERGE)

    async def set_ready(self, name: str, *, ready: bool, words: str = "") -> None:
        """Set the Ready condition as the kubelet does."""
        body = {"status": {"conditions": conditions(self._clock.now(), ready=ready, words=words)}}
        await self._wire.call("PATCH", f"{NODES}/{name}/status", _encode(body), MERGE)

    async def delete(self, name: str) -> None:
        """Delete the Node object and its lease."""
        for target in (f"{NODES}/{name}", f"{LEASES}/{name}"):
            try:
                await self._wire.call("DELETE", target)
            except RefusedError as error:
                if error.code != 404:
                    raise

    async def renew(self, name: str) -> None:
        """Renew the node's lease, or create it."""
        if not await self._patch_lease(name):
            await self.create_lease(name)

    async def create_lease(self, name: str) -> None:
        """Create a lease for the node that has just been renewed."""
        spec = {"holderIdentity": name, "leaseDurationSeconds": round(LEASE_RENEWALS * self.renew_s)}
        spec["renewTime"] = format_time(self._clock.now(), "microseconds")
        meta = {"name": name, "namespace": "kube-node-lease"}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        try:
            await self._wire.call("POST", LEASES, _encode(lease))
        except RefusedError as error:
            if error.code != 409:
                raise
            await self._patch_lease(name)

    async def _patch_lease(self, name: str) -> bool:
        """Renew the lease; False when there is none."""
        spec = {"renewTime": format_time(self._clock.now(), "microseconds")}
        try:
            await self._wire.call("PATCH", f"{LEASES}/{name}", _encode({"spec": spec}), MERGE)
        except RefusedError as error:
            if error.code != 404:
                raise
            return False
        return True
