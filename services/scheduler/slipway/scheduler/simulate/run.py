"""The run: the planner of the live scheduler over a scenario, in virtual time.

At each instant at which something ends or arrives, plans are made and carried out until one changes nothing. So
work that ends at the instant at which it starts frees its places for others at that same instant.
"""

import heapq
from collections.abc import Mapping

import msgspec

from slipway.errors import InvariantError
from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.invariants import lint
from slipway.scheduler.plan.outcome import Explanation
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.policy import policy_of
from slipway.scheduler.plan.whatif import WhatIf
from slipway.scheduler.simulate.scenario import Scenario
from slipway.scheduler.simulate.world import World

SEED = 0
_ENDS, _ARRIVES = 0, 1
Scores = dict[str, dict[str, int]]


class Sample(msgspec.Struct, frozen=True):
    """GPUs and cpu in use from `at` on."""

    at: float
    used: Mapping[str, int]


class Outcome(msgspec.Struct, kw_only=True):
    """Everything that the answer is made of."""

    world: World
    ticks: int = 0
    end: float = 0.0
    explanations: dict[str, Explanation] = {}
    scores: dict[str, Scores] = {}
    """{allocation: node -> plugin -> value}, as first looked at"""
    samples: list[Sample] = []


def simulate(scenario: Scenario, *, with_scores: bool = False) -> Outcome:
    """Run `scenario` to its `until`, or until nothing more can happen."""
    return _Run(scenario, with_scores=with_scores).run()


class _Run:
    def __init__(self, scenario: Scenario, *, with_scores: bool) -> None:
        self.scenario = scenario
        self.outcome = Outcome(world=World(scenario))
        self.world = self.outcome.world
        self.policy = policy_of(self.world.columns.snapshot().pool)
        self.with_scores = with_scores
        self.events: list[tuple[float, int, str, int]] = []

    def run(self) -> Outcome:
        for part in self.scenario.allocations:
            at = min(part.submit, 0.0) if part.placed else part.submit
            heapq.heappush(self.events, (max(at, 0.0), _ARRIVES, part.name, 1))
        until = self.scenario.until
        while self.events and (until is None or self.events[0][0] <= until):
            self._instant(self.events[0][0])
        if until is not None:
            self.outcome.end = until
        return self.outcome

    def _instant(self, now: float) -> None:
        """All that happens at `now`."""
        self.outcome.end = now
        while self.events and self.events[0][0] <= now:
            _, kind, name, attempt = heapq.heappop(self.events)
            if kind == _ARRIVES:
                self._expect_end(name, self.world.submit(name), now)
            elif self.world.lives[name].fact.attempt == attempt:
                self.world.finish(name, now)
            if not (self.events and self.events[0][0] <= now):
                self._settle(now)

    def _settle(self, now: float) -> None:
        """Tick until a plan changes nothing; what ends at once is left to the caller."""
        while True:
            snapshot = self.world.columns.snapshot((), now)
            decided = plan(snapshot, self.policy, now, SEED, watch=self._watch if self.with_scores else None)
            broken = lint(snapshot, decided)
            if broken:
                raise InvariantError(f"the plan breaks its own rules: {broken[0]}")
            self.outcome.ticks += 1
            self.outcome.explanations = decided.explanations
            for evict in decided.evictions:
                self.world.evict(evict, now)
            for admit in decided.admits:
                self._expect_end(admit.uid, self.world.admit(admit, now), now)
            self._sample(now)
            if decided.is_empty:
                return

    def _expect_end(self, name: str, ends_at: float | None, now: float) -> None:
        if ends_at is not None:
            heapq.heappush(self.events, (max(ends_at, now), _ENDS, name, self.world.lives[name].fact.attempt))

    def _sample(self, now: float) -> None:
        used: dict[str, int] = {}
        for use in self.world.columns.snapshot((), now).use.values():
            for amounts in (use.preemptible, use.fixed):
                for name, amount in amounts.items():
                    used[name] = used.get(name, 0) + amount
        self.outcome.samples.append(Sample(now, used))

    def _watch(self, fact: AllocationFact, whatif: WhatIf) -> None:
        """Keep the scores of the first rank, as the planner first saw them."""
        if fact.name not in self.outcome.scores:
            self.outcome.scores[fact.name] = whatif.row(fact.roles[0]).scores_by_node()
