"""VolumeZone: a volume that only some nodes can reach confines its pods to these nodes.

The nodes follow from the node affinity of the volume (a disk of a zone, a disk of a node), or from its older zone
labels. A claim may have no known volume: it waits for its first consumer, or a scenario does not describe it. Such a
claim refuses no node. By zone labels, a node without any of these labels reaches every volume, as in a cluster of one
zone. A node affinity has no such exception.
Source: kube-scheduler 1.37 volumezone/volume_zone.go, volumebinding/volume_binding.go.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipway.model.facts import VolumeFact
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.placement.filters.node_affinity import match_term
from slipway.scheduler.plan.state.affinity_terms import mappings_of, strings_of
from slipway.scheduler.plan.state.nodes import At, Bools, NodeTable
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "VolumeZone"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
LABELS = (BETA_ZONE, BETA_REGION, ZONE, REGION)
SHOWN_MAX = 3
"""The number of values of a label that a message names."""
_SUCCESSOR = {BETA_ZONE: ZONE, BETA_REGION: REGION}
_NODE = ("kubernetes.io/hostname", "metadata.name")


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse, per claim, the nodes that cannot reach its volume."""
    table = usage.table
    for claim in request.role.claims:
        volume = usage.volumes.get((request.role.namespace, claim))
        if volume is None or not (volume.zones or volume.terms):
            continue
        where = reached_from(volume)
        only = f" (only {where} can)" if where else ""
        text = f"cannot reach the volume of claim {claim}"
        yield NodeRefusal("VolumeZone", f"{text}{only}", f"{text}{only}"), ~reaching(volume, table)[at]


def reaching(volume: VolumeFact, table: NodeTable) -> Bools:
    """Return the nodes that can reach a volume."""
    reached = np.ones(len(table), dtype=np.bool_)
    if volume.zones:
        for key, values in sorted(volume.zones.items()):
            reached &= _is_in(table, key, values)
        reached |= ~np.logical_or.reduce([table.label(key).codes >= 0 for key in LABELS])
    if volume.terms:
        reached &= np.logical_or.reduce([match_term(term, table) for term in volume.terms])
    return reached


def reached_from(volume: VolumeFact) -> str:
    """Return these nodes in words, such as `zone eu-1b`; "" when the volume's terms are too many for a sentence."""
    if not volume.terms:
        return " and ".join(_named(key, values) for key, values in sorted(volume.zones.items()))
    if len(volume.terms) > 1:
        return ""
    term = next(iter(volume.terms))
    parts = [*mappings_of(term.get("matchExpressions")), *mappings_of(term.get("matchFields"))]
    return " and ".join(map(_words, parts)) if all(each.get("operator") == "In" for each in parts) else ""


def _words(expression: Mapping[str, Any]) -> str:
    return _named(str(expression.get("key", "")), strings_of(expression.get("values")))


def _named(key: str, values: tuple[str, ...]) -> str:
    """Return `zone a or b`, `node n1` or `disk=fast`."""
    kind = key.rpartition("/")[2]
    word = f"{kind} " if kind in ("zone", "region") else "node " if key in _NODE else f"{key}="
    more = f" or {len(values) - SHOWN_MAX} more" if len(values) > SHOWN_MAX else ""
    return f"{word}{' or '.join(values[:SHOWN_MAX])}{more}"


def _is_in(table: NodeTable, key: str, values: tuple[str, ...]) -> Bools:
    """Return the nodes whose label `key`, or the label that replaced it, is among `values`."""
    column = table.label(key)
    found = column.select(values)
    later = _SUCCESSOR.get(key)
    return found | ((column.codes < 0) & table.label(later).select(values)) if later else found
