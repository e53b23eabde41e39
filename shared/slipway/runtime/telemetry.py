"""Traces and metrics: the API to record spans, and the declaration of every instrument.

This module owns spans (a context manager over traceparents), the receivers of ended spans and the table of Prometheus
instruments. The receivers are a collector, when one is configured, and the allocation's own trace stream, through a
`SpanSink`. The module knows no Redis and no service.

`spans.py` records the spans. `otlp.py` sends them; it is the only module that loads the SDK.

Invariants: without `setup`, a span costs almost nothing and still passes on the caller's trace. Ids are never metric
labels. Offering a span never blocks. No exception text is stored in a span.
"""

import contextlib
import itertools
import typing
from collections.abc import Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
import prometheus_client as prometheus
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.trace import SpanKind

from slipway.runtime import semconv
from slipway.runtime.instruments import LATENCY_S, WAITS_S, Counter, Gauge, Histogram, render
from slipway.runtime.spans import (
    ATTRIBUTES_MAX,
    ActiveSpan,
    Attribute,
    NoTracer,
    RecordedSpan,
    RecordingTracer,
    traceparent_text,
)
from slipway.runtime.traceparent import SpanRef, parse_traceparent, traceparent_from_uid

if TYPE_CHECKING:
    from slipway.runtime.otlp import OtlpExporter, Protocol

__all__ = [
    "INSTRUMENTS",
    "ActiveSpan",
    "Attribute",
    "SpanKind",
    "SpanRef",
    "SpanSink",
    "add_event",
    "called",
    "calling",
    "current_ids",
    "current_traceparent",
    "emit",
    "is_exporting",
    "parse_traceparent",
    "render_metrics",
    "set_sink",
    "setup",
    "shutdown",
    "span",
    "suppressed",
    "traceparent_from_uid",
]

ALLOCATION_ATTRIBUTE = "slipway.allocation.id"
CALLS_MAX = 8
"""Limit on the calls that are recorded below one span, because a gang makes thousands of calls."""


# --- traces ---------------------------------------------------------------------------------------------------------


class SpanSink(typing.Protocol):
    """A receiver of ended spans of allocations. The streams layer writes them to `slipway:trace:{id}`."""

    def offer(self, allocation_id: str, span: dict[str, Any]) -> None:
        """Accept a span. It never blocks and never raises: a full sink drops the span and counts it in `SPANS_DROPPED`.

        `span` = {traceId, spanId, parentSpanId, links, name, kind, service, startNs, endNs, status, attributes,
        events}.
        """
        ...


class _State:
    """The state of the process that `setup` makes."""

    collector: "OtlpExporter | None" = None
    tracer: RecordingTracer | NoTracer = NoTracer()
    sink: SpanSink | None = None
    service: str = ""


_suppressed: ContextVar[bool] = ContextVar("slipway_spans_suppressed", default=False)
_allocation: ContextVar[str | None] = ContextVar("slipway_span_allocation", default=None)


def setup(
    service: str,
    *,
    otlp_endpoint: str = "",
    otlp_protocol: "Protocol" = "http/protobuf",
    sink: SpanSink | None = None,
    ratio: float = 1.0,
) -> None:
    """Start recording. Replaces an earlier setup."""
    shutdown()
    _State.sink, _State.service = sink, service
    SPANS_DROPPED.labels(to="waterfall")
    if otlp_endpoint:
        dropped = SPANS_DROPPED.labels(to="collector")
        from slipway.runtime.otlp import OtlpExporter

        _State.collector = OtlpExporter(service, otlp_endpoint, otlp_protocol, dropped.inc)
    _State.tracer = RecordingTracer(_ended, ratio)


def set_sink(sink: SpanSink | None) -> None:
    """Set the receiver of ended spans of allocations. It is set separately, because its clients are made after
    `setup`.
    """
    _State.sink = sink


def shutdown() -> None:
    """Send the queued spans, within a few seconds, and stop recording."""
    if _State.collector is not None:
        _State.collector.shutdown()
    _State.collector, _State.sink, _State.tracer = None, None, NoTracer()


def is_exporting() -> bool:
    """Whether a collector receives spans that belong to no allocation."""
    return _State.collector is not None


