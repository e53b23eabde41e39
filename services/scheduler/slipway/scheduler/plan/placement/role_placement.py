"""The part of a gang that one role is: its ranks placed, or why they are not.

Takes nothing of the what-if copy: the gang does, once all of its roles have places.
"""

import msgspec

from slipway.model.facts import RoleFact
from slipway.scheduler.plan.placement.diagnose import NodeVerdict, diagnose
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.topology import REQUIRED, Goal, largest_domain, near, pack
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.nodes import Bools


class Part(msgspec.Struct):
    """The placed ranks of one role; later ranks may go to `allowed` (None: anywhere), and go to `close` first."""

    role: RoleFact
    row: FeasibilityRow
    nodes: list[int]
    allowed: Bools | None = None
    close: Bools | None = None


class PlacementFailure(msgspec.Struct, frozen=True):
    """Why it does not stand: `found` of `needed` ranks have a place, those of `role` being the trouble.

    `least` is what `role` alone cannot do without; 0 when only all roles together are too few.
    """

    role: RoleFact
    needed: int
    found: int
    least: int
    verdict: NodeVerdict
    """on the first rank without a place"""
    is_topology: bool = False
    """there is room for all of them, but not within one domain"""
    largest: int = 0
    """then: ranks that the largest domain has room for"""
    common: str = ""
    """then: the label, where all roles have to be in one domain together; the numbers are those of the whole gang"""


def place_role(
    whatif: WhatIf, row: FeasibilityRow, role: RoleFact, want: int, within: Bools | None
) -> Part | PlacementFailure:
    if want == 0:
        return Part(role, row, [], within)
    if role.topology is None:
        nodes = fill(row, want, within)
        if len(nodes) >= role.minimum:
            return Part(role, row, nodes, within)
        return PlacementFailure(role, want, len(nodes), role.minimum, _verdict(row, nodes))
    goal = Goal(least=role.minimum, want=want, most=role.count)
    packed = pack(row, role.topology, goal, ordered=whatif.policy.topology, within=within)
    if packed is not None:
        return Part(role, row, packed.nodes, packed.allowed)
    rooms = row.room(want, within)
    room = int(rooms.sum())
    is_topology = role.topology.mode == REQUIRED and room >= role.minimum
    nodes = [] if is_topology else fill(row, want, within)
    largest = largest_domain(rooms, whatif.table.label(role.topology.key)) if is_topology else 0
    return PlacementFailure(role, want, min(room, want), role.minimum, _verdict(row, nodes), is_topology, largest)


def next_node(whatif: WhatIf, part: Part) -> list[int]:
    """A node for one more rank in the domains that the role is in already, the innermost first; the first rank of a
    role says where the others may go."""
    topology = part.role.topology
    if topology is None:
        return _close(part) or fill(part.row, 1, part.allowed)
    if not part.nodes:
        first = Goal(least=1, want=1, most=part.role.count)
        packed = pack(part.row, topology, first, ordered=whatif.policy.topology, within=part.allowed)
        if packed is None:
            return []
        part.allowed = packed.allowed
        return packed.nodes
    for domains in near(whatif.table, topology.key, whatif.policy.topology, part.nodes):
        nodes = fill(part.row, 1, domains if part.allowed is None else domains & part.allowed)
        if nodes:
            return nodes
    return _close(part) or fill(part.row, 1, part.allowed)


def _close(part: Part) -> list[int]:
    if part.close is None:
        return []
    return fill(part.row, 1, part.close if part.allowed is None else part.close & part.allowed)


def _verdict(row: FeasibilityRow, nodes: list[int]) -> NodeVerdict:
    """On one more rank, with those that have a place in theirs."""
    row.usage.take(row.ask, nodes)
    verdict = diagnose(row.ask, row.usage)
    row.usage.take(row.ask, nodes, -1)
    return verdict
