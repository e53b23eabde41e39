"""The units that may be evicted, and their nodes: running preemptible work, as columns.

A unit is a whole allocation, or one rank of an elastic gang that its minimum does not need. Units have one order, least
important first: by queue priority, then priority. Of equal ones, single ranks that their gang does not need come first,
then lone ranks, then whole gangs. Then come the units that would lose the least work (latest start or checkpoint), then
the name decides. A piece is what one unit uses on one node. Knows nothing of preemptors.

Invariant: built from the snapshot alone. Work that is leaving, that was only just admitted, or that cannot be preempted
is in no unit.

Between queues, the next unit is taken from the queue that is furthest above its share without the units that were taken
already. Owns the order between queues; within a queue the order of the units applies. Queues are compared from the top
of the tree: first the departments, then the queues in them. The work of the preemptor's own queue comes last. The
reclaim rule, not this module, decides which work may be taken.
"""

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.position import milliseconds
from slipway.scheduler.plan.queueing.node_shares import QueueShares
from slipway.scheduler.plan.queueing.queue_tree import Due
from slipway.scheduler.plan.state.nodes import Ints
from slipway.scheduler.plan.state.pending import priority_of
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot
from slipway.scheduler.plan.state.usage import Charge

_SURPLUS, _LONE, _GANG = 0, 1, 2
_MANY = 64
_ABOVE_ZERO = 2**31
"""Added to each rank's priority before the sum, so that negative priorities do not make fewer victims worse.

Source: kube-scheduler's preemption.
"""
WholeKey = tuple[int, int, int, int, str, str, int]


class EvictionUnit(msgspec.Struct, eq=False):
    """What is evicted at once: `rank` of an elastic gang, or all remaining ranks of an allocation (`rank` -1)."""

    holding: Holding
    priority: int
    kind: int
    order: WholeKey
    rank: int = -1
    index: int = 0
    """its index in the order"""
    whole: int = 0
    """the index of the unit that is its whole allocation; its own index for that unit"""

    @property
    def is_whole(self) -> bool:
        """Whether evicting it ends an attempt."""
        return self.rank < 0

    @property
    def fact(self) -> AllocationFact:
        """The allocation of the unit."""
        return self.holding.allocation


