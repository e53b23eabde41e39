"""plan(): one tick of scheduling as a pure function of (snapshot, policy, now, seed).

An allocation passes through these packages in this order:

1. `queueing`: `admission_checks` decide whether the allocation may start at all; `queue_cursor` and `state/pending.py`
   decide the order; `queue_tree` decides whether the allocation's queue has the quota.
2. `placement`: `gang`, and below it `fill`, `topology`, `feasibility`, `filters` and `scores`, look for the best nodes.
   `placement/explain.py` states why there are none, and `explanation` what would help.
3. `preemption`: `preemptor` evicts running work to make room. `nominations` hold that room until the victims have left.
4. `reservation` reserves nodes for the blocked heads of queues.

All of them read and change `placement/tick_state.py`.

Promises: equal inputs give equal plans, whatever the order of the snapshot's tuples. A gang is admitted with at least
its minimum, or not at all. No node is used above its allocatable amounts, and no queue above a bound of its quota. A
second plan, on the state that the first plan leads to, admits only work that `decisions_max` kept out of the first.
Only integers are computed with, and each order is total, with the uid as its last key. `seed` has an effect only in a
pool that uses sampling; in other pools each node is looked at.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np

from slipway.model.facts import DISABLED, SCHEDULING_LABEL, AllocationFact, QueueFact
from slipway.model.reasons import Gate, Reason
from slipway.model.resources import Resources
from slipway.scheduler.plan.explanation.explanations import Explanations, held_nodes
from slipway.scheduler.plan.explanation.offers import RemedyOffers
from slipway.scheduler.plan.explanation.remedies import RemedyState
from slipway.scheduler.plan.placement import explain, gang
from slipway.scheduler.plan.placement.extenders import PlanExtenders
from slipway.scheduler.plan.placement.gang import below_count, next_growth_at, running_gang
from slipway.scheduler.plan.placement.policy import PlacementPolicy
from slipway.scheduler.plan.placement.tick_state import Admitted, TickState
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.preemption.consolidation import hold_places, next_attempt, release_places
from slipway.scheduler.plan.preemption.nominations import Nominations, deferred
from slipway.scheduler.plan.preemption.preemptor import preempt_for
from slipway.scheduler.plan.queueing.flavor_choice import PREEMPT, TRY_NEXT, FlavorChoices
from slipway.scheduler.plan.queueing.queue_cursor import FairShareTournament, GroupCursor, QueueCursor, build_cursors
from slipway.scheduler.plan.queueing.queue_tree import ROOT, QueueTree, closed_queues, with_run_limits
from slipway.scheduler.plan.reservation import Reservations
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.extender_results import Answers
from slipway.scheduler.plan.state.flavors import totals
from slipway.scheduler.plan.state.past_use import user_queues
from slipway.scheduler.plan.state.pending import PendingGroup, PendingWork, head_key
from slipway.scheduler.plan.state.plan_cache import PlanCache
from slipway.scheduler.plan.state.plan_types import Admit, Evict, Explanation, Grow, Plan
from slipway.scheduler.plan.state.rank_request import quota_of
from slipway.scheduler.plan.state.snapshot import Holding, PoolSnapshot
from slipway.scheduler.plan.state.windows import Windows

FORESEEN_MAX = 8
"""Number of groups of each queue that are searched for its head, before any queue has had a turn."""
RETOLD_MAX = 64
"""The largest number of blocked shapes that are explained again at the end of a tick."""
HELD_MAX = 64
"""The largest number of blocked roles for which the explanation names the queues that use the required nodes."""


Watch = Callable[[AllocationFact, WhatIf], None]
"""Called with each allocation that is about to be placed, and with the what-if copy as it is then."""


def plan(
    snapshot: PoolSnapshot,
    policy: PlacementPolicy,
    now: float,
    seed: int = 0,
    *,
    answers: Answers | None = None,
    watch: Watch | None = None,
    grows: bool = False,
) -> Plan:
    """Return what to admit and what to evict, and why the other allocations wait.

    `grows`: running elastic gangs below their count may get ranks. Set it only in a caller that can apply such a
    decision.

    `answers`: the answers that extenders have given so far. None: extenders are ignored, even if the policy names some.
    """
    windows = windows_of(snapshot, now)
    evictions = _window_evictions(snapshot, windows)[: policy.decisions_max]
    below = below_count(snapshot.below, now) if grows and snapshot.below else []
    later = next_growth_at(snapshot.below, now) if grows and snapshot.below else 0.0
    if windows is not None and (change := windows.next_change()):
        later = min(later, change) if later else change
    if not (snapshot.groups or snapshot.nominations or evictions or below):
        return Plan(evictions=evictions, explanations=Explanations(snapshot.backlog, {}, (), {}), look_again=later)
    plan_extenders = None
    if answers is not None and policy.extenders:
        evicting = {each.name for each in snapshot.queues if (each.within_queue, each.reclaim) != ("Never", "Never")}
        plan_extenders = PlanExtenders(policy.extenders, answers, snapshot.table, frozenset(evicting))
    tick = _Tick(snapshot, policy, now, watch, plan_extenders)
    if windows is not None:
        tick.state.apply_windows(windows)
    tick.state.whatif.sample_from(seed)
    return tick.run(evictions, below, later)


def windows_of(snapshot: PoolSnapshot, now: float) -> Windows | None:
    """Return the windows of the pool as a plan at `now` sees them; None when no window occurs any more."""
    if not snapshot.pool.windows:
        return None
    aside = closed_queues(snapshot.queues)
    queues = with_run_limits({queue.name: queue for queue in snapshot.queues if queue.name not in aside})
    windows = Windows(snapshot, queues, now)
    return windows if windows.standing else None


def queue_tree(snapshot: PoolSnapshot) -> QueueTree:
    """Return the tree of the snapshot's queues, with what their holdings use."""
    total, closed = snapshot.table.total, snapshot.table.closed_total
    if snapshot.pool.flavors:
        table, flavors = snapshot.table, snapshot.pool.flavors
        total = Resources({**total.amounts, **totals(table, flavors, np.ones_like(table.closed)).amounts})
        closed = Resources({**closed.amounts, **totals(table, flavors, table.closed).amounts})
    tree = QueueTree(snapshot.queues, total, closed)
    for name, use in sorted(snapshot.use.items()):
        tree.take(name, use.preemptible, preemptible=True)
        tree.take(name, use.fixed, preemptible=False)
    for name, use in sorted(snapshot.stranded.items()):
        tree.take_stranded(name, use.preemptible, preemptible=True)
        tree.take_stranded(name, use.fixed, preemptible=False)
    tree.set_budget_use(snapshot.spent, snapshot.now)
    tree.set_past_use(snapshot.past)
    return tree


