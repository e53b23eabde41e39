"""Times have one spelling, and chance is reproducible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.runtime.clock import Random, SeededRandom, SystemClock, SystemRandom, parse_rfc3339, rfc3339


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
    assert parse_rfc3339(text) == pytest.approx(epoch, abs=1e-6)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-02", "2026-01-02T03:04:05", "2026-13-02T03:04:05Z"])
def test_refuses_what_is_not_a_time_with_an_offset(text: str):
    """A time without an offset is not a time."""
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_rfc3339(text)


def test_whole_seconds_round_down():
    """A creation time never lies in the future of the event, whatever the fraction."""
    assert rfc3339(1767323045.999999) == "2026-01-02T03:04:05Z"
    assert rfc3339(1767323045.25, "microseconds") == "2026-01-02T03:04:05.250000Z"


@given(st.integers(min_value=0, max_value=4_000_000_000))
def test_seconds_survive_the_round_trip(epoch: int):
    """Writing and reading a whole second changes nothing."""
    assert parse_rfc3339(rfc3339(epoch)) == epoch


def _draws(source: Random) -> list[object]:
    return [source.random(), source.uniform(1, 2), source.randrange(1000), source.token_hex(4)]


def test_the_same_seed_gives_the_same_sequence():
    """A simulation is replayed from its seed."""
    assert _draws(SeededRandom(7)) == _draws(SeededRandom(7))
    assert _draws(SeededRandom(7)) != _draws(SeededRandom(8))


def test_system_sources_keep_their_ranges():
    """The real clock and the real chance fit the ports."""
    chance: Random = SystemRandom()
    assert 0 <= chance.random() < 1
    assert 1 <= chance.uniform(1, 2) <= 2
    assert chance.randrange(1) == 0
    assert len(chance.token_hex(8)) == 16
    clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert clock.now() > 1_700_000_000


async def test_a_negative_sleep_only_yields():
    """A deadline that has passed is not an error."""
    await SystemClock().sleep(-1)
