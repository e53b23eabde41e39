"""Nominations: places that are held for work whose victims have not left yet.

Owns how long places are held, when they become an admission, and which work may take them away. Knows nothing of how
victims are chosen. A nomination holds capacity but does not block its queue: other work of the queue may use the rest.

Invariants: a nomination becomes an admission when its places, or others, are really free, and not before. Until then
the queue cursors skip its allocation, so that it does not get places twice. A nomination is dropped when its allocation
must not start any more, when it has expired, when a node of it no longer exists, when no leaving work can free its
places, or when work with more right needs them. Within a queue, work of a higher priority has more right. Between
queues, work of the queue with the higher priority has more right, then work of the queue with the smaller share.

A booking adds the future usage of promised places to the usage of their nodes. `is_over` then shows whether promised
and existing usage together exceed a node.

`deferred` finds the admissions of a plan that cannot start at once: they need room that the plan's evictions, or
leaving work, must release. How long a victim needs to leave is not known here. A simulation ignores the result, because
its evictions are instant.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from slipway.model.facts import AllocationFact
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Gate
from slipway.model.resources import GPU, GPU_MILLI, Resources, total
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Accept, Admitted, TickState
from slipway.scheduler.plan.placement.topology import common_key
from slipway.scheduler.plan.queueing.admission_checks import closed_gate
from slipway.scheduler.plan.queueing.queue_tree import QueueTree
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.flavors import where_it_stands
from slipway.scheduler.plan.state.pending import priority_of
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Explanation, Plan
from slipway.scheduler.plan.state.pool_state import charge_of_rank
from slipway.scheduler.plan.state.rank_request import quota_of
from slipway.scheduler.plan.state.snapshot import Holding, Nomination, PoolSnapshot
from slipway.scheduler.plan.state.usage import Charge, NodeUsage


def charges_of(
    fact: AllocationFact, placements: Mapping[int, str], devices: Mapping[int, tuple[int, ...]]
) -> list[Charge]:
    """Return what the ranks of `fact` use on the nodes of `placements`."""
    roles = [(rank, role, node) for rank, node in placements.items() if (role := fact.role_of(rank)) is not None]
    return [charge_of_rank(role, node, devices.get(rank, ()), fact) for rank, role, node in roles]


def demand_of(fact: AllocationFact, placements: Mapping[int, str]) -> Resources:
    """Return what the ranks of `fact` in `placements` use, as quota counts it."""
    return total(quota_of(role) for rank in placements if (role := fact.role_of(rank)) is not None)


def book(usage: NodeUsage, charges: Iterable[Charge], times: int = 1) -> None:
    """Add `charges` `times` times (-1 removes them). Charges on nodes that the table lacks are skipped."""
    for charge in charges:
        node = usage.table.index.get(charge.node)
        if node is not None:
            usage.charge(charge, node, times)


def is_over(usage: NodeUsage, charges: Iterable[Charge]) -> bool:
    """Whether a node of `charges`, which must be booked in `usage`, is over its amounts, devices or ports."""
    table = usage.table
    for charge in charges:
        node = table.index[charge.node]
        names = {GPU, GPU_MILLI, *charge.requests.amounts} if charge.requests.gpus() else charge.requests.amounts
        rows = [row for name in names if (row := table.row.get(name)) is not None]
        if any(usage.used[row, node] > table.allocatable[row, node] for row in rows):
            return True
        if any(usage.port(port)[node] > 1 for port in charge.ports):
            return True
        if usage.devices is not None and any(at == node for _, at in usage.devices.over):
            return True
    return False


NAMES_SHOWN = 3


class _HeldNomination(msgspec.Struct):
    """A valid nomination: booked, or admitted by this tick."""

    nomination: Nomination
    fact: AllocationFact
    charges: list[Charge]
    demand: Resources
    leaving: tuple[Holding, ...]
    admitted: Admitted | None = None


class Nominations:
    """The nominations of one tick."""

    def __init__(self, state: TickState) -> None:
        self._state = state
        self._held: list[_HeldNomination] = []
        self._leaving: list[Holding] = []
        """all holdings with leaving ranks, by key"""
        self.dropped: list[str] = []
        """ids of decisions that must be removed from the ledger"""
        self.look_again = 0.0
        """when the first waiting nomination expires (epoch seconds); 0 for never"""

    @property
    def settled(self) -> frozenset[str]:
        """uids of allocations that need no other place in this tick"""
        return frozenset(held.fact.uid for held in self._held)

    def book_valid(self) -> None:
        """Book the valid nominations, those with more right first, and admit those whose places are free by now."""
        if not self._state.snapshot.nominations:
            return
        going = [holding for holding in self._state.snapshot.holdings.values() if holding.leaving]
        self._leaving = sorted(going, key=lambda each: (each.allocation.key, each.allocation.uid))
        for nomination in sorted(self._state.snapshot.nominations, key=self._precedence):
            held = self._validated(nomination)
            if held is None:
                self.dropped.append(nomination.id)
                continue
            self._book(held, 1)
            self._held.append(held)
        for held in list(self._held):
            self._try(held)
        for held in reversed(list(self._held)):
            if held.admitted is None and not self._is_achievable(held):
                self._drop(held)
        ends = [self._expires_at(held.nomination, held.leaving) for held in self._held if held.admitted is None]
        self.look_again = min(ends, default=0.0)

    def release_for(self, fact: AllocationFact, has_place: Callable[[], bool]) -> bool:
        """Release nominations to which `fact` has more right, those with least right first, until `fact` has a place.

        Return whether `fact` has a place. Released nominations whose places can still become free are booked again.
        """
        if not self._held:
            return False
        given: list[_HeldNomination] = []
        for held in reversed(list(self._held)):
            if not self._outranks(fact, held):
                continue
            self._give(held)
            given.append(held)
            if has_place():
                self._rebook(given)
                return True
        for held in reversed(given):
            self._take_again(held)
        return False

    def take_over(self, fact: AllocationFact, accept: Accept) -> bool:
        """Nominate `fact` for room that leaving work frees for other nominations, to which `fact` has more right.

        No other work is evicted for it. The allocations of released nominations that cannot be met any more wait again.
        Return whether `fact` was nominated.
        """
        given: list[_HeldNomination] = []
        for held in reversed(list(self._held)):
            if held.admitted is not None or not self._outranks(fact, held):
                continue
            self._give(held)
            given.append(held)
            made = self._placed_after(fact, accept)
            if made is not None:
                self._state.admitted.append(made)
                self._rebook(given)
                return True
        for held in reversed(given):
            self._take_again(held)
        return False

    def explanations(self) -> dict[str, Explanation]:
        """Return {allocation key: why it waits} of the nominations that still wait for their places."""
        waiting = [held for held in self._held if held.admitted is None and held.fact.phase is Phase.PENDING]
        return {held.fact.key: _waits(held.leaving) for held in waiting}

    # --- one nomination -----------------------------------------------------------------------------------------------

    def _precedence(self, nomination: Nomination) -> tuple[int, int, int]:
        """Return the sort key: nominations with more right first, then in the order of the ledger."""
        fact = nomination.allocation
        if fact is None:
            return (0, 0, nomination.number)
        queue = self._state.tree.queue(fact.queue)
        job = self._state.snapshot.job_of(fact)
        return (-queue.priority if queue is not None else 0, -priority_of(fact, job), nomination.number)

    def _validated(self, nomination: Nomination) -> _HeldNomination | None:
        """Return the nomination to hold; None when it must be dropped."""
        state, fact = self._state, nomination.allocation
        if fact is None or not _is_awaited(nomination, fact):
            return None
        table = state.whatif.table
        if any(node not in table.index for node in nomination.placements.values()):
            return None
        if fact.phase is Phase.PENDING and closed_gate(fact, state.snapshot, state.tree, state.now) is not None:
            return None
        if state.tree.queue(fact.queue) is None:
            return None
        leaving = self._waits_for(nomination)
        if self._expires_at(nomination, leaving) <= state.now:
            return None
        charges = charges_of(fact, nomination.placements, nomination.devices)
        return _HeldNomination(
            nomination=nomination,
            fact=fact,
            charges=charges,
            demand=demand_of(fact, nomination.placements),
            leaving=leaving,
        )

    def _waits_for(self, nomination: Nomination) -> tuple[Holding, ...]:
        """Return its victims, and all other work that is leaving its nodes."""
        nodes = frozenset(nomination.placements.values())
        return tuple(
            holding
            for holding in self._leaving
            if holding.allocation.uid in nomination.victims
            or any(holding.charges[rank].node in nodes for rank in holding.leaving)
        )

    def _expires_at(self, nomination: Nomination, leaving: Iterable[Holding]) -> float:
        """Return when it expires: a margin after it was made, and after the last grace period of the leaving work."""
        ends = [nomination.at]
        for holding in leaving:
            victim = holding.allocation
            ends.append(max(victim.deadlines.get("preemption", 0.0), victim.phase_since))
        return max(ends) + self._state.policy.nomination_margin_s

    def _try(self, held: _HeldNomination) -> None:
        """Admit the allocation if there is a place by now: on the nominated nodes, else anywhere."""
        if held.fact.phase is not Phase.PENDING or held.fact.attempt != held.nomination.attempt:
            return
        state = self._state
        self._book(held, -1)
        held.admitted = self._placed(held)
        if held.admitted is None:
            self._book(held, 1)
            return
        state.count(held.fact, held.admitted.demand)
        state.admitted.append(held.admitted)

    def _placed(self, held: _HeldNomination) -> Admitted | None:
        state, fact = self._state, self._state.with_windows(held.fact)
        if state.may_use(fact, rank_request.smallest_demand(fact)) is not None:
            return None
        within = np.zeros(len(state.whatif.table), dtype=np.bool_)
        within[[state.whatif.table.index[node] for node in held.nomination.placements.values()]] = True
        placed = gang.place(state.whatif, fact, within)
        if isinstance(placed, gang.PlacementFailure):
            placed = gang.place(state.whatif, fact)
        else:
            # Ranks beyond the minimum may use other nodes, unless a topology confines them.
            for part in placed.parts:
                is_bound = part.role.topology is not None or common_key(fact) != ""
                part.allowed = part.allowed if is_bound else None
        if isinstance(placed, gang.PlacementFailure):
            return None
        demand = placed.demand()
        if state.may_use(fact, demand) is not None:
            state.withdraw(placed)
            return None
        return Admitted(placed=placed, demand=demand)

    def _placed_after(self, fact: AllocationFact, accept: Accept) -> Admitted | None:
        """Place the allocation as if all leaving work had left, and return it with that work as its victims.

        None when it has no place or is not accepted.
        """
        state = self._state
        leaving = self._leaving
        for holding in leaving:
            state.remove(holding, holding.leaving)
        made: Admitted | None = None
        placed = (
            gang.place(state.whatif, fact) if state.may_use(fact, rank_request.smallest_demand(fact)) is None else None
        )
        if isinstance(placed, gang.PlacedGang):
            demand = placed.demand()
            if state.may_use(fact, demand) is not None:
                state.withdraw(placed)
            elif not isinstance(accepted := accept(placed, demand), Explanation):
                state.count(fact, demand)
                victims = tuple(each.allocation.uid for each in leaving)
                made = Admitted(placed=accepted, demand=demand, victims=victims)
        for holding in leaving:
            state.put_back(holding, holding.leaving)
        return made

    def _rebook(self, given: list[_HeldNomination]) -> None:
        """Book the released nominations again that can still be met, and drop the others."""
        for each in reversed(given):
            each.admitted = None
            self._book(each, 1)
            if not self._is_achievable(each):
                self._drop(each)

    def _is_achievable(self, held: _HeldNomination) -> bool:
        """Whether its places are free after all leaving work has left; the nomination must be booked."""
        if not held.leaving and held.fact.phase is Phase.PENDING:
            return False
        usage = self._state.whatif.usage
        gone = [holding.charges[rank] for holding in self._leaving for rank in holding.leaving]
        book(usage, gone, -1)
        over = is_over(usage, held.charges)
        book(usage, gone)
        return not over

    # --- bookkeeping --------------------------------------------------------------------------------------------------

    def _book(self, held: _HeldNomination, times: int) -> None:
        book(self._state.whatif.usage, held.charges, times)
        if times > 0:
            self._state.booked[held.fact.uid] = (held.fact.queue, held.charges)
        else:
            self._state.booked.pop(held.fact.uid, None)
        self._state.count(held.fact, held.demand, times)

    def _give(self, held: _HeldNomination) -> None:
        """Release what the nomination holds, or the places that it was admitted to."""
        if held.admitted is None:
            self._book(held, -1)
            return
        self._state.admitted.remove(held.admitted)
        self._state.withdraw(held.admitted.placed, held.admitted.demand)

    def _take_again(self, held: _HeldNomination) -> None:
        """Undo `_give` with the same places. The caller must have given back everything that it took since."""
        made = held.admitted
        if made is None:
            self._book(held, 1)
            return
        for part in made.placed.parts:
            self._state.whatif.take(part.row, part.nodes)
        self._state.count(held.fact, made.demand)
        self._state.admitted.append(made)

    def _drop(self, held: _HeldNomination) -> None:
        self._book(held, -1)
        self._held.remove(held)
        self.dropped.append(held.nomination.id)

    def _outranks(self, fact: AllocationFact, held: _HeldNomination) -> bool:
        """Whether `fact` has more right to a place than the nomination."""
        state, other = self._state, held.fact
        jobs = state.snapshot
        if fact.queue == other.queue:
            return priority_of(fact, jobs.job_of(fact)) > priority_of(other, jobs.job_of(other))
        mine, theirs = state.tree.queue(fact.queue), state.tree.queue(other.queue)
        if mine is None or theirs is None:
            return False
        share = state.tree.share(fact.queue, rank_request.smallest_demand(fact).amounts)
        return (-mine.priority, share) < (-theirs.priority, state.tree.share(other.queue))


def _is_awaited(nomination: Nomination, fact: AllocationFact) -> bool:
    """Whether the nominated attempt can still start: it is pending, or the attempt before it is ending."""
    if fact.uid != nomination.uid or fact.deleting or fact.desired == "Stopped" or fact.hold:
        return False
    if fact.attempt == nomination.attempt:
        return fact.phase is Phase.PENDING and fact.is_wanted
    return fact.attempt + 1 == nomination.attempt and fact.phase is not Phase.TERMINATED


def _waits(leaving: Iterable[Holding]) -> Explanation:
    names = [holding.allocation.key for holding in leaving]
    shown = ", ".join(names[:NAMES_SHOWN]) + (
        f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    )
    return Explanation(
        gate=Gate.MAKING_ROOM,
        message=f"nodes are reserved for it; it waits for the eviction of {shown or 'the work on them'}",
    )


def deferred(
    snapshot: PoolSnapshot, tree: QueueTree, admits: Sequence[Admit], evictions: Sequence[Evict]
) -> frozenset[str]:
    """Return the uids of those `admits` that cannot start yet and become nominations.

    They need nodes, quota or slots that leaving work still uses. `tree` contains what is used now; it is changed.
    """
    evicted = {evict.uid for evict in evictions}
    usage, slots = snapshot.usage.copy(), dict(snapshot.slots)
    later: set[str] = set()
    for admit in admits:
        fact = snapshot.backlog.get(admit.uid)
        if admit.victims or admit.uid in evicted or fact is None:
            later.add(admit.uid)
            continue
        if snapshot.pool.flavors:
            fact = where_it_stands(fact, admit.placements, snapshot.table)
        charges = charges_of(fact, admit.placements, admit.devices)
        demand = demand_of(fact, admit.placements)
        book(usage, charges)
        short = tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if short is not None or is_over(usage, charges) or _exceeds(snapshot, slots, fact, demand.gpus()):
            book(usage, charges, -1)
            later.add(admit.uid)
            continue
        tree.take(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if fact.job:
            job = (fact.namespace, fact.job)
            slots[job] = slots.get(job, 0) + demand.gpus()
    return frozenset(later)


def bundles(plan: Plan) -> list[frozenset[str]]:
    """Return sets of uids that must be committed together: evictions, and the admissions that need their room."""
    found: list[frozenset[str]] = []
    keys = {admit.allocation: admit.uid for admit in plan.admits}
    links = [frozenset((admit.uid, *admit.victims)) for admit in plan.admits if admit.victims]
    links += [frozenset((evict.uid, keys[evict.by])) for evict in plan.evictions if evict.by in keys]
    for link in links:
        joined = link.union(*(each for each in found if each & link))
        found = [*(each for each in found if not each & link), joined]
    return found


def _exceeds(snapshot: PoolSnapshot, slots: dict[tuple[str, str], int], fact: AllocationFact, asked: int) -> bool:
    """Whether `asked` more GPU slots would exceed the job's `maxSlots`."""
    job = snapshot.job_of(fact)
    used = slots.get((fact.namespace, fact.job), 0)
    return job is not None and job.max_slots is not None and asked > 0 and used + asked > job.max_slots
