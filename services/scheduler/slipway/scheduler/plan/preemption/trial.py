"""The trial: the units that are removed from the state for one preemptor, and how they are put back.

Invariant: `undo` leaves the state as it was found. A gang is removed whole, or down to its minimum and never below.
"""

import msgspec

from slipway.scheduler.plan.placement.tick_state import Ranks, TickState
from slipway.scheduler.plan.preemption.eviction_budget import EvictionBudget
from slipway.scheduler.plan.preemption.reclaim_rule import NOT, Claim
from slipway.scheduler.plan.preemption.victims import EvictionUnit, role_index, spare_of
from slipway.scheduler.plan.queueing.node_shares import QueueShares
from slipway.scheduler.plan.state.nodes import Bools
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
