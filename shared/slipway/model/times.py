"""Times as Kubernetes writes them (RFC 3339, UTC, `Z`) and as we count them (epoch seconds)."""

import functools
import math
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

Precision = Literal["seconds", "milliseconds", "microseconds"]
SKEW_S = 5.0
"""Seconds. The clocks of two machines with working time synchronisation differ by less. A past time that is further
ahead was written by a machine whose clock was wrong."""
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
