"""The registry of filters, in the order in which they are applied.

To add a filter: write a module with `NAME` and `refuse` (see `base.py`), an entry here, and a test beside the others.
"""

from slipway.scheduler.plan.placement.filters import (
    avoid_nodes,
    extenders,
    gpu_sharing,
    inter_pod_affinity,
    node_affinity,
    node_health,
    node_name,
    node_ports,
    node_resources_fit,
    node_scheduling,
    node_unschedulable,
    pod_topology_spread,
    reserved,
    taint_toleration,
    volume_zone,
)
from slipway.scheduler.plan.placement.filters.base import NodeFilter, NodeRefusal

FILTERS: tuple[NodeFilter, ...] = (
    NodeFilter(node_scheduling.NAME, node_scheduling.refuse, is_passing=True),
    NodeFilter(node_unschedulable.NAME, node_unschedulable.refuse, is_passing=True),
    NodeFilter(node_name.NAME, node_name.refuse),
    NodeFilter(node_health.NAME, node_health.refuse, is_passing=True),
    NodeFilter(taint_toleration.NAME, taint_toleration.refuse),
    NodeFilter(node_affinity.NAME, node_affinity.refuse),
    NodeFilter(volume_zone.NAME, volume_zone.refuse),
    NodeFilter(avoid_nodes.NAME, avoid_nodes.refuse, is_passing=True),
    NodeFilter(gpu_sharing.NAME, gpu_sharing.refuse),
    NodeFilter(reserved.NAME, reserved.refuse, is_passing=True),
    NodeFilter(node_ports.NAME, node_ports.refuse, is_static=False),
    NodeFilter(node_resources_fit.NAME, node_resources_fit.refuse, is_static=False),
    NodeFilter(pod_topology_spread.NAME, pod_topology_spread.refuse, is_static=False, is_coupled=True),
    NodeFilter(inter_pod_affinity.NAME, inter_pod_affinity.refuse, is_static=False, is_coupled=True),
    NodeFilter(extenders.NAME, extenders.refuse, is_static=False, is_passing=True),
)
STATIC = tuple(entry for entry in FILTERS if entry.is_static)
DYNAMIC = tuple(entry for entry in FILTERS if not entry.is_static)
COUPLED = tuple(entry for entry in FILTERS if entry.is_coupled)

__all__ = ["COUPLED", "DYNAMIC", "FILTERS", "STATIC", "NodeFilter", "NodeRefusal"]
