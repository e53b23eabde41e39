"""Workload traces: a mapping turns the cells of a row into an allocation; an error names the line and the column."""

import json
from pathlib import Path
from typing import Any

import pytest

from slipway.errors import InvalidError
from slipway.scheduler.simulate.command import main
from slipway.scheduler.simulate.scenario_format import AllocationPart
from slipway.scheduler.simulate.workload_trace import TracedScenario, load

CLUSTER = "nodes: [{name: n, cpu: 64, memory: 256Gi, gpus: 8}]\n"
Json = dict[str, Any]


class Folder:
    """A folder with the three files of a call: the cluster, the trace and the mapping."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, text: str, columns: Json, *, name: str = "t.csv", cluster: str = CLUSTER, **mapping: Any) -> Any:
        """The scenario of a trace; file names in complaints are relative."""
        for file, content in (
            ("cluster.yaml", cluster),
            (name, text),
            ("map.json", json.dumps({"columns": columns, **mapping})),
        ):
            (self._path / file).write_text(content, encoding="utf-8")
        return load("cluster.yaml", name, "map.json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


def only(traced: TracedScenario) -> AllocationPart:
    [part] = traced.scenario.allocations
    return part


def read(folder: Folder, field: str, cell: str, rule: Any = None, **mapping: Any) -> AllocationPart:
    """The allocation of one row whose column `x` holds `cell`, read as `field`."""
    columns = {"submit": "t", "duration": "d", field: rule or "x"}
    return only(folder.load(f't,d,x\n0,1,"{cell}"\n', columns, **mapping))


def test_a_row_is_an_allocation(folder: Folder) -> None:
    """A word names a column; a column that no field names is not looked at; the first arrival is time 0."""
    text = "id,when,secs,n,owner,note\njob-1,1000,60,2,ana,hello\njob-2,1030,5,1,ben,\n"
    columns = {"name": "id", "submit": "when", "duration": "secs", "ranks": "n", "user": "owner"}
    one, two = folder.load(text, columns).scenario.allocations
    assert (one.name, one.submit, one.duration, one.ranks[0].count, one.user) == ("job-1", 0, 60, 2, "ana")
    assert (two.name, two.submit, two.user, two.queue, two.priority) == ("job-2", 30, "ben", "default", 0)


def test_work_of_the_file_stays(folder: Folder) -> None:
    """The trace is added to the allocations of the scenario."""
    own = CLUSTER + "allocations: [{name: mine, ranks: [{cpu: 1}]}]\n"
    found = folder.load("t,d\n5,1\n", {"submit": "t", "duration": "d"}, cluster=own).scenario
    assert [part.name for part in found.allocations] == ["mine", "row-2"]


@pytest.mark.parametrize(
    ("cell", "unit", "seconds"),
    [
        ("90", "", 90),
        ("1.5", "h", 5400),
        ("250", "ms", 0.25),
        ("2h45m", "", 9900),
        ("02:30", "", 150),
        ("1:00:00", "", 3600),
        ("1-02:03:04", "", 93784),
    ],
)
def test_durations(folder: Folder, cell: str, unit: str, seconds: float) -> None:
    """A number of the unit (seconds, if none is stated), a duration, or a clock as Slurm writes it."""
    columns = {"submit": "t", "duration": {"column": "d", "unit": unit}}
    assert only(folder.load(f"t,d\n0,{cell}\n", columns)).duration == seconds


def test_moments(folder: Folder) -> None:
    """A moment is a number, a time with an offset, or a time without one in the zone of the mapping."""
    columns = {"submit": "t", "duration": {"from": "t", "to": "e"}}
    text = "t,e\n2026-03-29T00:30:00Z,2026-03-29T03:30:00+02:00\n2026-03-29T01:00:00,2026-03-29T04:00:00\n"
    one, two = folder.load(text, columns, timeZone="Europe/Berlin").scenario.allocations
    assert (one.submit, one.duration) == (1800, 3600)
    assert (two.submit, two.duration) == (0, 7200), "an hour of this night is skipped"


@pytest.mark.parametrize(
    ("field", "cell", "rule", "found"),
    [
        ("cpu", "1500", {"column": "x", "unit": "m"}, "1500m"),
        ("cpu", "1e1", None, "10000m"),
        ("memory", "4096", {"column": "x", "unit": "Mi"}, 4 * 2**30),
        ("memory", "16Gi", {"column": "x", "unit": "Mi"}, 16 * 2**30),
        ("gpus", "4", None, 4),
        ("gpus", "", {"column": "x", "default": 2}, 2),
        ("gpus", "a100:2", {"column": "x", "values": {"a100:2": 2}}, 2),
        ("gpus", "ignored", {"value": 3}, 3),
    ],
)
def test_amounts(folder: Folder, field: str, cell: str, rule: Any, found: Any) -> None:
    """An amount is a number of the unit, or a quantity with its own unit; words may be translated, empty cells have
    defaults, and a field may be constant."""
    assert getattr(read(folder, field, cell, rule).ranks[0], field) == found


def test_what_all_ranks_share_is_divided(folder: Folder) -> None:
    """The part of each rank is rounded up, so that no rank gets less than it needs."""
    columns = {"submit": "t", "duration": "d", "ranks": "n", "cpu": {"column": "c", "per": "allocation"}}
    columns["gpus"] = {"column": "g", "per": "allocation"}
    [rank] = only(folder.load("t,d,n,c,g\n0,1,3,10,12\n", columns)).ranks
    assert (rank.count, rank.cpu, rank.gpus) == (3, "3334m", 4)


@pytest.mark.parametrize(
    ("gpus", "milli", "found"),
    [("1", "460", (0, 460)), ("1", "1000", (1, 0)), ("4", "1000", (4, 0)), ("0", "0", (0, 0))],
)
def test_a_part_of_a_gpu(folder: Folder, gpus: str, milli: str, found: tuple[int, int]) -> None:
    """Thousandths below 1000 stand in place of one GPU; else the column of GPUs decides."""
    columns = {"submit": "t", "duration": "d", "gpus": "g", "gpuMilli": "m"}
    [rank] = only(folder.load(f"t,d,g,m\n0,1,{gpus},{milli}\n", columns)).ranks
    assert (rank.gpus, rank.gpu_milli) == found


def test_a_fraction_of_a_gpu(folder: Folder) -> None:
    """The unit `gpu` states the part in GPUs instead of thousandths."""
    assert read(folder, "gpuMilli", "0.25", {"column": "x", "unit": "gpu"}).ranks[0].gpu_milli == 250


@pytest.mark.parametrize(("field", "name"), [("user", "user"), ("priority", "priority"), ("maxRuntime", "max_runtime")])
def test_an_empty_cell_says_nothing(folder: Folder, field: str, name: str) -> None:
    """An empty cell leaves an optional field unset."""
    assert getattr(read(folder, field, ""), name) in ("", 0, None)


def test_rows_are_left_out_and_counted(folder: Folder) -> None:
    """The mapping leaves rows out by the cells of a column."""
    traced = folder.load("t,d,s\n0,1,DONE\n0,1,\n0,1,FAILED\n", COLUMNS, skip={"s": ["", "FAILED"]})
    assert [part.name for part in traced.scenario.allocations] == ["row-2"]
    assert traced.warnings == ("rows of t.csv left out by skip of map.json: 2",)


def test_json_lines(folder: Folder) -> None:
    """A file has one object a line; a field that is missing or null is an empty cell."""
    text = '{"t": 0, "d": 2.5, "u": "ana", "p": true}\n\n{"t": 1, "d": 1, "u": null}\n'
    one, two = folder.load(text, {**COLUMNS, "user": "u", "preemptible": "p"}, name="t.jsonl").scenario.allocations
    assert (one.duration, one.user, one.preemptible) == (2.5, "ana", True)
    assert (two.name, two.user, two.preemptible) == ("row-3", "", False)


COLUMNS = {"submit": "t", "duration": "d"}


@pytest.mark.parametrize(
    ("cell", "field", "rule", "said"),
    [
        ("soon", "priority", None, "t.csv, line 2, column x: 'soon' is not a number; write one, or translate the cell"),
        ("1.5", "ranks", None, "t.csv, line 2, column x: '1.5' is not a whole number of at least 1"),
        ("0", "ranks", None, "t.csv, line 2, column x: '0' is not a whole number of at least 1"),
        ("-1", "cpu", None, "t.csv, line 2, column x: '-1' is negative"),
        ("", "cpu", None, "t.csv, line 2, column x: the cell is empty; state columns.cpu.default in map.json"),
        ("0.5", "gpus", None, "t.csv, line 2, column x: 0.5 is not a whole number; map it as gpuMilli with unit: gpu"),
        ("maybe", "preemptible", None, "t.csv, line 2, column x: 'maybe' is neither true nor false"),
        ("blue", "queue", None, "t.csv, line 2, column x: there is no queue blue; add it to cluster.yaml, or transl"),
        ("3e10", "priority", None, "t.csv, line 2, column x: "),
        ("1e30", "memory", None, "t.csv, line 2, column x: "),
        ("2000000", "ranks", None, "t.csv, line 2, column x: "),
        ("eternal", "maxRuntime", None, "t.csv, line 2, column x: 'eternal' is not a duration; write a number, 2h45m"),
        ("x", "queue", {"value": "blue"}, "map.json: columns.queue.value: there is no queue blue"),
        ("x", "gpus", {"value": "many"}, "map.json: columns.gpus.value: 'many' is not a quantity"),
        ("x", "gpuType", None, "t.csv, line 2, column x: the pool has no flavor x"),
    ],
)
def test_a_bad_cell_is_said_with_its_place(folder: Folder, cell: str, field: str, rule: Any, said: str) -> None:
    """The error names file, line and column, or the field of the mapping, and what to write instead."""
    with pytest.raises(InvalidError) as raised:
        read(folder, field, cell, rule)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        ("a,d\n0,1\n", COLUMNS, "t.csv, line 1: no column t; it has a, d: correct columns.submit of map.json"),
        ("t,d,d\n0,1,1\n", COLUMNS, "t.csv, line 1: two columns d; it has t, d, d: correct columns.duration"),
        ("t,d\n0\n", COLUMNS, "t.csv, line 2: it has 1 cells and the first line has 2"),
        ('t,d\n0,"1\n', COLUMNS, "t.csv, line 2: not CSV: "),
        ("t,d\n", COLUMNS, "t.csv: no row has an allocation"),
        ("", COLUMNS, "t.csv, line 1: no column t; it has nothing: correct"),
        ("t,d\nnow,1\n", COLUMNS, "t.csv, line 2, column t: 'now' is not a time; write a number, or a time such as 20"),
        (
            "t,d\n2026-01-02T03:04:05,1\n",
            COLUMNS,
            "t.csv, line 2, column t: '2026-01-02T03:04:05' states no time zone;",
        ),
        ("t,d\n0,-1\n", COLUMNS, "t.csv, line 2, column d: -1 is negative"),
        ("t,d\n5,1\n", {**COLUMNS, "duration": {"from": "t", "to": "d"}}, "t.csv, line 2: column d is before column t"),
        (
            "t,d\na,1\na,1\n",
            {"submit": "d", "duration": "d", "name": "t"},
            "t.csv, line 3, column t: 'a' is the name of",
        ),
        ("t,d\n0,1\n", {"submit": "t"}, "map.json: columns.duration: required"),
        ("t,d\n0,1\n", {**COLUMNS, "cpus": "d"}, "map.json: columns.cpus: unknown field"),
        ("t,d\n0,1\n", {**COLUMNS, "cpu": {}}, "map.json: columns.cpu: state one of column, value, or from and to"),
        ("t,d\n0,1\n", {**COLUMNS, "cpu": {"from": "t", "to": "d"}}, "map.json: columns.cpu: from and to name"),
        ("t,d\n0,1\n", {**COLUMNS, "user": {"column": "d", "unit": "s"}}, "map.json: columns.user.unit: user has no"),
        (
            "t,d\n0,1\n",
            {**COLUMNS, "cpu": {"column": "d", "unit": "Gi"}},
            "map.json: columns.cpu.unit: Gi is not a unit",
        ),
        ("t,d\n0,1\n", {**COLUMNS, "user": {"column": "d", "per": "allocation"}}, "map.json: columns.user.per: only"),
    ],
)
def test_a_bad_file_is_said_with_its_place(folder: Folder, text: str, columns: Json, said: str) -> None:
    """The error names the trace and its line, or the mapping and its field."""
    with pytest.raises(InvalidError) as raised:
        folder.load(text, columns)
    assert str(raised.value).startswith(said)


def test_other_bad_mappings_and_files(folder: Folder) -> None:
    """An unknown time zone and a bad line of JSON are refused; an error in the scenario names the scenario."""
    with pytest.raises(InvalidError, match=r"^map.json: timeZone: Mars is not a time zone; write a name such as UTC"):
        folder.load("t,d\n0,1\n", COLUMNS, timeZone="Mars")
    with pytest.raises(InvalidError, match=r"^t.jsonl, line 2: not an object; write one object a line"):
        folder.load('{"t": 0, "d": 1}\n[1]\n', COLUMNS, name="t.jsonl")
    with pytest.raises(InvalidError, match=r"^cluster.yaml: nodes\[0\].cpus: unknown field"):
        folder.load("t,d\n0,1\n", COLUMNS, cluster="nodes: [{name: n, cpus: 1}]")


def test_the_summary_is_the_answer_to_a_trace(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures are printed one a line; `-o` prints the table or JSON instead."""
    folder.load("t,d\n0,10\n", COLUMNS)
    words = ["cluster.yaml", "--trace", "t.csv", "--mapping", "map.json"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["utilisation", "0"]
    assert ["slowdownMean", "1"] in [line.split() for line in lines]
    assert main([*words, "-o", "table"]) == 0
    assert "row-2" in capsys.readouterr().out
    assert main(["cluster.yaml", "--trace", "t.csv"]) == 2
    assert "--trace and --mapping need each other" in capsys.readouterr().err


def test_the_example_of_the_page_is_read(folder: Folder) -> None:
    """The trace and the mapping of docs/scenarios.md are read unchanged."""
    page = (Path(__file__).parents[4] / "docs/scenarios.md").read_text(encoding="utf-8")
    trace = page.partition("```csv\n")[2].partition("```")[0]
    mapping = "format: csv" + page.partition("```yaml\nformat: csv")[2].partition("```")[0]
    Path("jobs.csv").write_text(trace, encoding="utf-8")
    Path("jobs.mapping.yaml").write_text(mapping, encoding="utf-8")
    Path("cluster.yaml").write_text(CLUSTER + "queues: [{name: vision}, {name: speech}]\n", encoding="utf-8")
    one, two = load("cluster.yaml", "jobs.csv", "jobs.mapping.yaml").scenario.allocations
    assert (one.queue, one.ranks[0].count, one.ranks[0].gpus, one.max_runtime) == ("vision", 2, 4, 7200)
    assert (two.user, two.submit, two.duration, two.max_runtime) == ("ben", 600, 1800, 86400)
