"""The table at the end of a sweep: a planned run without an outcome is reported."""

import pytest

from tests.simulation.plan import Planned
from tests.simulation.report import Report
from tests.simulation.run import Outcome
from tests.support.faults import Fault

FAULT = "crash@watcher:3:before"


def test_a_point_without_a_result_is_counted_as_lost() -> None:
    """An undisturbed run and a point are lost until their outcome arrives."""
    report = Report()
    report.expect_bases([("launch-1", 1, 1), ("launch-1", 1, 2)])
    report.expect([Planned("crash", ("launch-1", 1, 1), (Fault.parse(FAULT),))])
    report.take(Outcome(scenario="launch-1", seed=1))
    assert report.lost == [
        "--scenario launch-1 --seed 1 --replicas 2",
        f"--scenario launch-1 --seed 1 --crash {FAULT}",
    ]
    report.take(Outcome(scenario="launch-1", seed=1, replicas=2))
    report.take(Outcome(scenario="launch-1", seed=1, faults=(FAULT,)))
    assert report.lost == []


def test_lost_points_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows the line that plays the first lost point."""
    report = Report()
    report.expect_bases([("launch-1", 1, 1)])
    report.show()
    assert "points that were lost: 1, the first of them --scenario launch-1 --seed 1" in capsys.readouterr().out
