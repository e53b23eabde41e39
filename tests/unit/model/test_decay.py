"""Usage that decays by half-lives, in whole numbers."""

import math

from hypothesis import given
from hypothesis import strategies as st

from slipway.model.decay import DecayedUsage, constant, decayed, level, spread
from slipway.model.mig import GPU_UNITS

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
AMOUNTS = st.integers(0, 10**15)
HALF_LIVES = st.integers(HOUR_MS, 30 * DAY_MS)
AGES = st.integers(0, 300 * DAY_MS)


def test_usage_is_halved_after_a_half_life() -> None:
    """After one half-life half of a use is left, after two a quarter; a use of now has not decayed."""
    assert [decayed(1000, age * DAY_MS, DAY_MS) for age in range(4)] == [1000, 500, 250, 125]


@given(AMOUNTS, AGES, HALF_LIVES)
def test_another_half_life_halves_any_use(amount: int, age: int, half_life: int) -> None:
    """One more half-life halves any use, rounded down."""
    assert abs(decayed(amount, age + half_life, half_life) - decayed(amount, age, half_life) / 2) <= 1


@given(AMOUNTS, AGES, AGES, HALF_LIVES)
def test_an_older_use_never_leaves_more(amount: int, one: int, other: int, half_life: int) -> None:
    """An older use never leaves more than a newer one, and a smaller one never more than a larger one."""
    younger, older = sorted((one, other))
    assert decayed(amount, older, half_life) <= decayed(amount, younger, half_life) + 1
    assert decayed(amount, one, half_life) <= decayed(amount + 1, one, half_life)


@given(AMOUNTS, AGES, HALF_LIVES)
def test_it_is_the_power_of_two(amount: int, age: int, half_life: int) -> None:
    """The decay is the power of two, within the precision of floating point."""
    assert math.isclose(decayed(amount, age, half_life), amount * 2 ** (-age / half_life), rel_tol=1e-9, abs_tol=2)


@given(AMOUNTS, st.integers(1, DAY_MS), AGES, HALF_LIVES)
def test_a_spread_use_lies_between_its_ends(amount: int, length: int, age: int, half_life: int) -> None:
    """A use over a period leaves no more than the same use at its end, and no less than at its beginning."""
    left = spread(amount, 0, length, length + age, half_life)
    slack = 2 + (amount >> 20)
    assert decayed(amount, length + age, half_life) - slack <= left <= decayed(amount, age, half_life) + slack


def test_a_spread_use_is_the_sum_of_its_parts() -> None:
    """A use over a period is the sum of its parts: one day equals 24 hours."""
    hours = [spread(1000 * HOUR_MS, at * HOUR_MS, (at + 1) * HOUR_MS, 2 * DAY_MS, DAY_MS) for at in range(24)]
    assert abs(sum(hours) - spread(24 * 1000 * HOUR_MS, 0, DAY_MS, 2 * DAY_MS, DAY_MS)) <= 24


def test_constant_usage_converges_to_the_limit() -> None:
    """A use of a hundred half-lives equals a use without a beginning."""
    age = 100 * DAY_MS
    assert math.isclose(spread(8 * age, 0, age, age, DAY_MS), constant(8, DAY_MS), rel_tol=1e-9)


def test_running_work_adds_to_its_usage() -> None:
    """Occupied GPUs add usage continuously: two GPUs for a half-life count as if each moment had been added separately,
    and earlier use has halved."""
    usage = DecayedUsage(
        at_ms=0,
        half_life_ms=DAY_MS,
        used={"q": {"ana": 1000 * HOUR_MS}},
        held={"q": {"ana": 2 * GPU_UNITS, "ben": GPU_UNITS}},
    )
    left = usage.at(DAY_MS / 1000)["q"]
    expected = spread(DAY_MS, 0, DAY_MS, DAY_MS, DAY_MS)
    assert abs(left["ana"] - 500 * HOUR_MS - 2 * expected) <= 2
    assert abs(left["ben"] - expected) <= 1


@given(st.lists(st.integers(1, 5 * DAY_MS), max_size=6), st.integers(0, 64))
def test_intermediate_reads_do_not_change_the_decay(steps: list[int], gpus: int) -> None:
    """Many small steps equal one large step, except for rounding."""
    usage = DecayedUsage(half_life_ms=DAY_MS, used={"q": {"ana": 10**9}}, held={"q": {"ana": gpus}})
    looked = usage
    for step in steps:
        looked = looked.going_on((looked.at_ms + step) / 1000, usage.held)
    now = sum(steps) / 1000
    assert abs(sum(looked.at(now)["q"].values()) - sum(usage.at(now)["q"].values())) <= 2 * len(steps) + 2


def test_levels_are_gpu_minutes_and_what_runs_counts_ahead() -> None:
    """Levels are GPU minutes, and running work counts ahead, so that users without past use alternate."""
    assert [level(0), level(59_999), level(60_000), level(0, gpu_units=GPU_UNITS)] == [0, 0, 1, 10]