class VictimTable:
    """All units of a snapshot and their pieces."""

    def __init__(self, snapshot: PoolSnapshot, priorities: Mapping[str, int]) -> None:
        """`priorities` are the priorities of the queues."""
        found: list[EvictionUnit] = []
        for holding in snapshot.holdings.values():
            if holding.allocation.preemptible and holding.allocation.queue in priorities and _may_go(holding):
                found += _units(holding, snapshot, priorities[holding.allocation.queue])
        found.sort(key=_order)
        self.units = tuple(found)
        wholes = {unit.fact.uid: index for index, unit in enumerate(found) if unit.is_whole}
        for index, unit in enumerate(found):
            unit.index, unit.whole = index, wholes[unit.fact.uid]
        self.queues = sorted({unit.fact.queue for unit in found})
        code = {name: number for number, name in enumerate(self.queues)}
        size = len(found)
        self.queue: Ints = np.fromiter((code[unit.fact.queue] for unit in found), np.int64, size)
        self.priority: Ints = np.fromiter((unit.priority for unit in found), np.int64, size)
        self.created = np.fromiter((unit.fact.created for unit in found), np.float64, size)
        self.started = np.fromiter((_began(unit.fact) for unit in found), np.float64, size)
        """when it began to run; infinite while it does not run"""
        self.level: Ints = _levels(found)
        """the number of its (queue priority, priority) in ascending order"""
        self.safe: Ints = np.fromiter((-unit.order[3] for unit in found), np.int64, size)
        ranks = np.fromiter((_count(unit) for unit in found), np.int64, size)
        self.count: Ints = ranks
        self.weight: Ints = (self.priority + _ABOVE_ZERO) * ranks
        self.whole: Ints = np.fromiter((unit.whole for unit in found), np.int64, size)
        self.kinds, self.kind = _kinds(found)
        """{queue: (number, amounts) of each kind of use of its units}, and the number of each unit's kind"""
        self.kind_count = sum(len(kinds) for kinds in self.kinds.values())
        self.evicted_before = [unit.index for unit in found if unit.fact.evictions]
        """indices of units that were evicted for other work before"""
        self._lay_out(snapshot)

    def pieces_on(self, node: int) -> Ints:
        """Return the pieces on a node, in order."""
        return self._by_node[self._starts[node] : self._starts[node + 1]]

    def nodes_of(self, units: Ints) -> set[int]:
        """Return the nodes on which `units` have pieces."""
        if units.size > _MANY:
            chosen = np.zeros(len(self.units), dtype=np.bool_)
            chosen[units] = True
            return set(np.unique(self.piece_node[chosen[self.piece_unit]]).tolist())
        indices: list[int] = units.tolist()
        return {node for unit in indices for node in self._nodes[unit]}

    def _lay_out(self, snapshot: PoolSnapshot) -> None:
        table = snapshot.table
        pieces: list[tuple[int, int, list[Charge]]] = []
        for unit in self.units:
            if unit.kind == _LONE:
                charge = next(iter(unit.holding.charges.values()))
                if charge.node in table.index:
                    pieces.append((unit.index, table.index[charge.node], [charge]))
                continue
            for node, charges in _pieces(unit, table.index).items():
                pieces.append((unit.index, node, charges))
        self._nodes: list[list[int]] = [[] for _ in self.units]
        for unit, node, _ in pieces:
            self._nodes[unit].append(node)
        size = len(pieces)
        self.piece_unit: Ints = np.fromiter((piece[0] for piece in pieces), np.int64, size)
        self.piece_node: Ints = np.fromiter((piece[1] for piece in pieces), np.int64, size)
        self.ports: dict[int, Ints] = {}
        self.charges = [piece[2] for piece in pieces]
        columns: dict[tuple[tuple[tuple[str, int], ...], ...], int] = {}
        codes: list[int] = []
        for number, charges in enumerate(self.charges):
            codes.append(
                columns.setdefault(tuple([tuple(each.requests.amounts.items()) for each in charges]), len(columns))
            )
            for charge in charges:
                for port in charge.ports:
                    self.ports.setdefault(port, np.zeros(size, dtype=np.int64))[number] += 1
        used: Ints = np.zeros((len(table.resources), len(columns)), dtype=np.int64)
        for requests, code in columns.items():
            for name, amount in itertools.chain.from_iterable(requests):
                if name in table.row:
                    used[table.row[name], code] += amount
        self.piece_used: Ints = used[:, codes] if codes else np.zeros((len(table.resources), 0), dtype=np.int64)
        self._by_node: Ints = np.argsort(self.piece_node, kind="stable").astype(np.int64)
        counts = np.bincount(self.piece_node, minlength=len(table)) if size else np.zeros(len(table), dtype=np.int64)
        self._starts: list[int] = [0, *np.cumsum(counts).tolist()]


def victims_of(snapshot: PoolSnapshot) -> VictimTable:
    """Return the victims of a snapshot, computed once per state."""
    if not isinstance(snapshot.cache.victims, VictimTable):
        snapshot.cache.victims = VictimTable(snapshot, {queue.name: queue.priority for queue in snapshot.queues})
    return snapshot.cache.victims


def lowest_of(snapshot: PoolSnapshot) -> Mapping[str, int]:
    """Return {queue: the lowest priority of its preemptible work}, for a cheap check that eviction is impossible."""
    if snapshot.cache.lowest is None:
        lowest: dict[str, int] = {}
        for holding in snapshot.holdings.values():
            fact = holding.allocation
            if fact.preemptible:
                priority = priority_of(fact, snapshot.job_of(fact))
                if priority < lowest.get(fact.queue, priority + 1):
                    lowest[fact.queue] = priority
        snapshot.cache.lowest = lowest
    return snapshot.cache.lowest


