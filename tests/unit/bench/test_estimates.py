"""The bench of estimated starts: the compared values."""

import pytest
from bench.estimates import EstimateAndStart, asked, percent, without_limits
from bench.quality import one_queue_scenario, work

from slipway.scheduler.simulate.forecast import StartEstimate


@pytest.mark.parametrize(
    ("start", "is_within", "is_possible"),
    [(15.0, True, True), (20.0, True, True), (25.0, False, True), (41.0, False, False)],
)
def test_a_start_is_within_the_bounds_or_not(start: float, is_within: bool, is_possible: bool) -> None:
    """A start is within its bounds or not; the bounds themselves are within."""
    one = EstimateAndStart(estimate=StartEstimate(earliest=5.0, latest=40.0, likely=(10.0, 20.0)), start=start)
    assert (one.is_within, one.is_possible, one.width_s) == (is_within, is_possible, 10.0)


def test_work_without_limits_is_the_same_work() -> None:
    """The work without limits is the same work without run limits, and has likely bounds too."""
    document = one_queue_scenario("BestEffortFIFO", work(2)[:120])
    free = without_limits(document)
    assert [item | {"maxRuntime": 0} for item in free["allocations"]] == [
        item | {"maxRuntime": 0} for item in document["allocations"]
    ]
    answers = asked(free)
    assert answers
    assert all(each.estimate.latest is None for each in answers)
    assert all(each.estimate.likely and each.estimate.likely[1] is not None for each in answers)


def test_percent() -> None:
    """The percentage of the answers that are true."""
    assert percent([True, False, True, True]) == 75.0