def _window_evictions(snapshot: PoolSnapshot, windows: Windows | None) -> tuple[Evict, ...]:
    """Return the evictions that no other allocation asks for.

    They are the gangs that were placed with less than their minimum, the work on disabled nodes, and the work that a
    window which has begun evicts.
    """
    reasons = {holding.allocation.uid: (holding.allocation, Reason.BELOW_MINIMUM) for holding in snapshot.broken}
    disabled = frozenset(snapshot.table.labelled(SCHEDULING_LABEL, DISABLED))
    if disabled:
        for holding in sorted(snapshot.holdings.values(), key=lambda each: each.allocation.key):
            if not disabled.isdisjoint(holding.placements.values()):
                reasons.setdefault(holding.allocation.uid, (holding.allocation, Reason.NODE_DISABLED))
    for fact in windows.to_evict(snapshot.holdings.values()) if windows is not None else ():
        reasons.setdefault(fact.uid, (fact, Reason.NODE_RESERVED))
    return tuple(
        Evict(allocation=fact.key, uid=fact.uid, attempt=fact.attempt, reason=reason)
        for fact, reason in reasons.values()
        if fact.is_wanted
    )


def _next_attempts(snapshot: PoolSnapshot, evictions: tuple[Evict, ...], now: float) -> tuple[PendingGroup, ...]:
    """Return the next attempts of the evicted allocations, as pending groups; they queue with the pending work."""
    work = PendingWork()
    work.set_jobs(snapshot.jobs, now)
    work.set_aging(snapshot.pool.aging, now)
    work.set_user_queues(user_queues(snapshot.pool, snapshot.queues), now)
    for evict in evictions:
        work.put(msgspec.structs.replace(next_attempt(snapshot.holdings[evict.uid].allocation), waiting_since=now), now)
    return tuple(msgspec.structs.replace(group, is_leaving=True) for group in work.groups(now))


