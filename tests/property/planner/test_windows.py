"""Windows on random scenarios in virtual time: no allocation that may run into the window of others is placed there."""

import asyncio
import math
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import WindowFact
from slipway.model.windows import occurrences
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.state.plan_types import encoded
from slipway.scheduler.simulate.scenario_facts import window as lowered
from slipway.scheduler.simulate.scenario_format import WindowPart
from tests.property.planner.instances import Instance, instances
from tests.property.planner.test_backfill import SETTINGS, assert_never_later, run, scenarios, some_work
from tests.property.planner.test_decision_log import STEPS, furnished, happen
from tests.support.clock import FakeClock
from tests.support.planner import planned
from tests.support.recording_leader import replayed

Part = dict[str, Any]
UNTIL = 500.0
QUEUES: list[Part] = [
    {"name": "a", "ordering": "Backfill", "preemption": {"withinQueue": "LowerOrNewerEqual", "reclaim": "Any"}},
    {"name": "b"},
]


@st.composite
def some_windows(draw: st.DrawFn, node_names: list[str]) -> list[Part]:
    """Windows for one of the queues or for maintenance, on named nodes, by label, or on some number of them."""
    found: list[Part] = []
    for index in range(draw(st.integers(1, 3))):
        part: Part = {
            "name": f"w{index}",
            "start": draw(st.integers(0, 120)),
            "duration": draw(st.sampled_from([10, 40])),
            "leadTime": draw(st.sampled_from([0, 20, 1000])),
            "onStart": draw(st.sampled_from(["Wait", "Evict"])),
        }
        part |= draw(st.sampled_from([{"maintenance": True}, {"queues": ["a"]}, {"queues": ["b"]}]))
        which = draw(st.integers(0, 3))
        if which == 0:
            part["nodeNames"] = [draw(st.sampled_from(node_names))]
        elif which == 1:
            part["nodeSelector"] = {"rack": draw(st.sampled_from(["r1", "r2"]))}
        elif which == 2:
            part["nodes"] = draw(st.integers(1, 2))
        found.append(part)
    return found


@st.composite
def with_windows(draw: st.DrawFn) -> Part:
    early = draw(some_work("e", queues=["a", "b"], most=4, early=True))
    late = draw(some_work("l", queues=["a", "b"], most=4, early=False))
    scenario = draw(scenarios(QUEUES, st.just([*early, *late])))
    windows = draw(some_windows([node["name"] for node in scenario["nodes"]]))
    for part in scenario["allocations"]:
        part["preemptible"] = draw(st.booleans())
    return {**scenario, "pool": {"windows": windows}}


def named(part: Part, scenario: Part) -> set[str]:
    """The nodes of a window without a number of nodes."""
    if "nodeNames" in part:
        return set(part["nodeNames"])
    wanted = part.get("nodeSelector", {}).items()
    return {node["name"] for node in scenario["nodes"] if wanted <= node["labels"].items()}


@SETTINGS
@given(with_windows())
def test_no_rank_is_placed_where_it_may_run_into_a_window_of_others(scenario: Part) -> None:
    """With a run limit a rank ends before the window; without one it starts before the lead time. The simulation
    also checks each plan, including windows with a number of nodes."""
    lives = run(scenario).world.lives
    for part in scenario["pool"]["windows"]:
        if "nodes" in part:
            continue
        times = occurrences(lowered(msgspec.convert(part, WindowPart)), 0.0, UNTIL, 100)
        nodes = named(part, scenario)
        for life in lives.values():
            if life.part.queue in part.get("queues", ()) or life.start is None:
                continue
            limit = life.part.max_runtime
            for place in life.places:
                for time in times if place.node in nodes else ():
                    if limit is None:
                        is_clear = place.start < time.start - part["leadTime"] or place.start >= time.end
                    else:
                        is_clear = life.start + limit <= time.start or place.start >= time.end
                    assert is_clear, (life.part.name, place, part)


@SETTINGS
@given(with_windows())
def test_preemptible_work_of_others_is_gone_once_a_window_that_evicts_has_begun(scenario: Part) -> None:
    """At no instant of the window does any of it run on the window's nodes."""
    lives = run(scenario).world.lives
    for part in scenario["pool"]["windows"]:
        if part["onStart"] != "Evict" or "nodes" in part:
            continue
        time = lowered(msgspec.convert(part, WindowPart))
        nodes = named(part, scenario)
        for life in lives.values():
            if not life.part.preemptible or life.part.queue in part.get("queues", ()):
                continue
            for place in life.places:
                end = UNTIL if place.end is None else place.end
                if place.node in nodes and place.start < time.start:
                    assert end <= time.start, (life.part.name, place, part)


