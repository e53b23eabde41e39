"""`traceparent` is read as the W3C defines it, and derived from a uid when absent."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.runtime.traceparent import SpanRef, parse_traceparent, traceparent_from_uid

_GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_round_trips(trace_id: int, span_id: int, sampled: bool):
    """A `traceparent` that we write can be read."""
    ref = SpanRef(trace_id, span_id, sampled)
    assert parse_traceparent(str(ref)) == ref


def test_a_later_version_may_be_longer():
    """A longer header of a later version is read by the rules of version 00."""
    assert parse_traceparent("cc" + _GOOD[2:] + "-what-the-future-holds") == parse_traceparent(_GOOD)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        _GOOD.upper(),
        _GOOD + "-extra",
        "ff" + _GOOD[2:],
        _GOOD[:-1],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        _GOOD.replace("-01", "-\u0660\u0661"),
    ],
)
def test_a_malformed_header_is_no_parent(text: str | None):
    """Bad input starts a new trace instead of failing the request."""
    assert parse_traceparent(text) is None


def test_a_uid_is_a_trace():
    """The trace id is the first 16 bytes of sha256(uid), the same in every process."""
    ref = parse_traceparent(traceparent_from_uid("uid-1"))
    assert ref is not None
    assert f"{ref.trace_id:032x}" == hashlib.sha256(b"uid-1").hexdigest()[:32]
    assert traceparent_from_uid("uid-1") == traceparent_from_uid("uid-1") != traceparent_from_uid("uid-2")
