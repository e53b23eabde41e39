"""The trial: the units that are removed from the state for one preemptor, and how they are put back.

Invariant: `undo` leaves the state as it was found. A gang is removed whole, or down to its minimum and never below.

A proposal becomes an admission in steps: check quota, place the preemptor, and put back victims that are not needed.

Invariant: either the preemptor is placed, with no victim that could have stayed, or only the trial has changed, which
its owner then undoes.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from slipway.model.facts import AllocationFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.placement import gang
from slipway.scheduler.plan.placement.tick_state import Accept, Admitted, Ranks, TickState
from slipway.scheduler.plan.preemption.eviction_budget import EvictionBudget
from slipway.scheduler.plan.preemption.reclaim_rule import NOT, Claim
from slipway.scheduler.plan.preemption.victims import EvictionUnit, Standing, role_index, share_of, spare_of
from slipway.scheduler.plan.queueing.node_shares import QueueShares
from slipway.scheduler.plan.queueing.queue_tree import counted
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.plan_types import Explanation
from slipway.scheduler.plan.state.snapshot import Holding


class TrialStep(msgspec.Struct, frozen=True):
    """One removed unit, and the ranks that were removed with it."""

    unit: EvictionUnit
    ranks: Ranks


class EvictionTrial:
    """The units that are removed from the state for one preemptor."""

    def __init__(
        self,
        state: TickState,
        claim: Claim,
        queue: str,
        rule: int,
        *,
        queue_shares: QueueShares | None = None,
        budget: EvictionBudget | None = None,
    ) -> None:
        """Work of other queues than `queue` is removed as `claim` permits, by `rule` or a stricter one.

        Of those queues, the one that is furthest above its share in `queue_shares` gives first (None: the shares of the
        pool). All removals stay within `budget` (None: no eviction limits).
        """
        self._state = state
        self._claim = claim
        self.queue = queue
        self.rule = rule
        self.queue_shares: QueueShares = queue_shares or state.tree
        self.steps: list[TrialStep] = []
        self.within: Bools | None = None
        """the nodes that the preemptor may use after these removals; None for all"""
        self.waits = ""
        """the extender's answer that is awaited before any eviction"""
        self._budget = budget
        self.over = ""
        """the sentence about the eviction limit that refused a removal"""
        self.refused = ""
        """the extender that agrees to no eviction, as a sentence"""
        self._off: set[int] = set()
        """indices of the removed units"""

    def is_removed(self, unit: EvictionUnit) -> bool:
        """Whether the unit, or its whole allocation, is removed."""
        return unit.index in self._off or unit.whole in self._off

    def remove(self, unit: EvictionUnit) -> bool:
        """Remove a unit if it may be evicted; return False when it may not."""
        if self.is_removed(unit):
            return True
        if not unit.is_whole and not self._can_spare(unit):
            return False
        if not self._is_allowed(unit):
            return False
        if self._budget is not None:
            over = self._budget.exceeded((step.unit.fact for step in self.steps), unit.fact)
            if over is not None:
                self.over = self._budget.too_many(over)
                return False
        left = self._state.left_of(unit.holding)
        staying = [rank for rank in left if rank not in unit.holding.leaving]
        ranks = tuple(staying) if unit.is_whole else (unit.rank,)
        self._take(TrialStep(unit, ranks), len(self.steps))
        return True

    def remove_all(self, units: list[EvictionUnit]) -> bool:
        """Remove all of `units`, or none; return whether they were removed."""
        before = len(self.steps)
        for unit in units:
            if not self.remove(unit):
                self.rewind_to(before)
                return False
        return True

    def put_back(self, step: TrialStep) -> bool:
        """Put one unit back; return False when that is impossible because its whole allocation is removed."""
        if not step.unit.is_whole and step.unit.whole in self._off:
            return False
        self.steps.remove(step)
        self._give(step)
        return True

    def redo_step(self, step: TrialStep, at: int) -> None:
        """Undo `put_back` of a step that was at index `at`."""
        self._take(step, at)

    def rewind_to(self, count: int) -> None:
        """Put back all steps but the first `count`."""
        while len(self.steps) > count:
            self._give(self.steps.pop())

    def redo(self, steps: list[TrialStep]) -> None:
        """Remove again what was removed before, in the same order."""
        for step in steps:
            self._take(step, len(self.steps))

    def undo(self) -> None:
        """Put back everything."""
        self.rewind_to(0)

    def is_permitted(self) -> bool:
        """Whether the removed units could have been taken in this order, each step by the rule."""
        steps = list(self.steps)
        if all(step.unit.fact.queue == self.queue for step in steps):
            return True
        self.undo()
        is_lawful = True
        for step in steps:
            is_lawful = is_lawful and self._is_allowed(step.unit)
            self._take(step, len(self.steps))
        return is_lawful

    def victims(self) -> dict[str, tuple[Holding, Ranks]]:
        """Return {uid: (holding, evicted ranks; empty for the whole allocation)}."""
        found: dict[str, tuple[Holding, Ranks]] = {}
        whole = {step.unit.fact.uid for step in self.steps if step.unit.is_whole}
        for step in self.steps:
            uid = step.unit.fact.uid
            ranks = () if uid in whole else (*found.get(uid, (step.unit.holding, ()))[1], *step.ranks)
            found[uid] = (step.unit.holding, tuple(sorted(ranks)))
        return found

    def _take(self, step: TrialStep, at: int) -> None:
        self._state.remove(step.unit.holding, step.ranks)
        self.steps.insert(at, step)
        self._off.add(step.unit.index)

    def _give(self, step: TrialStep) -> None:
        self._state.put_back(step.unit.holding, step.ranks)
        self._off.discard(step.unit.index)

    def _is_allowed(self, unit: EvictionUnit) -> bool:
        fact = unit.fact
        if fact.queue == self.queue:
            return True
        left = self._state.left_of(unit.holding)
        verdict = self._claim.verdict(unit.holding, left if unit.is_whole else (unit.rank,))
        return verdict != NOT and verdict >= self.rule

    def _can_spare(self, unit: EvictionUnit) -> bool:
        spare, per_role = spare_of(unit.holding)
        for step in self.steps:
            if step.unit.whole == unit.whole:
                spare -= 1
                per_role[role_index(unit.fact, step.unit.rank)] -= 1
        return spare > 0 and per_role[role_index(unit.fact, unit.rank)] > 0


