"""Spans of programs that read our events, by the OpenTelemetry of the program.

Owns the translation of an event's traceparent into a link. A link, not a parent: one launch has many readers. Without
an SDK that the program has set up, the span is none and costs nothing. Without OpenTelemetry there are no spans.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from slipway.runtime.traceparent import parse_traceparent

TRACER = "slipway.consume"


def linked_span(name: str, traceparent: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[object]:
    """A consumer span of the program's own tracer, current while it is open, linked to the span of `traceparent`."""
    try:
        from opentelemetry import trace as otel
    except ImportError:  # pragma: no cover - the extra brings it
        return nullcontext()
    ref = parse_traceparent(traceparent)
    links: list[otel.Link] = []
    if ref is not None:
        flags = otel.TraceFlags(otel.TraceFlags.SAMPLED if ref.sampled else otel.TraceFlags.DEFAULT)
        links.append(otel.Link(otel.SpanContext(ref.trace_id, ref.span_id, True, flags)))
    return otel.get_tracer(TRACER).start_as_current_span(
        name, kind=otel.SpanKind.CONSUMER, links=links, attributes=dict(attributes)
    )
