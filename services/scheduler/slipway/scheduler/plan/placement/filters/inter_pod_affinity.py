"""InterPodAffinity: what a pod requires of the pods in its domain, and what those pods require of it.

Required affinity: for every term, the node's domain of the term's label must contain a pod that matches all terms. The
first pod of a series whose pods match their own terms may start without one. Required anti-affinity applies both ways:
a running pod also excludes the pods that its own terms match. Ranks that the plan has placed are treated as running
pods.
Source: kube-scheduler 1.37 interpodaffinity/filtering.go.
"""

import numpy as np

from slipway.scheduler.plan.placement.filters import domains
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.affinity_terms import Namespaces, Term
from slipway.scheduler.plan.state.nodes import At, Bools, Ints
from slipway.scheduler.plan.state.pod_index import PodClass, TermKind
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "InterPodAffinity"
AFFINITY = NodeRefusal(
    "PodAffinityMismatch", "lacks a pod that the affinity requires", "lack a pod that the affinity requires"
)
ANTI_AFFINITY = NodeRefusal(
    "PodAntiAffinityMismatch",
    "has a pod that the anti-affinity excludes",
    "have a pod that the anti-affinity excludes",
    is_final=False,
)
EXISTING = NodeRefusal(
    "ExistingPodAntiAffinity",
    "has a pod whose anti-affinity excludes it",
    "have a pod whose anti-affinity excludes it",
    is_final=False,
)


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse nodes that lack a required pod, that have an excluded pod, or whose pods exclude this rank."""
    affinity_terms = request.pod_class.terms
    if affinity_terms.near:
        yield AFFINITY, ~_near(request, usage)[at]
    if affinity_terms.apart:
        mask = np.zeros(len(usage.table), dtype=np.bool_)
        for term in affinity_terms.apart:
            mask |= _has(term.key, ("apart", term), usage, term)
        yield ANTI_AFFINITY, mask[at]
    theirs = [term for term, kinds in usage.pod_index.terms.items() if kinds & TermKind.APART]
    keys = sorted({term.key for term in theirs if matches_request(term, request, usage)})
    if keys:
        mask = np.zeros(len(usage.table), dtype=np.bool_)
        for key in keys:
            mask |= _against(key, request, usage)
        yield EXISTING, mask[at]


def matches_request(term: Term, request: RankRequest, usage: NodeUsage) -> bool:
    """Whether a term of a pod matches the request."""
    return term.matches(request.role.namespace, request.role.labels, usage.pod_index.namespaces)


def starts_series(request: RankRequest, usage: NodeUsage) -> bool:
    """Whether the request matches its own required terms, and no existing pod matches them yet."""
    near = request.pod_class.terms.near
    if not near or not all(matches_request(term, request, usage) for term in near):
        return False
    counts = _all_matching(near, usage)
    return not any((counts[usage.table.label(term.key).codes >= 0] > 0).any() for term in near)


def _near(request: RankRequest, usage: NodeUsage) -> Bools:
    near, table = request.pod_class.terms.near, usage.table
    labelled = np.ones(len(table), dtype=np.bool_)
    found = np.ones(len(table), dtype=np.bool_)
    counts = _all_matching(near, usage)
    for term in near:
        column = table.label(term.key)
        labelled &= column.codes >= 0
        found &= domains.at_nodes(domains.sums_of(counts, column), column) > 0
    return labelled if starts_series(request, usage) else labelled & found


def _all_matching(near: tuple[Term, ...], usage: NodeUsage) -> Ints:
    """Return the number of pods on each node that match all of the terms."""
    spaces = usage.pod_index.namespaces
    return usage.pod_index.tally(
        ("near", near),
        lambda pod_class, labels: int(all(term.matches(pod_class.namespace, labels, spaces) for term in near)),
    )


def _has(key: str, name: tuple[str, Term], usage: NodeUsage, term: Term) -> Bools:
    spaces = usage.pod_index.namespaces
    counts = usage.pod_index.tally(
        name, lambda pod_class, labels: int(term.matches(pod_class.namespace, labels, spaces))
    )
    column = usage.table.label(key)
    return domains.at_nodes(domains.sums_of(counts, column), column) > 0


def _against(key: str, request: RankRequest, usage: NodeUsage) -> Bools:
    """Return the nodes in whose domain of `key` a pod runs that excludes this rank."""
    namespace, own, spaces = request.role.namespace, request.role.labels, usage.pod_index.namespaces
    counts = usage.pod_index.tally(
        ("against", key, namespace, tuple(sorted(own.items()))),
        lambda pod_class, _labels: _terms_against(pod_class, key, namespace, own, spaces),
    )
    column = usage.table.label(key)
    return domains.at_nodes(domains.sums_of(counts, column), column) > 0


def _terms_against(pod_class: PodClass, key: str, namespace: str, own: dict[str, str], spaces: Namespaces) -> int:
    return sum(1 for term in pod_class.terms.apart if term.key == key and term.matches(namespace, own, spaces))
