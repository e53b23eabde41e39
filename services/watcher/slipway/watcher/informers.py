"""The objects that this process has observed: one store per resource, which reflectors fill.

Owns which resources are watched and how they are indexed. Watches are unfiltered: a filtered one would report an object
that leaves the filter as deleted. Must not decide anything.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from slipway.crd.meta import LABEL_ALLOCATION_UID, TEARDOWN_FINALIZER
from slipway.crd.transitions import stop_reason
from slipway.crd.v1alpha1 import Allocation, Job, Queue, ResourcePool
from slipway.kube.objects import LimitRange, Namespace, Node, Pod, ResourceQuota
from slipway.kube.resources import (
    ALLOCATIONS,
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    QUEUES,
    RESOURCE_POOLS,
    RESOURCE_QUOTAS,
    Resource,
)
from slipway.kube.store import ObjectStore, by_label
from slipway.model.lifecycle import Phase
from slipway.watcher.dependencies import awaited_names
from slipway.watcher.podwarnings import PodWarnings
from slipway.watcher.ports import ConsistentReader

BY_ALLOCATION = "allocation"
BY_NODE = "node"
BY_NAMESPACE = "namespace"
BY_AWAITED = "awaited"
POD_WAITS, POD_RUNS = "Pending", "Running"
"""phases of a pod"""
OUT_OF_SERVICE_TAINT = "node.kubernetes.io/out-of-service"


def _node_of(pod: Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _namespace_of(obj: Allocation | LimitRange) -> Iterable[str]:
    return (obj.metadata.namespace,)


def _allocations() -> ObjectStore[Allocation]:
    return ObjectStore({BY_NAMESPACE: _namespace_of, BY_AWAITED: awaited_names})


def _ranges() -> ObjectStore[LimitRange]:
    return ObjectStore({BY_NAMESPACE: _namespace_of})


def _pods() -> ObjectStore[Pod]:
    return ObjectStore({BY_ALLOCATION: by_label(LABEL_ALLOCATION_UID), BY_NODE: _node_of})


@dataclass(frozen=True)
class Informers:
    """The store of each watched resource."""

    allocations: ObjectStore[Allocation] = field(default_factory=_allocations)
    pods: ObjectStore[Pod] = field(default_factory=_pods)
    nodes: ObjectStore[Node] = field(default_factory=ObjectStore[Node])
    namespaces: ObjectStore[Namespace] = field(default_factory=ObjectStore[Namespace])
    pools: ObjectStore[ResourcePool] = field(default_factory=ObjectStore[ResourcePool])
    queues: ObjectStore[Queue] = field(default_factory=ObjectStore[Queue])
    jobs: ObjectStore[Job] = field(default_factory=ObjectStore[Job])
    quotas: ObjectStore[ResourceQuota] = field(default_factory=ObjectStore[ResourceQuota])
    ranges: ObjectStore[LimitRange] = field(default_factory=_ranges)
    warnings: PodWarnings = field(default_factory=PodWarnings)
    """the last warning Event about the start of each pod; only the primary has them"""

    def stores(self) -> tuple[tuple[Resource[Any], ObjectStore[Any]], ...]:
        """Return each resource with its store; pools and LimitRanges first,
        because an allocation's fact depends on them."""
        return (
            (RESOURCE_POOLS, self.pools),
            (LIMIT_RANGES, self.ranges),
            (NAMESPACES, self.namespaces),
            (NODES, self.nodes),
            (QUEUES, self.queues),
            (JOBS, self.jobs),
            (RESOURCE_QUOTAS, self.quotas),
            (PODS, self.pods),
            (ALLOCATIONS, self.allocations),
        )

    @property
    def is_synced(self) -> bool:
        """Whether every store has received its first LIST."""
        return all(store.synced for _, store in self.stores())

    def pods_of(self, uid: str) -> list[Pod]:
        """Return the pods that have this allocation uid in their label."""
        return self.pods.indexed(BY_ALLOCATION, uid)

    def count_pods_of(self, uid: str) -> int:
        """Return the number of pods that have this allocation uid in their label."""
        return self.pods.count(BY_ALLOCATION, uid)

    def is_at_rest(self, allocation: Allocation) -> bool:
        """Whether the allocation has ended and has neither our finalizer nor a pod, so nothing is left to do for it."""
        is_held = TEARDOWN_FINALIZER in allocation.metadata.finalizers
        is_over = allocation.status.phase is Phase.TERMINATED and not is_held
        return is_over and not self.pods_of(allocation.metadata.uid)

    def is_unsettled(self, uid: str) -> bool:
        """Whether an allocation has to stop, or its pods may show more than its record; a quick look.

        False for a waiting allocation without pods, for pods that have not started, and when each pod of a running
        allocation runs.
        """
        allocation = self.allocations.by_uid(uid)
        if allocation is None or stop_reason(allocation) is not None:
            return True
        pods = self.pods_of(uid)
        match allocation.status.phase:
            case Phase.PENDING:
                return bool(pods)
            case Phase.ASSIGNED | Phase.PULLING | Phase.STARTING:
                return any(pod.status.phase != POD_WAITS for pod in pods)
            case Phase.RUNNING:
                return not pods or any(pod.status.phase != POD_RUNS for pod in pods)
            case _:
                return True

    def waiting_for(self, allocation: Allocation) -> list[Allocation]:
        """Return the allocations that may wait for this one to end: those whose `spec.after` contains its name."""
        meta = allocation.metadata
        return self.allocations.indexed(BY_AWAITED, f"{meta.namespace}/{meta.name}")

    def is_terminating(self, namespace: str) -> bool:
        """Whether the namespace is being deleted."""
        found = self.namespaces.get(namespace)
        if found is None:
            return False
        return found.metadata.deletion_timestamp is not None or found.status.phase == "Terminating"


async def fill(informers: Informers, api: ConsistentReader) -> None:
    """Fill the stores by one consistent LIST of each resource, for a run without watches."""
    for resource, store in informers.stores():
        listing = await api.list(resource)
        version = int(listing.resource_version) if listing.resource_version.isdigit() else 0
        store.replace(listing.items, version)


def is_out_of_service(node: Node) -> bool:
    """Whether an administrator has declared the node dead, by the out-of-service taint."""
    return any(taint.key == OUT_OF_SERVICE_TAINT for taint in node.spec.taints)
