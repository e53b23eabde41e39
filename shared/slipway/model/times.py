"""Times as Kubernetes writes them (RFC 3339, UTC, `Z`) and as we count them (epoch seconds).

Durations are read and written as users write them (`90s`, `30m`, `2h45m`). Owns the grammar of Kubernetes-style (Go)
durations. Pure.
"""

import functools
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Literal

import msgspec

Precision = Literal["seconds", "milliseconds", "microseconds"]
SKEW_S = 5.0
"""Seconds. The clocks of two machines with working time synchronisation differ by less. A recorded time that is further
in the future was written by a machine whose clock was wrong."""
PARSED_MAX = 1_024
"""Size of the cache of `parse_time`: objects that were created together contain the same times many times."""
FIRST_S = datetime(1, 1, 1, tzinfo=UTC).timestamp()
LAST_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp() + 86_400.0
"""The times from FIRST_S until before LAST_S have a year of four digits in UTC; others cannot be written."""
_AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


def format_time(epoch_s: float, precision: Precision = "milliseconds") -> str:
    """Return a time such as `2026-01-02T03:04:05.678Z`; milliseconds distinguish the steps of one launch.

    Whole seconds are rounded down, as Kubernetes does.
    """
    exact = math.floor(epoch_s) if precision == "seconds" else epoch_s
    return datetime.fromtimestamp(exact, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


@functools.lru_cache(maxsize=PARSED_MAX)
def parse_time(text: str) -> float:
    """Return the epoch seconds of a time with any offset. Up to nanoseconds are accepted; microseconds are kept.

    Raises:
        ValueError: not an RFC 3339 time, one without an offset, or one outside the years 1 to 9999 in UTC.
    """
    try:
        found = msgspec.convert(text, _AwareTime).timestamp()
    except msgspec.ValidationError as error:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-01-02T03:04:05Z") from error
    if not FIRST_S <= found < LAST_S:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-01-02T03:04:05Z: its year is 1 to 9999 in UTC")
    return found


def http_date(text: str) -> float | None:
    """Epoch seconds of a `Date` header; None when it is missing or no date."""
    from email.utils import parsedate_to_datetime  # takes 10 ms to import, and few need it

    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds from one RFC 3339 time to another; 0 when either is empty."""
    return parse_time(later) - parse_time(earlier) if earlier and later else 0.0


_UNIT_S = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_PRINTED_UNIT_S = {
    "ns": 1e-9,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PRINTED_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|[u\u00b5\u03bc]s|ms|s|m|h)")
DURATION_PATTERN = r"^(\d+(\.\d+)?(ms|s|m|h|d))+$"
DURATION_MAX_S = 10 * 365 * 86400
"""Ten years."""


def parse_duration(text: str) -> float:
    """Return the seconds of `text`, such as 2700.0 for `45m`.

    Raises:
        ValueError: not a duration, or longer than ten years.
    """
    seconds = _seconds(text)
    if seconds > DURATION_MAX_S:
        raise ValueError(f"{text!r} is longer than ten years")
    return float(seconds)


def stored_duration(text: str) -> float:
    """Return the seconds of a duration in a stored object; ten years for a longer one.

    The schemas of the custom resources limit the form of a duration but not its length, so an object that a user
    applied may contain any length. Code that accepts a new duration uses `parse_duration`. Code that reads a stored
    duration uses this function, so that one such object does not stop the processing of all others.

    Raises:
        ValueError: not a duration; the API server does not store such a text.
    """
    return float(min(_seconds(text), Decimal(DURATION_MAX_S)))


def printed_duration(text: str) -> float | None:
    """Return the seconds of a duration as programs in Go print it, such as 83.456 for `1m23.456s`; None for another
    text.

    Source: https://pkg.go.dev/time#Duration.String
    """
    parts = _PRINTED_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _PRINTED_UNIT_S[unit] for number, unit in parts)


def _seconds(text: str) -> Decimal:
    if not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 30m or 2h45m")
    return sum((Decimal(number) * _UNIT_S[unit] for number, unit in _PART.findall(text)), Decimal(0))


def format_at_most(seconds: float) -> str:
    """Return a limit that people can type and that is at most `seconds`: whole minutes from ten minutes on, else whole
    seconds.

    Whole minutes leave people time to type it before it becomes too long.
    """
    step = 60 if seconds >= 600 else 1
    return format_duration(int((seconds + 1e-6) // step) * step)


def format_duration(seconds: float) -> str:
    """Return a short spelling for people: `2h45m`, `3m20s`, `4.2s`, `180ms`."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
