"""Random numbers are reproducible; a wrong clock is corrected by the Dates of a server."""

import pytest

from slipway.runtime.clock import SLACK_S, DisciplinedClock, Random, SeededRandom, SystemClock, SystemRandom
from tests.support.clock import FakeClock

SERVER_S = 1_800_000_000
"""The time of the server's clock when a test begins."""


class WrongWallClock(FakeClock):
    """A machine whose wall clock is wrong by `off_s` and whose monotonic clock is right."""

    def __init__(self, off_s: float) -> None:
        super().__init__(float(SERVER_S))
        self.off_s = off_s

    def now(self) -> float:
        return super().now() + self.off_s


def answered(clock: DisciplinedClock, wrong_clock: WrongWallClock, *, took_s: float = 0.01) -> None:
    """Receive one answer of a server whose clock is right."""
    sent = wrong_clock.monotonic()
    wrong_clock.advance(took_s)
    clock.learn(int(wrong_clock.now() - wrong_clock.off_s), sent=sent, received=wrong_clock.monotonic())


def error_of(clock: DisciplinedClock, wrong_clock: WrongWallClock) -> float:
    """The difference between the corrected clock and the server's."""
    return abs(clock.now() - (wrong_clock.now() - wrong_clock.off_s))


@pytest.mark.parametrize("off_s", [-600.0, -3.0, 3.0, 73.0, 600.0])
def test_a_wrong_clock_is_corrected_by_the_servers_answers(off_s: float) -> None:
    """One answer brings it within a second and the time that the answer took; more of them within a fraction."""
    wrong_clock = WrongWallClock(off_s)
    clock = DisciplinedClock(wrong_clock)
    assert clock.now() == wrong_clock.now()
    answered(clock, wrong_clock)
    assert error_of(clock, wrong_clock) <= 1.01
    for _ in range(40):
        wrong_clock.advance(0.13)
        answered(clock, wrong_clock)
    assert error_of(clock, wrong_clock) < 0.2
    assert clock.off_s == pytest.approx(off_s, abs=0.2)


@pytest.mark.parametrize("off_s", [-SLACK_S / 2, 0.0, SLACK_S / 2])
def test_a_clock_that_is_right_is_not_touched(off_s: float) -> None:
    """A right clock is not changed, whatever the Dates are, which are cut to seconds, and however long an answer
    takes."""
    wrong_clock = WrongWallClock(off_s)
    clock = DisciplinedClock(wrong_clock)
    for number in range(200):
        wrong_clock.advance(0.37)
        answered(clock, wrong_clock, took_s=0.001 * number)
        assert (clock.now(), clock.off_s) == (wrong_clock.now(), 0.0)


def test_a_clock_that_jumps_between_two_answers_does_not_move_ours() -> None:
    """A jump of the machine's clock between two answers does not move the corrected clock, which continues by the
    monotonic clock."""
    wrong_clock = WrongWallClock(0.0)
    clock = DisciplinedClock(wrong_clock)
    for _ in range(40):
        wrong_clock.advance(0.13)
        answered(clock, wrong_clock)
    wrong_clock.off_s = 600.0
    assert error_of(clock, wrong_clock) < 0.2
    wrong_clock.advance(60.0)
    assert error_of(clock, wrong_clock) < 0.3


def test_a_server_whose_clock_was_set_is_followed() -> None:
    """After the server's clock was set, an answer that contradicts the earlier ones replaces them."""
    wrong_clock = WrongWallClock(0.0)
    clock = DisciplinedClock(wrong_clock)
    answered(clock, wrong_clock)
    now = wrong_clock.monotonic()
    clock.learn(SERVER_S + 3600, sent=now, received=now + 0.01)
    assert clock.now() == pytest.approx(SERVER_S + 3600, abs=1.1)


def _draws(source: Random) -> list[object]:
    return [source.random(), source.uniform(1, 2), source.randrange(1000), source.token_hex(4)]


def test_the_same_seed_gives_the_same_sequence():
    """The same seed gives the same sequence, so that a simulation can be replayed."""
    assert _draws(SeededRandom(7)) == _draws(SeededRandom(7))
    assert _draws(SeededRandom(7)) != _draws(SeededRandom(8))


def test_system_sources_keep_their_ranges():
    """The real clock and the real random numbers satisfy the ports."""
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