@contextlib.contextmanager
def span(
    name: str,
    *,
    parent: str | None = None,
    links: Sequence[str] = (),
    allocation_id: str | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Generator[ActiveSpan]:
    """Record a span for the time inside. `parent` and `links` are traceparents; the default parent is the current span.

    `allocation_id` adds the span, and the spans inside it, to the waterfall of that allocation. An exception marks the
    span as failed, with the exception's class, and is raised again.
    """
    if _suppressed.get():
        yield ActiveSpan(otel.INVALID_SPAN)
        return
    allocation_id = allocation_id or _allocation.get()
    values = _with_allocation(allocation_id, attributes)
    inner = _State.tracer.start_span(
        name, _parent_context(parent), links=_contexts(links), attributes=values, kind=kind
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


def emit(  # noqa: PLR0913 - keyword-only: all that a span has
    name: str,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    parent: str | None = None,
    itself: str | None = None,
    links: Sequence[str] = (),
    allocation_id: str | None = None,
    attributes: Mapping[str, Attribute] | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    error: str = "",
) -> str:
    """Record a span that is already over, between two times in epoch seconds (default: now), and return its
    traceparent.

    `itself` is a traceparent that every process can derive from the subject of the span. So other spans can link to it
    or have it as their parent without receiving its ids.
    """
    if _suppressed.get():
        return ""
    known = parse_traceparent(itself)
    inner = _State.tracer.start_span(
        name,
        _parent_context(parent),
        links=_contexts(links),
        attributes=_with_allocation(allocation_id or _allocation.get(), attributes),
        kind=kind,
        start_ns=int(start_s * 1e9) if start_s is not None else None,
        known=_span_context(known) if known is not None else None,
    )
    if error:
        inner.set_status(otel.Status(otel.StatusCode.ERROR, error))
    inner.end(int(max(start_s or 0.0, end_s) * 1e9) if end_s is not None else None)
    return traceparent_text(inner)


def calling(method: str, what: str, target: str) -> ActiveSpan | None:
    """Start the span of an HTTP call to another server, which `called` ends; None when the call is not recorded.

    A call is recorded only with a collector, only below a recorded span, and only for the first `CALLS_MAX` calls below
    one span.
    """
    if _State.collector is None or _suppressed.get():
        return None
    current = otel.get_current_span()
    if not isinstance(current, RecordedSpan) or current.calls >= CALLS_MAX:
        return None
    current.calls += 1
    values = _with_allocation(_allocation.get(), semconv.asks(method, target))
    inner = _State.tracer.start_span(f"{method} {what}", attributes=values, kind=SpanKind.CLIENT)
    return ActiveSpan(inner, values)


def called(span: ActiveSpan, outcome: str) -> None:
    """End the span of a call. `outcome` is a status, or a word for the failure."""
    if outcome.isdigit():
        span.set(http__response__status_code=int(outcome))
    else:
        span.set(error__type=outcome)
        span.fail(outcome)
    span.end()


@contextlib.contextmanager
def suppressed() -> Generator[None]:
    """Record no spans inside: for polling and other work that no request caused."""
    token = _suppressed.set(True)
    try:
        yield
    finally:
        _suppressed.reset(token)


def add_event(name: str, attributes: Mapping[str, Attribute] | None = None) -> None:
    """Add an event to the current span, if there is one."""
    if not _suppressed.get():
        otel.get_current_span().add_event(name, attributes)


def current_traceparent() -> str:
    """Return the current span as a traceparent; empty without one."""
    return traceparent_text(otel.get_current_span())


def current_ids() -> tuple[str, str] | None:
    """Return (trace id, span id) in hexadecimal, for log lines and problem bodies; None outside a trace."""
    context = otel.get_current_span().get_span_context()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def _with_allocation(allocation_id: str | None, attributes: Mapping[str, Attribute] | None) -> dict[str, Attribute]:
    values: dict[str, Attribute] = {ALLOCATION_ATTRIBUTE: allocation_id} if allocation_id else {}
    values.update(itertools.islice((attributes or {}).items(), ATTRIBUTES_MAX - len(values)))
    return values


def _contexts(links: Sequence[str]) -> list[otel.SpanContext]:
    return [_span_context(ref) for ref in map(parse_traceparent, links) if ref is not None]


def _parent_context(parent: str | None) -> otel_context.Context | None:
    ref = parse_traceparent(parent)
    if ref is None:
        return None
    return otel.set_span_in_context(otel.NonRecordingSpan(_span_context(ref)))


def _span_context(ref: SpanRef) -> otel.SpanContext:
    flags = otel.TraceFlags(otel.TraceFlags.SAMPLED if ref.sampled else otel.TraceFlags.DEFAULT)
    return otel.SpanContext(ref.trace_id, ref.span_id, is_remote=True, trace_flags=flags)


def _ended(span: RecordedSpan) -> None:
    """Pass the ended span to the collector, and a span of an allocation also to the current sink."""
    if _State.collector is not None:
        _State.collector.offer(span)
    allocation_id = span.attributes.get(ALLOCATION_ATTRIBUTE)
    if _State.sink is None or not isinstance(allocation_id, str):
        return
    context = span.context
    taken: dict[str, Any] = {
        "traceId": f"{context.trace_id:032x}",
        "spanId": f"{context.span_id:016x}",
        "parentSpanId": f"{span.parent.span_id:016x}" if span.parent else "",
        "links": [str(SpanRef(link.trace_id, link.span_id)) for link in span.links],
        "name": span.name,
        "kind": span.kind.name.lower(),
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


def _counter(name: str, unit: str, labels: tuple[str, ...], text: str) -> Counter:
    INSTRUMENTS.append(Instrument(f"slipway_{name}_total", "counter", unit, labels, text))
    return Counter(f"slipway_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, unit: str, labels: tuple[str, ...], text: str) -> Gauge:
    INSTRUMENTS.append(Instrument(f"slipway_{name}", "gauge", unit, labels, text))
    return Gauge(f"slipway_{name}", text, labels, registry=REGISTRY)


def _histogram(
    name: str, unit: str, labels: tuple[str, ...], text: str, buckets: tuple[float, ...] = LATENCY_S
) -> Histogram:
    INSTRUMENTS.append(Instrument(f"slipway_{name}", "histogram", unit, labels, text))
    return Histogram(f"slipway_{name}", text, labels, registry=REGISTRY, buckets=buckets)


# Labels are closed sets: routes, verbs, codes, phases, reasons. Names that people choose (pools, queues, extenders) are
# labels only as far as `instruments.py` admits them. The id of an object is never a label.
HTTP_REQUESTS = _counter("http_requests", "requests", ("route", "method", "code"), "HTTP requests answered.")
HTTP_DURATION = _histogram("http_request_duration_seconds", "seconds", ("route", "method"), "Time to answer a request.")
AUDIT_EVENTS = _counter(
    "audit_events",
    "events",
    ("outcome",),
    "Audit events for a reader outside the log: delivered, or lost (its backlog was full, or the reader was "
    "unavailable for too long).",
)
HTTP_REFUSED = _counter(
    "http_refused",
    "connections",
    ("reason",),
    "Connections closed before a request was read: too many in total (connections) or from one address (address), too "
    "many half open (heads), a header that is too large (head) or arrives too slowly (late).",
)
HTTP_STREAMS = _gauge("http_streams", "connections", ("kind",), "Open event streams, log streams and proxied sockets.")

LAUNCHES = _counter("launches", "allocations", ("kind", "outcome"), "Launch requests by kind and outcome.")
TRANSITIONS = _counter("transitions", "transitions", ("event",), "Transitions committed to status.")
ENDS = _counter("ends", "allocations", ("result", "reason"), "Allocations that ended, by result and reason.")
STATUS_WRITES = _counter("status_writes", "writes", ("outcome",), "Status writes: ok, stale or failed.")
SWEPT = _counter("swept", "objects", ("kind",), "Leaked or outdated objects that a sweep removed.")

DECISIONS = _counter(
    "decisions", "decisions", ("pool", "kind"), "Decisions committed to a ledger: admit, evict, nominate, void."
)
PREEMPTIONS = _counter(
    "preemptions",
    "decisions",
    ("pool", "what"),
    "Evictions for other allocations: of a whole allocation, or of surplus ranks.",
)
TICKS = _counter("ticks", "ticks", ("pool", "outcome"), "Scheduler ticks: decided, idle, stale or failed.")
TICK_DURATION = _histogram("tick_duration_seconds", "seconds", ("phase",), "Time of each phase of a scheduler tick.")
FEED_HEARD = _gauge(
    "feed_heard_seconds", "seconds since the epoch", (), "Time of the last message on the cluster feed."
)
PENDING = _gauge("pending", "allocations", ("pool", "reason"), "Pending allocations by their first blocking gate.")
PENDING_SINCE = _gauge(
    "pending_since_seconds",
    "seconds since the epoch",
    ("pool", "reason"),
    "Time since which the oldest pending allocation waits; absent when none waits.",
)
QUEUE_PENDING = _gauge("queue_pending", "allocations", ("pool", "queue"), "Pending allocations of each queue.")
QUEUE_SINCE = _gauge(
    "queue_since_seconds",
    "seconds since the epoch",
    ("pool", "queue"),
    "Time since which the oldest pending allocation waits; absent when none waits.",
)
POLICY_FAULTS = _gauge("policy_faults", "mistakes", ("pool",), "Invalid scores and args of a pool that are ignored.")
PLACED = _gauge("placed", "allocations", ("pool",), "Allocations that are admitted and have not ended.")
QUEUE_WAIT = _histogram(
    "queue_wait_seconds",
    "seconds",
    ("pool", "reason"),
    "Time that an attempt waited for its admission, by the last gate that blocked it.",
    WAITS_S,
)
EXTENDER_CALLS = _counter(
    "extender_calls", "calls", ("extender", "verb", "outcome"), "Calls of scheduler extenders: ok or fault."
)
EXTENDER_DURATION = _histogram(
    "extender_call_seconds", "seconds", ("extender", "verb"), "Time of one call of a scheduler extender."
)
LEADER = _gauge("leader", "boolean", ("lease",), "1 in the process that is the leader.")
AUDIT_VIOLATIONS = _gauge(
    "audit_violations",
    "violations",
    ("invariant",),
    "Violations in the last audit; absent when the invariant could not be judged.",
)
AUDIT_LAST = _gauge("audit_last_run_seconds", "seconds since the epoch", (), "When the last audit ended.")
AUDIT_DURATION = _gauge(
    "audit_duration_seconds", "seconds", (), "Duration of the last audit, including the time that it watched."
)
FORESEEN_ERROR = _histogram(
    "foreseen_start_error_seconds",
    "seconds",
    ("pool", "side"),
    "How early or late queue heads with a reservation started, compared with the forecast.",
)
DECISION_LOG = _counter(
    "decision_log", "ticks", ("pool", "outcome"), "Ticks for the decision log: written, dropped or too_large."
)
DECISION_LOG_BYTES = _counter("decision_log_bytes", "bytes", ("pool",), "Bytes written to the decision log.")
SHADOW_DECISIONS = _counter(
    "shadow_decisions", "decisions", ("pool", "outcome"), "Decisions of the shadow policy: same or different."
)
SHADOW_TICKS = _counter(
    "shadow_ticks", "ticks", ("pool", "outcome"), "Ticks for the shadow policy: planned or skipped."
)
LEADER_CHANGES = _counter("leader_changes", "changes", ("lease",), "Leaderships won or lost by this process.")

LAUNCH_STEP = _histogram("launch_step_seconds", "seconds", ("step",), "Time of each step of a launch or teardown.")
STUCK = _gauge("stuck", "allocations", (), "Allocations whose launch or teardown has failed for too long.")

KUBE_CALLS = _counter("kube_calls", "calls", ("verb", "resource", "code"), "Calls of the Kubernetes API.")
KUBE_DURATION = _histogram("kube_call_seconds", "seconds", ("verb", "resource"), "Time of Kubernetes API calls.")
WATCH_RESTARTS = _counter("watch_restarts", "restarts", ("resource", "reason"), "Watches that were restarted.")
WATCH_EVENTS = _counter("watch_events", "events", ("resource", "type"), "Events received on watches.")
CLOCK_OFF = _gauge(
    "clock_ahead_seconds",
    "seconds",
    (),
    "Time by which this machine's clock is ahead of the API server's; below 0: behind it; 0 while the clock is right.",
)
WATCH_LAG = _histogram(
    "watch_lag_seconds",
    "seconds",
    ("resource",),
    "Time from a write of this process to its event on the watch of this process.",
)
WATCH_HEARD = _gauge(
    "watch_heard_seconds",
    "seconds since the epoch",
    ("resource",),
    "Time of the last message on a watch, including its end.",
)
STORE_OBJECTS = _gauge("store_objects", "objects", ("resource",), "Objects in the local stores.")

STREAM_APPENDS = _counter("stream_appends", "entries", ("stream", "outcome"), "Entries appended: ok, duplicate, gap.")
STREAM_LAG = _gauge("stream_lag", "entries", ("stream", "group"), "Entries that a group has not read yet.")
STREAM_IN_WORK = _gauge(
    "stream_in_work", "entries", ("stream", "group"), "Entries that were delivered and not yet acknowledged."
)
DELIVERIES = _counter(
    "deliveries", "messages", ("stream", "outcome"), "Messages handled: ok, retry, failed, dropped, dead."
)
DELIVERY_DURATION = _histogram("delivery_seconds", "seconds", ("stream",), "Time to handle a message.")
CLAIMS = _counter("claims", "messages", ("stream",), "Messages claimed from a consumer that is gone.")
DEAD_LETTERS = _counter(
    "dead_letters", "messages", ("stream",), "Messages that became dead letters after their last delivery."
)
LOG_ARCHIVE_BYTES = _counter("log_archive_bytes", "bytes", (), "Compressed bytes of logs that were archived.")
LOG_ARCHIVE_FAILURES = _counter("log_archive_failures", "failures", (), "Failed copies of logs to the archive.")
LOG_ARCHIVE_SIZE = _gauge(
    "log_archive_size_bytes", "bytes", (), "Size of the archived logs, when the archive has a bound."
)
LOG_ARCHIVE_DROPPED = _counter(
    "log_archive_dropped_bytes",
    "bytes",
    (),
    "Archived logs that were deleted early, because the archive exceeded its bound.",
)
LOG_ARCHIVE_LAG = _gauge(
    "log_archive_lag_seconds", "seconds", (), "Age of the oldest stored line that is not archived yet."
)
FEED_GAPS = _counter("feed_gaps", "gaps", ("reason",), "Gaps in the cluster feed that forced a LIST.")
REDIS_CALLS = _counter("redis_calls", "calls", ("command", "outcome"), "Redis calls.")
SPANS_DROPPED = _counter(
    "spans_dropped", "spans", ("to",), "Spans that were dropped: for the `waterfall`, or for the `collector`."
)

STORY_EVENTS = _counter(
    "story_events",
    "events",
    ("outcome",),
    "Kubernetes events about allocations: written, counted, refused, left_out.",
)

WEBHOOK_EVENTS = _counter("webhook_events", "events", (), "Events put into the queues of webhooks.")
WEBHOOK_TRIES = _counter("webhook_tries", "tries", ("outcome",), "Tries to deliver: delivered, failed, final.")
WEBHOOK_DURATION = _histogram("webhook_try_seconds", "seconds", (), "Time of one try to deliver to a receiver.")
WEBHOOK_HELD = _gauge(
    "webhook_held", "deliveries", (), "Deliveries in progress: being tried, or waiting for the next try."
)

RETRIES = _counter("retries", "retries", ("policy", "error"), "Attempts repeated, by policy and error class.")
LOOP_STEPS = _counter("loop_steps", "steps", ("loop",), "Steps that a loop completed.")
LOOP_ERRORS = _counter("loop_errors", "errors", ("loop", "error"), "Errors that reached a loop, by class.")
BUILD = _gauge(
    "build", "constant", ("service", "version"), "Always 1; the labels name the running service and version."
)


def render_metrics(accept: str = "") -> tuple[str, bytes]:
    """Return (content type, all metrics), in the format that the header `accept` requests: Prometheus text or
    OpenMetrics.
    """
    return render(REGISTRY, accept)
