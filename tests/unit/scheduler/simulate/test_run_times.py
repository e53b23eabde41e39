"""Run times drawn from past runs: from which runs, for work that already runs, and with runs that have not ended."""

import pytest

from slipway.scheduler.simulate.forecast import SAMPLES_MIN, PastRun, RunTimes


def runs(
    count: int,
    *,
    queue: str = "q",
    user: str = "ana",
    gpus: int = 1,
    step_s: float = 10.0,
    limit_s: float | None = None,
    has_ended: bool = True,
) -> list[PastRun]:
    """`count` past runs, of 1, 2, 3 ... steps of `step_s` seconds."""
    return [
        PastRun(queue=queue, user=user, gpus=gpus, ran_s=step_s * (n + 1), limit_s=limit_s, has_ended=has_ended)
        for n in range(count)
    ]


def like(
    *, queue: str = "q", user: str = "ana", gpus: int = 1, ran_s: float = 0.0, limit_s: float | None = None
) -> PastRun:
    return PastRun(queue=queue, user=user, gpus=gpus, ran_s=ran_s, limit_s=limit_s, has_ended=False)


@pytest.mark.parametrize(("chance", "found"), [(0.0, 10), (0.09, 10), (0.11, 20), (0.55, 60), (0.999, 100)])
def test_each_ended_run_is_as_likely_as_the_others(chance: float, found: float) -> None:
    """The drawn run time is that of an ended run."""
    assert RunTimes(runs(10)).draw(like(), chance) == found


def test_work_with_a_limit_uses_the_same_part_of_it() -> None:
    """Past runs used 10 % to 100 % of an hour; work with another limit uses the same part of it."""
    times = RunTimes(runs(10, step_s=360.0, limit_s=3600.0))
    assert times.draw(like(limit_s=100.0), 0.45) == pytest.approx(50)


def test_what_runs_already_is_like_what_ran_longer() -> None:
    """Shorter runs do not count for work that has run longer."""
    times = RunTimes(runs(20))
    assert times.draw(like(ran_s=95.0), 0.0) == 100
    assert times.draw(like(ran_s=100.0), 0.0) == 110
    assert times.draw(like(ran_s=100.0), 0.999) == 200


def test_what_runs_longer_than_all_before_goes_on_as_the_longest_differ() -> None:
    """Each of the ten longest runs is 1.1 to 2 times as long as the longest of the others; this factor is applied."""
    times = RunTimes(runs(20))
    assert times.draw(like(ran_s=1000.0), 0.0) == pytest.approx(1100)
    assert times.draw(like(ran_s=1000.0), 0.999) == pytest.approx(2000)


def test_what_still_runs_makes_long_work_more_likely() -> None:
    """Ten runs ended within 100 s and ten have run for 100 s already: half of the times drawn are 100 s or longer."""
    still = [like(ran_s=100.0) for _ in range(10)]
    times = RunTimes([*runs(10), *still])
    assert times.draw(like(), 0.499) == 100
    assert (times.draw(like(), 0.501) or 0.0) >= 100
    assert (times.draw(like(), 0.999) or 0.0) > 100
    assert RunTimes(runs(10)).draw(like(), 0.999) == 100


def test_what_still_runs_and_is_short_says_little() -> None:
    """The weight of a short run goes to all longer runs, so the chances of these relative to each other stay."""
    times = RunTimes([*runs(10), *(like(ran_s=1.0) for _ in range(30))])
    assert [times.draw(like(), chance) for chance in (0.05, 0.55, 0.95)] == [10, 60, 100]


def test_the_most_alike_work_counts_first() -> None:
    """Runs with the same user, queue and size come first, else with the same queue and size, user and queue, queue, or
    any."""
    times = RunTimes(
        [
            *runs(10),
            *runs(10, user="ben", step_s=100.0),
            *runs(10, user="ben", gpus=64, step_s=1_000.0),
            *runs(10, queue="r", user="eva", gpus=2, step_s=10_000.0),
        ]
    )
    last = 0.999
    assert times.draw(like(), last) == 100
    assert times.draw(like(user="ben"), last) == 1_000
    assert times.draw(like(user="new", gpus=100), last) == 10_000
    assert times.draw(like(user="ben", gpus=8), last) == 10_000
    assert times.draw(like(user="new", gpus=8), last) == 10_000
    assert times.draw(like(queue="r", user="ana"), last) == 100_000
    assert times.draw(like(queue="s"), last) == 100_000


def test_too_little_tells_nothing() -> None:
    """Runs without a limit tell nothing of work with one either."""
    assert RunTimes(runs(SAMPLES_MIN - 1)).draw(like(), 0.5) is None
    assert RunTimes(runs(20)).draw(like(limit_s=60.0), 0.5) is None
    assert RunTimes([]).draw(like(), 0.5) is None
