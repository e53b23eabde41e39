"""Allocations that are read from a trace equal those of a scenario file, and the figures of a run are within their
bounds."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.scheduler.simulate import answer
from slipway.scheduler.simulate.answer import jain
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import whole
from slipway.scheduler.simulate.workload_trace import load

Json = dict[str, Any]
QUIET = settings(max_examples=40, deadline=None)
CLUSTER: Json = {
    "nodes": [{"name": "n", "count": 2, "cpu": 8, "memory": "64Gi", "gpus": 4}],
    "queues": [{"name": name, "preemption": {"withinQueue": "LowerPriority"}} for name in ("a", "b")],
}
MAPPING = {
    "columns": {
        **{name: name for name in ("name", "submit", "ranks", "gpus", "queue", "user", "priority", "preemptible")},
        "duration": {"column": "minutes", "unit": "m"},
        "cpu": {"column": "cpu", "per": "allocation", "unit": "m"},
    }
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a mapping and a cluster."""
    path = tmp_path_factory.mktemp("trace")
    (path / "map.json").write_text(json.dumps(MAPPING))
    (path / "cluster.json").write_text(json.dumps(CLUSTER))
    return path


@st.composite
def work(draw: st.DrawFn) -> list[Json]:
    return [
        {
            "name": f"a{index}",
            "submit": draw(st.integers(0, 600)) if index else 0,
            "minutes": draw(st.integers(0, 10)),
            "ranks": draw(st.integers(1, 3)),
            "gpus": draw(st.integers(0, 4)),
            "cpu": draw(st.integers(1, 4)) * 1000,
            "queue": draw(st.sampled_from("ab")),
            "user": draw(st.sampled_from(["", "ana", "ben, the younger"])),
            "priority": draw(st.integers(0, 2)),
            "preemptible": draw(st.booleans()),
        }
        for index in range(draw(st.integers(1, 6)))
    ]


def as_part(row: Json) -> Json:
    """The allocation of a scenario for a row."""
    kept = {name: row[name] for name in ("name", "submit", "queue", "user", "priority", "preemptible")}
    rank = {"count": row["ranks"], "gpus": row["gpus"], "cpu": f"{-(-row['cpu'] // row['ranks'])}m"}
    return {**kept, "duration": row["minutes"] * 60, "ranks": [rank]}


@QUIET
@given(work())
def test_a_trace_is_the_scenario_that_it_says(folder: Path, rows: list[Json]) -> None:
    """With any cells both give the same answer, field by field; and every figure is within its bounds."""
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    (folder / "t.csv").write_text(out.getvalue(), encoding="utf-8")
    traced = load(str(folder / "cluster.json"), str(folder / "t.csv"), str(folder / "map.json")).scenario
    told = answer.as_json(simulate(traced), ())
    assert told == answer.as_json(simulate(whole({**CLUSTER, "allocations": [as_part(row) for row in rows]})), ())
    figures = told["metrics"]
    assert figures["waitP50"] <= figures["waitP95"] <= figures["waitP99"]
    assert 0 <= figures["gpuHoursLost"] <= figures["gpuHours"]
    if figures["ended"]:
        assert figures["slowdownMean"] >= 1
        owners = len({row["user"] for row in rows})
        assert 1 / owners - 1e-9 <= figures["fairnessUsers"] <= 1 + 1e-9


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.floats(0.1, 10))
def test_the_index_of_jain(values: list[float], times: float) -> None:
    """The index is 1 if all values are equal, never below 1/n, and does not depend on the unit."""
    index = jain(values)
    assert index is not None
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain([times * value for value in values]) == pytest.approx(index)
    assert jain([values[0]] * len(values)) == pytest.approx(1)
