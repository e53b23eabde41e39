"""Topology domains: the racks (blocks, islands) in which the ranks of one role are placed.

A domain is a value of a node label. Required: all ranks of a role are in one domain. Preferred: they use the fewest
domains. Best fit: the domain with the least room left is chosen, the first by name among equals.

A pool's levels, ordered from the outermost to the innermost, define what is above and below a role's own label. Among
equally tight racks, the rack in the tightest block is chosen. Ranks that need several racks get them within the fewest
blocks, and ranks in a required block use its fewest racks. A domain of all roles of a gang (`common_domains`) is chosen
first, and each role is placed within it. A gang that may grow gets a domain with room for all of it if there is one,
else the roomiest.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, TopologyFact
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.state.nodes import Bools, Ints, LabelColumn, NodeTable

REQUIRED = "required"
DOMAINS_TRIED_MAX = 32
"""The number of domains that are tried for coupled ranks."""
ROOM_MAX = 1 << 30
"""Best fit compares all the room of a domain, not only the requested part."""


class Packed(msgspec.Struct, frozen=True):
    """The nodes of the ranks, and the nodes that later ranks of the role may use (None: all)."""

    nodes: list[int]
    allowed: Bools | None


class Levels(msgspec.Struct, frozen=True):
    """The labels around a role's own label; each tuple is ordered from the outermost to the innermost."""

    above: tuple[LabelColumn, ...]
    own: LabelColumn
    below: tuple[LabelColumn, ...]

    @property
    def inwards(self) -> tuple[LabelColumn, ...]:
        """All labels, from the outermost to the innermost."""
        return (*self.above, self.own, *self.below)


class RankGoal(msgspec.Struct, frozen=True):
    """The number of ranks: at `least`, now `want`, when fully grown `most`."""

    least: int
    want: int
    most: int


def levels_of(table: NodeTable, key: str, ordered: Sequence[str]) -> Levels:
    """Return the levels around `key`; `key` alone when the pool's levels do not include it."""
    at = ordered.index(key) if key in ordered else None
    above, below = ((), ()) if at is None else (ordered[:at], ordered[at + 1 :])
    return Levels(
        above=tuple(table.label(name) for name in above),
        own=table.label(key),
        below=tuple(table.label(name) for name in below),
    )


def pack(
    row: FeasibilityRow,
    topology: TopologyFact,
    goal: RankGoal,
    *,
    ordered: Sequence[str] = (),
    within: Bools | None = None,
) -> Packed | None:
    """Return nodes for between `goal.least` and `goal.want` ranks; None when fewer fit under the topology's mode."""
    levels = levels_of(row.usage.table, topology.key, ordered)
    room = row.room(ROOM_MAX, within)
    if row.is_coupled:
        return _pack_in_turn(row, levels.own, room, goal, is_required=topology.mode == REQUIRED, within=within)
    if topology.mode == REQUIRED:
        domain = _own_domain(levels, room, goal)
        if domain is None:
            return None
        allowed = _inside(levels.own.codes == domain, within)
        return Packed(_descend(row, room, goal.want, allowed, levels.below), allowed)
    nodes = _descend(row, room, goal.want, *_start(levels, room, goal, within))
    if len(nodes) < goal.want:
        held = np.ones(len(room), dtype=np.bool_)
        held[nodes] = False
        nodes += fill(row, goal.want - len(nodes), _inside(held, within))
    return Packed(nodes, within) if len(nodes) >= goal.least else None


