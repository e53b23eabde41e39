"""The Date headers of an API server correct a clock, and show when the machine's clock is wrong."""

from email.utils import formatdate

import pytest

from slipway.kube.client import ServerDates
from slipway.runtime.clock import DisciplinedClock
from tests.support.clock import FakeClock

SERVER_S = 1_800_000_000.0


class DatedAnswers:
    """A server whose clock is right, and a machine that is `off_s` ahead."""

    def __init__(self, off_s: float) -> None:
        self.machine = FakeClock(SERVER_S + off_s)
        self.clock = DisciplinedClock(self.machine)
        self.dates = ServerDates(self.clock)

    def come(self, seconds: int) -> None:
        """Receive ten answers per second, for `seconds` seconds."""
        for _ in range(10 * seconds):
            sent = self.machine.monotonic()
            self.machine.advance(0.1)
            self.dates.take(formatdate(SERVER_S + self.machine.monotonic(), usegmt=True), sent=sent)


def test_the_clock_follows_and_the_wrong_one_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The clock follows the server, and one warning reports the difference; it is not repeated while the difference
    stays."""
    answers = DatedAnswers(73.0)
    answers.come(5)
    assert answers.clock.now() == pytest.approx(SERVER_S + answers.machine.monotonic(), abs=0.3)
    assert [record.levelname for record in caplog.records if "clock is wrong" in record.getMessage()] == ["WARNING"]


@pytest.mark.parametrize("date", ["", "yesterday", "Fri, 99 Nov 2026 99:00:00 GMT"])
def test_an_answer_without_a_date_changes_nothing(date: str) -> None:
    """An answer without a Date changes nothing, because a proxy may strip it."""
    answers = DatedAnswers(73.0)
    answers.dates.take(date, sent=answers.machine.monotonic())
    assert answers.clock.now() == answers.machine.now()
