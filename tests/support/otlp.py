"""A collector for tests: it receives OTLP over HTTP and over gRPC, decodes it, and stores the spans."""

import gzip
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

Attributes = dict[str, Any]
KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Span(NamedTuple):
    """One span as the collector received it; ids in hexadecimal, a link as (trace id, span id)."""

    trace: str
    id: str
    parent: str
    service: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: Attributes
    links: tuple[tuple[str, str], ...]
    events: tuple[tuple[str, Attributes], ...]


class Collected:
    """The spans received so far."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.endpoint = ""
        self.spans: list[Span] = []
        self.requests = 0

    def take(self, raw: bytes) -> bytes:
        """Decode one request and store its spans; return the answer."""
        request: Any = ExportTraceServiceRequest()
        request.ParseFromString(raw)
        self.requests += 1
        for resource in request.resource_spans:
            service = str(_values(resource.resource.attributes)["service.name"])
            for scope in resource.scope_spans:
                self.spans += [_span(each, service) for each in scope.spans]
        response: Any = ExportTraceServiceResponse()
        return bytes(response.SerializeToString())

    def of(self, trace: str) -> list[Span]:
        """The spans of one trace."""
        return [span for span in list(self.spans) if span.trace == trace]


@contextmanager
def collector(protocol: str) -> Generator[Collected]:
    """A collector that listens until the end of the context."""
    with _grpc() if protocol == "grpc" else _http() as collected:
        yield collected


@contextmanager
def _http() -> Generator[Collected]:
    collected = Collected("http/protobuf")

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            answer = collected.take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        collected.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _grpc() -> Generator[Collected]:
    collected = Collected("grpc")
    told: Any = grpc

    def take(raw: bytes, _: object) -> bytes:
        return collected.take(raw)

    class Answers(told.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            if handler_call_details.method != METHOD:
                return None
            return told.unary_unary_rpc_method_handler(take)

    with ThreadPoolExecutor(4) as threads:
        server = told.server(threads, handlers=(Answers(),))
        collected.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield collected
        finally:
            server.stop(grace=1.0).wait()


def _span(raw: Any, service: str) -> Span:
    return Span(
        trace=raw.trace_id.hex(),
        id=raw.span_id.hex(),
        parent=raw.parent_span_id.hex(),
        service=service,
        name=raw.name,
        kind=KINDS[raw.kind],
        start_ns=raw.start_time_unix_nano,
        end_ns=raw.end_time_unix_nano,
        is_error=raw.status.code == 2,
        attributes=_values(raw.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in raw.links),
        events=tuple((event.name, _values(event.attributes)) for event in raw.events),
    )


def _values(pairs: Any) -> Attributes:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
