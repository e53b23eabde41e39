"""The answer to a dry run: the complete spec, the source of each value, the exact objects, and the free capacity. Pure.

Owns the placeholders for values that are only known later: the uid, and the nodes of the ranks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from slipway.api.allocations.view import shown
from slipway.api.cluster.cluster_view import ENABLED, asks_by_node, is_node_ready, scheduling_of
from slipway.api.cluster.seen_nodes import SeenNode
from slipway.api.launch.capacity import allocatable_of, nodes_of, requests_of
from slipway.api.launch.overlays import Sources
from slipway.crd.resolve import role_requests, template_of
from slipway.crd.v1alpha1 import Admission, Allocation, AllocationStatus, Placement, ResourcePool
from slipway.model.lifecycle import Phase
from slipway.model.resources import Resources
from slipway.model.resources import total as summed
from slipway.pods import manifest
from slipway.pods.podspec import TaskOptions
from slipway.pods.shared_service import service_of

UID = "00000000-0000-4000-8000-000000000000"
"""The placeholder for the uid. AllocationIDs and pod names contain the first eight characters of the uid."""
PODS_SHOWN_MAX = 16
Json = dict[str, Any]


class LaunchPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The allocation that would be created, and the inputs for the answer."""

    allocation: Allocation
    pool: ResourcePool
    sources: Sources
    warnings: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    """image pull Secrets of the workspace"""
    nodes: tuple[SeenNode, ...] = ()
    live: tuple[Allocation, ...] = ()


def answer(rehearsal: LaunchPreview, options: TaskOptions) -> Json:
    """Return the answer to a dry run."""
    allocation = rehearsal.allocation
    objects, total = objects_of(allocation, rehearsal.pool, options, rehearsal.pull_secrets)
    return {
        "dryRun": True,
        "name": allocation.metadata.name,
        "workspace": allocation.metadata.namespace,
        "spec": shown(allocation.spec),
        "sources": rehearsal.sources,
        "requests": requests_of(allocation),
        "capacity": capacity_of(rehearsal),
        "warnings": rehearsal.warnings,
        "objects": objects,
        "pods": {"total": total, "shown": min(total, PODS_SHOWN_MAX)},
        "placeholders": {"uid": UID, "node": "decided later"},
    }


def objects_of(
    allocation: Allocation, pool: ResourcePool, options: TaskOptions, pull_secrets: Sequence[str] = ()
) -> tuple[list[Json], int]:
    """Return (ConfigMap, Services and the first `PODS_SHOWN_MAX` pods as the pod worker makes them, number of pods).

    Raises:
        InvalidError, TooLargeError: no pods can be made from the allocation.
    """
    roles = [role.name for role in allocation.spec.ranks for _ in range(role.count)]
    placements = [Placement(rank=rank, role=role, node="") for rank, role in enumerate(roles)]
    admission = Admission(decision_id="", epoch=0, attempt=1, placements=placements)
    stand_in = msgspec.structs.replace(
        allocation,
        metadata=msgspec.structs.replace(allocation.metadata, uid=UID),
        status=AllocationStatus(phase=Phase.ASSIGNED, attempt=1, admission=admission),
    )
    made = manifest.build(stand_in, stand_in.spec, pool, options=options, pull_secrets=pull_secrets)
    shared = [made.configmap] + ([made.service] if made.service is not None else [])
    if (wanted := allocation.spec.service) is not None:
        shared.append(service_of(stand_in, wanted))
    return [*shared, *(pod.manifest for pod in made.pods[:PODS_SHOWN_MAX])], len(made.pods)


def capacity_of(rehearsal: LaunchPreview) -> Json:
    """Return how many ranks fit into the free resources of the pool's nodes, each on the first node that fits.

    An estimate: the planner also considers queues, quota, topology and other waiting allocations.
    """
    free = _free(nodes_of(rehearsal.pool, rehearsal.nodes), rehearsal.live)
    spec = rehearsal.allocation.spec
    total = sum(role.count for role in spec.ranks)
    fitting = 0
    for role in spec.ranks:
        asks = role_requests(role, template_of(spec, role))
        left = role.count
        for index, offer in enumerate(free):
            here = min([left, *(offer.get(name) // amount for name, amount in asks.amounts.items())])
            if here > 0:
                free[index] = offer - asks * here
                left -= here
            if not left:
                break
        fitting += role.count - left
    needed = spec.min_available or total
    return {
        "pool": rehearsal.pool.metadata.name,
        "nodes": len(free),
        "ranks": total,
        "needed": needed,
        "fitNow": fitting,
        "startsNow": fitting >= needed,
    }


def _free(nodes: Iterable[SeenNode], live: Iterable[Allocation]) -> list[Resources]:
    """Return the free resources of each node; none for a node that is not ready or not schedulable.

    The time is proportional to the number of live ranks.
    """
    used: dict[str, list[Resources]] = {}
    for allocation in live:
        for node, asks in asks_by_node(allocation):
            used.setdefault(node, []).append(asks)
    return [
        allocatable_of(node) - summed(used.get(node.metadata.name, ()))
        if is_node_ready(node) and scheduling_of(node) == ENABLED
        else Resources()
        for node in nodes
    ]
