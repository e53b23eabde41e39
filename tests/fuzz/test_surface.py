"""For any request the api answers as in its document: no 5xx, no hang, no growth, no crash, and no success without the
right for it."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.surface import fuzz, running_target

CASES = 11
CASES_MIN = 2_000


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_every_operation_of_the_document(tmp_path: Path) -> None:
    """A slice, with existing objects of every kind in the paths; `make fuzz` runs all of it."""
    with running_target(tmp_path / "data") as (stack, known):
        report = fuzz(stack, known, cases=CASES, rounds=2, start=1)
    assert not report.findings, "\n".join(report.findings)
    assert sum(each.cases for each in report.operations.values()) >= CASES_MIN
    assert sum(each.lesser for each in report.operations.values()) >= CASES_MIN
    reached = {status for each in report.operations.values() for status in each.statuses}
    assert {200, 201, 202, 204, 400, 404, 409, 422} <= reached