def spare_of(holding: Holding) -> tuple[int, list[int]]:
    """Return (ranks that the minimum does not need, the same per role), of the ranks that are not leaving."""
    fact = holding.allocation
    live = _live(holding)
    spare: list[int] = []
    base = 0
    for role in fact.roles:
        spare.append(max(0, sum(base <= rank < base + role.count for rank in live) - role.minimum))
        base += role.count
    return max(0, len(live) - fact.minimum), spare


def role_index(fact: AllocationFact, rank: int) -> int:
    """Return the index of the role that a rank belongs to; -1 for an unknown rank."""
    for index, role in enumerate(fact.roles):
        if rank < role.count:
            return index
        rank -= role.count
    return -1


def safe_point(fact: AllocationFact) -> float:
    """Return the time since which the work of `fact` is not saved: its start, or its last checkpoint."""
    return max(fact.started, fact.checkpoint_at) if fact.checkpoint_at else fact.started


def _began(fact: AllocationFact) -> float:
    return fact.started if fact.phase is Phase.RUNNING else math.inf


def _order(unit: EvictionUnit) -> WholeKey:
    return unit.order


def _count(unit: EvictionUnit) -> int:
    """Return how many ranks the unit evicts."""
    return len(_live(unit.holding)) if unit.kind == _GANG else 1


def _may_go(holding: Holding) -> bool:
    fact = holding.allocation
    is_running = fact.phase is not Phase.PENDING and bool(fact.placements)
    return is_running and fact.is_wanted and bool(_live(holding))


def _live(holding: Holding) -> tuple[int, ...]:
    """Return the ranks that use something and are not leaving."""
    if not holding.leaving:
        return tuple(holding.charges)
    return tuple(rank for rank in holding.charges if rank not in holding.leaving)


def _units(holding: Holding, snapshot: PoolSnapshot, queue_priority: int) -> list[EvictionUnit]:
    fact = holding.allocation
    priority = priority_of(fact, snapshot.job_of(fact))
    safe = -milliseconds(safe_point(fact))
    is_lone = len(fact.roles) == 1 and fact.roles[0].count == 1
    kind = _LONE if is_lone else _GANG
    order = (queue_priority, priority, kind, safe, fact.key, fact.uid, 0)
    found = [EvictionUnit(holding=holding, priority=priority, kind=kind, order=order)]
    if not is_lone:
        for rank in sorted(_spared(holding)):
            order = (queue_priority, priority, _SURPLUS, safe, fact.key, fact.uid, -rank)
            found.append(EvictionUnit(holding=holding, priority=priority, kind=_SURPLUS, order=order, rank=rank))
    return found


def _pieces(unit: EvictionUnit, index: Mapping[str, int]) -> dict[int, list[Charge]]:
    """Return {node: charges that the unit frees there}; surplus ranks are in their own units, not in the gang's."""
    charges = unit.holding.charges
    if not unit.is_whole:
        charge = charges[unit.rank]
        return {index[charge.node]: [charge]} if charge.node in index else {}
    found: dict[int, list[Charge]] = {}
    spared = _spared(unit.holding) if unit.kind == _GANG else frozenset[int]()
    for rank in _live(unit.holding):
        charge = charges[rank]
        node = index.get(charge.node)
        if node is not None and rank not in spared:
            found.setdefault(node, []).append(charge)
    return found


