"""Export of ended spans to a collector, over OTLP with HTTP or gRPC.

This module owns the queue between the process and the collector, and its thread. It also loads the exporters of
OpenTelemetry's SDK, only when a collector is configured. It must not know the meaning of spans.

Promises: `offer` never blocks and never raises. Spans are dropped and counted when the queue is full or the collector
does not accept them within its deadline. `shutdown` ends within its time limit, whatever the collector does.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, cast

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Status, StatusCode

from slipway.runtime.spans import RecordedSpan

Protocol = Literal["http/protobuf", "grpc"]
Dropped = Callable[[int], object]

QUEUE_MAX: Final = 8_192
BATCH_MAX: Final = 512
EVERY_MS: Final = 1_000
DEADLINE_S: Final = 5.0
"""The time that the collector has for a batch, retries included."""
FLUSH_S: Final = 3.0


class OtlpExporter:
    """The connection to one collector."""

    def __init__(self, service: str, endpoint: str, protocol: Protocol, dropped: Dropped) -> None:
        """`endpoint` is a base URL: http:// is plain, https:// is TLS. `dropped` may be called from any thread."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # an unavailable collector is counted, not logged
        resource = Resource.create({"service.name": f"slipway-{service}", "service.namespace": "slipway"})
        self._dropped = dropped
        self._exporter = _Exporter(_exporter(endpoint, protocol), resource, dropped)
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=QUEUE_MAX,
            schedule_delay_millis=EVERY_MS,
            max_export_batch_size=BATCH_MAX,
        )
        self._offered = 0

    def offer(self, span: RecordedSpan) -> None:
        """Queue an ended span."""
        if self._offered - self._exporter.taken >= QUEUE_MAX:
            self._dropped(1)
            return
        self._offered += 1
        # The queue does not look at its items. The sending thread converts a span to the SDK's type.
        self._processor.on_end(cast(ReadableSpan, span))

    def shutdown(self) -> None:
        """Send the queued spans, within a few seconds."""
        # The SDK's own time limits do not work while the collector is unavailable. The thread is a daemon and ends with
        # the process.
        flush = threading.Thread(target=self._processor.shutdown, name="telemetry-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_S)


class _Exporter(SpanExporter):
    """Convert our spans for the SDK's exporter, and count the spans that the collector does not accept."""

    def __init__(self, inner: SpanExporter, resource: Resource, dropped: Dropped) -> None:
        self._inner, self._resource, self._dropped = inner, resource, dropped
        self.taken = 0
        """Spans that have left the queue. Only the sending thread writes this number."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._inner.export([_readable(cast(RecordedSpan, span), self._resource) for span in spans])
        if result is not SpanExportResult.SUCCESS:
            self._dropped(len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def _exporter(endpoint: str, protocol: Protocol) -> SpanExporter:
    """Return the SDK's exporter. It reads headers, certificates and compression from `OTEL_EXPORTER_OTLP_*`, as
    usual.
    """
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=DEADLINE_S)
    return OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=DEADLINE_S)


def _readable(span: RecordedSpan, resource: Resource) -> ReadableSpan:
    error = span.error
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=resource,
        attributes=span.attributes,
        events=[Event(name, cast(Any, attributes), time_ns) for name, time_ns, attributes in span.events],
        links=[Link(context) for context in span.links],
        kind=span.kind,
        status=Status(StatusCode.ERROR, error) if error is not None else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
    )
