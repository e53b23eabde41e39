"""When what waits will start, with bounds, as far as anybody can know.

The latest start is found by running the planner itself on from where things stand: everything that runs uses up its run
limit, what has none never ends, and nothing new comes. So it is unknown for whatever waits for something without a
limit. The earliest is at once, or when its backoff is over: what runs may end at any time. Both are instants, which
change only when something happens.

The likely bounds are found in the same way from the run times of work that has ended: once all work is as short as the
shortest tenth of its like, once as long as all but the longest tenth. So they are there without run limits too. New
work can move a start out of them. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from slipway.model.lifecycle import Phase
from slipway.scheduler.simulate import lower
from slipway.scheduler.simulate.parts import AllocationPart, PlacedPart, Scenario
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.run_times import SAMPLES_MIN, EndedRun, RunTimes
from slipway.scheduler.simulate.world import Life

HORIZON_S = 30 * 86_400.0
"""What would start later than this is not foreseen."""
LIVES_MAX = 500
NODES_MAX = 2_000
"""Of more work, or more nodes, nothing is foretold: it would cost more than it tells."""
SHORT, LONG = 10, 90
"""percentiles of the run times of ended work between which those of other work are taken to be"""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Instants of the virtual or real clock (seconds); None: nobody knows."""

    earliest: float | None
    latest: float | None
    likely: tuple[float | None, float | None] | None = None
    """by the run times of ended work; None: too little has ended"""

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        bounds: dict[str, Any] = {"earliest": self.earliest, "latest": self.latest}
        if self.likely is not None:
            bounds["likely"] = {"earliest": self.likely[0], "latest": self.likely[1]}
        return bounds


def forecast(scenario: Scenario, outcome: SimulationOutcome) -> dict[str, Estimate]:
    """{name: when it starts} of what waits at the end of a run; empty where there is too much of it."""
    lives = [life for life in outcome.world.lives.values() if life.is_submitted and life.phase is not Phase.TERMINATED]
    waiting = [life for life in lives if life.phase is Phase.PENDING]
    if not waiting or len(lives) > LIVES_MAX or len(outcome.world.nodes) > NODES_MAX:
        return {}
    now = outcome.end
    given = lower.given(scenario)
    given = msgspec.structs.replace(
        given,
        allocations={life.part.name: _at_first(life) for life in lives},
        past=outcome.world.past.going_on(now, {}),
    )

    def starts(durations: Mapping[str, float | None]) -> dict[str, float | None]:
        """{name: its first start} when work takes so long from its start on."""
        parts = [_part(life, now, durations.get(life.part.name)) for life in lives]
        run_on = msgspec.structs.replace(scenario, allocations=parts, until=now + HORIZON_S)
        later = simulate(run_on, given=given, start=now).world.lives
        return {life.part.name: later[life.part.name].first_start for life in waiting}

    by_limits = starts({})
    times = run_times(outcome)
    likely = [starts(_durations(times, lives, now, percent)) for percent in (SHORT, LONG)] if times is not None else []
    found: dict[str, Estimate] = {}
    for life in waiting:
        why = outcome.explanations.get(life.fact.key)
        latest = by_limits[life.part.name]
        is_unknown = life.fact.hold or bool(life.fact.waits_for)
        is_never = why is not None and (why.is_never or is_unknown) and latest is None
        earliest = None if is_never else max(now, life.fact.not_before)
        ends = [each[life.part.name] for each in likely]
        found[life.part.name] = Estimate(
            earliest=earliest, latest=latest, likely=_between(ends, earliest, latest) if ends else None
        )
    return found


def run_times(outcome: SimulationOutcome) -> RunTimes | None:
    """Those of the work of a run that has ended; None where that is too little to tell anything."""
    ended = [
        EndedRun(
            queue=life.fact.queue,
            user=life.fact.user,
            ran_s=life.saved + life.end - life.start,
            limit_s=life.fact.max_runtime,
        )
        for life in outcome.world.lives.values()
        if life.end is not None and life.start is not None
    ]
    return RunTimes(ended) if len(ended) >= SAMPLES_MIN else None


def _durations(times: RunTimes, lives: Iterable[Life], now: float, percent: int) -> dict[str, float | None]:
    """{name: how long it runs from the start of its attempt}; None: as its run limit says."""
    found: dict[str, float | None] = {}
    for life in lives:
        ran_s = life.saved + (now - life.start if life.phase is Phase.RUNNING and life.start is not None else 0.0)
        whole_s = times.percentile(life.fact.queue, life.fact.user, life.fact.max_runtime, ran_s, percent)
        if whole_s is None and percent < LONG:
            whole_s = ran_s
        found[life.part.name] = None if whole_s is None else whole_s - life.saved
    return found


def _between(
    ends: Sequence[float | None], earliest: float | None, latest: float | None
) -> tuple[float | None, float | None]:
    """Both ends in order, within what is certain: shorter work can also let other work go first."""
    known = [end for end in ends if end is not None]
    if not known:
        return earliest, latest
    first, last = min(known), max(known) if len(known) == len(ends) else None
    if latest is not None:
        first, last = min(first, latest), latest if last is None else min(last, latest)
    return first, last


def _part(life: Life, now: float, duration: float | None) -> AllocationPart:
    """It runs where it runs, or waits."""
    placed = [
        PlacedPart(rank=place.rank, node=place.node, since=place.start, device=list(place.device) or None)
        for place in life.places
        if place.end is None
    ]
    is_running = life.phase is Phase.RUNNING
    return msgspec.structs.replace(
        life.part, submit=max(now, life.fact.not_before), duration=duration, placed=placed if is_running else []
    )


def _at_first(life: Life) -> Any:
    return msgspec.structs.replace(life.fact, phase=Phase.PENDING, placements={}, devices={}, not_before=0.0)
