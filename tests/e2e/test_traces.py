"""One trace of an allocation on a whole local stack, as a collector gets it over OTLP: HTTP and gRPC."""

import sys
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.support.local_stack import RunningStack, running_stack
from tests.support.names import fresh
from tests.support.otlp import Collected, Span, collector
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

Json = dict[str, Any]
CLIENT_SPAN = "00f067aa0ba902b7"
OF_TWO = {
    "POST /api/v1/allocations": 1,
    "POST /api/v1/allocations/{id}/ready": 2,
    "scheduler.admit": 2,
    "send slipway:work": 2,
    "podworker.launch": 2,
    "podworker.bind": 2,
    "container main": 2,
    "attempt 1": 1,
    "attempt 2": 1,
    "watcher.terminated": 1,
}
"""{span: number} of an allocation with two attempts"""
TWICE = (
    "import os, subprocess, sys; subprocess.run([sys.executable, '-m', 'slipway.inside', 'ready'], check=True); "
    "sys.exit(int(os.environ['SLIPWAY_ATTEMPT'] == '1'))"
)


@pytest.fixture(scope="module", params=["http/protobuf", "grpc"])
def collected(request: pytest.FixtureRequest) -> Generator[Collected]:
    with collector(str(request.param)) as collected:
        yield collected


@pytest.fixture(scope="module")
def stack(collected: Collected, tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningStack]:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": collected.protocol}
    with running_stack(tmp_path_factory.mktemp("traced") / "data", env=env) as running:
        yield running


