"""Proposals: the units to evict so that an allocation might have its places, the best proposal first.

For each rank in turn, free nodes are used first; then the node that costs least is cleared. A role that must be in one
domain is tried in each domain. A proposal may not be enough, because something other than room refuses the node. Then
units are removed in the order of eviction until the placement itself succeeds. Work is bounded by the number of nodes
tried, of domains, and of units.

When a proposal is yielded, its units are removed from the state, through the trial. The caller undoes proposals that it
does not use.

The cost of a node is what must be evicted there for one more rank. On a node all eligible units are removed, least
important first, and then put back as far as the rank still fits, most important first. The units that stay removed are
a minimal set. The work of the queue that loses work first (`eviction_ranks` in `victims.py`) is the least important;
within a queue the order of victims decides. Nodes are compared as kube-scheduler does: the least important highest
victim, the lowest sum of priorities, the fewest ranks, the latest start among the highest, the order of victims, name.

All nodes are computed at once, as columns; later only the nodes that were touched. Amounts are compared per resource
and port. The placement decides whether the rank may really use the node.
"""

from collections.abc import Iterator

import numpy as np

from slipway.model.facts import AllocationFact, RoleFact
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.feasibility import FeasibilityRow
from slipway.scheduler.plan.placement.fill import fill
from slipway.scheduler.plan.placement.tick_state import TickState
from slipway.scheduler.plan.placement.topology import REQUIRED, common_key
from slipway.scheduler.plan.preemption.extender_veto import ConsentRequest, ask_consent, offer, offers_max
from slipway.scheduler.plan.preemption.trial import EvictionTrial
from slipway.scheduler.plan.preemption.victims import VictimTable, eviction_ranks, in_eviction_order
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.extender_results import VictimOffer
from slipway.scheduler.plan.state.nodes import EVERY, Bools, Ints
from slipway.scheduler.plan.state.rank_request import requests_of

_FEW = 24
"""Up to this number of nodes, computing them one by one is cheaper than as columns."""
_NEVER = -(2**62)


class NodeSearch:
    """The costs of all nodes for one request, updated as the usage changes."""

    def __init__(self, row: FeasibilityRow, victims: VictimTable, turns: Ints, eligible: Bools) -> None:
        """`turns`: the place of each queue in the order of eviction; `eligible`: the units that may be evicted."""
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
        """Put back the pieces of each node where they fit, the most important first; return which stay removed."""
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


TRIES_MAX = 16
"""The number of nodes that are tried for one rank."""
DOMAINS_MAX = 64
CLEARED_MAX = 4096
"""The number of nodes that one tick clears, successfully or not; later work waits for the next tick."""
UNITS_MAX = 512
"""If at most so many units are eligible, they are also tried in the order of eviction, whatever their nodes."""
SEARCHES_KEPT = 64

Taken = list[tuple[FeasibilityRow, list[int]]]
DomainCost = tuple[int, int, int, int]


