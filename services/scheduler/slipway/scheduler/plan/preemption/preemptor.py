"""Which running work is evicted for a blocked allocation, if any.

The possibilities are tried in this order: work that is leaving already (then the allocation waits), work that its queue
may preempt or reclaim, and work that may be moved to other nodes. Each attempt changes the tick's own state, and is
undone when it does not lead to a place. The placement itself (`gang.place`) and the quota checks decide in the end.
Sets of victims are minimal: none of them can be put back.

Owns the choice between these possibilities. Other modules decide how nodes are compared (`proposal.py`), the order of
victims (`victims.py`), and what one queue may take from another (`reclaim_rule.py`).

The loop guard prevents loops and chains of evictions. Its rules depend on history only, and apply whatever the policy
of a queue is. It protects work that was preempted too often, work that displaced the preemptor, and work that the same
preemptor has displaced repeatedly. It also stops a queue or an allocation that has just made room from reclaiming.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.reasons import Reason
from slipway.model.resources import Resources
from slipway.model.times import format_duration, format_time
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Accept, Admitted, TickState
from slipway.scheduler.plan.preemption.consolidation import move
from slipway.scheduler.plan.preemption.eviction_budget import EvictionBudget, limits_of
from slipway.scheduler.plan.preemption.extender_veto import held_to
from slipway.scheduler.plan.preemption.proposal import Proposals
from slipway.scheduler.plan.preemption.reclaim_rule import (
    ANY,
    CONFINED,
    FIRST,
    NEVER,
    NEWER,
    SECOND,
    ConfinedClaim,
    ReclaimClaim,
    confined_claim,
)
from slipway.scheduler.plan.preemption.trial import EvictionTrial, PreemptionResult, settle
from slipway.scheduler.plan.preemption.victims import EvictionUnit, in_eviction_order, lowest_of, victims_of
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.pending import priority_of
from slipway.scheduler.plan.state.plan_types import Evict
from slipway.scheduler.plan.state.snapshot import Holding

MANY = 3
"""The preemptions of one victim within `MANY_WITHIN_S` after which it is not preempted any more."""
MANY_WITHIN_S = 3600.0
TURN_WITHIN_S = 600.0
"""For this time a displaced allocation may not displace the allocation that displaced it (seconds)."""
REPEATS = 2
"""The number of times that the same preemptor may displace the same victim without a wait.

After that the preemptor must wait `TURN_WITHIN_S`, and twice as long after each further time. A preemptor that
displaces a victim again has lost its own place in between: without the wait, three queues could take from each other in
a circle, hour after hour. Because the waits double, running work can finish.
"""
SETTLE_S = 1.0
"""For this time a queue that has made room for another reclaims nothing, and neither does the evicted work (seconds).

