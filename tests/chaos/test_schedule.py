"""The schedule of faults: complete, drawn from its seed, and never two faults on the same part at once."""

from collections import Counter
from itertools import islice

import pytest

from tests.chaos import faults
from tests.chaos.faults import Fault, Schedule


def needed(schedule: Schedule) -> list[list[Fault]]:
    """The waves until every kind has occurred once."""
    found: list[list[Fault]] = []
    for is_needed, wave in schedule.waves():
        if not is_needed:
            return found
        found.append(wave)
    raise AssertionError


@pytest.mark.parametrize("minutes", [0.5, 2.0, 10.0, 60.0])
def test_every_kind_comes_once_before_any_comes_twice(minutes: float) -> None:
    """This is true however short the run is."""
    schedule = Schedule(7, minutes, list(faults.KINDS.values()))
    kinds = [fault.kind for wave in needed(schedule) for fault in wave]
    assert sorted(kinds) == sorted(faults.KINDS)


def test_faults_of_one_wave_affect_different_groups() -> None:
    """Two simultaneous faults of the Redis process would have neither effect."""
    for _, wave in islice(Schedule(3, 2.0, list(faults.KINDS.values())).waves(), 100):
        groups = [fault.group for fault in wave]
        assert len(set(groups)) == len(groups)


def test_the_same_seed_gives_the_same_schedule() -> None:
    """The same seed and length give the same waves, another seed other waves."""
    first, again, other = (
        [list(map(str, wave)) for _, wave in islice(Schedule(seed, 2.0, list(faults.KINDS.values())).waves(), 30)]
        for seed in (5, 5, 6)
    )
    assert first == again != other


def test_a_long_run_takes_one_fault_at_a_time() -> None:
    """Then a recovery belongs to one fault; a short run needs several faults at once."""
    assert {len(wave) for wave in needed(Schedule(1, 10.0, list(faults.KINDS.values())))} == {1}
    assert max(len(wave) for wave in needed(Schedule(1, 2.0, list(faults.KINDS.values())))) > 3


def test_a_short_run_needs_no_more_waves_than_its_largest_group_has_kinds() -> None:
    """Each wave has a recovery after it, so a run with few waves is short enough for a check of every change."""
    largest = max(Counter(kind.group for kind in faults.KINDS.values()).values())
    assert {len(needed(Schedule(seed, 2.0, list(faults.KINDS.values())))) for seed in range(20)} == {largest}


def test_faults_last_as_long_as_their_kind_says() -> None:
    """The length is within the kind's limits; a process is stopped for up to 40 seconds when there is time for it."""
    longest = 0.0
    for _, wave in islice(Schedule(9, 60.0, list(faults.KINDS.values())).waves(), 400):
        for fault in wave:
            low, high = faults.KINDS[fault.kind].lasts_s
            assert low <= fault.lasts_s <= high
            longest = max(longest, fault.lasts_s)
    assert longest > 30.0
