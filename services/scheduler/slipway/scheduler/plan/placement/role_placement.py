"""The placement of one role of a gang: its placed ranks, or why they have no place.

Takes nothing from the what-if copy: the gang does, when a role has its places.
"""

import msgspec

from slipway.model.facts import RoleFact
from slipway.scheduler.plan.placement.diagnose import NodeVerdict, diagnose
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.topology import REQUIRED, RankGoal, largest_domain, near, pack
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.nodes import Bools


class PlacedRole(msgspec.Struct):
    """The placed ranks of one role. Later ranks may use `allowed` (None: all nodes), and try `close` first."""

    role: RoleFact
    row: FeasibilityRow
    nodes: list[int]
    allowed: Bools | None = None
    close: Bools | None = None


class PlacementFailure(msgspec.Struct, frozen=True):
    """Why a gang has no place: `found` of `needed` ranks have one, and `role` is the blocked role.

    `least` is the number of ranks that `role` itself requires; 0 when only the total of all roles is too small.
    """

    role: RoleFact
    needed: int
    found: int
    least: int
    verdict: NodeVerdict
    """the verdict on the first rank without a place"""
    is_topology: bool = False
    """whether there is room for all ranks, but not within one domain"""
    largest: int = 0
    """with `is_topology`: number of ranks that fit the largest domain"""
    common: str = ""
    """with `is_topology`: the label whose domain all roles must share; the numbers are then of the whole gang"""


def place_role(
    whatif: WhatIf, row: FeasibilityRow, role: RoleFact, want: int, within: Bools | None
) -> PlacedRole | PlacementFailure:
    if want == 0:
        return PlacedRole(role, row, [], within)
    if role.topology is None:
        nodes = fill(row, want, within)
        if len(nodes) >= role.minimum:
            return PlacedRole(role, row, nodes, within)
        return PlacementFailure(role, want, len(nodes), role.minimum, _verdict(row, nodes))
    goal = RankGoal(least=role.minimum, want=want, most=role.count)
    packed = pack(row, role.topology, goal, ordered=whatif.policy.topology, within=within)
    if packed is not None:
        return PlacedRole(role, row, packed.nodes, packed.allowed)
    rooms = row.room(want, within)
    room = int(rooms.sum())
    is_topology = role.topology.mode == REQUIRED and room >= role.minimum
    nodes = [] if is_topology else fill(row, want, within)
    largest = largest_domain(rooms, whatif.table.label(role.topology.key)) if is_topology else 0
    return PlacementFailure(role, want, min(room, want), role.minimum, _verdict(row, nodes), is_topology, largest)


def next_node(whatif: WhatIf, part: PlacedRole) -> list[int]:
    """Return a node for one more rank, empty when there is none.

    The domains that the role uses already are tried first, from the innermost. The first rank of a role determines
    where the others may be placed.
    """
    topology = part.role.topology
    if topology is None:
        return _close(part) or fill(part.row, 1, part.allowed)
    if not part.nodes:
        first = RankGoal(least=1, want=1, most=part.role.count)
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


def _close(part: PlacedRole) -> list[int]:
    if part.close is None:
        return []
    return fill(part.row, 1, part.close if part.allowed is None else part.close & part.allowed)


def _verdict(row: FeasibilityRow, nodes: list[int]) -> NodeVerdict:
    """Return the verdict on one more rank, with the ranks of `nodes` taken."""
    row.usage.take(row.request, nodes)
    verdict = diagnose(row.request, row.usage)
    row.usage.take(row.request, nodes, -1)
    return verdict
