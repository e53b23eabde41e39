"""Runs the planner of the live scheduler over a scenario, in virtual time.

At each time at which an allocation ends or arrives, plans are made and carried out until one changes nothing. So an
allocation that ends at the time at which it starts frees its places for others at that same time.
"""

import heapq
from collections.abc import Collection, Mapping

import msgspec

from slipway.errors import InvariantError
from slipway.model.facts import AllocationFact
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.preemption.eviction_budget import levels_after
from slipway.scheduler.plan.state.plan_types import Explanation, Plan, ReservedPlaces
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.simulate.scenario import Scenario
from slipway.scheduler.simulate.scenario_facts import ScenarioFacts
from slipway.scheduler.simulate.world import SimulatedWorld

SEED = 0
OFFERED_MAX = 64
"""For so many of the allocations that wait at the end, the explanation includes the changes that would help."""
IDLE_WAKES_MAX = 64
"""Repeated windows begin and end for ever: a run without `until` ends after so many idle wake-ups in a row."""
TICKS_MAX = 1_000_000
"""the most ticks at one time"""
_ENDS, _ARRIVES, _WAKES = 0, 1, 2
Scores = dict[str, dict[str, int]]


class UseSample(msgspec.Struct, frozen=True):
    """The resources in use from `at` on."""

    at: float
    used: Mapping[str, int]


class SimulationOutcome(msgspec.Struct, kw_only=True):
    """The result of a run, from which the answer is made."""

    world: SimulatedWorld
    ticks: int = 0
    end: float = 0.0
    explanations: Mapping[str, Explanation] = {}
    scores: dict[str, Scores] | None = None
    """{allocation: node -> plugin -> value}, as first computed; None when the caller did not request scores"""
    samples: list[UseSample] = []
    kept: dict[str, list[tuple[float, ReservedPlaces]]] = {}
    """{allocation: [(when, its reserved places)]}, with an entry for each change"""


