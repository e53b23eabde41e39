"""The printed result of a run: it fits a terminal, shows the findings, and is bad when there are any."""

from typing import Any

import pytest

from tests.chaos import table
from tests.chaos.table import NO_FAULT, InjectedFault, Outcome


def suffered(kind: str, began_at: float, recovery_s: float = 1.0) -> InjectedFault:
    """A fault of two seconds."""
    over = began_at + 2.0
    return InjectedFault(
        kind=kind, wave=1, began_at=began_at, ended_at=over, recovered_at=over + recovery_s, recovery_s=recovery_s
    )


def outcome(**changes: Any) -> Outcome:
    """A run without a finding."""
    values: dict[str, Any] = {
        "seed": 7,
        "minutes": 2.0,
        "suffered": [suffered("kill -9 api", 10.0), suffered("redis comes back empty", 20.0, 55.5)],
        "violations": [],
        "at": [],
        "launches": 123_456,
        "lost": 0,
        "doubled": 0,
        "answers": 1_234_567,
        "unanswered": 89,
        "rest_s": 12.3,
        "writes_at_rest": 0,
        "versions": 1_234_567,
        "starts": 234_567,
        "bystanders_s": [123.4] * 1234,
        "took_s": 4321.0,
        "unknown": [
            "samples of sizes",
            "the strings that the test planted in workspaces",
            "the times of restarts of all services",
        ],
    }
    return Outcome(**(values | changes))


@pytest.mark.parametrize("bad", [{}, {"violations": ["I1 x: lost"], "at": [NO_FAULT], "rest_s": None}])
def test_it_fits_a_terminal(bad: dict[str, Any]) -> None:
    """The table has 80 columns, whatever the figures are."""
    assert all(len(line) <= table.WIDTH for line in table.lines(outcome(**bad)))


def test_a_violation_makes_a_bad_run() -> None:
    """A system that did not come to rest makes a bad run too."""
    assert outcome().is_good
    assert not outcome(violations=["I1 x: lost"], at=[NO_FAULT]).is_good
    assert not outcome(rest_s=None).is_good


def test_a_violation_is_counted_with_the_fault_during_which_it_arose() -> None:
    """A violation belongs to a fault from its beginning to its recovery; else it is between faults."""
    faults = [suffered("kill -9 api", 10.0), suffered("clock +10 min", 20.0)]
    assert [table.blame(at, faults) for at in (12.5, 15.0, 21.0)] == ["kill -9 api", NO_FAULT, "clock +10 min"]


def test_percentiles_are_measured_values() -> None:
    """A percentile is the smallest value that is not exceeded by this share of them."""
    values = [float(value) for value in range(1, 101)]
    assert (table.percentile(values, 0.5), table.percentile(values, 0.99)) == (50.0, 99.0)
    assert table.percentile([3.0], 0.99) == 3.0
