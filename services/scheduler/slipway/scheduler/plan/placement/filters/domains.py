"""Counts by domain: pods per value of a node label, for topology spreading and inter-pod affinity. Pure."""

import numpy as np

from slipway.scheduler.plan.placement.filters.node_affinity import refuse as refuse_affinity
from slipway.scheduler.plan.placement.filters.taint_toleration import refuse as refuse_taints
from slipway.scheduler.plan.state.affinity_terms import Spread
from slipway.scheduler.plan.state.nodes import EVERY, Bools, Ints, LabelColumn
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage


def sums_of(counts: Ints, column: LabelColumn, where: Bools | None = None) -> Ints:
    """Return per domain the sum of `counts` over its nodes; with `where`, only over those nodes of it."""
    present = counts != 0
    if where is not None:
        present &= where
    nodes = np.flatnonzero(present & (column.codes >= 0))
    # The counts are small whole numbers, so float64 sums are exact in any order.
    return np.bincount(column.codes[nodes], counts[nodes], len(column.values)).astype(np.int64)


def at_nodes(sums: Ints, column: LabelColumn) -> Ints:
    """Return the sum of each node's domain; 0 for a node without the label."""
    return np.append(sums, 0)[column.codes]


def matching_pods(spread: Spread, request: RankRequest, usage: NodeUsage) -> Ints:
    """Return the pods per node that `spread` counts: selected, in the request's namespace, and not being deleted.

    An empty selector counts no pods.
    """
    if spread.selector.is_everything:
        return np.zeros(len(usage.table), dtype=np.int64)
    namespace, selector = request.role.namespace, spread.selector
    return usage.pod_index.tally(
        ("spread", namespace, selector),
        lambda pod_class, labels: int(
            not pod_class.is_leaving and pod_class.namespace == namespace and selector.matches(labels),
        ),
    )


def has_all(usage: NodeUsage, request: RankRequest, spreads: tuple[Spread, ...]) -> Bools:
    """Return the nodes that have every label of `spreads`; computed once per request."""
    known = request.memo.get(spreads)
    if known is None:
        known = np.ones(len(usage.table), dtype=np.bool_)
        for spread in spreads:
            known &= usage.table.label(spread.key).codes >= 0
        request.memo[spreads] = known
    return known


def included(spread: Spread, request: RankRequest, usage: NodeUsage) -> Bools:
    """Return the nodes that `spread` counts, by its node inclusion policies; computed once per request."""
    known = request.memo.get(spread)
    if known is None:
        known = np.ones(len(usage.table), dtype=np.bool_)
        if spread.honours_affinity:
            for _, refused in refuse_affinity(request, usage, EVERY):
                known &= ~refused
        if spread.honours_taints:
            for _, refused in refuse_taints(request, usage, EVERY):
                known &= ~refused
        request.memo[spread] = known
    return known


def present(spread: Spread, request: RankRequest, column: LabelColumn, counted: Bools) -> Bools:
    """Return the domains that contain `counted` nodes; computed once per request."""
    name = ("present", spread)
    known = request.memo.get(name)
    if known is None:
        known = np.zeros(len(column.values), dtype=np.bool_)
        known[column.codes[counted]] = True
        request.memo[name] = known
    return known
