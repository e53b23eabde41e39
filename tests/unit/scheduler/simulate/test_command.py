"""The output of `slipway simulate` in each of its forms."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from slipway.scheduler.simulate.command import main

ONE = """
nodes: [{name: n, count: 2, cpu: 4, memory: 16Gi}, {name: down, cpu: 4, memory: 16Gi, ready: false}]
pool: {scores: {LeastAllocated: 1, BalancedAllocation: 1}}
allocations: [{name: a, submit: 2, duration: 6, ranks: [{cpu: 1, memory: 1Gi}]}]
"""


def answer(text: str, *options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    path = tmp_path / "scenario.yaml"
    path.write_text(text, encoding="utf-8")
    assert main([str(path), "-o", "json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def test_scores_of_one_allocation_are_by_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--explain-scores` adds {node: {plugin: value}} for the nodes that fit; without it there are no scores."""
    found = answer(ONE, "--explain-scores", tmp_path=tmp_path, capsys=capsys)
    assert found["scores"] == {name: {"BalancedAllocation": 70, "LeastAllocated": 84} for name in ("n-0", "n-1")}
    assert "scores" not in answer(ONE, tmp_path=tmp_path, capsys=capsys)


def test_scores_of_several_are_by_allocation_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scores of each are those that the planner saw: for the second, with the first in place."""
    second = "{name: b, submit: 2, ranks: [{cpu: 1, memory: 1Gi}]}"
    two = ONE.replace("memory: 1Gi}]}]", f"memory: 1Gi}}]}}, {second}]")
    found = answer(two, "--explain-scores", tmp_path=tmp_path, capsys=capsys)
    assert found["scores"]["a"]["n-0"]["LeastAllocated"] == 84
    assert found["scores"]["b"]["n-0"]["LeastAllocated"] == (50 + 87) // 2
    assert found["allocations"]["b"]["placements"][0]["node"] == "n-1"


def test_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One cpu of eight ready and four unready ones is used, for the whole time."""
    metrics = answer(ONE, tmp_path=tmp_path, capsys=capsys)["metrics"]
    assert metrics["makespan"] == 6
    assert metrics["utilisation"] == pytest.approx(1 / 12)
    assert (metrics["waitP50"], metrics["waitP99"], metrics["started"], metrics["pending"]) == (0, 0, 1, 0)


def test_the_table_says_what_waits_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(ONE.replace("cpu: 1,", "cpu: 9,"), encoding="utf-8")
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["ALLOCATION", "PHASE", "START", "END", "WAIT", "ATTEMPT", "NODES"]
    assert "a: NoFit: can never start with the pool's current nodes" in out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`-` is the standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(ONE))
    assert main(["-", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["allocations"]["a"]["phase"] == "Terminated"


def test_what_is_not_done_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
nodes: [{name: n, cpu: 1}]
pool: {scores: {GpuFragmentation: 1}}
queues: [{name: default, ordering: Backfill, preemption: {reclaim: Any}}]
jobs: [{name: j, weight: 2}]
allocations: [{name: a, ranks: [{}]}]
"""
    warnings = answer(text, tmp_path=tmp_path, capsys=capsys)["warnings"]
    assert "job j: weight decides only between equal places; shares are between queues" in warnings


def test_until_stops_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ends later still runs; what arrives later is pending and unexplained."""
    text = ONE + "until: 4\n"
    found = answer(text, tmp_path=tmp_path, capsys=capsys)["allocations"]["a"]
    assert (found["phase"], found["start"], found["end"]) == ("Running", 2, None)
    early = answer(ONE + "until: 1\n", tmp_path=tmp_path, capsys=capsys)["allocations"]["a"]
    assert (early["phase"], early["explain"], early["wait"]) == ("Pending", None, None)
