"""The windows of a pool in one plan: which nodes they reserve, and which of them are closed to which work.

Work of other queues may use the nodes of a window if that work ends before the window begins. Work without a run limit
may use them only while the window is further away than its lead time. Owns the choice of nodes for a window that
requests a number of nodes. Knows nothing of placement. In a pool without windows nothing here is called.

Invariant: the choice follows from the snapshot and the time alone. A node that is free of other work at the start is
chosen before a node that is not. So the choice stays the same while only time passes.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact, QueueFact, RoleFact, WindowFact
from slipway.model.resources import GPU
from slipway.model.windows import Occurrence, occurrence, occurrences
from slipway.scheduler.plan.state.nodes import Bools, NodeTable
from slipway.scheduler.plan.state.run_ends import ends_if_started, known_end, run_limit
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot
from slipway.scheduler.plan.state.usage import WindowNodes

OCCURRENCES_MAX = 32
"""The number of occurrences of one window that are searched for the start of a blocked head."""


class ReservedTime(msgspec.Struct, frozen=True):
    """One window with the nodes of its current or next occurrence."""

    window: WindowFact
    occurrence: Occurrence
    owners: frozenset[str]
    """the queues that the window is for"""
    nodes: Bools
    key: bytes
    """equal for equal occurrences with equal nodes, if both have begun or neither has"""


class Windows:
    """All windows that occur now or later, as one plan sees them."""

    def __init__(self, snapshot: PoolSnapshot, queues: Mapping[str, QueueFact], now: float) -> None:
        """`queues` must contain the run limits that apply to them."""
        self._queues = queues
        self._now = now
        self._table = snapshot.table
        self._roles: dict[tuple[int, tuple[str, ...]], tuple[tuple[RoleFact, ...], tuple[RoleFact, ...]]] = {}
        """{(id of a tuple of roles, closed windows): (these roles, kept alive; their copies with these windows)}"""
        self._open_roles: dict[int, tuple[RoleFact, ...]] = {}
        """{id of a tuple of roles with closed windows: the original roles}"""
        self.standing = self._standing(snapshot)
        self._by_name = {each.window.name: each for each in self.standing}

    def nodes(self) -> dict[str, WindowNodes]:
        """Return {window: its nodes, with its purpose in words}."""
        return {
            each.window.name: WindowNodes(
                owners=owners_text(each.window),
                start=each.occurrence.start,
                end=each.occurrence.end,
                nodes=each.nodes,
                is_begun=each.occurrence.start <= self._now,
            )
            for each in self.standing
        }

    def next_change(self) -> float:
        """Return when the next window begins or ends (epoch seconds); 0 for never."""
        ends = (each.occurrence for each in self.standing)
        return min((each.start if each.start > self._now else each.end for each in ends), default=0.0)

    # --- closed windows -----------------------------------------------------------------------------------------------

    def with_closed(self, fact: AllocationFact, later_s: float = 0.0) -> AllocationFact:
        """Return pending `fact` with the windows that are closed to it if it starts now, or `later_s` from now."""
        queue, at = self._queues.get(fact.queue), self._now + later_s
        times = [(self._now, ends_if_started(fact, queue, self._now))]
        if later_s:
            times.append((at, ends_if_started(fact, queue, at)))
        return self._closed_to(fact, times)

    def running_with_closed(self, fact: AllocationFact) -> AllocationFact:
        """Return running `fact` with the windows that are closed to additional ranks of it."""
        return self._closed_to(fact, [(self._now, known_end(fact, self._queues.get(fact.queue), self._now))])

    def key_of(self, fact: AllocationFact) -> bytes:
        """Return a key that is equal for work to which equal nodes are closed; `fact` must come from `with_closed`."""
        closed = fact.roles[0].closed if fact.roles else ()
        return b"".join(self._by_name[name].key for name in closed)

    def binding(self, fact: AllocationFact) -> list[ReservedTime]:
        """Return the windows that are not for the queue of `fact`."""
        return [each for each in self.standing if fact.queue not in each.owners]

    def closed_to(self, fact: AllocationFact) -> list[ReservedTime]:
        """Return the windows that are closed to pending `fact` if it starts now."""
        bound = self.with_closed(fact)
        return [self._by_name[name] for name in (bound.roles[0].closed if bound.roles else ())]

    def open_at(self, fact: AllocationFact, at: float) -> Bools | None:
        """Return the nodes that no window closes to `fact` if it starts at `at` (epoch seconds); None: all."""
        limit = run_limit(fact, self._queues.get(fact.queue))
        ends = None if limit is None else at + limit
        closed = [each.nodes for each in self.binding(fact) if self._is_closed(each, at, ends)]
        return ~np.logical_or.reduce(closed) if closed else None

    def limits_before(self, fact: AllocationFact) -> list[tuple[float, float]]:
        """Return the run limits with which fewer windows are closed to `fact`, which must come from `with_closed`.

        Each is (seconds, end if it starts now); the longest comes first.
        """
        closed = fact.roles[0].closed if fact.roles else ()
        starts = {self._by_name[name].occurrence.start for name in closed}
        return [(start - self._now, start) for start in sorted(starts, reverse=True) if start > self._now]

    def ends_until(self, fact: AllocationFact, until: float) -> list[float]:
        """Return the ends of occurrences of windows that are not for `fact`.

        They are those that begin by `until`, at most `OCCURRENCES_MAX` per window, and the current or next one of each
        window.
        """
        found: set[float] = set()
        for each in self.binding(fact):
            found.add(each.occurrence.end)
            found.update(time.end for time in occurrences(each.window, self._now, until, OCCURRENCES_MAX))
        return sorted(found)

    def _closed_to(self, fact: AllocationFact, times: list[tuple[float, float | None]]) -> AllocationFact:
        """Return `fact` with the windows that are closed to any of `times`, its possible runs as (start, end)."""
        roles = self._open_roles.get(id(fact.roles), fact.roles)
        closed = tuple(
            each.window.name
            for each in self.binding(fact)
            if any(self._is_closed(each, at, ends) for at, ends in times)
        )
        if not closed:
            return fact if roles is fact.roles else msgspec.structs.replace(fact, roles=roles)
        key = (id(roles), closed)
        known = self._roles.get(key)
        if known is None:
            made = tuple(msgspec.structs.replace(role, closed=closed) for role in roles)
            known = self._roles[key] = (roles, made)
            self._open_roles[id(made)] = roles
        return msgspec.structs.replace(fact, roles=known[1])

    def _is_closed(self, each: ReservedTime, at: float, ends: float | None) -> bool:
        """Whether a run from `at` until `ends` (None: unknown) may overlap the window."""
        time = each.occurrence if at < each.occurrence.end else occurrence(each.window, at)
        if time is None:
            return False
        return time.start - each.window.lead_s <= at if ends is None else time.start < ends

    # --- evictions by windows -----------------------------------------------------------------------------------------

    def to_evict(self, holdings: Iterable[Holding]) -> list[AllocationFact]:
        """Return preemptible work on nodes of a begun window that evicts, if the window is not for that work."""
        begun = [each for each in self.standing if each.window.evicts and each.occurrence.start <= self._now]
        found: list[AllocationFact] = []
        for holding in holdings if begun else ():
            fact = holding.allocation
            nodes = [self._table.index[node] for node in holding.placements.values() if node in self._table.index]
            if fact.preemptible and any(
                fact.queue not in each.owners and bool(each.nodes[nodes].any()) for each in begun
            ):
                found.append(fact)
        return sorted(found, key=lambda fact: (fact.key, fact.uid))

    # --- choice of nodes ----------------------------------------------------------------------------------------------

    def _standing(self, snapshot: PoolSnapshot) -> tuple[ReservedTime, ...]:
        """Return the windows with their nodes.

        Windows that match nodes come first, then those that request a number of nodes; within each, the earlier start
        first.
        """
        times = [(window, time) for window in snapshot.pool.windows if (time := occurrence(window, self._now))]
        times.sort(key=lambda pair: (is_counted(pair[0]), pair[1].start, pair[0].name))
        found: list[ReservedTime] = []
        for window, time in times:
            owners = self._owners(window)
            nodes = matching(window, self._table)
            if is_counted(window):
                taken = [each for each in found if each.occurrence.overlaps(time) and each.owners != owners]
                for each in taken:
                    nodes &= ~each.nodes
                nodes = self._chosen(snapshot, window, time, owners=owners, among=nodes)
            digest = blake2b(nodes.tobytes(), digest_size=8).digest()
            key = f"{window.name}@{time.start!r}{time.start <= self._now}".encode() + digest
            found.append(ReservedTime(window, time, owners, nodes, key))
        return tuple(found)

    def _limit_of(self, queue: str) -> float | None:
        found = self._queues.get(queue)
        return found.max_runtime if found is not None else None

    def _owners(self, window: WindowFact) -> frozenset[str]:
        """Return the queues that the window names, and all queues below them."""
        named, found = frozenset(window.queues), set(window.queues)
        for name in self._queues if named else ():
            line: list[str] = []
            at: str = name
            while at and at not in line:
                line.append(at)
                queue = self._queues.get(at)
                at = queue.parent if queue is not None else ""
            if not named.isdisjoint(line):
                found.add(name)
        return frozenset(found)

    def _chosen(
        self,
        snapshot: PoolSnapshot,
        window: WindowFact,
        time: Occurrence,
        *,
        owners: frozenset[str],
        among: Bools,
    ) -> Bools:
        """Return as many of the nodes as the window requests.

        Nodes that other work leaves first come first, then nodes with work of the window's own queues, then the order
        by name.
        """
        table = self._table
        charges = ((holding.allocation, holding.charges) for holding in snapshot.holdings.values())
        late, is_own = snapshot.ends.start(charges, table).left_after(
            max(time.start, self._now), len(table), self._limit_of, self._now, owners=owners, evicts=window.evicts
        )
        open_nodes = np.flatnonzero(among & ~table.closed)
        nodes: list[int] = open_nodes[np.lexsort((~is_own[open_nodes], late[open_nodes]))].tolist()
        found = np.zeros(len(table), dtype=np.bool_)
        if window.nodes is not None:
            found[nodes[: window.nodes]] = True
            return found
        row, left = table.row.get(GPU), window.gpus or 0
        for node in nodes:
            gpus = 0 if row is None else int(table.allocatable[row, node])
            if left <= 0:
                break
            if gpus:
                found[node] = True
                left -= gpus
        return found


def is_counted(window: WindowFact) -> bool:
    """Whether the window requests a number of nodes or GPUs, and not all nodes that match."""
    return window.nodes is not None or window.gpus is not None


def is_of_all_nodes(window: WindowFact) -> bool:
    """Whether the window reserves every node of the pool, including nodes that are added later."""
    return not (window.node_names or window.node_selector or is_counted(window))


def matching(window: WindowFact, table: NodeTable) -> Bools:
    """Return the nodes that the window's names or selector match."""
    if window.node_names:
        nodes = np.zeros(len(table), dtype=np.bool_)
        nodes[[table.index[name] for name in window.node_names if name in table.index]] = True
        return nodes
    nodes = np.ones(len(table), dtype=np.bool_)
    for key, value in window.node_selector.items():
        nodes &= table.label(key).select((value,))
    return nodes


def owners_text(window: WindowFact) -> str:
    """Return for whom the window is, in words."""
    if not window.queues:
        return f"maintenance {window.name}"
    queues = "queue " if len(window.queues) == 1 else "queues "
    return f"{queues}{' and '.join(window.queues)} (window {window.name})"