def _spared(holding: Holding) -> frozenset[int]:
    """Return the ranks that are units of their own: on each node as many as the gang can spare, the last first.

    The trial limits how many of them are evicted in total. A growing gang is evicted whole or not at all, because the
    writes that add and remove single ranks would conflict.
    """
    if holding.is_growing:
        return frozenset()
    spare, per_role = spare_of(holding)
    if not spare:
        return frozenset()
    fact = holding.allocation
    by_node: dict[str, tuple[list[int], list[int]]] = {}
    found: list[int] = []
    for rank in reversed(_live(holding)):
        left, roles = by_node.setdefault(holding.charges[rank].node, ([spare], list(per_role)))
        role = role_index(fact, rank)
        if left[0] and roles[role]:
            left[0] -= 1
            roles[role] -= 1
            found.append(rank)
    return frozenset(found)


def _used(unit: EvictionUnit) -> Mapping[str, int]:
    """Return what the unit uses, as quota counts it, without ranks that are leaving."""
    holding = unit.holding
    if unit.is_whole and not holding.leaving:
        return holding.used
    return holding.used_by(_live(holding) if unit.is_whole else (unit.rank,)).amounts


def _levels(units: list[EvictionUnit]) -> Ints:
    ordered = sorted({unit.order[:2] for unit in units})
    level = {pair: number for number, pair in enumerate(ordered)}
    return np.fromiter((level[unit.order[:2]] for unit in units), np.int64, len(units))


def _kinds(units: list[EvictionUnit]) -> tuple[dict[str, list[tuple[int, Mapping[str, int]]]], Ints]:
    known: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
    kinds: dict[str, list[tuple[int, Mapping[str, int]]]] = {}
    codes: list[int] = []
    for unit in units:
        used = _used(unit)
        key = (unit.fact.queue, tuple(used.items()))
        code = known.get(key)
        if code is None:
            code = known[key] = len(known)
            kinds.setdefault(unit.fact.queue, []).append((code, used))
        codes.append(code)
    return kinds, np.array(codes, dtype=np.int64)


Standing = tuple[Due, ...]
"""The negated shares of a queue and of the queues above it, from the top; the queue with the least loses work first."""


def share_of(queue_shares: QueueShares, queue: str) -> Standing:
    """Return the current standing of the queue."""
    return tuple(-share for share in queue_shares.shares(queue))


def eviction_ranks(queue_shares: QueueShares, queues: Sequence[str], own: str) -> Ints:
    """Return the turn of each of `queues`: 0 for the one that loses work first, equal standings alike, `own` last."""
    found = {queue: share_of(queue_shares, queue) for queue in queues if queue != own}
    turn = {standing: number for number, standing in enumerate(sorted(set(found.values())))}
    return np.array([len(turn) if queue == own else turn[found[queue]] for queue in queues], dtype=np.int64)


def in_eviction_order(units: Iterable[EvictionUnit], queue_shares: QueueShares, own: str) -> Iterator[EvictionUnit]:
    """Yield the units in the order of eviction.

    Each unit is from the queue that is furthest above its share when the unit is requested; of equal queues the least
    important unit comes first. O(log queues) per unit, but O(queues) after a unit of a queue below another queue.
    """
    waiting: dict[str, list[EvictionUnit]] = {}
    for unit in sorted(units, key=lambda each: -each.index):
        waiting.setdefault(unit.fact.queue, []).append(unit)
    mine = waiting.pop(own, [])
    top = {queue: queue_shares.top(queue) for queue in waiting}
    heap: list[tuple[Standing, int, str]] = []
    for queue, line in waiting.items():
        heap.append((share_of(queue_shares, queue), line[-1].index, queue))
    heapq.heapify(heap)
    while heap:
        standing, _, queue = heapq.heappop(heap)
        yield waiting[queue].pop()
        now = share_of(queue_shares, queue)
        if waiting[queue]:
            heapq.heappush(heap, (now, waiting[queue][-1].index, queue))
        if now != standing and len(now) > 1:
            heap = [
                (share_of(queue_shares, name) if top[name] == top[queue] else known, index, name)
                for known, index, name in heap
            ]
            heapq.heapify(heap)
    yield from reversed(mine)
