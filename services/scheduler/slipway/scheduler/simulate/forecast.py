"""Forecasts when waiting allocations will start, as bounds.

The latest start is found by a run of the planner from the present state: every running allocation uses its whole run
limit, an allocation without a limit never ends, and no new allocation arrives. So the latest start is unknown for an
allocation that waits for one without a limit. The earliest start is now, or when its backoff is over, because running
allocations may end at any time. Both are times that change only with events.

The likely bounds (`futures.py`) exist without run limits too, and take new arrivals into account. Pure.
"""

from typing import Any

import msgspec

from slipway.model.lifecycle import Phase
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.futures import (
    HORIZON_S,
    Bounds,
    KnownPast,
    LiveWork,
    PastArrival,
    PresentState,
    as_run,
    likely_starts,
)
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario_format import AllocationPart, PlacedPart, Scenario
from slipway.scheduler.simulate.world import AllocationHistory

LIVES_MAX = 500
NODES_MAX = 2_000
"""With more allocations or more nodes there is no forecast, because it would cost too much."""


class StartEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a start, as times of the virtual or real clock (seconds); None: unknown."""

    earliest: float | None
    latest: float | None
    likely: Bounds | None = None
    """the likely bounds by past run times and arrivals; None: too few allocations have ended"""

    def as_data(self) -> dict[str, Any]:
        """Return the bounds for JSON."""
        bounds: dict[str, Any] = {"earliest": self.earliest, "latest": self.latest}
        if self.likely is not None:
            bounds["likely"] = {"earliest": self.likely[0], "latest": self.likely[1]}
        return bounds


def forecast(scenario: Scenario, outcome: SimulationOutcome) -> dict[str, StartEstimate]:
    """Return {name: forecast} of the allocations that wait at the end of a run; empty when there are too many."""
    lives = [life for life in outcome.world.lives.values() if life.is_submitted and life.phase is not Phase.TERMINATED]
    waiting = [life for life in lives if life.phase is Phase.PENDING]
    if not waiting or len(lives) > LIVES_MAX or len(outcome.world.nodes) > NODES_MAX:
        return {}
    now = outcome.end
    given = msgspec.structs.replace(scenario_facts.facts_of(scenario), past=outcome.world.past.going_on(now, {}))
    work = [_work(life, now) for life in lives]
    by_limits = msgspec.structs.replace(scenario, allocations=[each.part for each in work], until=now + HORIZON_S)
    facts = msgspec.structs.replace(given, allocations={each.part.name: each.fact for each in work})
    names = [life.part.name for life in waiting]
    later = simulate(by_limits, given=facts, start=now, awaited=names).world.lives
    latest = {name: later[name].first_start for name in names}
    likely = likely_starts(PresentState(at=now, given=given, work=work), past(scenario, outcome), latest)
    found: dict[str, StartEstimate] = {}
    for life in waiting:
        why = outcome.explanations.get(life.fact.key)
        last = latest[life.part.name]
        is_unknown = life.fact.hold or bool(life.fact.waits_for)
        is_never = why is not None and (why.is_never or is_unknown) and last is None
        earliest = None if is_never else max(now, life.fact.not_before)
        found[life.part.name] = StartEstimate(earliest=earliest, latest=last, likely=likely.get(life.part.name))
    return found


def past(scenario: Scenario, outcome: SimulationOutcome) -> KnownPast:
    """Return the run times and arrivals in a simulation run."""
    now = outcome.end
    lives = [life for life in outcome.world.lives.values() if life.is_submitted]
    fresh = scenario_facts.facts_of(scenario).allocations
    arrivals = sorted(life.part.submit for life in lives)
    return KnownPast(
        runs=[
            as_run(life.fact, _ran_s(life, now), has_ended=life.end is not None)
            for life in lives
            if life.start is not None
        ],
        since=arrivals[0] if arrivals else now,
        arrivals=arrivals,
        pieces=[
            PastArrival(
                part=msgspec.structs.replace(life.part, after=[]),
                fact=msgspec.structs.replace(fresh[life.part.name], waits_for=(), hold=False),
                ran_s=_ran_s(life, now),
                has_ended=life.end is not None,
            )
            for life in lives
        ],
    )


def _ran_s(life: AllocationHistory, now: float) -> float:
    """Return for how long it has run, with its saved work, in seconds."""
    return life.saved + (0.0 if life.start is None else (now if life.end is None else life.end) - life.start)


def _work(life: AllocationHistory, now: float) -> LiveWork:
    fact = msgspec.structs.replace(life.fact, phase=Phase.PENDING, placements={}, devices={}, not_before=0.0)
    return LiveWork(part=_part(life, now), fact=fact, ran_s=_ran_s(life, now), saved_s=life.saved)


def _part(life: AllocationHistory, now: float) -> AllocationPart:
    """Return the allocation's part for a run from `now`: placed where it runs, or waiting."""
    placed = [
        PlacedPart(rank=place.rank, node=place.node, since=place.start, device=list(place.device) or None)
        for place in life.places
        if place.end is None
    ]
    is_running = life.phase is Phase.RUNNING
    return msgspec.structs.replace(
        life.part, submit=max(now, life.fact.not_before), duration=None, placed=placed if is_running else []
    )
