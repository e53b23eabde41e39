"""All-or-nothing placement of a gang on the what-if copy.

A gang is placed with at least its minimum, per role and in total, or not at all; then all its places are given back.
Ranks beyond the minimum (elastic gangs) are added later with `extend`, one at a time, so that each role gets the same
part of its range. This happens after the minima of all other allocations were tried.

Roles are placed one after the other, so one role may take nodes that another needs. A gang that finds no place in one
order of its roles is tried in other orders, with the blocked role first. Roles that require the same kind of domain are
placed in one domain together if one has room for all of them; otherwise each role gets a domain of its own. A topology
of the whole gang is applied first: all roles are placed within one domain of it, as if the pool had no other nodes.

`place_role` only finds places: it leaves the what-if copy unchanged. Its caller takes the places.

A running elastic gang that has fewer ranks than its count may grow; the planner decides when. Its places are taken on
the what-if copy already. Invariant: a rank that has a place keeps it; a new rank has the lowest free number of its
role.
"""

from collections.abc import Iterable, Iterator
from itertools import permutations

import msgspec
import numpy as np

from slipway.model import growth
from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.lifecycle import Phase
from slipway.model.mig import whole_gpus
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow, NodeVerdict, diagnose, needs_others
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.topology import (
    REQUIRED,
    RankGoal,
    common_domains,
    common_key,
    largest_domain,
    most_together,
    near,
    pack,
    shared_domains,
)
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.nodes import Bools, Ints, LabelColumn
from slipway.scheduler.plan.state.plan_types import Grow
from slipway.scheduler.plan.state.rank_request import next_role, quota_of, targets
from slipway.scheduler.plan.state.snapshot import Holding


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
    """Return places for up to `want` ranks of one role, at least its minimum; or why there are none. Takes nothing."""
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


ORDERS_MAX = 6
"""The number of role orders that are tried for one gang."""
SHARED_DOMAINS_MAX = 8
"""The number of domains that are tried for several roles together."""


class PlacedGang(msgspec.Struct, frozen=True):
    """A gang that is placed on the what-if copy; `parts` is in the order of the roles."""

    allocation: AllocationFact
    parts: tuple[PlacedRole, ...]
    is_as_wanted: bool
    """whether each role has the number of ranks from `targets`, and not another mix of roles"""

    def demand(self) -> Resources:
        """Return what the placed ranks use in total."""
        if len(self.parts) == 1 and len(self.parts[0].nodes) == 1:
            return quota_of(self.parts[0].role)
        return total(quota_of(part.role) * len(part.nodes) for part in self.parts)

    def placements(self) -> dict[int, int]:
        """Return {rank: node index}, ascending; ranks are numbered over the roles in order."""
        result: dict[int, int] = {}
        base = 0
        for part in self.parts:
            result.update({base + offset: node for offset, node in enumerate(part.nodes)})
            base += part.role.count
        return result

    def devices(self, whatif: WhatIf) -> dict[int, tuple[int, ...]]:
        """Return {rank: device numbers} where the planner chooses devices. Call it once, after all ranks were taken."""
        if whatif.usage.devices is None:
            return {}
        result: dict[int, tuple[int, ...]] = {}
        base = 0
        for part in self.parts:
            if part.row.request.gpus or part.row.request.gpu_milli:
                result.update({base + at: whatif.assign_devices(part.row, node) for at, node in enumerate(part.nodes)})
            base += part.role.count
        return {rank: numbers for rank, numbers in result.items() if numbers}


def place(whatif: WhatIf, allocation: AllocationFact, within: Bools | None = None) -> PlacedGang | PlacementFailure:
    """Place the smallest gang that may start, without the nodes to avoid if possible; the places are taken.

    `within` are the only nodes that may be used (None: every node of the pool).
    """
    whatif.owner = allocation
    avoid = tuple(name for name in allocation.avoid_nodes if name in whatif.table.index)
    if avoid:
        first = _place(whatif, allocation, avoid, within)
        if isinstance(first, PlacedGang):
            return first
    return _place(whatif, allocation, (), within)


def extend(whatif: WhatIf, part: PlacedRole) -> bool:
    """Add one rank to a role if there is room; return whether it was added."""
    nodes = next_node(whatif, part)
    whatif.take(part.row, nodes)
    part.nodes += nodes
    return bool(nodes)


def shrink(whatif: WhatIf, part: PlacedRole) -> None:
    """Undo the last `extend` of a role."""
    whatif.give(part.row, [part.nodes.pop()])


def withdraw(whatif: WhatIf, parts: tuple[PlacedRole, ...] | list[PlacedRole]) -> None:
    """Give back the places of all `parts`."""
    for part in parts:
        whatif.give(part.row, part.nodes)


