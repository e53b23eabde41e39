"""Chance is reproducible."""

from slipway.runtime.clock import Random, SeededRandom, SystemClock, SystemRandom


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
