"""Times as Kubernetes writes them (RFC 3339, UTC, `Z`) and as we count them (epoch seconds)."""

import functools
import math
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec

Precision = Literal["seconds", "milliseconds", "microseconds"]
SKEW_S = 5.0
"""Clocks of two machines that are well kept differ by less: a time of the past that is further ahead was written by one
that was wrong."""
PARSED_MAX = 1_024
"""Objects that were made together say the same times again and again."""
_AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]


def format_time(epoch_s: float, precision: Precision = "milliseconds") -> str:
    """`2026-01-02T03:04:05.678Z`: milliseconds, so that the steps of one launch can be told apart.

    Whole seconds are rounded down, as Kubernetes does.
    """
    exact = math.floor(epoch_s) if precision == "seconds" else epoch_s
    return datetime.fromtimestamp(exact, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


@functools.lru_cache(maxsize=PARSED_MAX)
def parse_time(text: str) -> float:
    """Epoch seconds of a time with any offset and up to nanoseconds (kept to the microsecond).

    Raises:
        ValueError: not an RFC 3339 time, or one without an offset.
    """
    try:
        return msgspec.convert(text, _AwareTime).timestamp()
    except msgspec.ValidationError as error:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-01-02T03:04:05Z") from error


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one RFC 3339 time to another; 0 when either is missing."""
    return parse_time(later) - parse_time(earlier) if earlier and later else 0.0
