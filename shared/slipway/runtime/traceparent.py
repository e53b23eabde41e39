"""W3C trace context, as text and as numbers.

This module owns the format of `traceparent` and the rule that gives a trace to an object applied by hand. It is pure
and knows no tracing library, so that every part can pass on a trace without importing one.

Source: https://www.w3.org/TR/trace-context/
"""

import hashlib
import re

import msgspec

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VERSION_00_LENGTH = 55
_SAMPLED = 0x01


class SpanRef(msgspec.Struct, frozen=True):
    """A reference to one span of any process. Both ids are non-zero."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.sampled else 0:02x}"


def parse_traceparent(text: str | None) -> SpanRef | None:
    """Return the span that `text` names; None when it is absent or malformed, because a bad header starts a new
    trace.
    """
    if not text:
        return None
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None or (text.startswith("00") and len(text.strip()) != _VERSION_00_LENGTH):
        return None
    trace_id, span_id, flags = (int(found[group], 16) for group in (1, 2, 3))
    if trace_id == 0 or span_id == 0:
        return None
    return SpanRef(trace_id, span_id, bool(flags & _SAMPLED))


def derived_span(traceparent: str, what: str) -> str:
    """Return a span of that trace whose id is derived from `what`; empty when there is no trace."""
    ref = parse_traceparent(traceparent)
    if ref is None:
        return ""
    digest = hashlib.sha256(what.encode()).digest()
    return str(SpanRef(ref.trace_id, int.from_bytes(digest[:8]) or 1, ref.sampled))


def traceparent_from_uid(uid: str) -> str:
    """Return the trace of an object that carries none. Every process derives the same trace from the same uid."""
    digest = hashlib.sha256(uid.encode()).digest()
    return str(SpanRef(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1))
