"""Spans carry a trace across processes and end in the allocation's sink; instruments are declared once, without ids."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from slipway.runtime import otlp, telemetry
from slipway.runtime.otlp import Protocol
from slipway.runtime.traceparent import derived_span, parse_traceparent, traceparent_from_uid
from tests.support.wait import wait_until

_REMOTE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_UNSAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


class RecordingSink:
    """A sink that stores its spans."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, dict[str, Any]]] = []

    def offer(self, allocation_id: str, span: dict[str, Any]) -> None:
        self.spans.append((allocation_id, span))

    def named(self, name: str) -> dict[str, Any]:
        return next(span for _, span in self.spans if span["name"] == name)


class _Collector(BaseHTTPRequestHandler):
    """Accepts every request."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def collector() -> Iterator[str]:
    """The URL of a collector."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["alone", "collector"])
def sink(request: pytest.FixtureRequest) -> Iterator[RecordingSink]:
    """The sink of a process, with and without a collector beside it."""
    sink = RecordingSink()
    endpoint = "" if request.param == "alone" else request.getfixturevalue("collector")
    telemetry.setup("test", sink=sink, otlp_endpoint=endpoint)
    yield sink
    telemetry.shutdown()


def test_an_ended_span_reaches_the_sink_whole(sink: RecordingSink):
    """An ended span reaches the sink with ids, links, times, status, attributes and events, which the waterfall
    needs."""
    link = traceparent_from_uid("other")
    with telemetry.span(
        "create", parent=_REMOTE, links=[link, "bad"], allocation_id="a-1", attributes={"rank": 3}
    ) as span:
        span.set(node="n1", k8s__verb="create")
        span.event("retry", {"attempt": 1})
    ((allocation_id, taken),) = sink.spans
    assert allocation_id == "a-1"
    assert taken["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert taken["parentSpanId"] == "00f067aa0ba902b7"
    assert taken["links"] == [link]
    assert (taken["name"], taken["service"], taken["status"]) == ("create", "test", "ok")
    assert 0 < taken["startNs"] <= taken["endNs"]
    assert taken["attributes"] == {
        "rank": 3,
        "node": "n1",
        "k8s.verb": "create",
        "slipway.allocation.id": "a-1",
    }
    assert [(event["name"], event["attributes"]) for event in taken["events"]] == [("retry", {"attempt": 1})]


def test_inner_spans_belong_to_the_same_trace_and_allocation(sink: RecordingSink):
    """Spans inside an allocation's span belong to the same trace and allocation."""
    with telemetry.span("outer", allocation_id="a-1") as outer:
        assert telemetry.current_traceparent() == outer.traceparent
        with telemetry.span("inner"):
            pass
    inner = sink.named("inner")
    assert inner["parentSpanId"] == sink.named("outer")["spanId"]
    assert [allocation for allocation, _ in sink.spans] == ["a-1", "a-1"]
    assert telemetry.current_traceparent() == ""


def test_spans_of_no_allocation_do_not_reach_the_sink(sink: RecordingSink):
    """Spans without an allocation do not reach the sink."""
    with telemetry.span("tick"):
        pass
    assert sink.spans == []


def test_an_exception_fails_the_span_by_its_class_only(sink: RecordingSink):
    """An exception fails the span by its class only: its text may contain a secret."""
    with pytest.raises(ValueError), telemetry.span("work", allocation_id="a-1"):
        raise ValueError("password hunter2")
    taken = sink.named("work")
    assert taken["status"] == "ValueError"
    assert "hunter2" not in str(taken)


def test_a_span_can_fail_without_an_exception(sink: RecordingSink):
    """A refused write is a failed span, too."""
    with telemetry.span("work", allocation_id="a-1") as span:
        span.fail("stale")
    assert sink.named("work")["status"] == "stale"


def test_an_unsampled_parent_is_respected_and_passed_on(sink: RecordingSink):
    """Sampling is decided once, at the root."""
    with telemetry.span("work", parent=_UNSAMPLED, allocation_id="a-1") as span:
        ref = parse_traceparent(span.traceparent)
    assert ref is not None
    assert not ref.sampled
    assert sink.spans == []


def test_suppressed_work_leaves_no_span(sink: RecordingSink):
    """Suppressed work, such as polling, leaves no span, and its context does not leak."""
    with telemetry.suppressed(), telemetry.span("poll", allocation_id="a-1") as span:
        span.set(count=1)
        telemetry.add_event("looked")
        assert span.traceparent == ""
    assert sink.spans == []
    with telemetry.span("work", allocation_id="a-1"):
        pass
    assert len(sink.spans) == 1


def test_log_ids_are_those_of_the_current_span(sink: RecordingSink):
    """The log ids are those of the current span, so that a log line leads to its trace."""
    with telemetry.span("work", parent=_REMOTE, allocation_id="a-1"):
        ids = telemetry.current_ids()
    assert ids == ("4bf92f3577b34da6a3ce929d0e0e4736", sink.named("work")["spanId"])
    assert telemetry.current_ids() is None


def test_a_sink_may_come_later_and_go(sink: RecordingSink):
    """A sink may be set later and removed, because clients are built after tracing starts and closed before it ends."""
    later = RecordingSink()
    telemetry.set_sink(later)
    with telemetry.span("one", allocation_id="a-1"):
        pass
    telemetry.set_sink(None)
    with telemetry.span("two", allocation_id="a-1"):
        pass
    assert [span["name"] for _, span in later.spans] == ["one"]
    assert sink.spans == []


def test_a_ratio_of_the_roots_is_recorded():
    """A ratio of the roots is recorded. Below an unrecorded root nothing is recorded; a trace that begins elsewhere was
    decided there."""
    sink = RecordingSink()
    telemetry.setup("test", sink=sink, ratio=0.0)
    with telemetry.span("root", allocation_id="a-1") as root, telemetry.span("inner"):
        ref = parse_traceparent(root.traceparent)
    with telemetry.span("called", parent=_REMOTE, allocation_id="a-1"):
        pass
    telemetry.shutdown()
    assert ref is not None
    assert not ref.sampled
    assert [span["name"] for _, span in sink.spans] == ["called"]


def test_without_setup_a_span_still_passes_the_trace_on():
    """Without setup a span still passes the trace on, so that a process that records nothing does not break it."""
    telemetry.shutdown()
    with telemetry.span("work", parent=_REMOTE) as span:
        assert span.traceparent == _REMOTE
        assert telemetry.current_traceparent() == _REMOTE


def test_long_values_and_many_attributes_are_cut(sink: RecordingSink):
    """Long values and many attributes are cut, so that a span is small."""
    with telemetry.span("work", allocation_id="a-1", attributes={"text": "x" * 10_000}) as span:
        for number in range(100):
            span.event("e")
            span.set(**{f"a{number}": number})
    taken = sink.spans[0][1] if sink.spans else {}
    assert len(taken["events"]) <= 32
    assert len(taken["attributes"]) <= 32
    assert len(taken["attributes"].get("text", "")) <= 256


def test_instruments_have_unit_help_and_no_ids():
    """The table is complete, names are unique, and labels are closed sets."""
    assert len({row.name for row in telemetry.INSTRUMENTS}) == len(telemetry.INSTRUMENTS) > 20
    for row in telemetry.INSTRUMENTS:
        assert row.unit
        assert row.help.endswith((".", "running."))
        assert not {"id", "uid", "allocation", "pod", "user", "workspace", "node", "trace"} & set(row.labels), row.name


def test_metrics_are_rendered_with_their_values():
    """Metrics are rendered with their values."""
    telemetry.LAUNCHES.labels(kind="notebook", outcome="created").inc()
    text = telemetry.render_metrics()[1].decode()
    assert 'slipway_launches_total{kind="notebook",outcome="created"}' in text
    assert "process_resident_memory_bytes" in text
    assert "_created" not in text


def test_a_collector_that_is_away_costs_spans_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that is away costs only spans: offers never wait, the queue is bounded, lost spans are counted, and
    the process ends in time."""
    monkeypatch.setattr(otlp, "QUEUE_MAX", 600)
    monkeypatch.setattr(otlp, "FLUSH_S", 0.2)
    held, sink = threading.Event(), RecordingSink()

    class HangingCollector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            held.wait(30)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), HangingCollector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        lost = telemetry.SPANS_DROPPED.labels(to="collector")
        before = _value(lost)
        telemetry.setup("test", sink=sink, otlp_endpoint=f"http://127.0.0.1:{server.server_port}")
        for _ in range(3_000):
            with telemetry.span("work", allocation_id="a-1"):
                pass
        assert len(sink.spans) == 3_000
        assert _value(lost) - before >= 3_000 - 600 - otlp.BATCH_MAX
        telemetry.shutdown()
        held.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_what_a_collector_does_not_take_is_counted(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that no collector accepts, here because nothing listens, are counted as lost."""
    monkeypatch.setattr(otlp, "DEADLINE_S", 1.0)
    lost = telemetry.SPANS_DROPPED.labels(to="collector")
    before = _value(lost)
    telemetry.setup("test", otlp_endpoint="http://127.0.0.1:9", otlp_protocol=protocol)
    with telemetry.span("work"):
        pass
    telemetry.shutdown()
    wait_until(lambda: _value(lost) == before + 1, "the span is counted as lost")


def test_derived_span_ids_can_be_linked_to(sink: RecordingSink) -> None:
    """A derived span can be linked to before it is recorded, and is recorded under that id, with the given times."""
    root = traceparent_from_uid("uid-1")
    first, second = derived_span(root, "uid-1/1"), derived_span(root, "uid-1/2")
    assert len({root, first, second}) == 3
    telemetry.emit("attempt 2", start_s=20, end_s=30, parent=root, itself=second, links=[first], allocation_id="a-1")
    telemetry.emit("allocation", start_s=10, end_s=30, parent=root, itself=root, allocation_id="a-1", error="Killed")
    attempt, whole = sink.named("attempt 2"), sink.named("allocation")
    assert (attempt["spanId"], attempt["parentSpanId"], attempt["links"]) == (second[36:52], root[36:52], [first])
    assert (attempt["startNs"], attempt["endNs"], attempt["status"]) == (20 * 10**9, 30 * 10**9, "ok")
    assert (whole["spanId"], whole["parentSpanId"], whole["status"]) == (root[36:52], "", "Killed")


def test_of_many_calls_the_first_are_recorded(sink: RecordingSink) -> None:
    """Of many calls the first are recorded as spans, below a recorded span and only with a collector; otherwise a call
    costs nothing."""
    with telemetry.span("pods", allocation_id="a-1"):
        spans = [telemetry.calling("POST", "pods", "/api/v1/pods?dryRun=All") for _ in range(20)]
        for number, span in enumerate(each for each in spans if each is not None):
            telemetry.called(span, "409" if number else "timeout")
    assert telemetry.calling("POST", "pods", "/api/v1/pods") is None
    told = [span for _, span in sink.spans if span["name"] == "POST pods"]
    assert len(told) == (telemetry.CALLS_MAX if telemetry.is_exporting() else 0)
    if told:
        assert {span["parentSpanId"] for span in told} == {sink.named("pods")["spanId"]}
        assert (told[0]["status"], told[0]["attributes"]["error.type"]) == ("timeout", "timeout")
        assert (told[1]["status"], told[1]["attributes"]["http.response.status_code"]) == ("ok", 409)
        assert (told[1]["kind"], told[1]["attributes"]["url.path"]) == ("client", "/api/v1/pods")


def test_a_kind_is_told(sink: RecordingSink) -> None:
    """A span has the kind of servers, producers or consumers."""
    with telemetry.span("GET /", allocation_id="a-1", kind=telemetry.SpanKind.SERVER):
        pass
    assert sink.named("GET /")["kind"] == "server"


def _value(counter: Any) -> float:
    return float(counter._value.get())