def _pack_in_turn(
    row: FeasibilityRow, column: LabelColumn, room: Ints, goal: RankGoal, *, is_required: bool, within: Bools | None
) -> Packed | None:
    """Like `pack`, for coupled ranks: placing them in a domain determines how many fit there.

    Domains with room for all ranks when fully grown are tried first, the tightest first; then the others, the roomiest
    first. The first domain that fits all wanted ranks is used. If none does, the domain that fits most is used, and if
    the topology is only preferred, further domains for the remaining ranks. The levels above and below are ignored.
    """
    capacity = domain_room(column, np.minimum(room, goal.most))
    enough: list[int] = np.flatnonzero(capacity >= goal.most).tolist()
    others: list[int] = np.flatnonzero((capacity > 0) & (capacity < goal.most)).tolist()
    order = sorted(enough, key=lambda each: (int(capacity[each]), each))
    order += sorted(others, key=lambda each: (-int(capacity[each]), each))
    found: list[tuple[list[int], Bools | None]] = [([], None)]
    for domain in order[:DOMAINS_TRIED_MAX]:
        allowed = _inside(column.codes == domain, within)
        found.append((fill(row, goal.want, allowed), allowed))
        if len(found[-1][0]) >= goal.want:
            break
    best, allowed = max(found, key=lambda each: len(each[0]))
    if is_required or len(best) >= goal.want:
        return Packed(best, allowed if is_required else within) if len(best) >= max(goal.least, 1) else None
    nodes = list(best)
    row.usage.take(row.request, best)
    for domain in [*order, -1]:
        more = fill(row, goal.want - len(nodes), _inside(column.codes == domain, within))
        row.usage.take(row.request, more)
        nodes += more
    row.usage.take(row.request, nodes, -1)
    return Packed(nodes, within) if len(nodes) >= goal.least else None


def domain_room(column: LabelColumn, room: Ints) -> Ints:
    """Return the room for ranks per domain."""
    inside = column.codes >= 0
    return np.bincount(column.codes[inside], room[inside], len(column.values)).astype(np.int64)


def largest_domain(room: Ints, column: LabelColumn) -> int:
    """Return the most ranks that fit one domain, given `room` per node."""
    return int(domain_room(column, room).max(initial=0))


def shared_domains(column: LabelColumn, rooms: Sequence[tuple[Ints, int]]) -> list[int]:
    """Return the domains with room for each of several roles, (room per node, ranks), the tightest first."""
    sums = [(domain_room(column, room), ranks) for room, ranks in rooms]
    left = np.zeros(len(column.values), dtype=np.int64)
    fitting = np.ones(len(column.values), dtype=np.bool_)
    for capacity, ranks in sums:
        left += capacity - ranks
        fitting &= capacity >= ranks
    found: list[int] = np.flatnonzero(fitting).tolist()
    return sorted(found, key=lambda domain: (int(left[domain]), domain))


def common_key(allocation: AllocationFact) -> str:
    """Return the label whose domain all roles must share; empty when they need not share one."""
    return allocation.topology.key if allocation.topology is not None and allocation.topology.mode == REQUIRED else ""


def common_domains(column: LabelColumn, rooms: Sequence[tuple[Ints, int, int]]) -> list[int]:
    """Return the domains that may contain all roles of a gang, the best first.

    `rooms` are (room per node, ranks now, ranks when fully grown). Domains with room for the fully grown gang come
    first, the tightest first; then the others, the roomiest first.
    """
    left = np.zeros(len(column.values), dtype=np.int64)
    fitting = np.ones(len(column.values), dtype=np.bool_)
    is_full = np.ones(len(column.values), dtype=np.bool_)
    for room, want, most in rooms:
        capacity = domain_room(column, room)
        left += capacity
        fitting &= capacity >= want
        is_full &= capacity >= most
    found: list[int] = np.flatnonzero(fitting).tolist()
    return sorted(found, key=lambda each: (not is_full[each], int(left[each]) * (1 if is_full[each] else -1), each))


def most_together(column: LabelColumn, rooms: Sequence[tuple[Ints, int]]) -> Ints:
    """Return per domain how many ranks of all roles fit at most; `rooms` are (room per node, ranks of the role)."""
    found = np.zeros(len(column.values), dtype=np.int64)
    for room, ranks in rooms:
        found += np.minimum(domain_room(column, room), ranks)
    return found


def near(table: NodeTable, key: str, ordered: Sequence[str], nodes: list[int]) -> list[Bools]:
    """Return the nodes in the same domains as `nodes`, level by level from the innermost to the outermost."""
    found: list[Bools] = []
    for column in reversed(levels_of(table, key, ordered).inwards):
        codes = np.unique(column.codes[np.array(nodes, dtype=np.int64)])
        found.append(np.isin(column.codes, codes[codes >= 0]))
    return found


def _inside(nodes: Bools, within: Bools | None) -> Bools:
    return nodes if within is None else nodes & within