class Proposals:
    """The proposals for the allocations of one tick."""

    def __init__(self, state: TickState, victims: VictimTable) -> None:
        self._state = state
        self._victims = victims
        self._no_turns: Ints = np.zeros(len(victims.queues), dtype=np.int64)
        """the turns when only one queue can give"""
        self._searches: dict[tuple[bytes, int, int], NodeSearch] = {}
        self._cleared = 0

    def of(
        self, fact: AllocationFact, trial: EvictionTrial, eligible: Bools, *, is_moving: bool = False
    ) -> Iterator[bool]:
        """Yield after each proposal; True when it is known that it is minimal and that its nodes have room.

        If extenders must agree to the victims on a node, only nodes to which they agree are proposed.
        """
        wanted = rank_request.targets(fact)
        if sum(wanted) == 1:
            role = fact.roles[wanted.index(1)]
            consent_request = self._consent_request(
                fact, role, b"m%d" % trial.rule if is_moving else b"e%d" % trial.rule
            )
            yield from self._single(role, trial, eligible, consent_request)
            if consent_request is not None:
                return
        elif self._is_within_reach(fact, trial, eligible):
            barred = np.zeros(len(self._state.whatif.table), dtype=np.bool_)
            if self._propose(fact, trial, eligible, barred):
                yield False
                trial.undo()
        else:
            return
        if int(np.count_nonzero(eligible)) <= UNITS_MAX and self._is_within_reach(fact, trial, eligible):
            yield from self._in_order(fact, trial, eligible)

    def _consent_request(self, fact: AllocationFact, role: RoleFact, why: bytes) -> ConsentRequest | None:
        """Return which extenders must be asked before work is evicted for `fact`; None when there are none."""
        plan_extenders = self._state.whatif.plan_extenders
        guards = plan_extenders.extenders_of_victims(requests_of(role)) if plan_extenders is not None else ()
        if plan_extenders is None or not guards:
            return None
        request_key = b"%s %s %d %s" % (self._state.whatif.row(role).request.key, fact.uid.encode(), fact.attempt, why)
        return ConsentRequest(plan_extenders, guards, role, fact, request_key)

    def _single(
        self, role: RoleFact, trial: EvictionTrial, eligible: Bools, consent_request: ConsentRequest | None
    ) -> Iterator[bool]:
        """Propose for one rank: first no victims, if a node is free and only quota is short; then node after node."""
        row = self._state.whatif.row(role)
        row.refresh()
        if row.fits.any():
            yield False
            trial.undo()
        search = self._search(row, trial, eligible)
        if consent_request is not None:
            yield from self._agreed(search, trial, eligible, consent_request)
            return
        barred: Bools | None = None
        for _ in range(TRIES_MAX):
            node = search.best(barred)
            if node is None or self._cleared >= CLEARED_MAX:
                return
            self._cleared += 1
            if self._clear_node(search, node, trial):
                yield self._is_local(trial, node)
            trial.undo()
            search.refresh(eligible)
            barred = np.zeros(len(row.fits), dtype=np.bool_) if barred is None else barred
            barred[node] = True

    def _agreed(
        self, search: NodeSearch, trial: EvictionTrial, eligible: Bools, consent_request: ConsentRequest
    ) -> Iterator[bool]:
        """Propose one node after the other, of those to which the extenders agree."""
        offers = self._offers(search, trial, eligible)
        said = ask_consent(consent_request, list(offers.values()))
        trial.waits, trial.refused = said.waits, said.refused
        agreed = [node for node, each in offers.items() if each.node in said.nodes]
        for node in agreed[:TRIES_MAX]:
            if self._clear_node(search, node, trial):
                trial.within = np.zeros(len(search.row.fits), dtype=np.bool_)
                trial.within[node] = True
                yield self._is_local(trial, node)
            trial.undo()
            trial.within = None
            search.refresh(eligible)

    def _offers(self, search: NodeSearch, trial: EvictionTrial, eligible: Bools) -> dict[int, VictimOffer]:
        """Return {node: its offer of victims}, the best first."""
        names = self._state.whatif.table.names
        found: dict[int, VictimOffer] = {}
        barred = np.zeros(len(names), dtype=np.bool_)
        while len(found) < offers_max(len(names)) and self._cleared < CLEARED_MAX:
            node = search.best(barred)
            if node is None:
                break
            self._cleared += 1
            barred[node] = True
            if self._clear_node(search, node, trial):
                found[node] = offer(trial, names[node])
            trial.undo()
            search.refresh(eligible)
        return found

    def _is_local(self, trial: EvictionTrial, node: int) -> bool:
        """Whether all removed ranks were on this one node, so that no other node has gained room."""
        name = self._state.whatif.table.names[node]
        return bool(trial.steps) and all(
            step.unit.holding.charges[rank].node == name for step in trial.steps for rank in step.ranks
        )

    def _propose(self, fact: AllocationFact, trial: EvictionTrial, eligible: Bools, barred: Bools) -> bool:
        """Clear nodes for all ranks; return False, with nothing removed, when that does not work.

        If all roles must be in one domain, each domain is tried, and the cheapest is chosen.
        """
        key = common_key(fact)
        if not key:
            return self._clear_roles(fact, trial, eligible, barred)
        codes = self._state.whatif.table.label(key).codes
        turns, best = self._eviction_ranks(trial, eligible), None
        for domain in np.unique(codes[codes >= 0]).tolist()[:DOMAINS_MAX]:
            if self._clear_roles(fact, trial, eligible, barred | (codes != domain)):
                cost = self._cost(trial, 0, turns)
                best = (cost, domain) if best is None or cost < best[0] else best
            trial.undo()
        return best is not None and self._clear_roles(fact, trial, eligible, barred | (codes != best[1]))

    def _clear_roles(self, fact: AllocationFact, trial: EvictionTrial, eligible: Bools, barred: Bools) -> bool:
        wanted = rank_request.targets(fact)
        order = sorted(range(len(wanted)), key=lambda index: (-fact.roles[index].requests.gpus(), index))
        taken: Taken = []
        is_done = True
        self._state.whatif.owner = fact
        for index in order:
            if wanted[index] and is_done:
                is_done = self._clear_role(fact.roles[index], wanted[index], trial, eligible, barred, taken=taken)
        for row, nodes in taken:
            self._state.whatif.give(row, nodes)
        if not is_done:
            trial.undo()
        return is_done

    def _clear_role(
        self, role: RoleFact, want: int, trial: EvictionTrial, eligible: Bools, barred: Bools, *, taken: Taken
    ) -> bool:
        row = self._state.whatif.row(role)
        for step in trial.steps:
            eligible = eligible & (self._victims.whole != step.unit.whole)
        search = self._search(row, trial, eligible)
        if role.topology is None or role.topology.mode != REQUIRED:
            return self._clear(search, want, trial, barred, taken)
        column = row.usage.table.label(role.topology.key)
        room = np.bincount(column.codes[column.codes >= 0], search.room()[column.codes >= 0], len(column.values))
        best: tuple[DomainCost, int] | None = None
        open_units, turns = search.eligible, self._eviction_ranks(trial, search.eligible)
        domains = np.flatnonzero(room >= want)[:DOMAINS_MAX].tolist()
        for domain in domains if len(domains) > 1 else ():
            before, mine = len(trial.steps), len(taken)
            if self._clear(search, want, trial, barred | (column.codes != domain), taken):
                cost = self._cost(trial, before, turns)
                best = (cost, domain) if best is None or cost < best[0] else best
            self._give_back(taken, mine)
            trial.rewind_to(before)
            search.refresh(open_units, turns)
        if best is None and len(domains) != 1:
            return False
        chosen = domains[0] if best is None else best[1]
        return self._clear(search, want, trial, barred | (column.codes != chosen), taken)

    def _clear(self, search: NodeSearch, want: int, trial: EvictionTrial, barred: Bools, taken: Taken) -> bool:
        """Find places for `want` ranks outside the `barred` nodes: free places first, then the cheapest to clear."""
        row, barred, open_units = search.row, barred.copy(), search.eligible
        left, tries = want, 0
        while True:
            nodes = fill(row, left, ~barred)
            if nodes:
                self._state.whatif.take(row, nodes)
                taken.append((row, nodes))
                left -= len(nodes)
            if not left:
                return True
            search.refresh(open_units, self._eviction_ranks(trial, open_units))
            node = search.best(barred)
            if node is None or tries >= TRIES_MAX or self._cleared >= CLEARED_MAX:
                return False
            self._cleared += 1
            before = len(trial.steps)
            if not self._clear_node(search, node, trial):
                barred[node] = True
                tries += 1
                continue
            open_units = open_units.copy()
            for unit in [step.unit for step in trial.steps[before:]]:
                open_units[unit.index] = False
                if unit.is_whole and unit.fact.rank_count > 1:
                    open_units[self._victims.whole == unit.index] = False

    def _clear_node(self, search: NodeSearch, node: int, trial: EvictionTrial) -> bool:
        """Remove from one node the units that must leave so that one more rank fits.

        Return False, with no more units removed, when that does not work.
        """
        row, before = search.row, len(trial.steps)
        if not self._have_several_queues(search, node, trial):
            units = [self._victims.units[index] for index in search.victims_on(node)]
            is_cleared = trial.remove_all(units) and self._fits(row, node)
        else:
            # Each eviction may change which queue is furthest above its share.
            there = [self._victims.units[index] for index in search.evictable_on(node)]
            is_cleared = False
            for unit in in_eviction_order(there, trial.queue_shares, trial.queue):
                if trial.remove(unit) and self._fits(row, node):
                    is_cleared = True
                    break
            for step in reversed(trial.steps[before:]) if is_cleared else ():
                at = trial.steps.index(step)
                if trial.put_back(step) and not self._fits(row, node):
                    trial.redo_step(step, at)
        if not is_cleared:
            trial.rewind_to(before)
        return is_cleared

    def _have_several_queues(self, search: NodeSearch, node: int, trial: EvictionTrial) -> bool:
        """Whether work of more than one other queue could be evicted from the node."""
        if len(self._victims.queues) <= 1:
            return False
        there = {self._victims.units[index].fact.queue for index in search.evictable_on(node)}
        return len(there - {trial.queue}) > 1

    def _eviction_ranks(self, trial: EvictionTrial, eligible: Bools) -> Ints:
        """Return each queue's place in the order of eviction, as the tree is now."""
        victims = self._victims
        own = victims.queues.index(trial.queue) if trial.queue in victims.queues else -1
        if len(victims.queues) == 1 or not eligible[victims.queue != own].any():
            return self._no_turns
        return eviction_ranks(trial.queue_shares, victims.queues, trial.queue)

    def _fits(self, row: FeasibilityRow, node: int) -> bool:
        row.refresh()
        return bool(row.fits[node])

    def _give_back(self, taken: Taken, count: int) -> None:
        while len(taken) > count:
            self._state.whatif.give(*taken.pop())

    def _cost(self, trial: EvictionTrial, before: int, turns: Ints) -> DomainCost:
        victims = self._victims
        level = victims.level + turns[victims.queue] * (int(victims.level.max(initial=0)) + 1)
        units = [step.unit.index for step in trial.steps[before:]]
        if not units:
            return (-1, 0, 0, 0)
        highest = max(int(level[unit]) for unit in units)
        return (
            highest,
            sum(int(victims.weight[unit]) for unit in units),
            sum(int(victims.count[unit]) for unit in units),
            -min(int(victims.safe[unit]) for unit in units if level[unit] == highest),
        )

    def _search(self, row: FeasibilityRow, trial: EvictionTrial, eligible: Bools) -> NodeSearch:
        own = self._victims.queues.index(trial.queue) if trial.queue in self._victims.queues else -1
        key = (row.request.key, own, trial.rule)
        known = self._searches.get(key)
        if known is None or known.row is not row:
            if len(self._searches) >= SEARCHES_KEPT:
                self._searches.clear()
            known = self._searches[key] = NodeSearch(
                row, self._victims, self._eviction_ranks(trial, eligible), eligible
            )
        else:
            known.refresh(eligible, self._eviction_ranks(trial, eligible))
        return known

    def _is_within_reach(self, fact: AllocationFact, trial: EvictionTrial, eligible: Bools) -> bool:
        """Whether the ranks of `fact` would have room if all eligible units were removed."""
        for role in fact.roles:
            row = self._state.whatif.row(role)
            if row.usage.devices_for(row.request) is not None:
                continue
            if int(self._search(row, trial, eligible).room().sum()) < role.minimum:
                return False
        return True

    def _in_order(self, fact: AllocationFact, trial: EvictionTrial, eligible: Bools) -> Iterator[bool]:
        """Propose the shortest run of units, in the order of eviction, after which there is a place."""
        units = [self._victims.units[index] for index in np.flatnonzero(eligible).tolist()]
        removed = [unit for unit in in_eviction_order(units, trial.queue_shares, trial.queue) if trial.remove(unit)]
        if not removed or not self._has_place(fact):
            trial.undo()
            return
        low, high = 1, len(trial.steps)
        steps = list(trial.steps)
        while low < high:
            middle = (low + high) // 2
            trial.rewind_to(0)
            trial.redo(steps[:middle])
            low, high = (low, middle) if self._has_place(fact) else (middle + 1, high)
        trial.rewind_to(0)
        trial.redo(steps[:low])
        yield False
        trial.undo()

    def _has_place(self, fact: AllocationFact) -> bool:
        placed = gang.place(self._state.whatif, fact)
        if isinstance(placed, gang.PlacementFailure):
            return False
        gang.withdraw(self._state.whatif, placed.parts)
        return True
