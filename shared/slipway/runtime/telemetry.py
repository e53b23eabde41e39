"""Traces and metrics: the only place that knows the OpenTelemetry SDK, and where every instrument is declared.

Owns spans (a context manager over traceparents), where ended spans go (a collector, when one is configured; the
allocation's own trace stream, through a `SpanSink`) and the table of Prometheus instruments. It knows no Redis and
no service.

The SDK is loaded only when there is a collector to send to; else `spans.py` records, which is far cheaper.

Invariants: without `setup` a span costs next to nothing and still passes the caller's trace on; ids are never metric
labels; offering a span never blocks; no exception text goes into a span.
"""

import contextlib
import itertools
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import prometheus_client as prometheus
from opentelemetry import context as otel_context
from opentelemetry import trace as otel

from slipway.runtime.spans import (
    ATTRIBUTE_CHARS_MAX,
    ATTRIBUTES_MAX,
    EVENTS_MAX,
    LINKS_MAX,
    RecordedSpan,
    RecordingTracer,
)
from slipway.runtime.traceparent import SpanRef, parse_traceparent, traceparent_from_uid

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

__all__ = [
    "INSTRUMENTS",
    "ActiveSpan",
    "Attribute",
    "SpanRef",
    "SpanSink",
    "add_event",
    "current_ids",
    "current_traceparent",
    "parse_traceparent",
    "render_metrics",
    "set_sink",
    "setup",
    "shutdown",
    "span",
    "suppressed",
    "traceparent_from_uid",
]

Attribute = str | bool | int | float

ALLOCATION_ATTRIBUTE = "slipway.allocation.id"
_FLUSH_TIMEOUT_S = 3.0
_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


# --- traces ---------------------------------------------------------------------------------------------------------


class SpanSink(Protocol):
    """Takes ended spans of allocations; the streams layer writes them to `slipway:trace:{id}`."""

    def offer(self, allocation_id: str, span: dict[str, Any]) -> None:
        """Never blocks and never raises: a full sink drops, and counts in `SPANS_DROPPED`.

        `span` = {traceId, spanId, parentSpanId, links, name, service, startNs, endNs, status, attributes, events}.
        """
        ...


class ActiveSpan:
    """The span that is being recorded. Attributes beyond the limit are dropped, so that the first ones stay."""

    def __init__(self, inner: otel.Span, keys: Iterable[str] = ()) -> None:
        self._inner = inner
        self._keys = set(keys)

    @property
    def traceparent(self) -> str:
        """What to hand to the next process; empty when there is no trace."""
        return _traceparent(self._inner)

    def set(self, **attributes: Attribute) -> None:
        """Adds attributes; `__` in a name stands for a dot."""
        for name, value in attributes.items():
            key = name.replace("__", ".")
            if key in self._keys or len(self._keys) < ATTRIBUTES_MAX:
                self._keys.add(key)
                self._inner.set_attribute(key, value)

    def rename(self, name: str) -> None:
        """Gives the span a better name: of a request, the route is known only after it was routed."""
        self._inner.update_name(name)

    def event(self, name: str, attributes: Mapping[str, Attribute] | None = None) -> None:
        """Something that happened at one instant of the span."""
        self._inner.add_event(name, attributes)

    def fail(self, reason: str) -> None:
        """Marks the span failed although nothing was raised; `reason` is a short constant."""
        self._inner.set_status(otel.Status(otel.StatusCode.ERROR, reason))


class _State:
    """What `setup` made; the process has one."""

    provider: "TracerProvider | None" = None
    tracer: otel.Tracer | RecordingTracer = otel.NoOpTracer()
    sink: SpanSink | None = None
    service: str = ""


_suppressed: ContextVar[bool] = ContextVar("slipway_spans_suppressed", default=False)
_allocation: ContextVar[str | None] = ContextVar("slipway_span_allocation", default=None)


def setup(service: str, *, otlp_endpoint: str = "", sink: SpanSink | None = None, ratio: float = 1.0) -> None:
    """Starts recording; replaces what was set up before."""
    shutdown()
    _State.sink, _State.service = sink, service
    _State.tracer = _exporting(service, otlp_endpoint, ratio) if otlp_endpoint else RecordingTracer(_ended, ratio)


