"""Percentiles of the run times of ended work: over which work, and for work that runs already."""

import pytest

from slipway.scheduler.simulate.run_times import SAMPLES_MIN, EndedRun, RunTimes


def runs(
    count: int, *, queue: str = "q", user: str = "ana", step_s: float = 10.0, limit_s: float | None = None
) -> list[EndedRun]:
    """`count` of them, of 1, 2, 3 ... steps."""
    return [EndedRun(queue=queue, user=user, ran_s=step_s * (n + 1), limit_s=limit_s) for n in range(count)]


@pytest.mark.parametrize(("percent", "found"), [(10, 10), (50, 50), (90, 90), (100, 100)])
def test_a_part_of_the_work_is_not_longer(percent: int, found: float) -> None:
    """By nearest rank: a run time that was there."""
    assert RunTimes(runs(10)).percentile("q", "ana", None, 0.0, percent) == found


def test_work_with_a_limit_uses_the_same_part_of_it() -> None:
    """Whatever the limit is: what ran for 10 % to 100 % of an hour."""
    times = RunTimes(runs(10, step_s=360.0, limit_s=3600.0))
    assert times.percentile("q", "ana", 100.0, 0.0, 50) == pytest.approx(50)


def test_what_runs_already_is_like_what_ran_longer() -> None:
    """Shorter work says nothing of it."""
    times = RunTimes(runs(20))
    assert times.percentile("q", "ana", None, 95.0, 10) == 110
    assert times.percentile("q", "ana", None, 100.0, 10) == 110
    assert times.percentile("q", "ana", None, 115.0, 10) is None, "fewer than ten ran longer"


def test_the_own_work_counts_before_that_of_others() -> None:
    """Of the user in the queue, else of the queue, else of all."""
    times = RunTimes([*runs(10), *runs(10, user="ben", step_s=100.0), *runs(10, queue="r", user="eva", step_s=1000.0)])
    assert times.percentile("q", "ana", None, 0.0, 100) == 100
    assert times.percentile("q", "ben", None, 0.0, 100) == 1000
    assert times.percentile("q", "new", None, 0.0, 100) == 1000
    assert times.percentile("r", "ana", None, 0.0, 100) == 10000
    assert times.percentile("s", "ana", None, 0.0, 100) == 10000


def test_too_little_tells_nothing() -> None:
    """Nor does work without a limit tell anything of that with one."""
    assert RunTimes(runs(SAMPLES_MIN - 1)).percentile("q", "ana", None, 0.0, 50) is None
    assert RunTimes(runs(20)).percentile("q", "ana", 60.0, 0.0, 50) is None
