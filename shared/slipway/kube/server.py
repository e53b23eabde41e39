"""The version and the clock of an API server."""

import re

import msgspec

from slipway.errors import InvalidError
from slipway.model.times import http_date
from slipway.runtime import log, telemetry
from slipway.runtime.clock import DisciplinedClock

WRONG_S = 2.0
"""A warning is logged when the machine's clock is wrong by more than this number of seconds."""
_log = log.get_logger(__name__)
_NUMBERS = re.compile(r"v?(\d+)\.(\d+)")


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`version` as kubectl shows it; `time` in whole epoch seconds, rounded down, or None when the server does not send
    it."""

    version: str
    time: float | None

    @property
    def numbers(self) -> tuple[int, int]:
        """Major and minor version; (0, 0) when `version` cannot be parsed."""
        found = _NUMBERS.match(self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


class _Version(msgspec.Struct):
    gitVersion: str = ""


def server_facts(body: bytes, date: str) -> ServerFacts:
    """Return the facts from a response of `/version` and its Date header. Raises InvalidError."""
    try:
        version = msgspec.json.decode(body, type=_Version).gitVersion
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidError(f"the address is not a Kubernetes API server: {error}") from error
    return ServerFacts(version=version, time=http_date(date))


class ServerDates:
    """Adjusts a clock to the Date headers of the server's responses, and logs when the machine's clock is wrong."""

    def __init__(self, clock: DisciplinedClock) -> None:
        self._clock = clock
        self._date = ""
        self._seconds: float | None = None
        """that Date in epoch seconds"""
        self._is_wrong = False

    def take(self, date: str, *, sent: float) -> None:
        """Process the Date header of a response that has just arrived; the request was sent at `sent` (monotonic)."""
        if date != self._date:
            self._date, self._seconds = date, http_date(date)
            self._judge()
        if self._seconds is None:
            return
        self._clock.learn(int(self._seconds), sent=sent, received=self._clock.monotonic())

    def _judge(self) -> None:
        """Compare the clocks; called once for each second of the server."""
        off_s = self._clock.off_s
        telemetry.CLOCK_OFF.set(off_s)
        is_wrong = abs(off_s) > WRONG_S
        if is_wrong and not self._is_wrong:
            _log.warning("this machine's clock is wrong: the API server's time is used", ahead_s=off_s)
        elif self._is_wrong and not is_wrong:
            _log.info("this machine's clock is right again")
        self._is_wrong = is_wrong
