"""Coupled ranks, whose nodes depend on the pods beside them: they are placed one by one, with new totals after each.

Owns when a request is coupled: it has a spread constraint or affinity terms, or an existing or placed pod has terms
that match it. All other requests are filled in one pass (`fill.py`) and cost nothing here. Invariant: after filling,
the usage is as before.
"""

from typing import Protocol

import numpy as np

from slipway.scheduler.plan.placement.filters.inter_pod_affinity import matches_request, starts_series
from slipway.scheduler.plan.state.nodes import Bools, Ints
from slipway.scheduler.plan.state.rank_request import RankRequest
from slipway.scheduler.plan.state.usage import NodeUsage

DOMAINS_MAX = 64
"""The number of domains that are tried for a series that must stay together, the roomiest first."""


class CoupledRow(Protocol):
    """The part of a feasibility row that filling uses."""

    request: RankRequest
    usage: NodeUsage
    total: Ints

    def refresh(self) -> None: ...

    def room(self, most: int) -> Ints: ...


def is_coupled(request: RankRequest, usage: NodeUsage) -> bool:
    """Whether the pods beside a rank of the request matter to it."""
    pod_index = usage.pod_index
    if not pod_index.is_watched:
        return False
    if request.spread or request.pod_class.terms or (pod_index.spreads_all and request.role.labels):
        return True
    return any(matches_request(term, request, usage) for term in pod_index.terms)


def needs_others(row: CoupledRow) -> bool:
    """Whether the role requires other pods than its own beside it, so that those must be placed first."""
    near = row.request.pod_class.terms.near
    return bool(near) and not all(matches_request(term, row.request, row.usage) for term in near)


def without_its_like(request: RankRequest, usage: NodeUsage, room: Ints) -> Ints:
    """Return `room` per node, at most one rank per domain when the request excludes its own ranks from its domain."""
    for term in request.pod_class.terms.apart:
        if matches_request(term, request, usage):
            codes = usage.table.label(term.key).codes
            # The first node with room represents each domain. Nodes without the label are in no domain, so they stay as
            # is.
            usable = np.flatnonzero((room > 0) & (codes >= 0))
            _, first = np.unique(codes[usable], return_index=True)
            kept = np.where(codes < 0, room, 0)
            kept[usable[first]] = 1
            room = kept
    return room


def fill_in_turn(row: CoupledRow, want: int, allowed: Bools | None) -> list[int]:
    """Return the nodes for up to `want` ranks, in the order of placing.

    The first rank of a series that must stay together confines the others to its domain. If they do not all fit there,
    other domains are tried.
    """
    is_series = want > 1 and starts_series(row.request, row.usage)
    best = _in_turn(row, want, allowed)
    if len(best) == want or not is_series:
        return best
    column = row.usage.table.label(row.request.pod_class.terms.near[0].key)
    room = row.room(want) if allowed is None else np.where(allowed, row.room(want), 0)
    inside = column.codes >= 0
    by_domain = np.bincount(column.codes[inside], room[inside], len(column.values)).astype(np.int64)
    for domain in np.argsort(-by_domain, kind="stable")[:DOMAINS_MAX].tolist():
        if int(by_domain[domain]) <= len(best):
            break
        within = column.codes == domain
        found = _in_turn(row, want, within if allowed is None else within & allowed)
        if len(found) > len(best):
            best = found
        if len(best) == want:
            break
    return best


def _in_turn(row: CoupledRow, want: int, allowed: Bools | None) -> list[int]:
    placed: list[int] = []
    for _ in range(want):
        row.refresh()
        total = row.total if allowed is None else np.where(allowed, row.total, -1)
        if row.usage.sample is not None and total.size:
            total = row.usage.sample.of(total)
        node = int(total.argmax()) if total.size else 0
        if not total.size or total[node] < 0:
            break
        placed.append(node)
        row.usage.take(row.request, [node])
    if placed:
        row.usage.take(row.request, placed, -1)
    return placed
