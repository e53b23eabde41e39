"""All-or-nothing placement of a gang on the what-if copy.

A gang is placed with at least its minimum, per role and in all, or not at all: then nothing of it is left taken.
What it may take beyond the minimum (elastic gangs) is added later with `extend`, one rank at a time and the same
part of each role's range, once the minima of all others have been tried.
"""

from collections.abc import Iterable

import msgspec

from slipway.model.facts import AllocationFact, RoleFact
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.ask import requests_of
from slipway.scheduler.plan.diagnose import Verdict, diagnose
from slipway.scheduler.plan.fill import fill
from slipway.scheduler.plan.nodes import Bools
from slipway.scheduler.plan.rows import Row
from slipway.scheduler.plan.topology import REQUIRED, pack
from slipway.scheduler.plan.whatif import WhatIf


class Part(msgspec.Struct):
    """The placed ranks of one role; later ranks may go to `allowed` (None: anywhere)."""

    role: RoleFact
    row: Row
    nodes: list[int]
    allowed: Bools | None = None


class Placed(msgspec.Struct, frozen=True):
    """A gang that stands on the what-if copy; `parts` in the order of the roles."""

    allocation: AllocationFact
    parts: tuple[Part, ...]
    is_as_wanted: bool
    """each role has the ranks of the smallest gang that may start, and not another mix"""

    def demand(self) -> Resources:
        """What the placed ranks use together."""
        return total(requests_of(part.role) * len(part.nodes) for part in self.parts)

    def placements(self) -> dict[int, int]:
        """{rank: node index}, ascending; ranks are numbered over the roles in order."""
        result: dict[int, int] = {}
        base = 0
        for part in self.parts:
            result.update({base + offset: node for offset, node in enumerate(part.nodes)})
            base += part.role.count
        return result


class Blocked(msgspec.Struct, frozen=True):
    """Why it does not stand: `found` of `needed` ranks have a place, those of `role` being the trouble.

    `least` is what `role` alone can not do without; 0 when only all roles together are too few.
    """

    role: RoleFact
    needed: int
    found: int
    least: int
    verdict: Verdict
    """on the first rank without a place"""
    is_topology: bool = False
    """there is room for all of them, but not within one domain"""


def targets(allocation: AllocationFact) -> list[int]:
    """Ranks per role of the smallest gang that may start: the roles' minima, then up to the gang's own minimum the
    same part of each role's range."""
    counts = [role.minimum for role in allocation.roles]
    missing = min(allocation.minimum, allocation.rank_count) - sum(counts)
    while missing > 0:
        chosen = next_role(allocation.roles, counts)
        if chosen is None:
            break
        counts[chosen] += 1
        missing -= 1
    return counts


def next_role(roles: tuple[RoleFact, ...], counts: list[int], skip: frozenset[int] = frozenset()) -> int | None:
    """The role that has got the smallest part of its range so far, the first among equals; None when all are full."""
    best: int | None = None
    for index, role in enumerate(roles):
        if counts[index] >= role.count or index in skip:
            continue
        if best is None or _is_behind(role, counts[index], roles[best], counts[best]):
            best = index
    return best


def _is_behind(role: RoleFact, count: int, other: RoleFact, other_count: int) -> bool:
    part = (count - role.minimum) * (other.count - other.minimum)
    return part < (other_count - other.minimum) * (role.count - role.minimum)


def smallest_demand(allocation: AllocationFact) -> Resources:
    """What the smallest gang that may start uses."""
    counts = targets(allocation)
    return total(requests_of(role) * count for role, count in zip(allocation.roles, counts, strict=True) if count)


def place(whatif: WhatIf, allocation: AllocationFact) -> Placed | Blocked:
    """Place the smallest gang that may start, off the nodes to avoid if that is possible; takes what it places."""
    avoid = tuple(name for name in allocation.avoid_nodes if name in whatif.table.index)
    if avoid:
        first = _place(whatif, allocation, avoid)
        if isinstance(first, Placed):
            return first
    return _place(whatif, allocation, ())


def extend(whatif: WhatIf, part: Part) -> bool:
    """One more rank for a role, if there is room."""
    nodes = fill(part.row, 1, part.allowed)
    whatif.take(part.row, nodes)
    part.nodes += nodes
    return bool(nodes)


def withdraw(whatif: WhatIf, parts: tuple[Part, ...] | list[Part]) -> None:
    """Give back all that `parts` took."""
    for part in parts:
        whatif.give(part.row, part.nodes)


def _place(whatif: WhatIf, allocation: AllocationFact, avoid: tuple[str, ...]) -> Placed | Blocked:
    wanted = targets(allocation)
    order: Iterable[int] = range(len(wanted))
    if len(wanted) > 1:
        order = sorted(order, key=lambda index: (-allocation.roles[index].requests.gpus(), index))
    parts: dict[int, Part] = {}
    for index in order:
        role = allocation.roles[index]
        part = _place_role(whatif.row(role, avoid), role, wanted[index])
        if isinstance(part, Blocked):
            withdraw(whatif, list(parts.values()))
            return part
        whatif.take(part.row, part.nodes)
        parts[index] = part
    ordered = tuple(parts[index] for index in range(len(wanted)))
    blocked = _reach(whatif, allocation, ordered, sum(wanted))
    if blocked is not None:
        withdraw(whatif, ordered)
        return blocked
    return Placed(allocation, ordered, all(len(part.nodes) == want for part, want in zip(ordered, wanted, strict=True)))


def _place_role(row: Row, role: RoleFact, want: int) -> Part | Blocked:
    if want == 0:
        return Part(role, row, [])
    if role.topology is None:
        nodes = fill(row, want)
        if len(nodes) >= role.minimum:
            return Part(role, row, nodes)
        return Blocked(role, want, len(nodes), role.minimum, _verdict(row, nodes))
    packed = pack(row, role.topology, want, role.minimum)
    if packed is not None:
        return Part(role, row, packed.nodes, packed.allowed)
    room = int(row.room(want).sum())
    is_topology = role.topology.mode == REQUIRED and room >= role.minimum
    nodes = [] if is_topology else fill(row, want)
    return Blocked(role, want, min(room, want), role.minimum, _verdict(row, nodes), is_topology)


def _verdict(row: Row, nodes: list[int]) -> Verdict:
    """On one more rank, with those that have a place in theirs."""
    row.usage.take(row.ask, nodes)
    verdict = diagnose(row.ask, row.usage)
    row.usage.take(row.ask, nodes, -1)
    return verdict


def _reach(whatif: WhatIf, allocation: AllocationFact, parts: tuple[Part, ...], needed: int) -> Blocked | None:
    """Let roles with room stand in for ranks that other roles found no place for."""
    full: frozenset[int] = frozenset()
    while (found := sum(len(part.nodes) for part in parts)) < needed:
        chosen = next_role(allocation.roles, [len(part.nodes) for part in parts], full)
        if chosen is None:
            short = min(full, default=0)
            row = parts[short].row
            return Blocked(parts[short].role, needed, found, 0, diagnose(row.ask, row.usage))
        if not extend(whatif, parts[chosen]):
            full |= {chosen}
    return None
