"""Proposals: the units to evict so that an allocation might have its places, the best proposal first.

For each rank in turn, free nodes are used first; then the node that costs least is cleared (`search`). A role that must
be in one domain is tried in each domain. A proposal may not be enough, because something other than room refuses the
node. Then units are removed in the order of eviction until the placement itself succeeds. Work is bounded by the number
of nodes tried, of domains, and of units.

Each proposal has its units removed from the state, through the trial. The caller undoes proposals that it does not use.
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
from slipway.scheduler.plan.preemption.search import NodeSearch
from slipway.scheduler.plan.preemption.trial import EvictionTrial
from slipway.scheduler.plan.preemption.victim_order import eviction_ranks, in_eviction_order
from slipway.scheduler.plan.preemption.victims import VictimTable
from slipway.scheduler.plan.state import gang_size
from slipway.scheduler.plan.state.extender_results import VictimOffer
from slipway.scheduler.plan.state.nodes import Bools, Ints
from slipway.scheduler.plan.state.rank_request import requests_of

TRIES_MAX = 16
"""The number of nodes that are tried for one rank."""
DOMAINS_MAX = 64
CLEARED_MAX = 4096
"""The number of nodes that one tick clears, successfully or not; later work waits for the next tick."""
UNITS_MAX = 512
"""Up to this number of units they are also tried in the order of eviction, whatever their nodes."""
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
        """Yield after each proposal; True when it is known to be minimal and its nodes to have room.

        If extenders must agree to the victims on a node, only nodes to which they agree are proposed.
        """
        wanted = gang_size.targets(fact)
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
        wanted = gang_size.targets(fact)
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
        """Whether its ranks would have room if all eligible units were removed."""
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