def launched(stack: RunningStack, trace: str, *, name: str = "job", **body: Any) -> str:
    """Launch with a client that has its own trace; return the id. The name is new for each test."""
    body["name"] = f"{name}-{uuid4().hex[:8]}"
    headers = {**stack.headers, "traceparent": f"00-{trace}-{CLIENT_SPAN}-01"}
    answer = httpx2.post(
        f"{stack.url}/api/v1/allocations", json=body, headers=headers, verify=NO_TLS, trust_env=False, timeout=30
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


def whole(collected: Collected, trace: str, counts: Mapping[str, int]) -> list[Span]:
    """Wait until the trace has this many spans of each name, and every span's parent; return the spans."""

    def lacks() -> list[object]:
        spans = collected.of(trace)
        names, known = Counter(span.name for span in spans), {CLIENT_SPAN, *(span.id for span in spans)}
        few = [(name, names[name], count) for name, count in counts.items() if names[name] < count]
        orphans = [(span.service, span.name) for span in spans if span.parent not in known]
        return [*few, *orphans]

    wait_until(lambda: not lacks(), lambda: f"the whole trace, which lacks {lacks()}", timeout_s=30.0)
    return collected.of(trace)


def named(spans: list[Span], name: str) -> list[Span]:
    found = sorted((span for span in spans if span.name == name), key=lambda span: span.start_ns)
    assert found, (name, sorted({span.name for span in spans}))
    return found


def test_one_trace_from_the_request_to_the_end(stack: RunningStack, collected: Collected) -> None:
    """In two attempts each step is in the client's trace, no parent is missing, and links follow the streams."""
    trace = uuid4().hex
    id_ = launched(
        stack,
        trace,
        kind="command",
        name=fresh("traced"),
        image="local",
        command=[sys.executable, "-c", TWICE],
        maxRestarts=1,
    )
    assert stack.wait_for(id_, "Terminated")["status"]["result"] == "Succeeded"
    spans = whole(collected, trace, OF_TWO)
    assert len({span.id for span in spans}) == len(spans)
    services = {"slipway-api", "slipway-scheduler", "slipway-podworker", "slipway-watcher"}
    assert {span.service for span in spans} == services
    (post,) = named(spans, "POST /api/v1/allocations")
    assert (post.parent, post.kind) == (CLIENT_SPAN, "server")
    assert {post.attributes[name] for name in ("http.request.method", "http.route", "url.path")} == {
        "POST",
        "/api/v1/allocations",
    }
    assert (post.attributes["http.response.status_code"], post.attributes["slipway.allocation.id"]) == (201, id_)
    of_post = [
        "scheduler.admit", "podworker.launch", "watcher.running", "watcher.terminated", "attempt 1", "attempt 2",
    ]  # fmt: skip
    for name in of_post:
        assert {span.parent for span in named(spans, name)} == {post.id}, name
    calls = [span for span in spans if span.kind == "client"]
    below = {span.id: span.name for span in spans}
    made = {(below[span.parent], span.name) for span in calls}
    assert {
        ("POST /api/v1/allocations", "POST allocations"),
        ("scheduler.admit", "PUT allocations"),
        ("podworker.pods", "POST pods"),
        ("podworker.bind", "POST pods"),
        ("watcher.running", "PUT allocations"),
    } <= made
    for span in calls:
        assert {"http.request.method", "url.path"} <= set(span.attributes)
        assert "http.response.status_code" in span.attributes or span.is_error
    for name in ("podworker.configmap", "podworker.pods", "podworker.release", "podworker.bind"):
        launches = {span.id for span in named(spans, "podworker.launch")}
        assert {span.parent for span in named(spans, name)} <= launches


def test_links_over_streams_and_between_attempts(stack: RunningStack, collected: Collected) -> None:
    """A launch links to the hint that caused it; attempt 2 and its spans link to attempt 1."""
    trace = uuid4().hex
    id_ = launched(
        stack,
        trace,
        kind="command",
        name=fresh("linked"),
        image="local",
        command=[sys.executable, "-c", TWICE],
        maxRestarts=1,
    )
    stack.wait_for(id_, "Terminated")
    spans = whole(collected, trace, OF_TWO)
    sent = {(span.trace, span.id): span for span in named(spans, "send slipway:work")}
    assert {span.kind for span in sent.values()} == {"producer"}
    launches = [span for span in named(spans, "podworker.launch") if span.kind == "consumer"]
    assert len(launches) == 2
    for number, launch in enumerate(launches, start=1):
        cause = next(sent[link] for link in launch.links if link in sent)
        assert launch.attributes["messaging.system"] == cause.attributes["messaging.system"] == "redis"
        assert launch.attributes["messaging.destination.name"] == cause.attributes["messaging.destination.name"]
        assert launch.attributes["messaging.operation.type"] == "process"
        assert launch.attributes["messaging.consumer.group.name"] == "podworker"
        assert "-" in launch.attributes["messaging.message.id"]
        admit = named(spans, "scheduler.admit")[number - 1]
        assert cause.parent == admit.id
    first, second = named(spans, "attempt 1")[0], named(spans, "attempt 2")[0]
    assert second.links == ((trace, first.id),)
    assert (first.is_error, second.is_error) == (True, False)
    assert (trace, first.id) in launches[1].links
    assert (trace, first.id) in named(spans, "scheduler.admit")[1].links


def test_the_container_is_in_it(stack: RunningStack, collected: Collected) -> None:
    """The span of the program is below the launch that set TRACEPARENT, and so are its calls of the API."""
    trace = uuid4().hex
    id_ = launched(
        stack,
        trace,
        kind="command",
        name=fresh("inside"),
        image="local",
        command=[sys.executable, "-c", TWICE],
        maxRestarts=1,
    )
    stack.wait_for(id_, "Terminated")
    spans = whole(collected, trace, OF_TWO)
    launches = [span.id for span in named(spans, "podworker.launch")]
    containers = named(spans, "container main")
    assert [span.parent for span in containers] == launches
    assert [span.attributes["process.exit.code"] for span in containers] == [1, 0]
    for span in containers:
        assert {"k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid", "k8s.node.name"} <= set(span.attributes)
    said = named(spans, "POST /api/v1/allocations/{id}/ready")
    assert [span.parent for span in said] == launches
    bound = [event for span in named(spans, "podworker.bind") for event in span.events if event[0] == "pod bound"]
    assert {event[1]["k8s.pod.uid"] for event in bound} == {span.attributes["k8s.pod.uid"] for span in containers}
    wanted = {span.id for span in [*containers, *said]}
    wait_until(
        lambda: (
            wanted <= {span["spanId"] for span in stack.ask(lambda api: api.get(f"/allocations/{id_}/trace"))["spans"]}
        ),
        "the same in the waterfall, which is written a moment later",
    )


def test_an_unsampled_trace_is_not_stored(stack: RunningStack, collected: Collected) -> None:
    """A client that does not record its trace causes no span of ours, in any service."""
    trace = uuid4().hex
    headers = {**stack.headers, "traceparent": f"00-{trace}-{CLIENT_SPAN}-00"}
    body: Json = {"kind": "command", "image": "local", "command": [sys.executable, "-c", "pass"]}
    answer = httpx2.post(
        f"{stack.url}/api/v1/allocations", json=body, headers=headers, verify=NO_TLS, trust_env=False, timeout=30
    )
    id_ = str(answer.json()["id"])
    stack.wait_for(id_, "Terminated")
    marked = f"{'9' * 31}{collected.requests % 10}"
    stack.wait_for(launched(stack, marked, **body), "Terminated")
    whole(collected, marked, {"attempt 1": 1})
    assert collected.of(trace) == []
    assert stack.ask(lambda api: api.get(f"/allocations/{id_}/trace"))["spans"] == []