_ROOM_HELPS = frozenset({Gate.WAITING_FOR_QUOTA, Gate.JOB_MAX_SLOTS, Gate.TOPOLOGY_TOO_SMALL, Gate.NO_FIT})
"""The gates that evicting or moving other work may open."""
_NO_HEAD = frozenset({Gate.JOB_MAX_SLOTS, Gate.RESOURCE_QUOTA, Gate.WAITING_FOR_EXTENDER})
"""The gates of the allocation's own job, namespace or extender. A head that they block reserves nothing."""


class _NoPlace(msgspec.Struct, frozen=True):
    """Why a shape has no place, and the allocation for which that was found."""

    why: Explanation
    fact: AllocationFact
    made: int
    """the value of `_Tick.made` when it was found"""


class _Tick:
    """One call of `plan`."""

    def __init__(
        self,
        snapshot: PoolSnapshot,
        policy: PlacementPolicy,
        now: float,
        watch: Watch | None,
        plan_extenders: PlanExtenders | None,
    ) -> None:
        self.watch = watch
        self.snapshot = snapshot
        self.policy = policy
        self.now = now
        self.state = TickState(snapshot, policy, now, queue_tree(snapshot), plan_extenders)
        self.nominations = Nominations(self.state)
        self.reservations = Reservations(self.state)
        self.flavors = FlavorChoices(snapshot, self.state.tree)
        self.in_flavors: dict[int, tuple[Explanation, list[tuple[str, Explanation]], int]] = {}
        """{id of an explanation over several flavors: (it, (flavor, explanation) per flavor, index of the main one)}"""
        self.tournament = FairShareTournament(self.state.tree)
        self.cursors: dict[str, QueueCursor] = {}
        self.closed_groups: list[GroupCursor] = []
        self.no_place: dict[bytes, _NoPlace] = {}
        """{shape: why it has no place}"""
        self.may_evict = True
        self.made = 0
        """number of changes in this tick that may make room for blocked work"""
        self.taken_down: dict[str, Holding] = {}
        """{uid: its holding} of the allocations that `_window_evictions` evicts, whatever else this tick decides"""
        self.again: set[str] = set()
        """uids of evicted allocations whose next attempt has places; their old charges are removed from the state"""
        self.reserved: set[str] = set()
        """uids of the blocked heads that `_reserve_quota` has handled"""

    def run(self, evictions: tuple[Evict, ...], below: list[Holding], later: float) -> Plan:
        """Run the steps of a tick, in order; `later` is when another gang may grow."""
        state = self.state
        state.evicted |= {evict.uid: evict for evict in evictions}
        self.nominations.book_valid()
        self.taken_down = {evict.uid: self.snapshot.holdings[evict.uid] for evict in evictions}
        again = _next_attempts(self.snapshot, evictions, self.now) if evictions else ()
        self.cursors, self.closed_groups = build_cursors(
            self.snapshot, state.tree, self.now, self.nominations.settled, again
        )
        if len(self.cursors) > 1:
            self.reservations.reserve_ahead(
                [self._upcoming(cursor) for cursor in self.cursors.values() if self._reserves(cursor)]
            )
        self._admit_in_order()
        self._retry_blocked()
        if len(state.evicted) > len(evictions):
            # An eviction may leave more room than its preemptor uses, so the blocked allocations are tried once more.
            self.may_evict = False
            for cursor in self.cursors.values():
                cursor.reopen()
            self._admit_in_order()
        self.reservations.renew()
        held = hold_places(state) if not self.may_evict else []
        self._grow()
        grown = self._grow_running(below)
        release_places(state, held)
        self._refresh_explanations()
        self._explain_no_eviction()
        self._explain_held_nodes()
        standing = RemedyState(
            state.whatif,
            state.tree,
            state.slots,
            dict(self.snapshot.jobs),
            state.use_on,
            state.left_of,
            spaces=state.spaces,
            flavors=self.flavors if self.flavors.is_any else None,
            windows=state.windows,
        )
        offers = RemedyOffers(
            self.snapshot,
            standing,
            self.cursors,
            self.closed_groups,
            now=self.now,
            cache=self._cache(),
            admitted=state.admitted,
            reservations=self.reservations,
        )
        own = offers.first(self.policy.changes_max) | self.nominations.explanations()
        admits, evicted = tuple(self._admit(admitted) for admitted in state.admitted), tuple(state.evicted.values())
        return Plan(
            admits=admits,
            evictions=evicted,
            grows=grown,
            deferred=self._deferred(admits, evicted),
            explanations=Explanations(self.snapshot.backlog, self.cursors, self.closed_groups, own),
            dropped=tuple(self.nominations.dropped),
            look_again=self._next_plan_at(later),
            kept=self.reservations.kept(),
            questions=state.whatif.plan_extenders.questions if state.whatif.plan_extenders is not None else (),
        )

    def _next_plan_at(self, later: float) -> float:
        """Return when the plan may change although only time has passed; 0 for never."""
        closed = self.state.tree.exhausted
        times = [
            closed[group_cursor.group.sample.queue].until
            for group_cursor in self.closed_groups
            if group_cursor.group.sample.queue in closed
        ]
        others = (later, self.snapshot.backlog.next_change(), self.nominations.look_again, self.state.look_again)
        times += [at for at in others if at]
        return min(times, default=0.0)

    def _admit_in_order(self) -> None:
        """Admit what fits, one head of a queue after the other, in the order of `FairShareTournament`."""
        state = self.state
        self.tournament = FairShareTournament(state.tree)
        for cursor in self.cursors.values():
            self._enter(cursor)
        while len(state.admitted) + len(state.evicted) < self.policy.decisions_max:
            name = self.tournament.pop()
            if name is None:
                return
            self._step(self.cursors[name])
            self._enter(self.cursors[name])

    def _retry_blocked(self) -> None:
        """Try the blocked allocations again while admissions may have helped them.

        An admission can help when ranks depend on the pods beside them, or when a head that had a reservation has
        started. The loop ends when a round admits nothing. Nothing is evicted in these rounds.
        """
        state, seen, may_evict = self.state, 0, self.may_evict
        self.may_evict = False
        is_watched = state.whatif.usage.pod_index.is_watched
        while len(state.admitted) > seen and (is_watched or self.reservations.has_started(state.admitted[seen:])):
            seen = len(state.admitted)
            self.made += 1
            for cursor in self.cursors.values():
                cursor.reopen()
            self._admit_in_order()
        self.may_evict = may_evict

    def _enter(self, cursor: QueueCursor) -> None:
        found = cursor.next()
        if found is not None:
            head, group = found
            key = head_key(cursor.queue, head, self.snapshot.job_of(head))
            demand = group.demand
            if self.flavors.is_any:
                demand = self.flavors.likely(head, group).group.demand
            if group.is_leaving:
                demand = demand - Resources(self.taken_down[head.uid].used)
            self.tournament.enter(cursor.queue.name, demand.amounts, key)

    def _step(self, cursor: QueueCursor) -> None:
        """Admit the next allocation of a queue, or record why it waits."""
        found = cursor.next()
        if found is None:
            return
        fact, group = found
        if group.is_leaving:
            why = self._try_again(*self._with_windows(fact, group))
            if why is None:
                cursor.admit()
            else:
                cursor.block(why, is_head=not (why.is_never or why.gate in _NO_HEAD))
            return
        if self.flavors.is_any:
            why = self._start_in_a_flavor(cursor.queue, fact, group)
        else:
            bound = self._with_windows(fact, group)
            why = self._try(*bound)
            if why is not None and self._use_room_of_others(*bound, why):
                why = None
        if why is not None and fact.key in self.state.awaiting_extenders and why.gate in _ROOM_HELPS:
            why = explain.waiting_for_veto(why, self.state.awaiting_extenders[fact.key])
        if why is None:
            cursor.admit()
        elif cursor.block(why, is_head=cursor.head is None and self._may_be_head(fact, group, why)):
            self._reserve_quota(cursor, fact, group, why)

    def _with_windows(self, fact: AllocationFact, group: PendingGroup) -> tuple[AllocationFact, PendingGroup]:
        """Return `fact` and `group` with the pool's windows that are closed to `fact`.

        The group's shape then includes these windows, so work of equal shape still fits the same nodes.
        """
        windows = self.state.windows
        if windows is None:
            return fact, group
        bound = windows.with_closed(fact)
        if bound is fact:
            return fact, group
        return bound, msgspec.structs.replace(group, shape=group.shape + windows.key_of(bound))

    def _use_room_of_others(self, fact: AllocationFact, group: PendingGroup, why: Explanation) -> bool:
        """Admit an allocation that waits for `why` by means of room that other work has or is promised.

        Return whether it was admitted: with the room of a nomination that ranks below it, or by evicting or moving
        work.
        """
        if why.is_never:
            return False
        self.reservations.renew()
        if self.nominations.release_for(fact, lambda: self._retry(fact, group)):
            return True
        if self.state.windows is not None:
            # The allocation starts only when its victims have left, so it must also end in time if it starts that late.
            fact = self.state.windows.with_closed(fact, self.policy.nomination_margin_s)
        if self.nominations.take_over(fact, self.reservations.settle):
            return True
        if not self.may_evict or why.gate not in _ROOM_HELPS:
            return False
        made = preempt_for(self.state, fact, self.reservations.settle)
        if made is None:
            return False
        self.state.admitted.append(made)
        # The eviction may leave more room than this allocation uses, and the victims' queues have a smaller share now.
        self.made += 1
        self.tournament.update(self.snapshot.holdings[uid].allocation.queue for uid in made.victims)
        return True

    def _start_in_a_flavor(self, queue: QueueFact, fact: AllocationFact, group: PendingGroup) -> Explanation | None:
        """Admit it in the first flavor that the queue's policy permits; otherwise return why no flavor works."""
        choices = self.flavors.of(group)
        whys: dict[int, Explanation] = {}
        is_keen = queue.when_can_preempt == PREEMPT
        later: list[int] = []
        if queue.when_can_borrow == TRY_NEXT:
            later = [number for number, each in enumerate(choices) if self.flavors.would_borrow(each)]
        tried: set[int] = set()
        order = (*(each for each in range(len(choices)) if each not in later), *later)
        for number in order:
            choice = choices[number]
            if not is_keen and self.flavors.is_known_closed(fact, choice):
                continue
            bound = self._with_windows(choice.of(fact), choice.group)
            why = self._try(*bound)
            if why is None:
                return None
            whys[number] = why
            if is_keen and number not in later:
                tried.add(number)
                if self._use_room_of_others(*bound, why):
                    return None
        for number in order:
            if number not in whys:
                why = self._try(*self._with_windows(choices[number].of(fact), choices[number].group))
                if why is None:
                    return None
                whys[number] = why
        for number, choice in enumerate(choices):
            if number not in tried and self._use_room_of_others(
                *self._with_windows(choice.of(fact), choice.group), whys[number]
            ):
                return None
        if len(choices) == 1 and choices[0].flavor is None:
            return whys[0]
        told = next((number for number in range(len(choices)) if not whys[number].is_never), 0)
        self.flavors.set_explained(group, choices[told].flavor)
        parts = [(choice.flavor or "", whys[number]) for number, choice in enumerate(choices)]
        why = explain.in_flavors(parts, told)
        self.in_flavors[id(why)] = (why, parts, told)
        return why

    def _reserves(self, cursor: QueueCursor) -> bool:
        """Whether the first allocation of a queue gets a reservation if it is blocked."""
        return any(self.reservations.is_entitled(fact) for fact in cursor.upcoming(1))

    def _upcoming(self, cursor: QueueCursor) -> list[AllocationFact]:
        """Return the first allocation of each of the next groups of a queue, in order."""
        if not self.flavors.is_any:
            return cursor.upcoming(FORESEEN_MAX)
        return [self.flavors.likely(*each).of(each[0]) for each in cursor.upcoming_of_groups(FORESEEN_MAX)]

    def _deferred(self, admits: tuple[Admit, ...], evicted: tuple[Evict, ...]) -> frozenset[str]:
        if not evicted and not any(admit.victims for admit in admits):
            return frozenset()
        return deferred(self.snapshot, queue_tree(self.snapshot), admits, evicted)

    def _retry(self, fact: AllocationFact, group: PendingGroup) -> bool:
        """Try `fact` again, after a nomination has released its room. Return whether it was admitted."""
        self.no_place.pop(group.shape, None)
        return self._try(fact, group) is None

    def _may_be_head(self, fact: AllocationFact, group: PendingGroup, why: Explanation) -> bool:
        """Whether an allocation that waits for `why` may be the head of its queue, which reserves its place.

        An allocation that can never start is no head, even when the quota was the first gate that blocked it.
        """
        if why.is_never or why.gate in _NO_HEAD:
            return False
        if fact.uid in self.reserved or not self.reservations.is_entitled(fact):
            return True
        choices = [each.of(fact) for each in self.flavors.of(group)] if self.flavors.is_any else [fact]
        likely = self.flavors.likely(fact, group).of(fact) if self.flavors.is_any else fact
        return self.reservations.make(likely) or any(self.reservations.can_ever_start(each) for each in choices)

    def _reserve_quota(self, cursor: QueueCursor, fact: AllocationFact, group: PendingGroup, why: Explanation) -> None:
        """Reserve the quota of a blocked head; a head that waits behind another reservation reserves none."""
        if fact.uid in self.reserved:
            return
        self.reserved.add(fact.uid)
        demand = self.flavors.likely(fact, group).group.demand if self.flavors.is_any else group.demand
        if cursor.queue.reclaim != "Any" and why.gate is not Gate.BEHIND_RESERVATION:
            self.state.tree.reserve(cursor.queue.name, demand.amounts)

    def _try(self, fact: AllocationFact, group: PendingGroup) -> Explanation | None:
        """Check the quota and the job's slots, then place it. Return None when it was admitted, else the reason."""
        demand, state = group.demand, self.state
        why = state.may_use(fact, demand)
        if why is not None:
            return why if why.is_never else self._full_pool(fact, demand) or why
        known = self.no_place.get(group.shape)
        if known is not None and (known.made == self.made or not self._has_room(fact)):
            return known.why
        cache = self._cache()
        why = cache.no_place.get(group.shape) if cache is not None else None
        if why is None:
            if self.watch is not None:
                self.watch(fact, state.whatif)
            placed = gang.place(state.whatif, fact)
            if not isinstance(placed, gang.PlacementFailure):
                return self._settle(placed, demand)
            why = explain.fit_gate(state.whatif, fact, placed)
            if cache is not None:
                cache.no_place[group.shape] = why
        self.no_place[group.shape] = _NoPlace(why, fact, self.made)
        return why

    def _try_again(self, fact: AllocationFact, group: PendingGroup) -> Explanation | None:
        """Find places for the next attempt of an evicted allocation, as if all evicted work had left.

        Return None when it has places, which are reserved until the old attempt has left; otherwise return the reason.
        """
        state = self.state
        self.reservations.renew()
        leaving = [holding for uid, holding in self.taken_down.items() if uid not in self.again]
        for holding in leaving:
            state.remove(holding)
        why = state.may_use(fact, group.demand)
        if why is None:
            placed = gang.place(state.whatif, fact)
            if isinstance(placed, gang.PlacementFailure):
                why = explain.fit_gate(state.whatif, fact, placed)
            else:
                why = self._settle(placed, group.demand)
        if why is None:
            self.again.add(fact.uid)
            self.made += 1
        for holding in leaving:
            if holding.allocation.uid not in self.again:
                state.put_back(holding)
        return why

    def _full_pool(self, fact: AllocationFact, demand: Resources) -> Explanation | None:
        """Return the placement failure when the root's borrowing bound blocks `fact` only because the pool is full.

        None when another bound blocks it, when the pool is not full, or when `fact` would have a place.
        """
        state = self.state
        short = state.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        is_of_root = short is not None and (short.queue, short.kind) == (ROOT, "borrowing")
        if not is_of_root or not state.tree.is_full(demand.amounts):
            return None
        placed = gang.place(state.whatif, fact)
        if isinstance(placed, gang.PlacementFailure):
            return explain.fit_gate(state.whatif, fact, placed)
        gang.withdraw(state.whatif, placed.parts)
        return None

    def _has_room(self, fact: AllocationFact) -> bool:
        """Whether each role of the smallest gang has at least one feasible node."""
        rows = [
            self.state.whatif.row(role)
            for role, want in zip(fact.roles, rank_request.targets(fact), strict=True)
            if want
        ]
        for row in rows:
            row.refresh()
        return all(bool(row.fits.any()) for row in rows)

    def _settle(self, placed: gang.PlacedGang, demand: Resources) -> Explanation | None:
        """Admit a placed gang if its actual demand passes the quota and the reservations. Else return the reason."""
        fact, state = placed.allocation, self.state
        actual = demand if placed.is_as_wanted else placed.demand()
        why = None if actual is demand else state.may_use(fact, actual)
        if why is not None:
            state.withdraw(placed)
            return explain.of_this_mix(why)
        settled = self.reservations.settle(placed, actual)
        if isinstance(settled, Explanation):
            return settled
        state.count(fact, actual)
        state.admitted.append(Admitted(placed=settled, demand=actual))
        return None

    def _cache(self) -> PlanCache | None:
        """Return the findings of earlier plans on this state; None when they do not apply.

        They do not apply once this plan has changed the state, or when there are extenders or nominations.
        """
        state = self.state
        if state.admitted or state.evicted or state.whatif.plan_extenders is not None or self.snapshot.nominations:
            return None
        return self.snapshot.cache.for_policy(self.policy)

    def _grow(self) -> None:
        """Add surplus ranks, and admit allocations that needed one of them as a neighbour, until no more start."""
        started = -1
        while len(self.state.admitted) > started:
            started = len(self.state.admitted)
            self._add_surplus([admitted.placed for admitted in self.state.admitted])
            if self.state.whatif.usage.pod_index.is_watched:
                self._retry_blocked()

    def _grow_running(self, below: list[Holding]) -> tuple[Grow, ...]:
        """Return decisions that add ranks to running gangs, after every allocation that could start has started.

        No gang grows while an allocation waits for room, or while the plan evicts or a nomination exists: that
        allocation may need the room.
        """
        state = self.state
        if not below or state.evicted or self.snapshot.nominations or self._is_work_waiting_for_room():
            return ()
        gangs = [
            each
            for holding in below
            if (each := running_gang(state.whatif, holding, state.running_with_windows(holding.allocation))) is not None
        ]
        self._add_surplus([each.placed for each in gangs])
        return tuple(grow for each in gangs if (grow := each.decision(state.whatif)) is not None)

    def _is_work_waiting_for_room(self) -> bool:
        """Whether an allocation that can ever start is blocked by more than its own limits, or was not tried."""
        if len(self.state.admitted) >= self.policy.decisions_max:
            return True
        group_cursors = [
            group_cursor
            for cursor in self.cursors.values()
            for group_cursor in cursor.group_cursors
            if not group_cursor.is_done
        ]
        return any(
            group_cursor.why is None or not (group_cursor.why.is_never or group_cursor.why.gate in _NO_HEAD)
            for group_cursor in group_cursors
        )

    def _add_surplus(self, gangs: list[gang.PlacedGang]) -> None:
        """Add ranks beyond the minimum, after all minima were tried.

        The queue whose share would be least after one more rank has the next turn, as with heads of queues. Within a
        queue the order is that of `gangs`.
        """
        tournament = FairShareTournament(self.state.tree)
        open_gangs: dict[str, deque[gang.PlacedGang]] = {}
        for placed in gangs:
            open_gangs.setdefault(placed.allocation.queue, deque()).append(placed)
        order = {name: number for number, name in enumerate(open_gangs)}
        for name in open_gangs:
            self._enter_surplus(tournament, name, open_gangs[name], order[name])
        while (name := tournament.pop()) is not None:
            if not self._extend(open_gangs[name][0]):
                open_gangs[name].popleft()
            self._enter_surplus(tournament, name, open_gangs[name], order[name])

    def _enter_surplus(
        self, tournament: FairShareTournament, name: str, gangs: deque[gang.PlacedGang], number: int
    ) -> None:
        """Enter the next rank that queue `name` may add to one of its `gangs` into the tournament."""
        while gangs:
            fact = gangs[0].allocation
            chosen = rank_request.next_role(fact.roles, [len(part.nodes) for part in gangs[0].parts])
            if chosen is not None:
                tournament.enter(name, quota_of(fact.roles[chosen]).amounts, (number, 0, 0, "", name))
                return
            gangs.popleft()

    def _extend(self, placed: gang.PlacedGang) -> bool:
        """Add one rank to a gang, of the role with the smallest part of its range that may have one more."""
        fact = placed.allocation
        full: frozenset[int] = frozenset()
        while True:
            counts = [len(part.nodes) for part in placed.parts]
            chosen = rank_request.next_role(fact.roles, counts, full)
            if chosen is None:
                return False
            demand = quota_of(fact.roles[chosen])
            part = placed.parts[chosen]
            if self.state.may_use(fact, demand) is None and gang.extend(self.state.whatif, part):
                if self.reservations.may_extend(placed, part):
                    self.state.count(fact, demand)
                    return True
                gang.shrink(self.state.whatif, part)
            full |= {chosen}

    def _refresh_explanations(self) -> None:
        """Explain allocations that found no place during the tick again, by the state at the end of the tick."""
        if not self.state.admitted or not self.policy.changes_max:
            return
        whatif = self.state.whatif
        now: dict[int, Explanation] = {}
        for known in list(self.no_place.values())[:RETOLD_MAX]:
            placed = gang.place(whatif, known.fact)
            if isinstance(placed, gang.PlacementFailure):
                now[id(known.why)] = explain.fit_gate(whatif, known.fact, placed)
            else:
                gang.withdraw(whatif, placed.parts)
        for cursor in self.cursors.values():
            for group_cursor in cursor.group_cursors:
                in_flavors = self._now_in_flavors(group_cursor.why, now) if self.in_flavors else None
                group_cursor.why = in_flavors or now.get(id(group_cursor.why), group_cursor.why)

    def _now_in_flavors(self, why: Explanation | None, now: dict[int, Explanation]) -> Explanation | None:
        """Return the explanation of work that was tried in several flavors, with the reasons of each flavor `now`.

        None when `why` is no such explanation.
        """
        known = self.in_flavors.get(id(why))
        if known is None or known[0] is not why:
            return None
        _, parts, told = known
        return explain.in_flavors([(flavor, now.get(id(part), part)) for flavor, part in parts], told)

    def _explain_no_eviction(self) -> None:
        """Add the reason why no work was evicted, where eviction was possible."""
        for cursor in self.cursors.values() if self.state.notes else ():
            for group_cursor in cursor.group_cursors:
                note = "" if group_cursor.is_done else self.state.notes.get(group_cursor.current.key, "")
                if group_cursor.why is not None and note:
                    group_cursor.why = explain.with_note(group_cursor.why, note)

    def _explain_held_nodes(self) -> None:
        """Add, for work confined to some nodes, how much of them is used, and by which queues above their share."""
        left = HELD_MAX
        for cursor in self.cursors.values():
            for group_cursor in cursor.group_cursors:
                if left <= 0 or not self.policy.changes_max:
                    return
                if group_cursor.why is None or group_cursor.why.gate is not Gate.NO_FIT or group_cursor.why.is_never:
                    continue
                sample = group_cursor.group.sample
                if self.flavors.is_any:
                    sample = self.flavors.explained(sample, group_cursor.group)
                for role in sample.roles:
                    if role.node_selector or role.affinity:
                        left -= 1
                        note = held_nodes(self.state, sample)
                        group_cursor.why = explain.with_note(group_cursor.why, note) if note else group_cursor.why
                        break

    def _admit(self, admitted: Admitted) -> Admit:
        placed, names = admitted.placed, self.state.whatif.table.names
        fact = placed.allocation
        return Admit(
            allocation=fact.key,
            uid=fact.uid,
            attempt=fact.attempt,
            placements={rank: names[node] for rank, node in placed.placements().items()},
            devices=placed.devices(self.state.whatif),
            spec_hash=fact.spec_hash,
            victims=admitted.victims,
        )