Without it, evictions would pass from queue to queue in one instant.
"""


def is_preempted_too_often(fact: AllocationFact, now: float) -> bool:
    """Whether the allocation was preempted as often as is permitted within `MANY_WITHIN_S`."""
    return sum(1 for at, by in fact.evictions if by and at > now - MANY_WITHIN_S) >= MANY


def displacers(fact: AllocationFact, now: float) -> frozenset[str]:
    """Return the keys of allocations that displaced `fact` recently; `fact` must not displace them."""
    return frozenset(by for at, by in fact.evictions if by and at > now - TURN_WITHIN_S)


def repeated(fact: AllocationFact, now: float) -> frozenset[str]:
    """Return the keys of preemptors that displaced `fact` so often that they must not displace it now."""
    return frozenset(by for by, until in _repeats(fact) if until > now)


def made_room_for(fact: AllocationFact, now: float) -> list[tuple[float, str]]:
    """Return (time, key of the preemptor) of the preemptions of `fact` within `SETTLE_S`."""
    return [(at, by) for at, by in fact.evictions if by and at > now - SETTLE_S]


def restriction_ends(fact: AllocationFact) -> list[float]:
    """Return the times at which a restriction from this history may end."""
    spans = {at + span for at, by in fact.evictions if by for span in (TURN_WITHIN_S, MANY_WITHIN_S)}
    return sorted(spans | {until for _, until in _repeats(fact)})


def _repeats(fact: AllocationFact) -> list[tuple[str, float]]:
    """Return (key, end of its wait) of the preemptors that must wait before they displace `fact` again."""
    if len(fact.evictions) < REPEATS:
        return []
    counts = Counter(by for _, by in fact.evictions if by)
    last = {by: at for at, by in fact.evictions}
    return [(by, last[by] + TURN_WITHIN_S * 2 ** (n - REPEATS)) for by, n in counts.items() if n >= REPEATS]


KEPT_MAX = 64
SEARCHES_MAX = 128
"""The number of failed searches after which the tick makes no more; later work waits for the next tick."""


def preempt_for(state: TickState, fact: AllocationFact, accept: Accept | None = None) -> Admitted | None:
    """Evict the least work that lets `fact` have its places, and take them; None, with nothing changed, if none helps.

    Afterwards the victims' evictions are in `state.evicted`, and moved work is in `state.admitted`. If nothing was
    evicted although eviction was possible, `state.notes` has the reason.
    """
    queue = state.tree.queue(fact.queue)
    if queue is None or not _is_possible(state, fact, queue):
        return None
    if not isinstance(state.preemptor, Preemptor):
        state.preemptor = Preemptor(state)
    return state.preemptor.preempt_for(fact, queue, accept)


def _is_possible(state: TickState, fact: AllocationFact, queue: QueueFact) -> bool:
    """Whether `fact` might evict or move any work at all: a cheap check, and mostly false."""
    snapshot = state.snapshot
    if not any(use.preemptible for use in snapshot.use.values()):
        return False
    priority = priority_of(fact, snapshot.job_of(fact))
    lowest = lowest_of(snapshot)
    own = lowest.get(queue.name, priority + 1)
    if own < priority and queue.within_queue != NEVER:
        return True
    if own <= priority and (queue.within_queue == NEWER or _has_room(state, rank_request.smallest_demand(fact))):
        return True
    if queue.reclaim == NEVER:
        return False
    return any(queue.reclaim == ANY or low < priority for name, low in lowest.items() if name != queue.name)


class Preemptor:
    """The preemption state of one tick."""

    def __init__(self, state: TickState) -> None:
        self._state = state
        self.victims = victims_of(state.snapshot)
        self._is_free: Bools = np.ones(len(self.victims.units), dtype=np.bool_)
        """whether each unit may be evicted: it is not evicted yet, and the loop guard and `minRuntime` permit it"""
        units = self.victims.units
        self._worn = [
            index for index in self.victims.evicted_before if is_preempted_too_often(units[index].fact, state.now)
        ]
        self._is_free[self._worn] = False
        self._repeated: dict[str, list[int]] = {}
        """{key of a preemptor: the units that it has displaced too often to do so again now}"""
        for index in self.victims.evicted_before:
            for key in repeated(units[index].fact, state.now):
                self._repeated.setdefault(key, []).append(index)
        self._spared_until = self._protected_until()
        self._is_free[self._spared_until > state.now] = False
        self._of_uid: dict[str, list[int]] = {}
        for unit in self.victims.units:
            self._of_uid.setdefault(unit.fact.uid, []).append(unit.index)
        self._forget(state.evicted)
        self._leaving = [holding for holding in state.snapshot.holdings.values() if holding.leaving]
        self._leaving.sort(key=lambda holding: (holding.allocation.key, holding.allocation.uid))
        self._proposals = Proposals(state, self.victims)
        self._lower: dict[tuple[str, int, float], Bools] = {}
        """{(queue, priority, created if the queue may preempt newer work): the units that it may preempt}"""
        self._searches = 0
        self._refused = ""
        """the refusal of an extender for the current allocation"""
        self._gave: dict[str, float] | None = None
        """{queue: when its work last made room for another queue}, within `SETTLE_S`; None: not computed yet"""
        self._budget = EvictionBudget(state.snapshot, state.now) if limits_of(state.snapshot) else None
        """None when there are no eviction limits"""
        self._shut: Bools = np.zeros(len(self.victims.units), dtype=np.bool_)
        """the units that an eviction limit protects now"""
        self._over = ""
        """the eviction limit that did not permit enough evictions for the current allocation, as a sentence"""
        self._protect_limited()
        self._shrunk: list[int] = []
        """units of gangs that gave up ranks in this tick; their other ranks are left to the next tick"""

    def _protected_until(self) -> npt.NDArray[np.float64]:
        """Return until when each unit is protected by its queue's `minRuntime`; minus infinity when it is not.

        A queue above its hard limit protects nothing.
        """
        tree, victims = self._state.tree, self.victims
        spans = np.full(len(victims.queues), -np.inf)
        for code, name in enumerate(victims.queues):
            queue = tree.queue(name)
            if queue is not None and queue.min_runtime and not tree.is_above_limit(name):
                spans[code] = queue.min_runtime
        # Work that has not begun to run has an infinite start, so it is protected until it runs.
        return np.where(spans[victims.queue] > 0.0, victims.started + np.maximum(spans, 0.0)[victims.queue], -np.inf)

    def preempt_for(self, fact: AllocationFact, its_queue: QueueFact, accept: Accept | None) -> Admitted | None:
        """Return the allocation with its places; None when there are none, with a note in most cases."""
        if self._searches >= SEARCHES_MAX:
            return None
        state = self._state
        self._refused = self._over = ""
        queue, settles = self._without_recent_reclaim(fact, its_queue)
        demand = rank_request.smallest_demand(fact)
        if self._shrunk and self._wants_shrunk_gang(fact, queue):
            return None
        short = state.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
        if short is not None and short.kind == "nominal":
            return None  # Preemptible work does not use this bound, so evicting it would not help.
        for holding in self._leaving:
            state.remove(holding, holding.leaving)
        try:
            waits_for = self._sufficient_leaving(fact, demand)
            settled = None if waits_for else self._evict(fact, queue, demand, accept)
            if settled is None and not waits_for and short is None and fact.key not in state.awaiting_extenders:
                settled = self._move(fact, accept)
        finally:
            for holding in self._leaving:
                state.put_back(holding, holding.leaving)
        if settled is None:
            self._searches += 1
            if fact.key not in state.awaiting_extenders:
                state.notes[fact.key] = self._note(fact, queue, waits_for, settles)
            return None
        self._forget(settled.victims)
        for uid, (holding, ranks) in settled.victims.items():
            if self._gave is not None and holding.allocation.queue != fact.queue:
                self._gave[holding.allocation.queue] = state.now
            self._shrunk += self._of_uid[uid] if ranks else []
        return settled.admitted

    def _without_recent_reclaim(self, fact: AllocationFact, queue: QueueFact) -> tuple[QueueFact, float]:
        """Return (the queue, without reclaim if it has just made room; the end of that restriction, or 0)."""
        if queue.reclaim == NEVER:
            return queue, 0.0
        if self._gave is None:
            self._gave = self._recent_givers()
        times = [at for at, _ in made_room_for(fact, self._state.now)]
        if queue.name in self._gave:
            times.append(self._gave[queue.name])
        if not times:
            return queue, 0.0
        return msgspec.structs.replace(queue, reclaim=NEVER), max(times) + SETTLE_S

    def _recent_givers(self) -> dict[str, float]:
        snapshot, found = self._state.snapshot, dict[str, float]()
        victims = [*snapshot.backlog.evicted(), *(holding.allocation for holding in snapshot.holdings.values())]
        made = [(fact, at, by) for fact in victims for at, by in made_room_for(fact, self._state.now)]
        if not made:
            return found
        queues = {holding.allocation.key: holding.allocation.queue for holding in snapshot.holdings.values()}
        waiting = [each.allocation for each in snapshot.nominations if each.allocation is not None]
        queues |= {each.key: each.queue for each in waiting}
        for fact, at, by in made:
            if queues.get(by, fact.queue) != fact.queue:
                found[fact.queue] = max(found.get(fact.queue, at), at)
        return found

    def _note(self, fact: AllocationFact, queue: QueueFact, leaving: list[Holding], settles: float) -> str:
        """Return why no work is evicted for the allocation now, as text for its explanation."""
        if leaving:
            return _waits(leaving)
        if settles:
            self._look_again_at([settles])
            return "work of its queue has just been evicted, so it evicts nothing from other queues for a moment"
        return self._refused or self._why_not(fact, queue)

    def _sufficient_leaving(self, fact: AllocationFact, demand: Resources) -> list[Holding]:
        """Return the leaving work if its room is enough, so that nothing else must be evicted; else an empty list."""
        state = self._state
        if not self._leaving or state.may_use(fact, demand) is not None:
            return []
        placed = gang.place(state.whatif, fact)
        if isinstance(placed, gang.PlacementFailure):
            return []
        state.withdraw(placed)
        return self._leaving

    def _evict(
        self, fact: AllocationFact, queue: QueueFact, demand: Resources, accept: Accept | None
    ) -> PreemptionResult | None:
        """Evict work that the queue may preempt or reclaim."""
        if queue.within_queue == NEVER and queue.reclaim == NEVER:
            return None
        claim = ReclaimClaim(self._state.tree, fact.queue, demand.amounts)
        before: Bools | None = None
        for rule in (FIRST, SECOND) if queue.reclaim != NEVER else (FIRST,):
            eligible = self._eligible(fact, queue, claim, rule)
            if not eligible.any() or (before is not None and bool((before == eligible).all())):
                continue
            before = eligible
            trial = EvictionTrial(self._state, claim, fact.queue, rule, budget=self._budget)
            settled = self._try(fact, trial, eligible, demand, accept)
            if settled is not None:
                return settled
            if self._must_wait_for_extenders(fact, trial):
                return None
        return self._evict_confined(fact, queue, demand, accept) if queue.reclaim != NEVER else None

    def _evict_confined(
        self, fact: AllocationFact, queue: QueueFact, demand: Resources, accept: Accept | None
    ) -> PreemptionResult | None:
        """Evict work by the shares of the nodes that `fact` is confined to; surplus ranks of gangs are tried first."""
        claim = confined_claim(self._state, fact)
        if claim is None:
            return None
        eligible = self._evictable_confined(fact, queue, claim) & self._allowed(fact)
        victims = self.victims
        spare = eligible & (victims.whole != np.arange(len(victims.units)))
        tries = [spare, eligible] if bool(spare.any()) and not bool((spare == eligible).all()) else [eligible]
        for units in tries if bool(eligible.any()) else ():
            trial = EvictionTrial(
                self._state, claim, fact.queue, CONFINED, queue_shares=claim.queue_shares, budget=self._budget
            )
            settled = self._try(fact, trial, units, demand, accept)
            if settled is not None:
                return settled
            if self._must_wait_for_extenders(fact, trial):
                return None
        return None

    def _try(
        self, fact: AllocationFact, trial: EvictionTrial, eligible: Bools, demand: Resources, accept: Accept | None
    ) -> PreemptionResult | None:
        """Admit `fact` by removing some of the `eligible` units; None, with nothing removed, if that fails."""
        for is_fit in self._proposals.of(fact, trial, eligible):
            settled = settle(
                self._state,
                trial,
                fact,
                held_to(self._state, trial, accept),
                demand=demand,
                is_fit=is_fit,
                units=partial(self._in_order, trial, eligible),
            )
            if settled is not None:
                self._record(fact, settled)
                return settled
            trial.undo()
        return None

    def _must_wait_for_extenders(self, fact: AllocationFact, trial: EvictionTrial) -> bool:
        """Record the extenders' answers to a failed trial; return whether an answer must be awaited first."""
        self._refused, self._over = trial.refused or self._refused, trial.over or self._over
        if trial.waits:
            self._state.awaiting_extenders[fact.key] = trial.waits
        return bool(trial.waits)

    def _move(self, fact: AllocationFact, accept: Accept | None) -> PreemptionResult | None:
        """Move work of the same queue, with no higher priority, to other places."""
        state = self._state
        eligible = self._allowed(fact) & self._movable(fact)
        if not eligible.any() or not _has_room(state, rank_request.smallest_demand(fact)):
            return None
        claim = ReclaimClaim(state.tree, fact.queue, {})
        trial = EvictionTrial(state, claim, fact.queue, FIRST, budget=self._budget)
        proposals = self._proposals.of(fact, trial, eligible, is_moving=True)
        settled = move(state, trial, fact, held_to(state, trial, accept), proposals)
        if settled is not None:
            self._record(fact, settled)
        else:
            self._must_wait_for_extenders(fact, trial)
        return settled

    def _movable(self, fact: AllocationFact) -> Bools:
        """Return the units of its own queue with no higher priority."""
        victims, priority = self.victims, priority_of(fact, self._state.snapshot.job_of(fact))
        return (victims.queue == self._code(fact.queue)) & (victims.priority <= priority)

    def _eligible(self, fact: AllocationFact, queue: QueueFact, claim: ReclaimClaim, rule: int) -> Bools:
        """Return the units that may be evicted for `fact` in the current state."""
        return self._evictable(fact, queue, claim, rule) & self._allowed(fact)

    def _evictable(self, fact: AllocationFact, queue: QueueFact, claim: ReclaimClaim, rule: int) -> Bools:
        """Return the units that its queue may preempt or reclaim for `fact`."""
        victims = self.victims
        priority = priority_of(fact, self._state.snapshot.job_of(fact))
        allowed = self._own_lower(fact, queue, priority)
        if queue.reclaim == NEVER:
            return allowed
        others = (claim.judge_all(victims.kinds, victims.kind_count) >= rule)[victims.kind]
        return allowed | (others if queue.reclaim == ANY else others & (victims.priority < priority))

    def _evictable_confined(self, fact: AllocationFact, queue: QueueFact, claim: ConfinedClaim) -> Bools:
        """Return the units that its queue may preempt, or reclaim by the shares of the confining nodes, for `fact`."""
        victims = self.victims
        others = claim.eligible(victims)
        if queue.reclaim != ANY:
            others &= victims.priority < priority_of(fact, self._state.snapshot.job_of(fact))
        pool = ReclaimClaim(self._state.tree, fact.queue, rank_request.smallest_demand(fact).amounts)
        return self._evictable(fact, queue, pool, FIRST) | others

    def _evictable_by_any_rule(self, fact: AllocationFact, queue: QueueFact) -> Bools:
        """Return the units that its queue may evict for `fact`, by any rule."""
        pool = ReclaimClaim(self._state.tree, fact.queue, rank_request.smallest_demand(fact).amounts)
        willing = self._evictable(fact, queue, pool, SECOND)
        claim = confined_claim(self._state, fact) if queue.reclaim != NEVER else None
        return willing if claim is None else willing | self._evictable_confined(fact, queue, claim)

    def _own_lower(self, fact: AllocationFact, queue: QueueFact, priority: int) -> Bools:
        """Return the units of its own queue that it may preempt."""
        victims = self.victims
        key = (queue.name, priority, fact.created if queue.within_queue == NEWER else 0.0)
        known = self._lower.get(key)
        if known is None:
            if len(self._lower) > KEPT_MAX:
                self._lower.clear()
            may_go = (victims.queue == self._code(fact.queue)) & (queue.within_queue != NEVER)
            lower = victims.priority < priority
            if queue.within_queue == NEWER:
                lower |= (victims.priority == priority) & (victims.created > fact.created)
            known = self._lower[key] = may_go & lower
        return known

    def _allowed(self, fact: AllocationFact) -> Bools:
        """Return the free units that the loop guard and the eviction limits permit for `fact`."""
        spared = displacers(fact, self._state.now) if fact.evictions else frozenset[str]()
        is_free = self._is_free if self._budget is None else self._is_free & ~self._shut
        if not spared and fact.key not in self._repeated:
            return is_free
        allowed = is_free & np.array([unit.fact.key not in spared for unit in self.victims.units], dtype=np.bool_)
        allowed[self._repeated.get(fact.key, [])] = False
        return allowed

    def _in_order(self, trial: EvictionTrial, eligible: Bools) -> Iterator[EvictionUnit]:
        """Return the units that may be evicted, in the order of eviction: those of other queues before its own."""
        units = [self.victims.units[index] for index in np.flatnonzero(eligible).tolist()]
        return in_eviction_order(units, trial.queue_shares, trial.queue)

    def _code(self, queue: str) -> int:
        return self.victims.queues.index(queue) if queue in self.victims.queues else -1

    def _record(self, fact: AllocationFact, settled: PreemptionResult) -> None:
        for uid, (holding, ranks) in sorted(settled.victims.items()):
            victim = holding.allocation
            self._state.evicted[uid] = Evict(
                allocation=victim.key,
                uid=uid,
                attempt=victim.attempt,
                reason=Reason.PREEMPTED,
                by=fact.key,
                ranks=ranks,
            )
            if self._budget is not None:
                self._budget.take(victim.queue)
        self._protect_limited()

    def _protect_limited(self) -> None:
        """Protect the units whose eviction limit permits no more evictions now."""
        if self._budget is not None:
            shut = [self._budget.empty_scope(name) is not None for name in self.victims.queues]
            self._shut = np.array(shut, dtype=np.bool_)[self.victims.queue] if shut else self._shut

    def _forget(self, uids: Iterable[str]) -> None:
        """Mark the units of these allocations as not available to other work."""
        for uid in uids:
            self._is_free[self._of_uid.get(uid, [])] = False

    def _wants_shrunk_gang(self, fact: AllocationFact, queue: QueueFact) -> bool:
        """Whether it might evict from a gang that was shrunk in this tick; then it waits for the next tick."""
        return bool(self._evictable_by_any_rule(fact, queue)[self._shrunk].any())

    def _protected_by_history(self, fact: AllocationFact, queue: QueueFact) -> list[AllocationFact]:
        """Return the allocations whose history protects units that its queue could otherwise evict for `fact`."""
        spared = displacers(fact, self._state.now)
        guarded = [*self._worn, *self._repeated.get(fact.key, [])]
        if not spared and not guarded:
            return []
        willing = self._evictable_by_any_rule(fact, queue)
        held = [self.victims.units[index].fact for index in guarded if willing[index]]
        is_spared = any(willing[unit.index] and unit.fact.key in spared for unit in self.victims.units)
        return [*held, fact] if is_spared else held

    def _look_again_at(self, times: Iterable[float]) -> None:
        """Plan again at the earliest of these times, because time alone may change the result."""
        state = self._state
        coming = [at for at in (state.look_again, *times) if 0.0 < at < math.inf]
        state.look_again = min(coming, default=0.0)

    def _why_not(self, fact: AllocationFact, queue: QueueFact) -> str:
        young = self._spared_until > self._state.now
        if young.any():
            # Work that may be moved later gives no reason for the explanation, but a time to plan again.
            self._look_again_at(self._spared_until[young & self._movable(fact)].tolist())
        if queue.within_queue == NEVER and queue.reclaim == NEVER:
            return ""
        if young.any() and (spared := np.flatnonzero(young & self._evictable_by_any_rule(fact, queue)).tolist()):
            self._look_again_at(self._spared_until[spared].tolist())
            first = min(spared, key=lambda index: (float(self._spared_until[index]), index))
            return self._min_runtime_text(self.victims.units[first].fact, float(self._spared_until[first]))
        if limited := self._eviction_limit_text(fact, queue):
            return limited
        held = self._protected_by_history(fact, queue)
        if not held:
            return "nothing that may be evicted for it would make room"
        self._look_again_at([at for each in held for at in restriction_ends(each) if at > self._state.now])
        return "the work that it could evict was evicted too often recently, or has just evicted it"

    def _eviction_limit_text(self, fact: AllocationFact, queue: QueueFact) -> str:
        """Return the sentence about the eviction limit that protects what its queue could evict; "" when none does."""
        budget = self._budget
        if budget is None:
            return ""
        codes: list[int] = np.unique(self.victims.queue[self._evictable_by_any_rule(fact, queue)]).tolist()
        names: list[str] = [self.victims.queues[code] for code in codes]
        self._look_again_at(budget.next_at(scope) for name in names for scope in budget.scopes_of(name))
        shut = {scope for name in names if (scope := budget.empty_scope(name)) is not None}
        if not shut:
            return self._over
        return budget.used_up(min(shut, key=lambda scope: (budget.next_at(scope), scope)))

    def _min_runtime_text(self, victim: AllocationFact, until: float) -> str:
        """Return the sentence that `victim` is protected until then (infinite: it has not begun to run)."""
        queue = self._state.tree.queue(victim.queue)
        span = format_duration((queue.min_runtime if queue is not None else None) or 0.0)
        if until == math.inf:
            return f"cannot evict {victim.key} before it has run for {span} (minRuntime of queue {victim.queue})"
        at = format_time(until, "seconds")
        return f"cannot evict {victim.key} before {at} (minRuntime {span} of queue {victim.queue})"


def _has_room(state: TickState, demand: Resources) -> bool:
    """Whether the pool has `demand` free in total; if not, moving work cannot help."""
    usage, table = state.whatif.usage, state.whatif.table
    for name, amount in demand.amounts.items():
        row = table.row.get(name)
        if row is not None and int(np.maximum(usage.free(row, slice(None)), 0).sum()) < amount:
            return False
    return True


def _waits(leaving: list[Holding]) -> str:
    names = ", ".join(holding.allocation.key for holding in leaving[:3])
    return f"it waits for work that is ending: {names}"
