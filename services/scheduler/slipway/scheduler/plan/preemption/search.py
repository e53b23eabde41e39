"""Which node costs least: what must be evicted from each node for one more rank, and how bad that is.

On a node all eligible units are removed, least important first, and then put back as far as the rank still fits, most
important first. The units that stay removed are a minimal set. The work of the queue that gives first (`victim_order`)
is the least important; within a queue the order of victims decides. Nodes are compared as kube-scheduler does: lowest
highest victim, lowest sum of priorities, fewest ranks, latest start among the highest, the order of victims, name.

All nodes are computed at once, as columns; later only the nodes that were touched. Amounts are compared per resource
and port. The placement decides whether the rank may really use the node.
"""

import numpy as np

from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.preemption.victims import VictimTable
from slipway.scheduler.plan.state.nodes import EVERY, Bools, Ints

_FEW = 24
"""Up to this number of nodes, computing them one by one is cheaper than as columns."""
_NEVER = -(2**62)


class NodeSearch:
    """The costs of all nodes for one request, updated as the usage changes."""

    def __init__(self, row: FeasibilityRow, victims: VictimTable, turns: Ints, eligible: Bools) -> None:
        """`turns`: each queue's place in the order of eviction (`victim_order`); `eligible`: units that may go."""
        self.row = row
        self._victims = victims
        self.eligible = eligible
        size = len(row.usage.table)
        self._set_turns(turns)
        request, table = row.request, row.usage.table
        self._needs = request.steps
        self._is_by_device = row.usage.devices_for(request) is not None
        """whether devices decide, because the amounts of free capacity do not suffice"""
        self._open: Bools = row.passed.copy()
        for resource, amount in self._needs:
            self._open &= table.allocatable[resource] >= amount
        if request.missing:
            self._open[:] = False
        self.is_ok: Bools = np.zeros(size, dtype=np.bool_)
        """nodes where evicting units makes room for the rank"""
        self.costs: Ints = np.zeros((5, size), dtype=np.int64)
        """five costs per node, the first the most important, lower is better

        They are the highest victim, the victims' sum of priorities, their number of ranks, minus the earliest start (in
        ms) among the highest, and the last of the highest in the order.
        """
        self._cursor = len(row.usage.touched)
        self._recompute_all()

    def refresh(self, eligible: Bools, turns: Ints | None = None) -> None:
        """Update the touched nodes, the eligible units, and the order of the queues (None: unchanged)."""
        if turns is not None and turns is not self._turns and not np.array_equal(turns, self._turns):
            self._set_turns(turns)
            self._cursor, self.eligible = len(self.row.usage.touched), eligible
            self._recompute_all()
            return
        touched = self.row.usage.touched
        stale = set(touched[self._cursor :])
        self._cursor = len(touched)
        if eligible is not self.eligible:
            changed = np.flatnonzero(eligible != self.eligible)
            self.eligible = eligible
            if changed.size:
                stale |= self._victims.nodes_of(changed)
        if len(stale) > _FEW:
            self._recompute_all()
            return
        for node in stale:
            self.recompute(node)

    def best(self, barred: Bools | None = None) -> int | None:
        """Return the node that costs least, of those that are not barred; None when there is none."""
        candidates = np.flatnonzero(self.is_ok if barred is None else self.is_ok & ~barred)
        for cost in self.costs:
            if candidates.size <= 1:
                break
            values = cost[candidates]
            candidates = candidates[values == values.min()]
        return int(candidates[0]) if candidates.size else None

    def room(self) -> Ints:
        """Return how many ranks fit each node at most if all eligible units were removed."""
        victims, usage = self._victims, self.row.usage
        chosen = np.flatnonzero(self.eligible[victims.piece_unit])
        at = victims.piece_node[chosen]
        counts = np.full(self._open.shape, 1 << 30, dtype=np.int64)
        for resource, amount in self._needs:
            free = usage.free(resource, EVERY).copy()
            np.add.at(free, at, victims.piece_used[resource, chosen])
            np.minimum(counts, free // amount, out=counts)
        if self.row.request.host_ports:
            np.minimum(counts, 1, out=counts)
        return np.where(self._open, np.maximum(counts, 0), 0)

    def evictable_on(self, node: int) -> list[int]:
        """Return the eligible units with a piece on the node."""
        return [
            unit for unit in self._victims.piece_unit[self._victims.pieces_on(node)].tolist() if self.eligible[unit]
        ]

    def victims_on(self, node: int) -> list[int]:
        """Return the units that would be evicted from the node, in the current order of eviction."""
        victims = self._victims
        pieces = [piece for piece in victims.pieces_on(node).tolist() if self.eligible[victims.piece_unit[piece]]]
        pieces.sort(key=lambda piece: (int(self._turn[victims.piece_unit[piece]]), int(victims.piece_unit[piece])))
        if self._is_by_device:
            return self._by_device(node, pieces)
        room = self._room_on(node, pieces)
        if room is None:
            return []
        gone: list[int] = []
        for piece in reversed(pieces):
            unit = int(victims.piece_unit[piece])
            freed = self._freed(piece)
            whole = int(victims.whole[unit])
            if whole in gone or any(left < amount for left, amount in zip(room, freed, strict=True)):
                gone.append(unit)
            else:
                room = [left - amount for left, amount in zip(room, freed, strict=True)]
        gone.reverse()
        return gone

    def _by_device(self, node: int, pieces: list[int]) -> list[int]:
        """Like `victims_on` for nodes that share devices: really remove the pieces and put them back."""
        victims, usage = self._victims, self.row.usage
        at = np.array([node], dtype=np.int64)
        for piece in pieces:
            for charge in victims.charges[piece]:
                usage.charge(charge, node, -1)
        gone: list[int] = []
        is_enough = bool(usage.fits(self.row.request, at)[0])
        for piece in reversed(pieces):
            unit = int(victims.piece_unit[piece])
            for charge in victims.charges[piece]:
                usage.charge(charge, node)
            if is_enough and (int(victims.whole[unit]) in gone or not usage.fits(self.row.request, at)[0]):
                gone.append(unit)
                for charge in victims.charges[piece]:
                    usage.charge(charge, node, -1)
        for piece in pieces:
            if int(victims.piece_unit[piece]) in gone:
                for charge in victims.charges[piece]:
                    usage.charge(charge, node)
        self._cursor = len(usage.touched)
        gone.reverse()
        return gone

    def _room_on(self, node: int, pieces: list[int]) -> list[int] | None:
        """Return the free amount of each resource and port with the rank placed and all `pieces` removed.

        None when the rank does not fit.
        """
        usage = self.row.usage
        room = [
            int(usage.table.allocatable[resource, node] - usage.used[resource, node]) - amount
            for resource, amount in self._needs
        ]
        room += [-int(usage.port(port)[node]) for port in self.row.request.host_ports]
        for piece in pieces:
            room = [left + amount for left, amount in zip(room, self._freed(piece), strict=True)]
        return room if all(left >= 0 for left in room) else None

    def _freed(self, piece: int) -> list[int]:
        victims = self._victims
        freed = [int(victims.piece_used[resource, piece]) for resource, _ in self._needs]
        for port in self.row.request.host_ports:
            held = victims.ports.get(port)
            freed.append(0 if held is None else int(held[piece]))
        return freed

    def _set_turns(self, turns: Ints) -> None:
        victims = self._victims
        self._turns = turns
        self._turn: Ints = turns[victims.queue]
        self._level: Ints = victims.level + self._turn * (int(victims.level.max(initial=0)) + 1)

    def recompute(self, node: int) -> None:
        """Compute one node again."""
        if not self._open[node]:
            return
        victims = self._victims
        gone = self.victims_on(node)
        self.is_ok[node] = bool(gone)
        if not gone:
            return
        levels = [int(self._level[unit]) for unit in gone]
        highest = max(levels)
        self.costs[:, node] = (
            highest,
            sum(int(victims.weight[unit]) for unit in gone),
            sum(int(victims.count[unit]) for unit in gone),
            -min(int(victims.safe[unit]) for unit, level in zip(gone, levels, strict=True) if level == highest),
            max(unit for unit, level in zip(gone, levels, strict=True) if level == highest),
        )

    def _recompute_all(self) -> None:
        """Compute all nodes at once, with the same result as `recompute` for each."""
        victims = self._victims
        self.is_ok[:] = False
        if self._is_by_device:
            for node in np.unique(victims.piece_node[self.eligible[victims.piece_unit]]).tolist():
                self.recompute(node)
            return
        mine = np.flatnonzero(self.eligible[victims.piece_unit] & self._open[victims.piece_node])
        units = victims.piece_unit[mine]
        order = np.argsort(victims.piece_node[mine] * (int(self._turns.max()) + 1) + self._turn[units], kind="stable")
        mine, units = mine[order], units[order]
        nodes = victims.piece_node[mine]
        if not mine.size:
            return
        starts = np.flatnonzero(np.r_[True, nodes[1:] != nodes[:-1]])
        at, counts = nodes[starts], np.diff(np.r_[starts, mine.size])
        freed = self._columns(mine)
        sums = np.add.reduceat(freed, starts, axis=1)
        room = self._free(at) + sums
        is_ok: Bools = np.logical_and.reduce(room >= 0, axis=0)
        gone = self._put_back(freed, room, (starts, counts), is_ok, self._wholes(nodes, units))
        self._set_costs(at, gone, units, (starts, counts))

    def _columns(self, pieces: Ints) -> Ints:
        """Return what each piece frees, per resource and port."""
        victims = self._victims
        rows = [victims.piece_used[resource, pieces] for resource, _ in self._needs]
        for port in self.row.request.host_ports:
            held = victims.ports.get(port)
            rows.append(np.zeros(pieces.size, dtype=np.int64) if held is None else held[pieces])
        return np.array(rows, dtype=np.int64).reshape(-1, pieces.size)

    def _free(self, at: Ints) -> Ints:
        """Return what is free with the rank placed, per resource and port; negative where the rank does not fit."""
        usage = self.row.usage
        rows = [usage.free(resource, at) - amount for resource, amount in self._needs]
        rows += [-usage.port(port)[at] for port in self.row.request.host_ports]
        return np.array(rows, dtype=np.int64).reshape(-1, at.size)

    def _wholes(self, nodes: Ints, units: Ints) -> Ints | None:
        """Return, for each piece of a surplus rank, the index of its allocation's whole piece on the node; -1 for none.

        None when no piece is of a surplus rank.
        """
        whole = self._victims.whole[units]
        if (whole == units).all():
            return None
        places = {(int(node), int(unit)): place for place, (node, unit) in enumerate(zip(nodes, units, strict=True))}
        found = np.full(units.size, -1, dtype=np.int64)
        for place in np.flatnonzero(whole != units).tolist():
            found[place] = places.get((int(nodes[place]), int(whole[place])), -1)
        return found

    def _put_back(self, freed: Ints, room: Ints, runs: tuple[Ints, Ints], is_ok: Bools, wholes: Ints | None) -> Bools:
        """Return which pieces stay removed after putting back the most important of each node first."""
        starts, counts = runs
        gone = np.zeros(freed.shape[1], dtype=np.bool_)
        for place in range(int(counts.max()) - 1, -1, -1):
            columns = np.flatnonzero(is_ok & (counts > place))
            pieces = starts[columns] + place
            amounts = freed[:, pieces]
            left = room[:, columns] - amounts
            fits = (left >= 0).all(axis=0)
            if wholes is not None:
                fits &= ~((wholes[pieces] >= 0) & gone[wholes[pieces]])
            gone[pieces] = ~fits
            room[:, columns] = np.where(fits, left, room[:, columns])
        return gone

    def _set_costs(self, at: Ints, gone: Bools, units: Ints, runs: tuple[Ints, Ints]) -> None:
        """Set the costs of each node with victims."""
        victims = self._victims
        starts, counts = runs
        levels = np.where(gone, self._level[units], _NEVER)
        highest = np.maximum.reduceat(levels, starts)
        weight = np.add.reduceat(np.where(gone, victims.weight[units], 0), starts)
        count = np.add.reduceat(np.where(gone, victims.count[units], 0), starts)
        is_top = gone & (levels == np.repeat(highest, counts))
        later = np.maximum.reduceat(np.where(is_top, -victims.safe[units], _NEVER), starts)
        last = np.maximum.reduceat(np.where(is_top, units, -1), starts)
        chosen = count > 0
        self.is_ok[at[chosen]] = True
        self.costs[:, at[chosen]] = np.array([highest, weight, count, later, last])[:, chosen]
