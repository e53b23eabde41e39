"""InterPodAffinity: prefers domains with pods that the rank prefers or that prefer it, and avoids the opposite.

The raw value of a node is a sum over the pods in its domains. It adds the weights of the rank's preferred terms that
match the pod, the weights of the pod's preferred terms that match the rank, and `hardPodAffinityWeight` (an arg, by
default 1) for each required term of the pod that matches the rank. It is scaled to 0..100 over the feasible nodes.
Source: kube-scheduler 1.37 interpodaffinity/scoring.go.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from slipway.scheduler.plan.placement.filters import domains
from slipway.scheduler.plan.placement.filters.inter_pod_affinity import matches_request
from slipway.scheduler.plan.placement.scores.base import SCORE_MAX, ScoreWhole
from slipway.scheduler.plan.state.nodes import Bools, Ints
from slipway.scheduler.plan.state.pod_index import PodClass, TermKind
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "InterPodAffinity"
HARD_WEIGHT = 1


def score_all(request: RankRequest, usage: NodeUsage, feasible: Bools) -> Ints:
    """Return 0..100 over all nodes; 0 everywhere when all feasible nodes have the same value."""
    return _score(request, usage, feasible, {})


def bind_all(args: Mapping[str, Any]) -> ScoreWhole:
    """Return the score with a pool's args."""
    return lambda request, usage, feasible: _score(request, usage, feasible, args)


def _score(request: RankRequest, usage: NodeUsage, feasible: Bools, args: Mapping[str, Any]) -> Ints:
    raw = np.zeros(len(usage.table), dtype=np.int64)
    keys = _keys(request, usage)
    if not keys or not feasible.any():
        return raw
    hard_weight = int(args.get("hardPodAffinityWeight", HARD_WEIGHT))
    for key in keys:
        column = usage.table.label(key)
        counts = usage.pod_index.tally(_name(key, request, hard_weight), _PodWeight(key, request, usage, hard_weight))
        raw += domains.at_nodes(domains.sums_of(counts, column), column)
    least, most = int(raw[feasible].min()), int(raw[feasible].max())
    if most == least:
        return np.zeros(len(usage.table), dtype=np.int64)
    scaled = float(SCORE_MAX) * ((raw - least).astype(np.float64) / float(most - least))
    return np.where(feasible, scaled.astype(np.int64), 0)


def _keys(request: RankRequest, usage: NodeUsage) -> list[str]:
    """Return the node labels of all terms that may add to a node's value."""
    keys = {term.key for term in request.pod_class.terms.liked}
    theirs = [term for term, kinds in usage.pod_index.terms.items() if kinds & (TermKind.LIKED | TermKind.NEAR)]
    return sorted(keys | {term.key for term in theirs if matches_request(term, request, usage)})


def _name(key: str, request: RankRequest, hard_weight: int) -> tuple[object, ...]:
    pod_class = request.pod_class
    return ("liked", key, hard_weight, pod_class.namespace, pod_class.labels, pod_class.terms.liked)


class _PodWeight:
    """Computes what one pod of a class adds to the nodes of its domain of `key`."""

    def __init__(self, key: str, request: RankRequest, usage: NodeUsage, hard_weight: int) -> None:
        self.key, self.request, self.usage, self.hard_weight = key, request, usage, hard_weight

    def __call__(self, pod_class: PodClass, labels: Mapping[str, str]) -> int:
        spaces, key = self.usage.pod_index.namespaces, self.key
        own = [term for term in self.request.pod_class.terms.liked if term.key == key]
        total = sum(term.weight for term in own if term.matches(pod_class.namespace, labels, spaces))
        if pod_class.terms:
            theirs = [
                term
                for term in pod_class.terms.liked
                if term.key == key and matches_request(term, self.request, self.usage)
            ]
            hard = [
                term
                for term in pod_class.terms.near
                if term.key == key and matches_request(term, self.request, self.usage)
            ]
            total += sum(term.weight for term in theirs) + self.hard_weight * len(hard)
        return total