def simulate(
    scenario: Scenario,
    *,
    with_scores: bool = False,
    given: ScenarioFacts | None = None,
    start: float = 0.0,
    awaited: Collection[str] | None = None,
) -> SimulationOutcome:
    """Run `scenario` from `start` to its `until`, or until nothing more can happen.

    With `awaited`, run until all these allocations have started, and without explanations.
    """
    return _Run(scenario, with_scores=with_scores, given=given, start=start, awaited=awaited).run()


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        *,
        with_scores: bool,
        given: ScenarioFacts | None,
        start: float,
        awaited: Collection[str] | None,
    ) -> None:
        self.scenario = scenario
        self.start = start
        self.awaited = None if awaited is None else set(awaited)
        self.outcome = SimulationOutcome(world=SimulatedWorld(scenario, given))
        self.world = self.outcome.world
        self.policy = policy_of(self.world.columns.snapshot().pool)
        self.brief = msgspec.structs.replace(self.policy, changes_max=0)
        """the same decisions, without the changes that would help waiting allocations:
        these are only computed at the end"""
        self.looked_at = start
        self.is_explained = False
        self.is_new = False
        """an allocation has arrived since the last plan"""
        self.outcome.scores = {} if with_scores else None
        self.events: list[tuple[float, int, str, int]] = []
        self.wakes: set[float] = set()
        self.idle_wakes = 0
        """the number of consecutive wake-ups that changed nothing, while nothing else could happen"""
        self.evicts_by_time = any(window.evicts for window in self.world.columns.snapshot().pool.windows)
        """running allocations may be evicted although none waits"""

    def run(self) -> SimulationOutcome:
        for part in self.scenario.allocations:
            at = self.start if part.placed else max(part.submit, self.start)
            heapq.heappush(self.events, (at, _ARRIVES, part.name, 1))
        until = self.scenario.until
        while self.events and (until is None or self.events[0][0] <= until) and self.idle_wakes < IDLE_WAKES_MAX:
            if self.awaited is not None and not self.awaited:
                break
            if self.events[0][1] == _WAKES:
                self._wake(heapq.heappop(self.events)[0])
            else:
                self._instant(self.events[0][0])
        if self.awaited is None:
            self._explain()
        if until is not None:
            self.outcome.end = until
        return self.outcome

    def _instant(self, now: float) -> None:
        """Handle all events at `now`."""
        self.outcome.end = now
        while self.events and self.events[0][0] <= now:
            _, kind, name, attempt = heapq.heappop(self.events)
            if kind == _ARRIVES:
                self.is_new = True
                self._expect_end(name, self.world.submit(name), now)
            elif kind == _ENDS and self.world.lives[name].fact.attempt == attempt:
                self.world.finish(name, now)
            if not (self.events and self.events[0][0] <= now):
                self._settle(now)

    def _wake(self, now: float) -> None:
        """Plan again because of the time alone: an allocation has aged, or a window of a budget begins.

        If that changes nothing, and nothing else can happen, the run is treated as ended before.
        """
        outcome = self.outcome
        is_last = self.scenario.until is None and all(event[1] == _WAKES for event in self.events)
        if is_last:
            self._explain()
        before = (outcome.end, outcome.ticks, outcome.explanations, len(outcome.samples))
        outcome.end = now
        self._settle(now)
        is_last = is_last and all(event[1] == _WAKES for event in self.events)
        if outcome.ticks == before[1] + 1 and is_last:
            self.idle_wakes += 1
            outcome.end, outcome.ticks, outcome.explanations, _ = before
            self.is_explained = True
            del outcome.samples[before[3] :]
        else:
            self.idle_wakes = 0

    def _settle(self, now: float) -> None:
        """Tick until a plan changes nothing; the caller handles allocations that end at once."""
        self.looked_at, self.is_explained = now, False
        for _ in range(TICKS_MAX):
            decided = self._decide(now)
            self.outcome.ticks += 1
            self._note_kept(decided, now)
            for evict in decided.evictions:
                self.world.evict(evict, now)
            for admit in decided.admits:
                self._expect_end(admit.uid, self.world.admit(admit, now), now)
                if self.awaited is not None:
                    self.awaited.discard(admit.uid)
            for grow in decided.grows:
                self.world.grow(grow, now)
            self._sample(now)
            if decided.is_empty:
                self._expect_change(decided.look_again, now)
                return
        raise InvariantError(f"planning at time {now:g} does not end")

    def _decide(self, now: float) -> Plan:
        """Return the plan of one tick; an empty plan when no allocation waits and none has arrived."""
        if not (self.is_new or self.world.waiting or self.world.below_count or self.evicts_by_time):
            return Plan()
        self.is_new = False
        snapshot = self._snapshot(now)
        watch = self._watch if self.outcome.scores is not None else None
        decided = plan(snapshot, self.brief, now, SEED, watch=watch, grows=True)
        broken = None if decided.is_empty else lint(snapshot, decided)
        if broken:
            raise InvariantError(f"the plan breaks its own rules: {broken[0]}")
        if decided.evictions:
            self.world.evicted = levels_after(snapshot, decided.evictions, now)
        return decided

    def _snapshot(self, now: float) -> PoolSnapshot:
        self.world.save_work(now)
        self.world.columns.set_spent(self.world.spent(now))
        self.world.columns.set_decayed(self.world.past)
        return self.world.columns.snapshot((), now, evicted=self.world.evicted)

    def _explain(self) -> None:
        """Explain why allocations wait, and what would help, in the state of the last tick."""
        if self.is_explained:
            return
        self.is_explained, self.outcome.explanations = True, {}
        if self.world.waiting:
            now = self.looked_at
            offering = msgspec.structs.replace(self.policy, changes_max=OFFERED_MAX)
            self.outcome.explanations = plan(self._snapshot(now), offering, now, SEED).explanations

    def _expect_change(self, at: float, now: float) -> None:
        if at > now and at not in self.wakes:
            self.wakes.add(at)
            heapq.heappush(self.events, (at, _WAKES, "", 0))

    def _note_kept(self, decided: Plan, now: float) -> None:
        for kept in decided.kept:
            known = self.outcome.kept.setdefault(kept.uid, [])
            if not known or known[-1][1] != kept:
                known.append((now, kept))

    def _expect_end(self, name: str, ends_at: float | None, now: float) -> None:
        if ends_at is not None:
            heapq.heappush(self.events, (max(ends_at, now), _ENDS, name, self.world.lives[name].fact.attempt))

    def _sample(self, now: float) -> None:
        self.outcome.samples.append(UseSample(now, dict(self.world.used)))

    def _watch(self, fact: AllocationFact, whatif: WhatIf) -> None:
        """Store the scores of the first rank, as the planner first computed them."""
        scores = self.outcome.scores
        if scores is not None and fact.name not in scores:
            scores[fact.name] = whatif.row(fact.roles[0]).scores_by_node()