def _place(
    whatif: WhatIf, allocation: AllocationFact, avoid: tuple[str, ...], within: Bools | None
) -> PlacedGang | PlacementFailure:
    if allocation.topology is None:
        return _place_within(whatif, allocation, avoid, within)
    column = whatif.table.label(allocation.topology.key)
    rooms = _rooms(whatif, allocation, avoid, within)
    is_required = common_key(allocation) != ""
    for inside in _inside_domains(column, rooms, within, is_required=is_required):
        found = _place_within(whatif, allocation, avoid, inside)
        if isinstance(found, PlacedGang):
            if not is_required:
                _allow_outside(found, inside, within)
            return found
    found = _place_within(whatif, allocation, avoid, within)
    if isinstance(found, PlacementFailure) or not is_required:
        return found
    withdraw(whatif, found.parts)
    return _too_small(whatif, allocation, avoid, column, rooms)


def _rooms(
    whatif: WhatIf, allocation: AllocationFact, avoid: tuple[str, ...], within: Bools | None
) -> list[tuple[Ints, int, int]]:
    """Return (room per node, ranks now, ranks when fully grown) of each role that is placed now."""
    pairs = zip(allocation.roles, targets(allocation), strict=True)
    return [(whatif.row(role, avoid).room(role.count, within), want, role.count) for role, want in pairs if want]


def _inside_domains(
    column: LabelColumn, rooms: list[tuple[Ints, int, int]], within: Bools | None, *, is_required: bool
) -> Iterator[Bools]:
    """Yield the nodes to try for all roles together.

    Each domain is tried alone. If the topology is only preferred, the two, three, ... roomiest domains follow.
    """
    for domain in common_domains(column, rooms)[:SHARED_DOMAINS_MAX]:
        inside = column.codes == domain
        yield inside if within is None else within & inside
    if is_required:
        return
    held = most_together(column, [(room, want) for room, want, _ in rooms])
    order = [domain for domain in sorted(range(len(held)), key=lambda each: (-int(held[each]), each)) if held[domain]]
    for count in range(2, min(len(order), SHARED_DOMAINS_MAX) + 1):
        inside = np.isin(column.codes, order[:count])
        if all(int(room[inside].sum()) >= want for room, want, _ in rooms):
            yield inside if within is None else within & inside


def _allow_outside(placed: PlacedGang, inside: Bools, within: Bools | None) -> None:
    """Let later ranks use nodes outside the preferred domain when that domain is full."""
    for part in placed.parts:
        part.close = inside
        if part.role.topology is None or part.role.topology.mode != REQUIRED:
            part.allowed = within


def _too_small(
    whatif: WhatIf,
    allocation: AllocationFact,
    avoid: tuple[str, ...],
    column: LabelColumn,
    rooms: list[tuple[Ints, int, int]],
) -> PlacementFailure:
    """Return the failure of a gang that fits the pool but no domain, for the role that lacks most in the best one."""
    held = most_together(column, [(room, want) for room, want, _ in rooms])
    needed, largest = sum(want for _, want, _ in rooms), int(held.max(initial=0))
    best = column.codes == int(held.argmax()) if held.size else np.zeros(len(column.codes), dtype=np.bool_)
    lacks = [max(0, want - int(room[best].sum())) for room, want, _ in rooms]
    placed = [role for role, want in zip(allocation.roles, targets(allocation), strict=True) if want]
    role = placed[lacks.index(max(lacks))]
    row = whatif.row(role, avoid)
    verdict = diagnose(row.request, row.usage)
    return PlacementFailure(
        role, needed, largest, role.minimum, verdict, is_topology=True, largest=largest, common=common_key(allocation)
    )


def _place_within(
    whatif: WhatIf, allocation: AllocationFact, avoid: tuple[str, ...], within: Bools | None
) -> PlacedGang | PlacementFailure:
    wanted = targets(allocation)
    if len(wanted) == 1:
        return _place_one(whatif, allocation, avoid, within, wanted[0])
    for allowed in _together(whatif, allocation, avoid, within, wanted):
        found = _place_roles(whatif, allocation, avoid, allowed)
        if isinstance(found, PlacedGang):
            return found
    found = _place_roles(whatif, allocation, avoid, [within] * len(wanted))
    if isinstance(found, PlacedGang):
        return found
    # Spreading one role may leave no node with enough free for another role; packing leaves more whole nodes.
    whatif.is_packing = True
    packed = _place_roles(whatif, allocation, avoid, [within] * len(wanted))
    whatif.is_packing = False
    return packed if isinstance(packed, PlacedGang) else found


