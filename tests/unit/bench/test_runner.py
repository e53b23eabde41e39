"""The recorded command and history of a result file, and the comparison of memory over time."""

import msgspec
import pytest
from bench.runner import EARLIER_MAX, Row, command_of, merged, row
from bench.soak import SAMPLE_S, halves


def test_a_shorter_run_says_so_in_its_command() -> None:
    """The command of a shorter run contains its variables, so that a repeat does the same work; other variables are
    left out."""
    env = {"SLIPWAY_BENCH_PODS": "64", "SLIPWAY_BENCH_NODES": "10", "HOME": "/root", "SLIPWAY_LISTEN": "x"}
    assert command_of("growth", env) == "SLIPWAY_BENCH_NODES=10 SLIPWAY_BENCH_PODS=64 python -m bench --only growth"
    assert command_of("growth", {}) == "python -m bench --only growth"


def test_the_warm_up_is_in_neither_half() -> None:
    """The warm-up is left out, a fifth or a minimum of seconds when that is more; the rest is split in the middle."""
    samples = [90.0, 90.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert halves(samples, warm_up_s=0.0) == ([1, 2, 3, 4], [5, 6, 7, 8])
    assert halves(samples, warm_up_s=4 * SAMPLE_S) == ([3, 4, 5], [6, 7, 8])


def test_a_run_that_is_too_short_is_refused() -> None:
    """A run with too few samples has no answer about memory over time."""
    with pytest.raises(ValueError, match="too few"):
        halves([1.0])


def a_row(id_: str = "P1", *, day: int, ours: float = 1.0, command: str = "python -m bench --only planner") -> Row:
    return msgspec.structs.replace(
        row(id_, "some", [ours], "s"), date=f"2026-11-{day:02d}", commit=f"c{day}", command=command
    )


def test_figures_of_another_day_are_kept() -> None:
    """A run on another day is added to the history; one on the same day replaces the first."""
    first = merged([a_row(day=1, ours=1)], [])
    again = merged([a_row(day=1, ours=2)], first)
    later = merged([a_row(day=3, ours=4)], merged([a_row(day=2, ours=3)], again))
    assert [(each.date, each.ours) for each in later] == [("2026-11-03", 4)]
    assert [(day.date, day.ours, day.commit) for day in later[0].before] == [
        ("2026-11-02", 3, "c2"),
        ("2026-11-01", 2, "c1"),
    ]


def test_as_many_days_are_remembered_as_are_read() -> None:
    """Only the latest days are kept."""
    rows: list[Row] = []
    for day in range(1, EARLIER_MAX + 5):
        rows = merged([a_row(day=day)], rows)
    assert [day.commit for day in rows[0].before] == [f"c{day}" for day in range(EARLIER_MAX + 3, 3, -1)]


def test_a_smaller_run_is_no_other_day_of_the_whole() -> None:
    """A result of another command, such as a smaller run, is no other day of the whole. Rows that only the whole run
    has stay, in their order."""
    whole = [a_row("P2", day=1), a_row("P1", day=1), a_row("P3", day=1)]
    small = "SLIPWAY_BENCH_NODES=1 python -m bench --only planner"
    both = merged([a_row("P1", day=2, command=small), a_row("P4", day=2, command=small)], whole)
    assert [(each.id, each.date, each.before) for each in both] == [
        ("P2", "2026-11-01", []),
        ("P1", "2026-11-02", []),
        ("P3", "2026-11-01", []),
        ("P4", "2026-11-02", []),
    ]
    assert [each.id for each in merged([a_row("P1", day=3)], whole)] == ["P1"]
