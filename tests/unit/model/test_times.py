"""Times have one spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.model.times import format_time, http_date, parse_time


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2026-01-02T03:04:05Z", 1767323045.0),
        ("2026-01-02T04:04:05+01:00", 1767323045.0),
        ("2026-01-02T03:04:05.250000Z", 1767323045.25),
        ("2026-01-02T03:04:05.250000999Z", 1767323045.250001),
    ],
)
def test_parses_what_kubernetes_and_people_write(text: str, epoch: float):
    """Any offset and up to nanoseconds are read."""
    assert parse_time(text) == pytest.approx(epoch, abs=1e-6)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-02", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z"])
def test_refuses_what_is_not_a_time_with_an_offset(text: str):
    """A time without an offset is refused."""
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00+23:59",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-23:59",
        "9999-12-31T23:59:59.9999999Z",
    ],
)
def test_refuses_what_cannot_be_written_in_utc(text: str):
    """A time whose year in UTC does not have four digits is refused, so that every time that was read can be
    written."""
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_time(text)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.000Z"])
def test_the_first_and_the_last_time_survive(text: str):
    """The first and the last time can be read and written; Go writes the first one for an unset time."""
    assert format_time(parse_time(text)) == text


@pytest.mark.parametrize(
    ("text", "epoch"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784111777.0),
        ("", None),
        ("yesterday", None),
        ("Sun, 06 Nov 99999 08:49:37 GMT", None),
        (f"Sun, 06 Nov {'9' * 5000} 08:49:37 GMT", None),
        (f"Sun, 06 Nov 1994 08:49:37 +{'9' * 400}", None),
    ],
)
def test_a_date_of_a_server_is_read_or_none(text: str, epoch: float | None):
    """A Date header of a server is read, or is None when it is invalid."""
    assert http_date(text) == epoch


def test_whole_seconds_round_down():
    """Whole seconds are rounded down, so that a creation time is never after its event."""
    assert format_time(1767323045.999999, "seconds") == "2026-01-02T03:04:05Z"
    assert format_time(1767323045.25, "microseconds") == "2026-01-02T03:04:05.250000Z"


@given(st.integers(min_value=0, max_value=4_000_000_000))
def test_seconds_survive_the_round_trip(epoch: int):
    """Writing and reading a whole second changes nothing."""
    assert parse_time(format_time(epoch, "seconds")) == epoch
