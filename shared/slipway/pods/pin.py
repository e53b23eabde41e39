"""A pod that kube-scheduler has to bind: the gate that holds it back, and the affinity that admits one node only.

Owns both as data. Pure. The pod worker decides when and how a gate is opened.

Source: Kubernetes, "Pod Scheduling Readiness": while a pod is gated its node affinity may be narrowed, term by term.
"""

from collections.abc import Mapping
from typing import Any

from slipway.crd.meta import API_GROUP, RawObject
from slipway.crd.roleresources import object_of, objects_of

LAUNCH_GATE = f"{API_GROUP}/launch"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pinned(affinity: Mapping[str, Any], node: str) -> RawObject:
    """The affinity narrowed to this node; terms are alternatives, so each of them gets the condition.

    A term without conditions matches no node, and the server keeps it so.
    """
    node_affinity = dict(object_of(affinity.get("nodeAffinity")))
    terms = [
        {**term, "matchFields": [*objects_of(term.get("matchFields")), _here(node)]} if _can_match(term) else dict(term)
        for term in _terms(affinity)
    ]
    node_affinity[_REQUIRED] = {"nodeSelectorTerms": terms or [{"matchFields": [_here(node)]}]}
    return {**affinity, "nodeAffinity": node_affinity}


def is_pinned(affinity: Mapping[str, Any], node: str) -> bool:
    """Whether the affinity admits no other node than this one."""
    terms = [term for term in _terms(affinity) if _can_match(term)]
    return bool(terms) and all(_here(node) in objects_of(term.get("matchFields")) for term in terms)


def _terms(affinity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    required = object_of(object_of(affinity.get("nodeAffinity")).get(_REQUIRED))
    return objects_of(required.get("nodeSelectorTerms"))


def _can_match(term: Mapping[str, Any]) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _here(node: str) -> RawObject:
    return {"key": "metadata.name", "operator": "In", "values": [node]}
