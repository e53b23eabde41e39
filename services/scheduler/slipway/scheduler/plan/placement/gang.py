"""All-or-nothing placement of a gang on the what-if copy.

A gang is placed with at least its minimum, per role and in total, or not at all; then all its places are given back.
Ranks beyond the minimum (elastic gangs) are added later with `extend`, one at a time, so that each role gets the same
part of its range. This happens after the minima of all other allocations were tried.

Roles are placed one after the other, so one role may take nodes that another needs. A gang that finds no place in one
order of its roles is tried in other orders, with the blocked role first. Roles that require the same kind of domain are
placed in one domain together if one has room for all of them; otherwise each role gets a domain of its own. A topology
of the whole gang is applied first: all roles are placed within one domain of it, as if the pool had no other nodes.
"""

from collections.abc import Iterator
from itertools import permutations

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.placement.diagnose import diagnose
from slipway.scheduler.plan.placement.role_placement import PlacedRole as PlacedRole
from slipway.scheduler.plan.placement.role_placement import PlacementFailure as PlacementFailure
from slipway.scheduler.plan.placement.role_placement import next_node, place_role
from slipway.scheduler.plan.placement.sequential_fill import needs_others
from slipway.scheduler.plan.placement.topology import (
    REQUIRED,
    common_domains,
    common_key,
    most_together,
    shared_domains,
)
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state.gang_size import next_role, targets
from slipway.scheduler.plan.state.nodes import Bools, Ints, LabelColumn
from slipway.scheduler.plan.state.rank_request import quota_of

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
    """Return the order with the blocked role first; if that was tried, the first order by number that was not."""
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
