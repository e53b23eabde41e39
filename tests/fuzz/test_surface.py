"""Whatever a client sends, the api answers as its document says: no 5xx, no hang, no growth, no death, and nothing
without the right for it."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.surface import fuzz, ground

CASES = 11
CASES_MIN = 2_000


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_every_operation_of_the_document(tmp_path: Path) -> None:
    """A slice with real objects of every kind behind the paths; the whole is `make fuzz`."""
    with ground(tmp_path / "data") as (stack, known):
        report = fuzz(stack, known, cases=CASES, rounds=2, start=1)
    assert not report.findings, "\n".join(report.findings)
    assert sum(each.cases for each in report.operations.values()) >= CASES_MIN
    assert sum(each.lesser for each in report.operations.values()) >= CASES_MIN
    reached = {status for each in report.operations.values() for status in each.statuses}
    assert {200, 201, 202, 204, 400, 404, 409, 422} <= reached
