"""The table of `slipway simulate`: as wide as the terminal, with everything counted that it leaves out."""

import json
from typing import Any

import pytest

from slipway.scheduler.simulate.command import ROWS_MAX, as_table, number
from slipway.scheduler.simulate.forecast import StartEstimate
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import decode


def table(width: int = 80, *, with_scores: bool = False, **document: Any) -> list[str]:
    return as_table(simulate(decode(json.dumps(document)), with_scores=with_scores), (), width=width).splitlines()


@pytest.mark.parametrize("width", [66, 80, 132])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """The names are as long as people choose them."""
    found = table(
        width,
        with_scores=True,
        nodes=[{"name": f"gpu-node-eu-west-{index}", "cpu": 8, "gpus": 8} for index in range(12)],
        queues=[{"name": "q", "preemption": {"withinQueue": "LowerPriority"}}],
        allocations=[
            {
                "name": f"run-{index:03d}",
                "queue": "q",
                "submit": index * 3.125,
                "duration": 40,
                "priority": index % 3,
                "preemptible": True,
                "ranks": [{"count": 1 + index % 9, "gpus": 4 + index % 5}],
            }
            for index in range(40)
        ],
        until=120,
    )
    assert max(map(len, found)) <= width
    assert found[0].split() == ["ALLOCATION", "PHASE", "START", "END", "WAIT", "ATTEMPT", "NODES"]


def test_nodes_that_do_not_fit_are_counted() -> None:
    """The table shows the first nodes, and how many more there are."""
    nodes = [{"name": f"n{index}", "cpu": 1} for index in range(30)]
    [row] = [
        line
        for line in table(nodes=nodes, allocations=[{"name": "a", "ranks": [{"count": 30, "cpu": 1}]}])
        if line.startswith("a ")
    ]
    assert row.endswith("+20") or " +" in row


def test_equal_reasons_are_said_once() -> None:
    """The line has the names of the allocations that wait for this reason."""
    work = [{"name": f"w{index}", "ranks": [{"cpu": 4}]} for index in range(9)]
    lines = table(nodes=[{"name": "n", "cpu": 1}], allocations=work)
    assert sum("NoFit" in line for line in lines) == 1
    assert any("w0, w1, w2, w3, w4, w5 and 3 more: NoFit" in line for line in lines)


def test_ranks_that_went_together_are_one_line() -> None:
    """The line also names the preemptor."""
    lines = table(
        nodes=[{"name": "n", "cpu": 2}],
        queues=[{"name": "q", "preemption": {"withinQueue": "LowerPriority"}}],
        allocations=[
            {"name": "low", "queue": "q", "preemptible": True, "ranks": [{"count": 2, "cpu": 1}]},
            {"name": "high", "queue": "q", "submit": 5, "priority": 1, "ranks": [{"cpu": 2}]},
        ],
    )
    assert "evicted: low 2 ranks at 5 for high" in lines


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (StartEstimate(earliest=0, latest=90), "(starts by 90)"),
        (StartEstimate(earliest=0, latest=90, likely=(10, 20)), "(likely starts between 10 and 20, starts by 90)"),
        (StartEstimate(earliest=0, latest=None, likely=(10, 20)), "(likely starts between 10 and 20)"),
        (StartEstimate(earliest=0, latest=None, likely=(10, None)), ""),
    ],
)
def test_the_start_is_estimated_in_words(estimate: StartEstimate, said: str) -> None:
    """The estimate follows the reason: the likely start, and the latest."""
    document = {"nodes": [{"name": "n", "cpu": 1}], "allocations": [{"name": "w", "ranks": [{"cpu": 2}]}]}
    text = as_table(simulate(decode(json.dumps(document))), (), {"w": estimate}, width=1000)
    [line] = [line for line in text.splitlines() if line.startswith("w: ")]
    assert line.endswith(said) if said else "start" not in line.partition("with the pool's current nodes")[2]


def test_rows_have_a_limit() -> None:
    """The table states how many rows are left out."""
    work: list[dict[str, Any]] = [{"name": f"w{index}", "submit": 10, "ranks": [{}]} for index in range(ROWS_MAX + 5)]
    lines = table(nodes=[], allocations=work, until=1)
    assert "... and 5 more allocations; -o json has them all" in lines


def test_long_names_keep_their_beginning_and_end() -> None:
    """Names differ at their beginning or at their end."""
    name = "a" * 30 + "-" + "z" * 30
    lines = table(nodes=[{"name": "n", "cpu": 1}], allocations=[{"name": name, "ranks": [{"cpu": 1}]}])
    assert lines[1].startswith("aaaa")
    assert "..zzz" in lines[1]
    assert len(lines[1]) <= 80


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (5.0, "5"), (0.1 + 0.2, "0.3"), (1e6, "1000000"), (-60, "-60"), (1e-9, "0")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    """Numbers are exact to the thousandth."""
    assert number(value) == text