def _exporting(service: str, endpoint: str, ratio: float) -> otel.Tracer:
    """The SDK's tracer, which also sends every span to the collector."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    limits = SpanLimits(
        max_span_attributes=ATTRIBUTES_MAX,
        max_events=EVENTS_MAX,
        max_links=LINKS_MAX,
        max_span_attribute_length=ATTRIBUTE_CHARS_MAX,
    )
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)),
        resource=Resource.create({"service.name": f"slipway-{service}", "service.namespace": "slipway"}),
        span_limits=limits,
        shutdown_on_exit=False,
    )
    provider.add_span_processor(_sink_processor())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")))
    _State.provider = provider
    return provider.get_tracer("slipway")


def set_sink(sink: SpanSink | None) -> None:
    """Where ended spans of allocations go from now on: the sink needs clients that are built after `setup`."""
    _State.sink = sink


def shutdown() -> None:
    """Sends what is queued, within a few seconds, and stops recording."""
    if _State.provider is not None:
        # The SDK's own time limits do not hold while a collector is away; the thread dies with the process.
        flush = threading.Thread(target=_State.provider.shutdown, name="telemetry-flush", daemon=True)
        flush.start()
        flush.join(_FLUSH_TIMEOUT_S)
    _State.provider, _State.sink, _State.tracer = None, None, otel.NoOpTracer()


@contextlib.contextmanager
def span(
    name: str,
    *,
    parent: str | None = None,
    links: Sequence[str] = (),
    allocation_id: str | None = None,
    attributes: Mapping[str, Attribute] | None = None,
) -> Generator[ActiveSpan]:
    """Records the time inside. `parent` and `links` are traceparents; without a parent, the current span is it.

    `allocation_id` puts the span, and those inside it, into that allocation's waterfall. An exception marks it failed
    with the exception's class and passes through.
    """
    if _suppressed.get():
        yield ActiveSpan(otel.INVALID_SPAN)
        return
    allocation_id = allocation_id or _allocation.get()
    values: dict[str, Attribute] = {ALLOCATION_ATTRIBUTE: allocation_id} if allocation_id else {}
    values.update(itertools.islice((attributes or {}).items(), ATTRIBUTES_MAX - len(values)))
    inner = _State.tracer.start_span(
        name,
        context=_parent_context(parent),
        links=[otel.Link(_span_context(ref)) for ref in map(parse_traceparent, links) if ref is not None],
        attributes=values,
    )
    held_allocation = _allocation.set(allocation_id)
    held_context = otel_context.attach(otel.set_span_in_context(inner))
    try:
        yield ActiveSpan(inner, values)
    except BaseException as error:
        inner.set_status(otel.Status(otel.StatusCode.ERROR, type(error).__name__))
        raise
    finally:
        otel_context.detach(held_context)
        _allocation.reset(held_allocation)
        inner.end()


@contextlib.contextmanager
def suppressed() -> Generator[None]:
    """No spans inside: for polling and other work that nobody asked for."""
    token = _suppressed.set(True)
    try:
        yield
    finally:
        _suppressed.reset(token)


def add_event(name: str, attributes: Mapping[str, Attribute] | None = None) -> None:
    """Adds an event to the current span, if there is one."""
    if not _suppressed.get():
        otel.get_current_span().add_event(name, attributes)


def current_traceparent() -> str:
    """The current span as a traceparent; empty without one."""
    return _traceparent(otel.get_current_span())


def current_ids() -> tuple[str, str] | None:
    """(trace id, span id) in hexadecimal, for log lines and problem bodies; None outside a trace."""
    context = otel.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def _parent_context(parent: str | None) -> otel_context.Context | None:
    ref = parse_traceparent(parent)
    if ref is None:
        return None
    return otel.set_span_in_context(otel.NonRecordingSpan(_span_context(ref)))


def _span_context(ref: SpanRef) -> otel.SpanContext:
    flags = otel.TraceFlags(otel.TraceFlags.SAMPLED if ref.sampled else otel.TraceFlags.DEFAULT)
    return otel.SpanContext(ref.trace_id, ref.span_id, is_remote=True, trace_flags=flags)


def _traceparent(inner: otel.Span) -> str:
    context = inner.get_span_context()
    if not context.is_valid:
        return ""
    return str(SpanRef(context.trace_id, context.span_id, context.trace_flags.sampled))


def _ended(span: RecordedSpan) -> None:
    """Hands the ended span of an allocation to the sink of the moment."""
    allocation_id = span.attributes.get(ALLOCATION_ATTRIBUTE)
    if _State.sink is None or not isinstance(allocation_id, str):
        return
    context = span.get_span_context()
    taken: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "parentSpanId": f"{span.parent_id:016x}" if span.parent_id else "",
        "links": [str(SpanRef(link.trace_id, link.span_id)) for link in span.links],
        "name": span.name,
        "service": _State.service,
        "startNs": span.start_ns,
        "endNs": span.end_ns,
        "status": span.error or "ok",
        "attributes": span.attributes,
        "events": [
            {"name": name, "timeNs": time_ns, "attributes": dict(attributes)}
            for name, time_ns, attributes in span.events
        ],
    }
    _State.sink.offer(allocation_id, taken)


def _sink_processor() -> Any:
    from opentelemetry.sdk.trace import SpanProcessor

    class SinkProcessor(SpanProcessor):
        """Hands each ended span of an allocation to the sink of the moment."""

        def on_end(self, span: "ReadableSpan") -> None:
            allocation_id = (span.attributes or {}).get(ALLOCATION_ATTRIBUTE)
            if _State.sink is not None and isinstance(allocation_id, str):
                _State.sink.offer(allocation_id, _compact(span))

    return SinkProcessor()


def _compact(span: "ReadableSpan") -> dict[str, Any]:
    context = span.get_span_context()
    return {
        "traceId": f"{context.trace_id:032x}" if context else "",
        "spanId": f"{context.span_id:016x}" if context else "",
        "parentSpanId": f"{span.parent.span_id:016x}" if span.parent else "",
        "links": [str(SpanRef(link.context.trace_id, link.context.span_id)) for link in span.links],
        "name": span.name,
        "service": _State.service,
        "startNs": span.start_time or 0,
        "endNs": span.end_time or 0,
        "status": span.status.description or "error" if not span.status.is_ok else "ok",
        "attributes": dict(span.attributes or {}),
        "events": [
            {"name": event.name, "timeNs": event.timestamp, "attributes": dict(event.attributes or {})}
            for event in span.events
        ],
    }


# --- metrics --------------------------------------------------------------------------------------------------------


class Instrument(msgspec.Struct, frozen=True):
    """One row of the table of instruments."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str