EXACT_MAX = 64
"""Up to this number of victims, each is put back by placing the preemptor again; else by the room on its nodes."""
EXACT_RANKS = 2048
"""The largest number of ranks that are placed again for this, in total."""
EXACT_MIN = 4


class PreemptionResult(msgspec.Struct, frozen=True):
    """The admitted preemptor, and {uid: (holding of the victim, its evicted ranks; empty for all)}."""

    admitted: Admitted
    victims: dict[str, tuple[Holding, Ranks]]


def settle(
    state: TickState,
    trial: EvictionTrial,
    fact: AllocationFact,
    accept: Accept | None,
    *,
    demand: Resources,
    is_fit: bool,
    units: Callable[[], Iterable[EvictionUnit]],
) -> PreemptionResult | None:
    """Admit `fact` with the units that the trial has removed, and with as many more of `units` as the quota needs.

    `units` returns these units in order. `demand` is the smallest demand of `fact`. `is_fit`: the removed units are
    minimal as far as nodes are concerned. None when `fact` cannot be admitted.
    """
    off = len(trial.steps)
    if not _relieve(state, trial, fact, demand, units):
        return None
    placed = gang.place(state.whatif, fact, trial.within)
    if isinstance(placed, gang.PlacementFailure):
        return None
    if not placed.is_as_wanted:
        demand = placed.demand()
        if state.may_use(fact, demand) is not None:
            state.withdraw(placed)
            return None
    if not is_fit or len(trial.steps) > off:
        kept = put_back(state, trial, placed)
        if kept is None:
            return None
        placed, demand = kept, kept.demand()
        if not trial.is_permitted():
            state.withdraw(placed)
            return None
    if not trial.steps:
        state.withdraw(placed)
        return None
    if accept is not None:
        accepted = accept(placed, demand)
        if isinstance(accepted, Explanation):
            return None
        placed = accepted
    state.count(fact, demand)
    victims = trial.victims()
    return PreemptionResult(Admitted(placed=placed, demand=demand, victims=tuple(sorted(victims))), victims)


