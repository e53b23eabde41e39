"""MIG slices as parts of GPUs."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.model.mig import (
    FOUR_SLICES,
    GPU_UNITS,
    MIG_PREFIX,
    slice_units,
    spell_units,
    units_in,
)
from slipway.model.resources import GPU, GPU_MILLI, Resources, counted_gpus

SEVEN_SLICES = frozenset(
    {
        *("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),  # A100 with 40 GB
        *("1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),  # A100 and H100 with 80 GB
        *("1g.12gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb"),  # H100 NVL
        *("3g.48gb", "4g.48gb", "7g.96gb"),  # H100, GH200 and H20 with 96 GB
        *("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),  # H200
        *("1g.36gb", "2g.36gb", "3g.72gb", "4g.72gb", "7g.144gb"),  # GH200 with 144 GB
        *("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),  # B200
        *("1g.47gb", "2g.47gb", "3g.95gb", "4g.95gb", "7g.189gb"),  # GB200
        *("1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"),  # B300
    }
)
"""Profiles of GPUs with 7 compute slices, as NVIDIA lists them."""


def part(profile: str) -> Fraction:
    return Fraction(slice_units(MIG_PREFIX + profile), GPU_UNITS)


@pytest.mark.parametrize(
    ("profile", "of_a_gpu"),
    [
        ("1g.5gb", Fraction(1, 7)),
        ("1g.10gb", Fraction(1, 7)),
        ("1g.20gb", Fraction(1, 7)),
        ("2g.20gb", Fraction(2, 7)),
        ("3g.40gb", Fraction(3, 7)),
        ("4g.40gb", Fraction(4, 7)),
        ("7g.80gb", Fraction(1)),
        ("1g.6gb", Fraction(1, 4)),
        ("2g.48gb", Fraction(1, 2)),
        ("4g.96gb", Fraction(1)),
    ],
)
def test_a_slice_is_its_compute_slices_over_those_of_a_gpu(profile: str, of_a_gpu: Fraction) -> None:
    """A slice counts as its compute slices divided by those of a GPU: 7 for A100 and H100, 4 for A30 and RTX PRO
    6000."""
    assert part(profile) == of_a_gpu


@pytest.mark.parametrize(
    ("profile", "of_a_gpu"),
    [
        ("1g.10gb.me", Fraction(1, 7)),
        ("1g.24gb-me", Fraction(1, 4)),
        ("1g.24gb.me.all", Fraction(1, 4)),
        ("2g.48gb.gfx", Fraction(1, 2)),
        ("1c.3g.40gb", Fraction(1, 7)),
        ("2c.4g.24gb", Fraction(1, 2)),
    ],
)
def test_engines_do_not_count_and_compute_instances_do(profile: str, of_a_gpu: Fraction) -> None:
    """Media engines do not change the size of a slice; a compute instance counts with its own compute slices."""
    assert part(profile) == of_a_gpu


def test_an_unknown_profile_counts_by_its_name() -> None:
    """An unknown profile counts by its name, out of 7 compute slices, which most GPUs have."""
    assert part("3g.999gb") == Fraction(3, 7)


def test_no_profile_of_seven_slices_counts_out_of_four() -> None:
    """A profile that both kinds of GPU have counts as the larger part; those of seven slices alone are exact."""
    assert {profile: part(profile) for profile in SEVEN_SLICES} == {
        profile: Fraction(int(profile[0]), 7) for profile in SEVEN_SLICES
    }


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/mig-large", "mig-1g.10gb", "9g.9gb"])
def test_what_is_no_slice_counts_as_nothing(name: str) -> None:
    """A resource that is no slice counts as no part of a GPU."""
    assert slice_units(name) == 0
    assert counted_gpus({name: 3}) == (3 * GPU_UNITS if name == GPU else 0)


@given(st.dictionaries(st.sampled_from(sorted(FOUR_SLICES | SEVEN_SLICES)), st.integers(0, 10_000)))
def test_sums_are_exact(counts: dict[str, int]) -> None:
    """Sums are exact: a thousandth, a quarter and a seventh of a GPU are whole units."""
    amounts = {MIG_PREFIX + profile: count for profile, count in counts.items()}
    assert Fraction(units_in(amounts), GPU_UNITS) == sum(part(name) * count for name, count in counts.items())
    assert counted_gpus(amounts | {GPU: 2, GPU_MILLI: 1}) == units_in(amounts) + 2 * GPU_UNITS + 7


def test_slots_of_slices_are_whole() -> None:
    """Slots of slices are whole: all slices are added, and a remainder counts as a slot: 8 sevenths and a GPU are 3."""
    asked = Resources({GPU: 1, f"{MIG_PREFIX}1g.10gb": 8})
    assert (asked.gpus(), asked.gpu_units()) == (3, 15_000)
    assert Resources({f"{MIG_PREFIX}1g.10gb": 7}).gpus() == 1


def test_words_are_exact_where_they_can_be() -> None:
    """Amounts are shown exactly in sevenths or in thousandths; only a sum of both kinds is rounded up."""
    spelled = [spell_units(units) for units in (0, 14_000, 1000, 17_000, 1750, 2100, 2750)]
    assert spelled == ["0", "2", "1/7", "2 3/7", "250m", "300m", "393m"]
