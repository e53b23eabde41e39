"""Likely starts: how many real starts are between the bounds, and what moves the bounds."""

import math

import msgspec
import pytest

from slipway.runtime.clock import SeededRandom
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.forecast import (
    FIRST_PART,
    HORIZON_S,
    SAMPLES_MIN,
    KnownPast,
    LiveWork,
    PastArrival,
    PresentState,
    as_run,
    likely_starts,
)
from slipway.scheduler.simulate.scenario import decode

WORLDS = 120
MEAN_S = 600.0
NODE = "nodes: [{name: n, cpu: 4}]\nqueues: [{name: default}]\n"


def standing(text: str, now: float, ran_s: dict[str, float]) -> PresentState:
    """A pool at `now` with this work; `ran_s` tells how long some of it has run."""
    scenario = decode(NODE + text)
    given = scenario_facts.facts_of(scenario)
    work = [
        LiveWork(part=part, fact=given.allocations[part.name], ran_s=ran_s.get(part.name, 0.0))
        for part in scenario.allocations
    ]
    return PresentState(at=now, given=given, work=work)


def past_of(lengths: list[float], now: float, *, arrivals: int = 0) -> KnownPast:
    """Small work of these lengths has ended, and `arrivals` such pieces arrived at even distances during the last
    hour."""
    scenario = decode(NODE + "allocations: [{name: old, ranks: [{cpu: 2}]}]")
    part, fact = scenario.allocations[0], scenario_facts.facts_of(scenario).allocations["old"]
    return KnownPast(
        runs=[as_run(fact, length, has_ended=True) for length in lengths],
        since=now - 3600.0,
        arrivals=[now - 3600.0 + 3600.0 * (n + 1) / arrivals for n in range(arrivals)],
        pieces=[PastArrival(part=part, fact=fact, ran_s=length, has_ended=True) for length in lengths],
    )


RUNNING = "allocations: [{name: runs, placed: [{rank: 0, node: n, since: %s}], ranks: [{cpu: 4}]}%s]"
WAITS = ", {name: waits, ranks: [{cpu: %s}]}"


def test_so_many_starts_as_promised_are_within_the_bounds() -> None:
    """Run times are exponential, and the waiting work starts when the running work ends. With a history of forty runs,
    the real start is within the bounds in 70 to 97 of 100 worlds. In most worlds the bounds are less than five times
    the mean apart."""
    chance = SeededRandom(7)
    within, wide = 0, 0
    for _ in range(WORLDS):
        lengths = [-MEAN_S * math.log(1.0 - chance.uniform(0.0, 1.0)) for _ in range(40)]
        ran_s = chance.uniform(0.0, MEAN_S)
        start = -MEAN_S * math.log(1.0 - chance.uniform(0.0, 1.0))
        now = standing(RUNNING % (-ran_s, WAITS % 4), 0.0, {"runs": ran_s})
        first, last = likely_starts(now, past_of(lengths, 0.0), {"waits": None})["waits"]
        assert last is not None
        within += first <= start <= last
        wide += last - first > 5 * MEAN_S
    assert 0.70 <= within / WORLDS <= 0.97
    assert wide < WORLDS / 2


def test_work_that_arrives_and_passes_makes_the_start_later() -> None:
    """Small work passes a gang that needs the whole node, so the gang starts later than without arrivals."""
    now = standing(RUNNING.replace("cpu: 4", "cpu: 2") % (-10, WAITS % 4), 0.0, {"runs": 10.0})
    lengths = [60.0 * n for n in range(1, 21)]
    alone = likely_starts(now, past_of(lengths, 0.0), {"waits": None})["waits"]
    passed = likely_starts(now, past_of(lengths, 0.0, arrivals=12), {"waits": None})["waits"]
    assert alone[1] is not None
    assert passed[1] is None or passed[1] > alone[1]


def test_the_same_question_has_the_same_answer() -> None:
    """The random numbers follow from the question alone."""
    now = standing(RUNNING % (-10, WAITS % 4), 0.0, {"runs": 10.0})
    past = past_of([60.0 * n for n in range(1, 21)], 0.0, arrivals=5)
    assert likely_starts(now, past, {"waits": None}) == likely_starts(now, past, {"waits": None})


def test_a_short_past_gives_no_bounds() -> None:
    """The past has one ended run too few."""
    now = standing(RUNNING % (-10, WAITS % 4), 0.0, {"runs": 10.0})
    few = [60.0 * n for n in range(1, SAMPLES_MIN)]
    assert likely_starts(now, past_of(few, 0.0), {"waits": None}) == {}
    assert "waits" in likely_starts(now, past_of([*few, 900.0], 0.0), {"waits": None})


@pytest.mark.parametrize("cpu", [5, 400])
def test_what_never_fits_has_no_bounds(cpu: int) -> None:
    """No future starts such work, although all other work ends."""
    now = standing(RUNNING % (-10, WAITS % cpu), 0.0, {"runs": 10.0})
    assert likely_starts(now, past_of([60.0] * 20, 0.0, arrivals=5), {"waits": None}) == {}


def test_a_start_beyond_the_horizon_has_no_last_bound() -> None:
    """Where some work runs for weeks, the first bound is there and the last is not."""
    now = standing(RUNNING % (-10, WAITS % 4), 0.0, {"runs": 10.0})
    past = past_of([60.0] * 10 + [2 * HORIZON_S] * 10, 0.0)
    first, last = likely_starts(now, past, {"waits": None})["waits"]
    assert first == pytest.approx(50.0 / 3)
    assert last is None


def test_work_of_which_nothing_is_known_uses_its_whole_run_limit() -> None:
    """Runs that ended without a limit do not show which part of a limit work uses."""
    now = standing(RUNNING % (-10, WAITS % 4), 0.0, {"runs": 10.0})
    limited = msgspec.structs.replace(
        now,
        work=[
            msgspec.structs.replace(each, fact=msgspec.structs.replace(each.fact, max_runtime=500.0))
            if each.part.name == "runs"
            else each
            for each in now.work
        ],
    )
    assert likely_starts(limited, past_of([60.0] * 20, 0.0), {"waits": None}) == {"waits": (490.0 * FIRST_PART, 490.0)}


def test_where_run_limits_bound_the_start_all_work_is_short_or_long_together() -> None:
    """The bounds are the shortest and the longest tenth of similar runs; the last bound is never later than the limits
    allow."""
    now = standing(RUNNING % (-10, WAITS % 4), 0.0, {"runs": 10.0})
    past = past_of([60.0 * n for n in range(1, 21)], 0.0, arrivals=12)
    assert likely_starts(now, past, {"waits": 5_000.0}) == {"waits": (170.0, 1_130.0)}
    assert likely_starts(now, past, {"waits": 600.0}) == {"waits": (170.0, 600.0)}
