"""The objects of a local node in the cluster: its Node, and the Lease that shows that the node is alive.

Owns both manifests and their writes. Invariant: the fields of a Node that other writers set (taints, cordons, their own
labels) are preserved.
"""

import contextlib
import platform
from collections.abc import Set

import msgspec

from slipway.crd.meta import ObjectMeta, RawObject
from slipway.crd.roleresources import object_of, objects_of
from slipway.errors import AlreadyExistsError, NotFoundError, StaleError
from slipway.kube.objects import Lease, LeaseSpec
from slipway.kube.ports import KubeApi
from slipway.kube.resources import LEASES
from slipway.local.node.podview import NODES
from slipway.model.facts import SHARING_LABEL
from slipway.model.resources import PODS, Resources
from slipway.model.times import format_time
from slipway.runtime.clock import Clock

LOG_ENDPOINT = "slipway.dev/log-endpoint"
LEASE_NAMESPACE = "kube-node-lease"
LEASE_S = 60
RENEW_S = 10.0
PODS_MAX = 1000
HOST_IP = "127.0.0.1"
PREFIX = "node"
RACK = "rack"
RUNTIME = "process://1"
_NODES_PER_RACK = 2
_TROUBLES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


class NodeShape(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that one local node offers; `memory` is a quantity."""

    cpus: int = 4
    memory: str = "16Gi"
    gpus: int = 0

    def resources(self) -> Resources:
        """Return the resources that pods can request.

        Raises:
            ValueError: `memory` is not a quantity.
        """
        amounts = {"cpu": self.cpus, "memory": self.memory, PODS: PODS_MAX, "nvidia.com/gpu": self.gpus}
        return Resources.parse(amounts)


def node_manifest(name: str, index: int, shape: NodeShape, *, log_endpoint: str, port: int, now: float) -> RawObject:
    """Return the manifest of a ready Node. Logs are read at `log_endpoint`, or at the kubelet's `port` if it is ""."""
    quantities = shape.resources().quantities()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": machine,
        RACK: f"rack-{index // _NODES_PER_RACK}",
    }
    if shape.gpus:
        labels[SHARING_LABEL] = "true"
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {LOG_ENDPOINT: log_endpoint} if log_endpoint else {},
        },
        "spec": {},
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": _conditions(now),
            "addresses": [{"type": "InternalIP", "address": HOST_IP}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "machineID": name,
                "systemUUID": name,
                "bootID": name,
                "kernelVersion": platform.release(),
                "osImage": platform.platform(terse=True),
                "containerRuntimeVersion": RUNTIME,
                "kubeletVersion": "v1.37.0-slipway-local",
                "kubeProxyVersion": "",
                "operatingSystem": platform.system().lower(),
                "architecture": machine,
            },
        },
    }


async def register(kube: KubeApi, manifest: RawObject) -> None:
    """Create the Node, or update an existing one."""
    name = str(manifest["metadata"]["name"])
    try:
        await kube.create(NODES, manifest)
        return
    except AlreadyExistsError:
        pass
    metadata = {field: manifest["metadata"][field] for field in ("labels", "annotations")}
    node = await kube.patch(NODES, name, {"metadata": metadata})
    await kube.replace_status(NODES, msgspec.structs.replace(node, status=manifest["status"]))


async def retire(kube: KubeApi, prefix: str, *, keep: Set[str]) -> None:
    """Delete the local nodes of an earlier run that are not in `keep`, because no process runs their pods."""
    for node in (await kube.list(NODES)).items:
        name = node.metadata.name
        runtime = str(object_of(node.status.get("nodeInfo")).get("containerRuntimeVersion") or "")
        if runtime == RUNTIME and name.startswith(f"{prefix}-") and name not in keep:
            with contextlib.suppress(NotFoundError):
                await kube.delete(NODES, node.metadata.name, uid=node.metadata.uid)


async def report(kube: KubeApi, name: str, clock: Clock) -> None:
    """Set the conditions of the Node to ready if it is not ready, for example because the machine was asleep."""
    node = await kube.get(NODES, name)
    conditions = objects_of(node.status.get("conditions"))
    if not any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions):
        status = {**node.status, "conditions": _conditions(clock.now())}
        await kube.replace_status(NODES, msgspec.structs.replace(node, status=status))


async def renew(kube: KubeApi, node: str, clock: Clock) -> None:
    """Renew the node's Lease, or create it."""
    now = format_time(clock.now(), "microseconds")
    spec = LeaseSpec(holder_identity=node, lease_duration_seconds=LEASE_S, renew_time=now)
    try:
        held = await kube.get(LEASES, node, namespace=LEASE_NAMESPACE)
        await kube.replace(LEASES, Lease(metadata=held.metadata, spec=spec))
    except NotFoundError:
        try:
            await kube.create(LEASES, Lease(metadata=ObjectMeta(name=node, namespace=LEASE_NAMESPACE), spec=spec))
        except AlreadyExistsError:
            return
    except StaleError:
        return


def _conditions(now: float) -> list[RawObject]:
    stamp = format_time(now, "seconds")
    made: list[RawObject] = [
        {"type": name, "status": "False", "reason": reason, "message": message}
        for name, (reason, message) in _TROUBLES.items()
    ]
    made.append(
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "local node runs pods as processes"}
    )
    return [{**each, "lastHeartbeatTime": stamp, "lastTransitionTime": stamp} for each in made]