def _place_one(
    whatif: WhatIf, allocation: AllocationFact, avoid: tuple[str, ...], within: Bools | None, want: int
) -> PlacedGang | PlacementFailure:
    """Place a gang of one role: no order of roles must be found, and no other role can replace its ranks."""
    role = allocation.roles[0]
    part = place_role(whatif, whatif.row(role, avoid), role, want, within)
    if isinstance(part, PlacementFailure):
        return part
    whatif.take(part.row, part.nodes)
    if len(part.nodes) < want:
        blocked = _fill_up(whatif, allocation, (part,), want)
        if blocked is not None:
            withdraw(whatif, (part,))
            return blocked
    return PlacedGang(allocation, (part,), len(part.nodes) == want)


def _together(
    whatif: WhatIf, allocation: AllocationFact, avoid: tuple[str, ...], within: Bools | None, wanted: list[int]
) -> Iterator[list[Bools | None]]:
    """Yield the allowed nodes per role to try first: one domain for all roles that require the same label's domain."""
    keys = [role.topology.key if role.topology and role.topology.mode == REQUIRED else "" for role in allocation.roles]
    for key in sorted({key for key in keys if key}):
        members = [index for index, other in enumerate(keys) if other == key and wanted[index]]
        if len(members) < 2:
            continue
        rooms = [
            (whatif.row(allocation.roles[index], avoid).room(wanted[index], within), wanted[index]) for index in members
        ]
        column = whatif.table.label(key)
        for domain in shared_domains(column, rooms)[:SHARED_DOMAINS_MAX]:
            inside = column.codes == domain if within is None else within & (column.codes == domain)
            yield [inside if index in members else within for index in range(len(keys))]


def _place_roles(
    whatif: WhatIf, allocation: AllocationFact, avoid: tuple[str, ...], allowed: list[Bools | None]
) -> PlacedGang | PlacementFailure:
    """Try orders of the roles until the gang is placed, or until the blocked role would be blocked even when first."""
    roles = allocation.roles
    order = tuple(
        sorted(
            range(len(roles)),
            key=lambda index: (needs_others(whatif.row(roles[index], avoid)), -roles[index].requests.gpus(), index),
        )
    )
    first = found = _place_in_order(whatif, allocation, avoid, allowed, order)
    tried = {order}
    while isinstance(found, PlacementFailure) and len(tried) < ORDERS_MAX:
        trouble = found.role
        short = next(index for index in order if roles[index] is trouble)
        is_alone_in_trouble = short == order[0] and found.least
        order = _next_order(order, short, tried)
        if is_alone_in_trouble or order in tried:
            break
        tried.add(order)
        found = _place_in_order(whatif, allocation, avoid, allowed, order)
    return first if isinstance(found, PlacementFailure) else found


