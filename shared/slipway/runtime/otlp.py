"""Ended spans to a collector, over OTLP: HTTP or gRPC.

Owns the queue between the process and the collector, its thread, and the exporters of OpenTelemetry's SDK, which are
loaded here and only when there is a collector. Must not know what spans mean.

Promises: `offer` never blocks and never raises; what does not fit into the queue, and what the collector does not take
within its deadline, is dropped and counted; `shutdown` ends within its time whatever the collector does.
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
"""The collector has so long for a batch, retries included."""
FLUSH_S: Final = 3.0


class OtlpExporter:
    """The way to one collector."""

    def __init__(self, service: str, endpoint: str, protocol: Protocol, dropped: Dropped) -> None:
        """`endpoint` is a base URL; http:// is plain, https:// is TLS. `dropped` counts from any thread."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # a collector that is away is counted, not logged
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
        # The queue passes on what it is given; it becomes the SDK's span in the thread that sends it.
        self._processor.on_end(cast(ReadableSpan, span))

    def shutdown(self) -> None:
        """Send what is queued, within a few seconds."""
        # The SDK's own time limits do not hold while a collector is away; the thread dies with the process.
        flush = threading.Thread(target=self._processor.shutdown, name="telemetry-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_S)


class _Exporter(SpanExporter):
    """Makes of our spans what the SDK's exporter sends, and counts what is not taken."""

    def __init__(self, inner: SpanExporter, resource: Resource, dropped: Dropped) -> None:
        self._inner, self._resource, self._dropped = inner, resource, dropped
        self.taken = 0
        """Spans that have left the queue; only the sending thread writes it."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._inner.export([_readable(cast(RecordedSpan, span), self._resource) for span in spans])
        if result is not SpanExportResult.SUCCESS:
            self._dropped(len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def _exporter(endpoint: str, protocol: Protocol) -> SpanExporter:
    """Reads headers, certificates and compression from `OTEL_EXPORTER_OTLP_*`, as every exporter of OpenTelemetry."""
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
