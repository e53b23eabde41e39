"""Times as Kubernetes writes them (RFC 3339, UTC, `Z`) and as we count them (epoch seconds)."""

from datetime import UTC, datetime


def format_time(epoch_s: float) -> str:
    """`2026-01-02T03:04:05.678Z`: milliseconds, so that the steps of one launch can be told apart."""
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Epoch seconds of an RFC 3339 time.

    Raises:
        ValueError: not a time, or one without a zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; end it with Z")
    return moment.timestamp()


def seconds_between(earlier: str, later: str) -> float:
    """Seconds from one RFC 3339 time to another; 0 when either is missing."""
    return parse_time(later) - parse_time(earlier) if earlier and later else 0.0
