"""Spans for a program that reads our events, made with the OpenTelemetry of that program.

This module turns the traceparent of an event into a link. It is a link and not a parent, because one launch has many
readers. When the program has set up no SDK, the span is not recorded and costs nothing. Without OpenTelemetry there are
no spans.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from slipway.runtime.traceparent import parse_traceparent

TRACER = "slipway.consume"


def linked_span(name: str, traceparent: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[object]:
    """A consumer span of the program's own tracer, linked to the span of `traceparent`. It is the current span inside
    the context.
    """
    try:
        from opentelemetry import trace as otel
    except ImportError:  # the extra `consume` installs it
        return nullcontext()
    ref = parse_traceparent(traceparent)
    links: list[otel.Link] = []
    if ref is not None:
        flags = otel.TraceFlags(otel.TraceFlags.SAMPLED if ref.sampled else otel.TraceFlags.DEFAULT)
        links.append(otel.Link(otel.SpanContext(ref.trace_id, ref.span_id, True, flags)))
    return otel.get_tracer(TRACER).start_as_current_span(
        name, kind=otel.SpanKind.CONSUMER, links=links, attributes=dict(attributes)
    )