def put_back(state: TickState, trial: EvictionTrial, placed: gang.PlacedGang) -> gang.PlacedGang | None:
    """Put back the units that are not needed, the most important first.

    Return the places of the preemptor, which may have changed. None when the preemptor has no place any more; then
    nothing is placed.
    """
    fact = placed.allocation
    steps = _by_importance(state, trial)
    exact = max(EXACT_MIN, min(EXACT_MAX, EXACT_RANKS // max(1, len(placed.placements()))))
    if len(steps) > exact:
        for step in steps:
            _put_beside(state, trial, step, fact)
        steps = _by_importance(state, trial)[:exact]
    while steps := _by_importance(state, trial, steps):
        step, steps = steps[0], steps[1:]
        at = trial.steps.index(step)
        state.withdraw(placed)
        if trial.put_back(step):
            again = gang.place(state.whatif, fact, trial.within)
            if not isinstance(again, gang.PlacementFailure):
                if state.may_use(fact, again.demand()) is None:
                    placed = again
                    continue
                state.withdraw(again)
            trial.redo_step(step, at)
        again = gang.place(state.whatif, fact, trial.within)
        if isinstance(again, gang.PlacementFailure):
            return None  # The rank now has a pod beside it that its affinity rules out, although there is room.
        placed = again
    return placed


def _by_importance(state: TickState, trial: EvictionTrial, among: Sequence[TrialStep] | None = None) -> list[TrialStep]:
    """Return the steps of the trial (only those of `among`) in the order in which they are put back.

    The preemptor's own queue comes first, then the queue that is least above its share, then the most important unit.
    """
    steps = [step for step in trial.steps if among is None or step in among]
    queues = {step.unit.fact.queue for step in steps}
    if len(queues - {trial.queue}) <= 1:
        return sorted(steps, key=lambda step: (step.unit.fact.queue == trial.queue, step.unit.index), reverse=True)
    standing = {queue: share_of(trial.queue_shares, queue) for queue in queues}

    def importance(step: TrialStep) -> tuple[bool, Standing, int]:
        queue = step.unit.fact.queue
        return (queue == trial.queue, standing[queue], step.unit.index)

    return sorted(steps, key=importance, reverse=True)


def _put_beside(state: TickState, trial: EvictionTrial, step: TrialStep, fact: AllocationFact) -> None:
    """Put a unit back if its nodes have room for it beside the preemptor, and the quota still permits the preemptor."""
    at = trial.steps.index(step)
    if not trial.put_back(step):
        return
    usage, table = state.whatif.usage, state.whatif.table
    nodes = {table.index[step.unit.holding.charges[rank].node] for rank in step.ranks}
    is_over = any((usage.used[:, node] > table.allocatable[:, node]).any() for node in sorted(nodes))
    if is_over or state.may_use(fact, rank_request.smallest_demand(fact)) is not None:
        trial.redo_step(step, at)


def _relieve(
    state: TickState,
    trial: EvictionTrial,
    fact: AllocationFact,
    demand: Resources,
    in_order: Callable[[], Iterable[EvictionUnit]],
) -> bool:
    """Remove more units, in order, until quota and job slots permit `fact`. Return False when nothing helps."""
    if state.may_use(fact, demand) is None:
        return True
    for unit in in_order():
        if _relieves(state, unit, fact, demand) and _remove(trial, unit) and state.may_use(fact, demand) is None:
            return True
    return False


def _remove(trial: EvictionTrial, unit: EvictionUnit) -> bool:
    return not trial.is_removed(unit) and trial.remove(unit)


def _relieves(state: TickState, unit: EvictionUnit, fact: AllocationFact, demand: Resources) -> bool:
    """Whether the unit uses some of the resource, or of the job's slots, that is short."""
    short = state.tree.shortfall(fact.queue, demand.amounts, preemptible=fact.preemptible)
    victim = unit.fact
    used = unit.holding.used_by(state.left_of(unit.holding) if unit.is_whole else (unit.rank,))
    if short is not None:
        return state.tree.is_below(victim.queue, short.queue) and counted(used.amounts).get(short.resource, 0) > 0
    return victim.job == fact.job and victim.namespace == fact.namespace and used.gpus() > 0
