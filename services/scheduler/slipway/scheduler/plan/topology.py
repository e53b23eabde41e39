"""Topology domains: which racks (blocks, islands) the ranks of one role go to.

A domain is a value of a node label. Required: all placed ranks of a role in one domain. Preferred: the fewest
domains. Best fit: the domain that is left with the least room; the first by name among equals.
Room for levels above and below the role's own label is left to `Policy.topology`.
"""

import msgspec
import numpy as np

from slipway.model.facts import TopologyFact
from slipway.scheduler.plan.fill import fill
from slipway.scheduler.plan.nodes import Bools, Ints, LabelColumn
from slipway.scheduler.plan.rows import Row

REQUIRED = "required"


class Packed(msgspec.Struct, frozen=True):
    """Where the ranks go, and the nodes that later ranks of the role may use (None: all)."""

    nodes: list[int]
    allowed: Bools | None


def pack(row: Row, topology: TopologyFact, want: int, least: int) -> Packed | None:
    """Nodes for between `least` and `want` ranks; None when fewer than `least` fit as the mode demands."""
    column = row.usage.table.label(topology.key)
    capacity = domain_room(row, column, max(want, 1))
    if topology.mode == REQUIRED:
        domain = _one_domain(capacity, want, least)
        if domain is None:
            return None
        allowed = column.codes == domain
        return Packed(fill(row, want, allowed), allowed)
    nodes: list[int] = []
    for domain in _fewest_domains(capacity, want):
        nodes += fill(row, want - len(nodes), column.codes == domain)
    if len(nodes) < want:
        nodes += fill(row, want - len(nodes), column.codes < 0)
    return Packed(nodes, None) if len(nodes) >= least else None


def domain_room(row: Row, column: LabelColumn, most_per_node: int) -> Ints:
    """Room for ranks per domain."""
    inside = column.codes >= 0
    room = row.room(most_per_node)[inside]
    return np.bincount(column.codes[inside], room, len(column.values)).astype(np.int64)


def largest_domain(room: Ints, column: LabelColumn) -> int:
    """The most ranks that one domain holds, by `room` per node."""
    inside = column.codes >= 0
    sums = np.bincount(column.codes[inside], room[inside], len(column.values))
    return int(sums.max()) if sums.size else 0


def _one_domain(capacity: Ints, want: int, least: int) -> int | None:
    """The tightest domain that holds all of `want`, else the roomiest that holds `least`."""
    if capacity.size == 0:
        return None
    enough = np.flatnonzero(capacity >= want)
    if enough.size:
        return int(enough[capacity[enough].argmin()])
    largest = int(capacity.argmax())
    return largest if capacity[largest] >= max(least, 1) else None


def _fewest_domains(capacity: Ints, want: int) -> list[int]:
    """Roomiest first, until the rest fits one domain: then the tightest that holds it."""
    left = capacity.copy()
    chosen: list[int] = []
    while want > 0 and left.size and int(left.max()) > 0:
        domain = _one_domain(left, want, 1)
        if domain is None:
            break
        chosen.append(domain)
        want -= int(left[domain])
        left[domain] = 0
    return chosen