def _own_domain(levels: Levels, room: Ints, goal: RankGoal) -> int | None:
    """Return the domain for all ranks; None when no domain has enough room."""
    capacity = domain_room(levels.own, room)
    for least in (goal.most, goal.want):
        enough: list[int] = np.flatnonzero(capacity >= max(least, 1)).tolist()
        if not enough:
            continue
        may_grow = least < goal.most
        best = max(capacity[enough]) if may_grow else min(capacity[enough])
        equal = [domain for domain in enough if capacity[domain] == best]
        return _tightest_around(levels, room, equal, goal.most if may_grow else 0)
    if goal.least >= goal.want or capacity.size == 0 or capacity.max() < max(goal.least, 1):
        return None
    return _tightest_around(levels, room, np.flatnonzero(capacity == capacity.max()).tolist())


def _tightest_around(levels: Levels, room: Ints, equal: list[int], most: int = 0) -> int:
    """Return, of equally good domains, the one whose outer domains have the least room, the nearest level first.

    If the role may grow to `most` ranks, outer domains with room for `most` are preferred.
    """
    if len(equal) == 1 or not levels.above:
        return equal[0]
    outer = [(column.codes, domain_room(column, room)) for column in reversed(levels.above)]

    def surroundings(domain: int) -> tuple[tuple[tuple[bool, int], ...], int]:
        node = int((levels.own.codes == domain).argmax())
        rooms = [int(sums[codes[node]]) if codes[node] >= 0 else 0 for codes, sums in outer]
        return tuple((held < most, held) for held in rooms), domain

    return min(equal, key=surroundings)


def _start(levels: Levels, room: Ints, goal: RankGoal, within: Bools | None) -> tuple[Bools, tuple[LabelColumn, ...]]:
    """Return the nodes to pack into, and the levels below them.

    The nodes are those of the innermost domain with room for all ranks, from the role's own level outwards.
    """
    domain = _own_domain(levels, room, RankGoal(goal.want, goal.want, goal.most))
    if domain is not None:
        return _inside(levels.own.codes == domain, within), levels.below
    inwards = levels.inwards
    for depth in range(len(levels.above) - 1, -1, -1):
        column = inwards[depth]
        capacity = domain_room(column, room)
        enough: list[int] = np.flatnonzero(capacity >= goal.want).tolist()
        if enough:
            keys = {each: _needed(levels.own, room, goal.want, column.codes == each) for each in enough}
            best = min(enough, key=lambda each: (keys[each], int(capacity[each]), each))
            return _inside(column.codes == best, within), inwards[depth + 1 :]
    everywhere = np.ones(len(room), dtype=np.bool_) if within is None else within
    return everywhere, inwards


def _needed(column: LabelColumn, room: Ints, want: int, allowed: Bools) -> int:
    """Return how many domains `want` ranks need among the `allowed` nodes."""
    capacity = np.sort(domain_room(column, np.where(allowed, room, 0)))[::-1]
    return int(np.searchsorted(np.cumsum(capacity), want)) + 1


def _descend(row: FeasibilityRow, room: Ints, want: int, allowed: Bools, below: tuple[LabelColumn, ...]) -> list[int]:
    """Return nodes for up to `want` ranks among `allowed`, in the fewest domains of each level below, outer first."""
    if not below or want <= 0:
        return fill(row, want, allowed)
    column = below[0]
    nodes: list[int] = []
    for domain in _fewest_domains(domain_room(column, np.where(allowed, room, 0)), want):
        nodes += _descend(row, room, want - len(nodes), allowed & (column.codes == domain), below[1:])
    if len(nodes) < want:
        nodes += fill(row, want - len(nodes), allowed & (column.codes < 0))
    return nodes


def _fewest_domains(capacity: Ints, want: int) -> list[int]:
    """Return the roomiest domains until the remaining ranks fit one domain, and then the tightest that fits them."""
    left = capacity.copy()
    chosen: list[int] = []
    while want > 0 and left.size and int(left.max()) > 0:
        enough = np.flatnonzero(left >= want)
        domain = int(enough[left[enough].argmin()]) if enough.size else int(left.argmax())
        chosen.append(domain)
        want -= int(left[domain])
        left[domain] = 0
    return chosen