INSTRUMENTS: list[Instrument] = []
"""Every instrument of the product, in order of declaration."""

REGISTRY = prometheus.CollectorRegistry(auto_describe=True)
prometheus.disable_created_metrics()
prometheus.ProcessCollector(registry=REGISTRY)


def _counter(name: str, unit: str, labels: tuple[str, ...], text: str) -> prometheus.Counter:
    INSTRUMENTS.append(Instrument(f"slipway_{name}_total", "counter", unit, labels, text))
    return prometheus.Counter(f"slipway_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> prometheus.Gauge:
    INSTRUMENTS.append(Instrument(f"slipway_{name}", "gauge", unit, labels, text))
    return prometheus.Gauge(f"slipway_{name}", text, labels, registry=REGISTRY)


def _histogram(name: str, unit: str, labels: tuple[str, ...], text: str) -> prometheus.Histogram:
    INSTRUMENTS.append(Instrument(f"slipway_{name}", "histogram", unit, labels, text))
    return prometheus.Histogram(f"slipway_{name}", text, labels, registry=REGISTRY, buckets=_LATENCY_S)


# Labels are closed sets: routes, verbs, codes, phases, reasons, pools and queues; never the id of anything.
HTTP_REQUESTS = _counter("http_requests", "requests", ("route", "method", "code"), "HTTP requests answered.")
HTTP_DURATION = _histogram("http_request_duration_seconds", "seconds", ("route", "method"), "Time to answer a request.")
HTTP_STREAMS = _gauge("http_streams", "connections", ("kind",), "Open event streams, log streams and proxied sockets.")

LAUNCHES = _counter("launches", "allocations", ("kind", "outcome"), "Launch requests by kind and outcome.")
TRANSITIONS = _counter("transitions", "transitions", ("event",), "Transitions committed to status.")
ENDS = _counter("ends", "allocations", ("result", "reason"), "Allocations that ended, by result and reason.")
STATUS_WRITES = _counter("status_writes", "writes", ("outcome",), "Status writes: ok, stale or failed.")
SWEPT = _counter("swept", "objects", ("kind",), "Leaked or outlived objects that a sweep removed.")

DECISIONS = _counter(
    "decisions", "decisions", ("pool", "kind"), "Decisions committed to a ledger: admit, evict, nominate, void."
)
PREEMPTIONS = _counter(
    "preemptions", "decisions", ("pool", "what"), "Evictions that make room for other work: whole, or surplus ranks."
)
TICKS = _counter("ticks", "ticks", ("pool", "outcome"), "Scheduler ticks: decided, idle, stale or failed.")
TICK_DURATION = _histogram("tick_duration_seconds", "seconds", ("phase",), "Time of each phase of a scheduler tick.")
PENDING = _gauge("pending", "allocations", ("pool", "reason"), "Pending allocations by their first blocking gate.")
POLICY_FAULTS = _gauge("policy_faults", "mistakes", ("pool",), "Scores and args of a pool that are left out as wrong.")
PLACED = _gauge("placed", "allocations", ("pool",), "Allocations that hold a place in the ledger or on nodes.")
QUEUE_WAIT = _histogram("queue_wait_seconds", "seconds", ("pool",), "Time from creation to admission.")
EXTENDER_CALLS = _counter(
    "extender_calls", "calls", ("extender", "verb", "outcome"), "Calls of scheduler extenders: ok or fault."
)
EXTENDER_DURATION = _histogram(
    "extender_call_seconds", "seconds", ("extender", "verb"), "Time of one call of a scheduler extender."
)
LEADER = _gauge("leader", "boolean", ("lease",), "1 in the process that leads.")
AUDIT_VIOLATIONS = _gauge(
    "audit_violations", "violations", ("invariant",), "Of the last audit; none where it could not be judged."
)
AUDIT_LAST = _gauge("audit_last_run_seconds", "seconds since the epoch", (), "When the last audit ended.")
AUDIT_DURATION = _gauge("audit_duration_seconds", "seconds", (), "How long it took, the time it watched included.")
FORESEEN_ERROR = _histogram(
    "foreseen_start_error_seconds", "seconds", ("pool", "side"), "How early or late heads with a reservation started."
)
DECISION_LOG = _counter(
    "decision_log", "ticks", ("pool", "outcome"), "Ticks for the decision log: written, dropped, too_large."
)
DECISION_LOG_BYTES = _counter("decision_log_bytes", "bytes", ("pool",), "Bytes written to the decision log.")
SHADOW_DECISIONS = _counter(
    "shadow_decisions", "decisions", ("pool", "outcome"), "Decisions of the shadow policy: same or different."
)
SHADOW_TICKS = _counter("shadow_ticks", "ticks", ("pool", "outcome"), "Ticks for the shadow policy: planned, skipped.")
LEADER_CHANGES = _counter("leader_changes", "changes", ("lease",), "Leaderships won or lost by this process.")

LAUNCH_STEP = _histogram("launch_step_seconds", "seconds", ("step",), "Time of each step of a launch or teardown.")
STUCK = _gauge("stuck", "allocations", (), "Allocations whose launch or teardown exhausted its retries.")

KUBE_CALLS = _counter("kube_calls", "calls", ("verb", "resource", "code"), "Calls of the Kubernetes API.")
KUBE_DURATION = _histogram("kube_call_seconds", "seconds", ("verb", "resource"), "Time of Kubernetes API calls.")
WATCH_RESTARTS = _counter("watch_restarts", "restarts", ("resource", "reason"), "Watches that were opened again.")
WATCH_EVENTS = _counter("watch_events", "events", ("resource", "type"), "Events received on watches.")
STORE_OBJECTS = _gauge("store_objects", "objects", ("resource",), "Objects in the local stores.")

STREAM_APPENDS = _counter("stream_appends", "entries", ("stream", "outcome"), "Entries appended: ok, duplicate, gap.")
STREAM_LAG = _gauge("stream_lag", "entries", ("stream", "group"), "Entries that a group has not read yet.")
DELIVERIES = _counter("deliveries", "messages", ("stream", "outcome"), "Messages handled: ok, retry, dropped, dead.")
DELIVERY_DURATION = _histogram("delivery_seconds", "seconds", ("stream",), "Time to handle a message.")
CLAIMS = _counter("claims", "messages", ("stream",), "Messages taken over from a consumer that is gone.")
DEAD_LETTERS = _counter("dead_letters", "messages", ("stream",), "Messages put aside after their last delivery.")
FEED_GAPS = _counter("feed_gaps", "gaps", ("reason",), "Breaks of the cluster feed that forced a LIST.")
REDIS_CALLS = _counter("redis_calls", "calls", ("command", "outcome"), "Redis calls.")
SPANS_DROPPED = _counter("spans_dropped", "spans", (), "Spans that did not fit into the trace sink.")

WEBHOOK_EVENTS = _counter("webhook_events", "events", (), "Events put into the queues of webhooks.")
WEBHOOK_TRIES = _counter("webhook_tries", "tries", ("outcome",), "Tries to deliver: delivered, failed, final.")
WEBHOOK_DURATION = _histogram("webhook_try_seconds", "seconds", (), "Time of one try to deliver to a receiver.")
WEBHOOK_HELD = _gauge("webhook_held", "deliveries", (), "Deliveries in hand: tried now, or waiting for the next try.")

RETRIES = _counter("retries", "retries", ("policy", "error"), "Attempts repeated, by policy and error class.")
LOOP_STEPS = _counter("loop_steps", "steps", ("loop",), "Steps that a loop completed.")
LOOP_ERRORS = _counter("loop_errors", "errors", ("loop", "error"), "Errors that reached a loop, by class.")
INVARIANT_VIOLATIONS = _gauge("invariant_violations", "violations", ("invariant",), "Violations found by the audit.")
BUILD = _gauge("build", "constant", ("service", "version"), "Always 1; says what is running.")


def render_metrics() -> bytes:
    """Everything in Prometheus text format."""
    return prometheus.generate_latest(REGISTRY)
