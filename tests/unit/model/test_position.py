"""Positions in a queue: how they compare, and the number between two of them."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.model.position import NoRoomError, between, default_position, place_key, work_key

PLACES = st.decimals(min_value=0, max_value=10**15, places=6).map(lambda value: f"{value:f}")


def test_places_compare_as_numbers() -> None:
    """Positions compare as numbers, not as text: hand-written numbers have any length; an invalid one is last."""
    ordered = ["0", "5", "5.25", "5.5", "20", default_position(0.0), "not a number"]
    assert sorted(reversed(ordered), key=place_key) == ordered
    assert place_key("5") == place_key("5.0") == place_key("05.00")


def test_the_times_of_creation_are_places() -> None:
    """The times of creation are positions: the older is first, before the epoch too; for equal seconds the uids
    decide."""
    one, two = (default_position(5.0, uid) for uid in ("00000001-a", "fffffffe-b"))
    assert place_key("100000000005000") < place_key(one) < place_key(two) < place_key("100000000005001")
    assert default_position(-5) < default_position(0) < default_position(0.001) < default_position(1_700_000_000)


@given(PLACES, PLACES)
def test_between_two_there_is_one_more(one: str, two: str) -> None:
    """There is a position strictly between any two different ones; equal ones leave no room."""
    low, high = sorted((one, two), key=place_key)
    if place_key(low) == place_key(high):
        with pytest.raises(NoRoomError):
            between(low, high)
    else:
        assert place_key(low) < place_key(between(low, high)) < place_key(high)


@given(PLACES)
def test_before_the_first_and_behind_the_last(place: str) -> None:
    """There is always a position after the last, and one before the first, unless that is 0."""
    assert place_key(between(place, None)) > place_key(place)
    if place_key(place) > place_key("0"):
        assert place_key(between(None, place)) < place_key(place)


def test_halving_goes_on_for_long_and_then_says_so() -> None:
    """A hundred moves into the same gap are possible; then an error asks the user to make room."""
    place = "1"
    for _ in range(100):
        place = between("0", place)
    low = "0." + "0" * 38
    with pytest.raises(NoRoomError):
        between(f"{low}11", f"{low}12")
    with pytest.raises(NoRoomError):
        between(None, "0")


def test_few_digits() -> None:
    """The new position is the mean with as few digits as distinguish it from its neighbours."""
    assert between("101732000000000", "101732000000001") == "101732000000000.5"
    assert between("3", "9") == "6"
    assert between(None, "101732000000000") == "101731999999000"
    assert between("7", None) == "1007"


@given(st.floats(0, 4e9), st.uuids(), st.integers(0, 9))
def test_an_unspelled_place_is_the_spelled_one(created: float, uid: UUID, priority: int) -> None:
    """The short form for allocations that were never moved gives the same order as the full one."""
    spelled = default_position(created, str(uid))
    plain = work_key(priority, "", weight=1, own=5, created=created, uid=str(uid))
    assert plain == work_key(priority, spelled, weight=1, own=5, created=created, uid=str(uid))


def test_weight_decides_between_equals() -> None:
    """For jobs of the same priority and position the weight decides, before the allocations' own priority and age."""
    light = work_key(50, "7", weight=1, own=90, created=1.0, uid="a")
    heavy = work_key(50, "7.0", weight=2, own=10, created=9.0, uid="b")
    assert heavy < light < work_key(50, "8", weight=9, own=99, created=0.0, uid="c")
