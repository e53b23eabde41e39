"""VolumeZone: a volume that can be reached from some zones only keeps its pods there.

Of a claim nothing may be known (it is not bound yet, or nobody tells): then it keeps nothing out. A node without any
zone or region label takes every volume, as in a cluster of one zone.
Source: kube-scheduler 1.36 volumezone/volume_zone.go.
"""

import numpy as np

from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.nodes import At, Bools, NodeTable
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "VolumeZone"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
LABELS = (BETA_ZONE, BETA_REGION, ZONE, REGION)
_SUCCESSOR = {BETA_ZONE: ZONE, BETA_REGION: REGION}


def refuse(ask: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Per claim the nodes from which its volume cannot be reached."""
    table = usage.table
    for claim in ask.role.claims:
        volume = usage.volumes.get((ask.role.namespace, claim))
        if volume is None or not volume.zones:
            continue
        reached = np.ones(len(table), dtype=np.bool_)
        for key, values in sorted(volume.zones.items()):
            reached &= _is_in(table, key, values)
        zoned = np.logical_or.reduce([table.label(key).codes >= 0 for key in LABELS])
        text = f"cannot reach the volume of claim {claim}"
        yield NodeRefusal("VolumeZone", text, text), (zoned & ~reached)[at]


def _is_in(table: NodeTable, key: str, values: tuple[str, ...]) -> Bools:
    """Where label `key`, or the one that came after it, is among `values`."""
    column = table.label(key)
    found = column.select(values)
    later = _SUCCESSOR.get(key)
    return found | ((column.codes < 0) & table.label(later).select(values)) if later else found
