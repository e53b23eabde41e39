"""What is taken off the state for one preemptor, one unit after the other, and how it is put back.

Invariant: `undo` leaves the state as it was found. A gang is taken whole or down to its minimum, never below.
"""

import msgspec

from slipway.scheduler.plan.placement.tick_state import Ranks, TickState
from slipway.scheduler.plan.preemption.eviction_budget import EvictionBudget
from slipway.scheduler.plan.preemption.reclaim_rule import NOT, Claim
from slipway.scheduler.plan.preemption.victims import Unit, role_index, spare_of
from slipway.scheduler.plan.queueing.node_shares import Standings
from slipway.scheduler.plan.state.nodes import Bools
from slipway.scheduler.plan.state.snapshot import Holding


class TrialStep(msgspec.Struct, frozen=True):
    """One unit that is off, and the ranks that went with it."""

    unit: Unit
    ranks: Ranks


class EvictionTrial:
    """The units that are off the state."""

    def __init__(
        self,
        state: TickState,
        claim: Claim,
        queue: str,
        rule: int,
        *,
        standings: Standings | None = None,
        budget: EvictionBudget | None = None,
    ) -> None:
        """Work of other queues than `queue` goes as `claim` allows, by `rule` or a stricter one; of those queues the
        one gives first that is furthest above its share in `standings` (None: of the pool). All of it goes within
        `budget` (None: nothing limits how often)."""
        self._state = state
        self._claim = claim
        self.queue = queue
        self.rule = rule
        self.standings: Standings = standings or state.tree
        self.steps: list[TrialStep] = []
        self.within: Bools | None = None
        """the nodes where the preemptor may go with what is off; None for all"""
        self.waits = ""
        """what has to be heard first, before anybody goes"""
        self._budget = budget
        self.over = ""
        """why more might not go at once, where an eviction limit refused that"""
        self.refused = ""
        """who does not agree to any of it"""
        self._off: set[int] = set()
        """indices of their units"""

    def is_off(self, unit: Unit) -> bool:
        """Whether the unit, or all of its allocation, has been taken off."""
        return unit.index in self._off or unit.whole in self._off

    def remove(self, unit: Unit) -> bool:
        """Take a unit off if it may go; False when it may not."""
        if self.is_off(unit):
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

    def remove_all(self, units: list[Unit]) -> bool:
        """Take all of them off, or none."""
        before = len(self.steps)
        for unit in units:
            if not self.remove(unit):
                self.back_to(before)
                return False
        return True

    def put_back(self, step: TrialStep) -> bool:
        """Put one unit back; False when it cannot be without its allocation."""
        if not step.unit.is_whole and step.unit.whole in self._off:
            return False
        self.steps.remove(step)
        self._give(step)
        return True

    def again(self, step: TrialStep, at: int) -> None:
        """Undo `put_back`: it stood at place `at`."""
        self._take(step, at)

    def back_to(self, count: int) -> None:
        """Put back all but the first `count`."""
        while len(self.steps) > count:
            self._give(self.steps.pop())

    def redo(self, steps: list[TrialStep]) -> None:
        """Take off again what was off before, in the same order."""
        for step in steps:
            self._take(step, len(self.steps))

    def undo(self) -> None:
        """Put back everything."""
        self.back_to(0)

    def is_lawful(self) -> bool:
        """Whether what is off might have been taken in this order, each step by the rule."""
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
        """{uid: (what, ranks that go; none for all of it)}."""
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

    def _is_allowed(self, unit: Unit) -> bool:
        fact = unit.fact
        if fact.queue == self.queue:
            return True
        left = self._state.left_of(unit.holding)
        verdict = self._claim.verdict(unit.holding, left if unit.is_whole else (unit.rank,))
        return verdict != NOT and verdict >= self.rule

    def _can_spare(self, unit: Unit) -> bool:
        spare, per_role = spare_of(unit.holding)
        for step in self.steps:
            if step.unit.whole == unit.whole:
                spare -= 1
                per_role[role_index(unit.fact, step.unit.rank)] -= 1
        return spare > 0 and per_role[role_index(unit.fact, unit.rank)] > 0
