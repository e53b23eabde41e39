"""Reservations and backfill, on random scenarios in virtual time."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario import Scenario

SETTINGS = settings(max_examples=80, deadline=None)
LENGTHS = st.sampled_from([10, 20, 30, 50])
Part = dict[str, Any]


@st.composite
def a_rank(draw: st.DrawFn) -> Part:
    rank: Part = {
        "count": draw(st.integers(1, 3)),
        "cpu": draw(st.integers(1, 4)),
        "gpus": draw(st.sampled_from([0, 0, 1])),
    }
    if draw(st.integers(0, 3)) == 0:
        rank["topology"] = {"key": "rack", "mode": draw(st.sampled_from(["required", "preferred"]))}
    if draw(st.integers(0, 5)) == 0:
        rank["nodeSelector"] = {"rack": "r1"}
    return rank


@st.composite
def some_work(draw: st.DrawFn, name: str, *, queues: list[str], most: int, early: bool) -> list[Part]:
    """Allocations with run limits that they may not use up, and some without."""
    found: list[Part] = []
    for index in range(draw(st.integers(0, most))):
        part: Part = {
            "name": f"{name}{index}",
            "queue": draw(st.sampled_from(queues)),
            "submit": draw(st.integers(0, 9) if early else st.integers(0, 60)),
            "ranks": [draw(a_rank()) for _ in range(draw(st.integers(1, 2)))],
        }
        limit = draw(LENGTHS)
        if draw(st.integers(0, 4)):
            part["maxRuntime"] = limit
        part["duration"] = draw(st.sampled_from([limit, max(1, limit - 7)]))
        if draw(st.integers(0, 4)) == 0:
            part["minAvailable"] = 1
        found.append(part)
    return found


@st.composite
def scenarios(draw: st.DrawFn, queues: list[Part], work: st.SearchStrategy[list[Part]]) -> Part:
    nodes = [
        {
            "name": f"n{index}",
            "cpu": draw(st.integers(2, 6)),
            "gpus": draw(st.sampled_from([0, 2])),
            "labels": {"rack": draw(st.sampled_from(["r1", "r2"]))},
        }
        for index in range(draw(st.integers(1, 4)))
    ]
    return {"nodes": nodes, "queues": queues, "allocations": draw(work), "until": 500}


def run(scenario: Part) -> SimulationOutcome:
    return simulate(msgspec.convert(scenario, Scenario))


def limits(scenario: Part) -> dict[str, Any]:
    return {part["name"]: part.get("maxRuntime") for part in scenario["allocations"]}


def assert_never_later(outcome: SimulationOutcome) -> None:
    """Check that no reserved start becomes later, and that the head has started by then."""
    for name, noted in outcome.kept.items():
        starts = [kept.start for _, kept in noted if kept.start is not None]
        assert starts == sorted(starts, reverse=True), (name, starts)
        started = outcome.world.lives[name].first_start
        if starts and starts[-1] <= outcome.end:
            assert started is not None, (name, starts)
            assert started <= starts[-1], (name, starts, started)


ONE = [{"name": "q", "ordering": "Backfill"}]


@given(scenarios(ONE, some_work("a", queues=["q"], most=10, early=False)))
@SETTINGS
def test_the_start_of_a_head_never_moves_later(scenario: Part) -> None:
    """In one first-come-first-served queue a promised start stays, whichever allocations pass and end early."""
    assert_never_later(run(scenario))


TWO = [{"name": "q", "ordering": "Backfill", "limit": {"cpu": 8}}, {"name": "other", "ordering": "Backfill"}]
MIXED = st.tuples(
    some_work("a", queues=["q"], most=5, early=True), some_work("low", queues=["q", "other"], most=6, early=False)
).map(lambda parts: [{**part, "priority": 5} for part in parts[0]] + parts[1])


def assert_first_rank_is_kept(outcome: SimulationOutcome) -> None:
    """Check that no reserved start of an allocation named `a...` moves later, once all of them wait. A tick may note
    a start for a head that the next tick of the same moment starts: that note is no promise."""
    for name, noted in outcome.kept.items():
        started = outcome.world.lives[name].first_start
        promised = [(when, kept.start) for when, kept in noted if when >= 9 and when != started]
        starts = [start for _, start in promised if start is not None]
        if name.startswith("a"):
            assert starts == sorted(starts, reverse=True), (name, noted)
            if starts and starts[-1] <= outcome.end:
                assert started is not None, (name, starts)
                assert started <= starts[-1], (name, starts, started)


@given(scenarios(TWO, MIXED))
@SETTINGS
def test_lower_priority_never_delays_a_reserved_head(scenario: Part) -> None:
    """This is true in every queue, and in every order of turns."""
    assert_first_rank_is_kept(run(scenario))


EVICTING = [
    {**queue, "preemption": {"withinQueue": "LowerOrNewerEqual", "reclaim": "Any"}, "nominal": {"cpu": 3}}
    for queue in TWO
]


@st.composite
def with_evictions(draw: st.DrawFn) -> Part:
    """Allocations of lower rank may evict and move each other; those of the first rank cannot be evicted."""
    scenario = draw(scenarios(EVICTING, MIXED))
    for part in scenario["allocations"]:
        part["preemptible"] = not part["name"].startswith("a") and draw(st.integers(0, 3)) > 0
        part.setdefault("priority", draw(st.integers(0, 3)))
    return scenario


@given(with_evictions())
@SETTINGS
def test_what_ranks_lower_delays_no_reserved_head_by_evicting_its_like(scenario: Part) -> None:
    """This is true whatever is evicted or moved for it in the same tick."""
    assert_first_rank_is_kept(run(scenario))
