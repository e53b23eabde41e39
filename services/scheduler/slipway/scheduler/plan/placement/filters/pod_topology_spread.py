"""PodTopologySpread: pods that are alike are spread evenly over the domains of a node label.

A node is refused when its domain, including the new rank, would have more than `maxSkew` pods above the emptiest
domain. Ranks that the plan has placed, of the same gang or another, are treated as running pods.
Source: kube-scheduler 1.37 podtopologyspread/filtering.go.
"""

import numpy as np

from slipway.scheduler.plan.placement.filters import domains
from slipway.scheduler.plan.placement.filters.base import NodeRefusal, Refused
from slipway.scheduler.plan.state.affinity_terms import Spread
from slipway.scheduler.plan.state.nodes import At
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

NAME = "PodTopologySpread"


def refuse(request: RankRequest, usage: NodeUsage, at: At) -> Refused:
    """Refuse, per constraint, the nodes without its label, then those whose domain has too many pods already."""
    hard = tuple(spread for spread in request.spread if spread.is_hard)
    if not hard:
        return
    eligible = domains.has_all(usage, request, hard)
    for spread in hard:
        column = usage.table.label(spread.key)
        yield _unlabelled(spread.key), (column.codes < 0)[at]
        counted = eligible & domains.included(spread, request, usage)
        sums = domains.sums_of(domains.matching_pods(spread, request, usage), column, counted)
        present = np.flatnonzero(domains.present(spread, request, column, counted))
        is_enough = bool(present.size) and present.size >= spread.min_domains
        emptiest = int(present[sums[present].argmin()]) if is_enough else -1
        least = int(sums[emptiest]) if is_enough else 0
        own = int(spread.selector.matches(request.role.labels))
        skew = domains.at_nodes(sums, column) + own - least
        name = column.values[emptiest] if is_enough else ""
        yield _skewed(spread, name, least), ((column.codes >= 0) & (skew > spread.max_skew))[at]


def _unlabelled(key: str) -> NodeRefusal:
    return NodeRefusal(
        "PodTopologySpreadLabel", f"has no label {key} to spread over", f"have no label {key} to spread over"
    )


def _skewed(spread: Spread, emptiest: str, least: int) -> NodeRefusal:
    """Return the refusal that names the limiting domain: `emptiest`, or none when there are too few domains."""
    if emptiest:
        text = (
            f"more than {spread.max_skew} above {spread.key} {emptiest}, which has the fewest matching pods ({least})"
        )
    else:
        text = f"more than {spread.max_skew} matching pods in one {spread.key}, of fewer than {spread.min_domains}"
    return NodeRefusal("PodTopologySpread", f"would have {text}", f"would have {text}", is_final=False)