def _next_order(order: tuple[int, ...], short: int, tried: set[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the order with the blocked role first; if it was tried already, the first untried permutation."""
    ahead = (short, *(index for index in order if index != short))
    if ahead not in tried:
        return ahead
    return next((each for each in permutations(sorted(order)) if each not in tried), order)


def _place_in_order(
    whatif: WhatIf,
    allocation: AllocationFact,
    avoid: tuple[str, ...],
    allowed: list[Bools | None],
    order: tuple[int, ...],
) -> PlacedGang | PlacementFailure:
    wanted = targets(allocation)
    parts: dict[int, PlacedRole] = {}
    for index in order:
        role = allocation.roles[index]
        part = place_role(whatif, whatif.row(role, avoid), role, wanted[index], allowed[index])
        if isinstance(part, PlacementFailure):
            withdraw(whatif, list(parts.values()))
            return part
        whatif.take(part.row, part.nodes)
        parts[index] = part
    ordered = tuple(parts[index] for index in range(len(wanted)))
    blocked = _fill_up(whatif, allocation, ordered, sum(wanted))
    if blocked is not None:
        withdraw(whatif, ordered)
        return blocked
    return PlacedGang(
        allocation, ordered, all(len(part.nodes) == want for part, want in zip(ordered, wanted, strict=True))
    )


def _fill_up(
    whatif: WhatIf, allocation: AllocationFact, parts: tuple[PlacedRole, ...], needed: int
) -> PlacementFailure | None:
    """Add ranks of roles that have room in place of ranks for which other roles have none."""
    full: frozenset[int] = frozenset()
    while (found := sum(len(part.nodes) for part in parts)) < needed:
        chosen = next_role(allocation.roles, [len(part.nodes) for part in parts], full)
        if chosen is None:
            short = min(full, default=0)
            row = parts[short].row
            return PlacementFailure(parts[short].role, needed, found, 0, diagnose(row.request, row.usage))
        if not extend(whatif, parts[chosen]):
            full |= {chosen}
    return None


class GrowingGang(msgspec.Struct, frozen=True):
    """A running gang on the what-if copy, with the ranks that it had before."""

    placed: PlacedGang
    had: dict[int, str]
    """{rank: node}"""

    def decision(self, whatif: WhatIf) -> Grow | None:
        """Return the added ranks; None when there are none. Call it once, after all ranks were taken."""
        placements: dict[int, str] = {}
        devices: dict[int, tuple[int, ...]] = {}
        base = 0
        for part in self.placed.parts:
            ranks = range(base, base + part.role.count)
            free = [rank for rank in ranks if rank not in self.had]
            added = part.nodes[part.role.count - len(free) :]
            for rank, node in zip(free, added, strict=False):
                placements[rank] = whatif.table.names[node]
                numbers = whatif.assign_devices(part.row, node)
                if numbers:
                    devices[rank] = numbers
            base += part.role.count
        if not placements:
            return None
        fact = self.placed.allocation
        return Grow(allocation=fact.key, uid=fact.uid, attempt=fact.attempt, placements=placements, devices=devices)


def may_grow(holding: Holding, now: float) -> bool:
    """Whether the gang runs, continues, has fewer ranks than its count, and is not changing already."""
    fact = holding.allocation
    is_below = fact.is_elastic and len(holding.admitted) < fact.rank_count
    is_leaving = bool(holding.leaving) or not set(fact.leaving_ranks) <= set(fact.left_ranks)
    # When a rank has ended with success, the other ranks are about to end too.
    is_ending = not holding.admitted.keys() - holding.charges.keys() <= set(fact.failed_ranks)
    is_whole = fact.phase is Phase.RUNNING and fact.is_wanted and not (is_leaving or holding.is_growing)
    return is_below and is_whole and not is_ending and fact.grows_after <= now


def below_count(holdings: Iterable[Holding], now: float) -> list[Holding]:
    """Return the gangs that may grow, the one that has run longest first."""
    found = [holding for holding in holdings if may_grow(holding, now)]
    return sorted(found, key=lambda each: (each.allocation.started, each.allocation.created, each.allocation.uid))


def next_growth_at(holdings: Iterable[Holding], now: float) -> float:
    """Return when the next gang becomes able to grow (epoch seconds); 0 for never."""
    times = (holding.allocation.grows_after for holding in holdings)
    return min((at for at in times if at > now), default=0.0)


def running_gang(whatif: WhatIf, holding: Holding, fact: AllocationFact) -> GrowingGang | None:
    """Return the running gang on the what-if copy; None when one of its nodes was deleted, so its domain is unknown.

    `fact` is the holding's, with the windows that are closed to its new ranks.
    """
    index = whatif.table.index
    if any(node not in index for node in holding.admitted.values()):
        return None
    whatif.owner = fact
    avoid = tuple(name for name in fact.avoid_nodes if name in index)
    parts: list[PlacedRole] = []
    common = _common(whatif, fact, [index[node] for node in holding.admitted.values()])
    base = 0
    for role in fact.roles:
        nodes = [index[holding.admitted[rank]] for rank in range(base, base + role.count) if rank in holding.admitted]
        allowed = common
        if nodes and role.topology is not None and role.topology.mode == REQUIRED:
            codes = whatif.table.label(role.topology.key).codes
            own = np.isin(codes, codes[nodes])
            allowed = own if common is None else own & common
        parts.append(PlacedRole(role, whatif.row(role, avoid), nodes, allowed))
        base += role.count
    return GrowingGang(PlacedGang(fact, tuple(parts), is_as_wanted=True), dict(holding.admitted))


def _common(whatif: WhatIf, fact: AllocationFact, nodes: list[int]) -> Bools | None:
    """Return the nodes of the domain in which all roles must be; None when they need not share a domain."""
    key = common_key(fact)
    if not key:
        return None
    codes = whatif.table.label(key).codes
    return np.isin(codes, codes[nodes]) & (codes >= 0)


def lacking_text(fact: AllocationFact) -> str:
    """Return one sentence about the ranks that a running gang below its count lacks."""
    missing = [role.requests.gpu_units() for role, lacks in _lacking(fact) for _ in range(lacks)]
    gpus = whole_gpus(sum(missing))
    return growth.below_count(have=fact.rank_count - len(missing), count=fact.rank_count, gpus=gpus)


def _lacking(fact: AllocationFact) -> list[tuple[RoleFact, int]]:
    """Return (role, number of its ranks without a place) for each role."""
    found: list[tuple[RoleFact, int]] = []
    base = 0
    for role in fact.roles:
        found.append((role, sum(rank not in fact.placements for rank in range(base, base + role.count))))
        base += role.count
    return found
