"""A pod that kube-scheduler binds: the scheduling gate that delays it, and the node affinity that allows only one node.

Owns both as data. Pure. The pod worker decides when and how the gate is removed.

Source: Kubernetes, "Pod Scheduling Readiness": while a pod has a gate, its node affinity may be narrowed, term by term.
"""

from collections.abc import Mapping
from typing import Any

from slipway.crd.meta import API_GROUP, RawObject
from slipway.crd.roleresources import object_of, objects_of

LAUNCH_GATE = f"{API_GROUP}/launch"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pinned(affinity: Mapping[str, Any], node: str) -> RawObject:
    """Return the affinity narrowed to this node; terms are alternatives, so each of them gets the condition.

    A term without conditions matches no node, and the API server refuses to change that, so it stays unchanged.
    """
    node_affinity = dict(object_of(affinity.get("nodeAffinity")))
    terms = [
        {**term, "matchFields": [*objects_of(term.get("matchFields")), _here(node)]} if _can_match(term) else dict(term)
        for term in _terms(affinity)
    ]
    node_affinity[_REQUIRED] = {"nodeSelectorTerms": terms or [{"matchFields": [_here(node)]}]}
    return {**affinity, "nodeAffinity": node_affinity}


def is_pinned(affinity: Mapping[str, Any], node: str) -> bool:
    """Whether the affinity allows this node only."""
    terms = [term for term in _terms(affinity) if _can_match(term)]
    return bool(terms) and all(_here(node) in objects_of(term.get("matchFields")) for term in terms)


def _terms(affinity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    required = object_of(object_of(affinity.get("nodeAffinity")).get(_REQUIRED))
    return objects_of(required.get("nodeSelectorTerms"))


def _can_match(term: Mapping[str, Any]) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _here(node: str) -> RawObject:
    return {"key": "metadata.name", "operator": "In", "values": [node]}