@SETTINGS
@given(with_windows())
def test_no_start_that_was_kept_moves_later(scenario: Part) -> None:
    """With windows on fixed nodes, none of which evicts, the head starts as promised or earlier."""
    windows = [{**part, "onStart": "Wait"} for part in scenario["pool"]["windows"] if "nodes" not in part]
    queues = [{"name": "a", "ordering": "Backfill"}]
    work = [{**part, "queue": "a"} for part in scenario["allocations"]]
    windows = [part for part in windows if "queues" not in part]
    assert_never_later(run({**scenario, "queues": queues, "allocations": work, "pool": {"windows": windows}}))


@SETTINGS
@given(instances(), st.sampled_from(["none", "over", "far", "own"]))
def test_windows_that_close_nothing_change_no_plan(instance: Instance, which: str) -> None:
    """Without a window, with a past one, with one beyond its lead time, or with one for all queues the plans are
    equal. Only allocations without a run limit show the distance of a window."""
    window = {
        "none": (),
        "over": (WindowFact(name="w", start=-100.0, duration=50.0),),
        "far": (WindowFact(name="w", start=1e9, duration=50.0, lead_s=60.0),),
        "own": (WindowFact(name="w", duration=50.0, queues=tuple(queue.name for queue in instance.queues)),),
    }[which]
    plain = planned(instance.snapshot())
    pool = msgspec.structs.replace(instance.pool, windows=window)
    assert encoded(planned(instance.snapshot(pool=pool))) == encoded(plain)


@SETTINGS
@given(instances(), st.integers(0, 20), st.integers(0, 60), st.none() | st.integers(1, 3))
def test_every_plan_beside_a_window_is_sound(instance: Instance, start: int, lead: int, nodes: int | None) -> None:
    """The recount finds no rank on a node that is closed to it."""
    window = WindowFact(name="w", start=float(start), duration=30.0, lead_s=float(lead), nodes=nodes)
    snapshot = instance.snapshot(pool=msgspec.structs.replace(instance.pool, windows=(window,)))
    assert lint(snapshot, planned(snapshot)) == ()


@settings(deadline=None, max_examples=20)
@given(instances(), STEPS, st.integers(-20, 40), st.none() | st.integers(1, 2), st.data())
def test_a_log_of_decisions_beside_a_window_is_replayed_alike(
    instance: Instance, steps: list[str], later: int, nodes: int | None, data: st.DataObject
) -> None:
    """The window is in the recorded pool, and the time in the record: the decision depends on nothing else."""
    start = FakeClock().now() + later
    window = WindowFact(name="w", start=start, duration=30.0, lead_s=10.0, nodes=nodes, evicts=True)
    made = msgspec.structs.replace(instance, pool=msgspec.structs.replace(instance.pool, windows=(window,)))
    leadership = furnished(made)
    happen(leadership, made, steps, data.draw)
    asyncio.run(leadership.recorder.flush())
    if not leadership.log:
        return
    report = replayed(leadership.log)
    assert (report.differences, report.skipped, report.ticks) == ([], [], len(leadership.log))


@given(
    st.sampled_from(["Daily", "Weekly"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.integers(0, 2_000_000_000),
    st.integers(0, 86_400 * 800),
    st.integers(1, 23 * 3600),
)
def test_occurrences_follow_one_another(every: str, zone: str, start: int, later: int, duration: int) -> None:
    """The found occurrence has not ended, and the one before it has; occurrences keep the time of day and do not
    overlap."""
    window = WindowFact(name="w", start=float(start), duration=float(duration), every=every, time_zone=zone)
    at = float(start + later)
    found = occurrences(window, at, math.inf, 3)
    assert len(found) == 3
    assert found[0].end > at
    step = 86_400 if every == "Daily" else 7 * 86_400
    for one, other in pairwise(found):
        assert one.end <= other.start
        assert abs(other.start - one.start - step) <= 3600
    assert found[0].start <= max(at, start) + step + 3600
