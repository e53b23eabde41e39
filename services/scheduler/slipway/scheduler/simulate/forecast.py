"""When what waits will start, with bounds, as far as anybody can know.

The latest start is found by running the planner itself on from where things stand: everything that runs uses up its run
limit, what has none never ends, and nothing new comes. So it is unknown for whatever waits for something without a
limit. The earliest is at once, or when its backoff is over: what runs may end at any time. Both are instants, which
change only when something happens. Pure.
"""

from typing import Any

import msgspec

from slipway.model.lifecycle import Phase
from slipway.scheduler.simulate import lower
from slipway.scheduler.simulate.parts import AllocationPart, PlacedPart, Scenario
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.world import Life

HORIZON_S = 30 * 86_400.0
"""What would start later than this is not foreseen."""
LIVES_MAX = 500
NODES_MAX = 2_000
"""Of more work, or more nodes, nothing is foretold: it would cost more than it tells."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Instants of the virtual or real clock (seconds); None: nobody knows."""

    earliest: float | None
    latest: float | None

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        return {"earliest": self.earliest, "latest": self.latest}


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
    run_on = msgspec.structs.replace(scenario, allocations=[_part(life, now) for life in lives], until=now + HORIZON_S)
    later = simulate(run_on, given=given, start=now).world.lives
    found: dict[str, Estimate] = {}
    for life in waiting:
        why = outcome.explanations.get(life.fact.key)
        latest = later[life.part.name].first_start
        is_unknown = life.fact.hold or bool(life.fact.waits_for)
        is_never = why is not None and (why.is_never or is_unknown) and latest is None
        earliest = None if is_never else max(now, life.fact.not_before)
        found[life.part.name] = Estimate(earliest=earliest, latest=latest)
    return found


def _part(life: Life, now: float) -> AllocationPart:
    """It runs where it runs, or waits; how long it would really take is not known."""
    placed = [
        PlacedPart(rank=place.rank, node=place.node, since=place.start, device=list(place.device) or None)
        for place in life.places
        if place.end is None
    ]
    is_running = life.phase is Phase.RUNNING
    return msgspec.structs.replace(
        life.part, submit=max(now, life.fact.not_before), duration=None, placed=placed if is_running else []
    )


def _at_first(life: Life) -> Any:
    return msgspec.structs.replace(life.fact, phase=Phase.PENDING, placements={}, devices={}, not_before=0.0)
