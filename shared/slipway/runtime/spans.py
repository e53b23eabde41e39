"""Spans that record the same as OpenTelemetry's SDK, at a tenth of its cost.

This module owns the recorded span and the decision which traces are recorded. The decision is that of the SDK: the root
decides by its trace id, and all spans below it follow. The module does not know the receivers of ended spans.

Invariants: a span stores a bounded number of attributes, events and links, and truncates long texts. Recording never
raises.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.util import types

from slipway.runtime.traceparent import SpanRef

Attribute = str | bool | int | float

ATTRIBUTES_MAX: Final = 32
EVENTS_MAX: Final = 32
LINKS_MAX: Final = 32
ATTRIBUTE_CHARS_MAX: Final = 256
_SAMPLED: Final = otel.TraceFlags(otel.TraceFlags.SAMPLED)
_TRACE_ID_HALF: Final = 1 << 64


class RecordedSpan(otel.Span):
    """One span. It is passed to `on_end` when it ends."""

    __slots__ = (
        "_context",
        "attributes",
        "calls",
        "end_ns",
        "error",
        "events",
        "kind",
        "links",
        "name",
        "on_end",
        "parent",
        "start_ns",
    )

    def __init__(
        self,
        name: str,
        context: otel.SpanContext,
        parent: otel.SpanContext | None,
        on_end: "Callable[[RecordedSpan], None]",
        *,
        kind: otel.SpanKind = otel.SpanKind.INTERNAL,
        start_ns: int | None = None,
    ) -> None:
        self._context = context
        self.name, self.parent, self.on_end, self.kind = name, parent, on_end, kind
        self.attributes: dict[str, Any] = {}
        self.events: deque[tuple[str, int, Mapping[str, Any]]] = deque(maxlen=EVENTS_MAX)
        """(name, nanoseconds since the epoch, attributes) of each event."""
        self.links: list[otel.SpanContext] = []
        self.error: str | None = None
        self.calls = 0
        """Number of call spans below this span."""
        self.start_ns = start_ns or time.time_ns()
        self.end_ns = 0

    @property
    def context(self) -> otel.SpanContext:
        """The ids of the span."""
        return self._context

    def get_span_context(self) -> otel.SpanContext:
        return self._context

    def is_recording(self) -> bool:
        return self.end_ns == 0

    def set_attributes(self, attributes: Mapping[str, types.AttributeValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        if key in self.attributes or len(self.attributes) < ATTRIBUTES_MAX:
            self.attributes[key] = value[:ATTRIBUTE_CHARS_MAX] if isinstance(value, str) else value

    def add_event(self, name: str, attributes: types.Attributes = None, timestamp: int | None = None) -> None:
        cut = {
            key: value[:ATTRIBUTE_CHARS_MAX] if isinstance(value, str) else value
            for key, value in (attributes or {}).items()
        }
        self.events.append((name, timestamp or time.time_ns(), cut))

    def update_name(self, name: str) -> None:
        self.name = name

    def set_status(self, status: otel.Status | otel.StatusCode, description: str | None = None) -> None:
        if isinstance(status, otel.Status):
            self.error = None if status.is_ok else status.description or "error"
        else:
            self.error = (description or "error") if status is otel.StatusCode.ERROR else None

    def record_exception(
        self,
        exception: BaseException,
        attributes: types.Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        self.add_event("exception", {"exception.type": type(exception).__name__})

    def end(self, end_time: int | None = None) -> None:
        if self.end_ns == 0:
            self.end_ns = end_time or time.time_ns()
            self.on_end(self)


class RecordingTracer:
    """A tracer that starts spans. It records the part `ratio` of the traces that begin here."""

    def __init__(self, on_end: Callable[[RecordedSpan], None], ratio: float) -> None:
        self._on_end = on_end
        self._bound = round(ratio * _TRACE_ID_HALF)

    def start_span(
        self,
        name: str,
        context: otel_context.Context | None = None,
        *,
        links: Sequence[otel.SpanContext] = (),
        attributes: Mapping[str, types.AttributeValue] | None = None,
        kind: otel.SpanKind = otel.SpanKind.INTERNAL,
        start_ns: int | None = None,
        known: otel.SpanContext | None = None,
    ) -> otel.Span:
        """Return a started span. Its parent is the span of `context`, else the current span.

        `known` gives the ids of the span itself, for a span whose ids all processes derive from its subject.
        """
        parent = otel.get_current_span(context).get_span_context()
        if known is not None and known.span_id == parent.span_id:
            parent = otel.INVALID_SPAN_CONTEXT  # the span is the root
        drawn = int.from_bytes(os.urandom(24))
        span_id = known.span_id if known is not None else (drawn & (_TRACE_ID_HALF - 1)) or 1
        if known is not None:
            trace_id, is_sampled = known.trace_id, known.trace_flags.sampled
        elif parent.is_valid:
            trace_id, is_sampled = parent.trace_id, parent.trace_flags.sampled
        else:
            trace_id = (drawn >> 64) or 1
            is_sampled = trace_id % _TRACE_ID_HALF < self._bound
        if not is_sampled:
            return otel.NonRecordingSpan(otel.SpanContext(trace_id, span_id, is_remote=False))
        made = RecordedSpan(
            name,
            otel.SpanContext(trace_id, span_id, False, _SAMPLED),
            parent if parent.is_valid else None,
            self._on_end,
            kind=kind,
            start_ns=start_ns,
        )
        if attributes:
            made.set_attributes(attributes)
        made.links += links[:LINKS_MAX]
        return made


class NoTracer:
    """A tracer that records nothing and passes on the caller's trace."""

    def start_span(self, name: str, context: otel_context.Context | None = None, **_: Any) -> otel.Span:
        """Return a span that is not recorded and has the ids of its parent."""
        return otel.NonRecordingSpan(otel.get_current_span(context).get_span_context())


class ActiveSpan:
    """The span that is being recorded. Attributes beyond the limit are dropped; the first ones are kept."""

    def __init__(self, inner: otel.Span, keys: Iterable[str] = ()) -> None:
        self._inner = inner
        self._keys = set(keys)

    @property
    def traceparent(self) -> str:
        """The traceparent to pass to the next process; empty when there is no trace."""
        return traceparent_text(self._inner)

    def set(self, **attributes: Attribute) -> None:
        """Add attributes; `__` in a name means a dot."""
        for name, value in attributes.items():
            key = name.replace("__", ".")
            if key in self._keys or len(self._keys) < ATTRIBUTES_MAX:
                self._keys.add(key)
                self._inner.set_attribute(key, value)

    def rename(self, name: str) -> None:
        """Give the span a better name. For example, the route of a request is known only after routing."""
        self._inner.update_name(name)

    def event(self, name: str, attributes: Mapping[str, Attribute] | None = None) -> None:
        """Add an event that happened at one instant of the span."""
        self._inner.add_event(name, attributes)

    def end(self) -> None:
        """End a span that no `with` ends."""
        self._inner.end()

    def fail(self, reason: str) -> None:
        """Mark the span as failed although nothing was raised; `reason` is a short constant."""
        self._inner.set_status(otel.Status(otel.StatusCode.ERROR, reason))


def traceparent_text(inner: otel.Span) -> str:
    context = inner.get_span_context()
    if not context.is_valid:
        return ""
    return str(SpanRef(context.trace_id, context.span_id, context.trace_flags.sampled))
