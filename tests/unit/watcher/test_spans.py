"""The spans of attempts and containers: emitted once, with the write of their end, with consistent times."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from slipway.crd.meta import ANNOTATION_TRACE
from slipway.crd.v1alpha1 import Allocation, AllocationStatus, RankStatus, RingEntry
from slipway.kube.tracing import attempt_span, traceparent_of
from slipway.model.lifecycle import Event, Phase, RankState
from slipway.model.reasons import Result
from slipway.model.times import parse_time
from slipway.runtime import telemetry
from slipway.watcher import spans
from tests.support.allocations import an_allocation
from tests.support.builders import a_pod
from tests.unit.runtime.test_telemetry import RecordingSink

NOW_S = parse_time("2026-01-01T10:00:09.500Z")
CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def sink() -> Iterator[RecordingSink]:
    kept = RecordingSink()
    telemetry.setup("watcher", sink=kept)
    yield kept
    telemetry.shutdown()


def entry(seq: int, type_: Event, phase: Phase, time: str, attempt: int = 1, reason: str = "") -> RingEntry:
    return RingEntry(seq=seq, attempt=attempt, type=type_, phase=phase, time=time, reason=reason)


def at(status: AllocationStatus, **annotations: str) -> Allocation:
    """An allocation that was created at 10:00:00, in whole seconds."""
    base = an_allocation()
    meta = msgspec.structs.replace(
        base.metadata, creation_timestamp="2026-01-01T10:00:00Z", annotations=annotations, uid="uid-1"
    )
    return msgspec.structs.replace(base, metadata=meta, status=status)


def ns(text: str) -> int:
    return int(parse_time(text) * 1e9)


def test_an_attempt_is_told_when_it_is_over(sink: RecordingSink) -> None:
    """The span of an attempt is emitted once, at its end: the first begins with the request, the next with its restart,
    and each links to the previous one."""
    first = [
        entry(1, Event.REQUESTED, Phase.PENDING, "2026-01-01T10:00:00Z"),
        entry(2, Event.ASSIGNED, Phase.ASSIGNED, "2026-01-01T10:00:00.400Z"),
    ]
    again = entry(3, Event.RESTARTED, Phase.PENDING, "2026-01-01T10:00:05Z", 2, "RankFailed")
    end = entry(4, Event.TERMINATED, Phase.TERMINATED, "2026-01-01T10:00:09Z", 2, "Completed")
    told = {ANNOTATION_TRACE: CLIENT}
    running = at(AllocationStatus(phase=Phase.RUNNING, seq=2, attempt=1, transitions=first), **told)
    waiting = at(AllocationStatus(phase=Phase.PENDING, seq=3, attempt=2, transitions=[*first, again]), **told)
    ended = at(
        AllocationStatus(
            phase=Phase.TERMINATED,
            seq=4,
            attempt=2,
            result=Result.SUCCEEDED,
            reason="Completed",
            transitions=[*first, again, end],
        ),
        **told,
    )
    spans.emit_ended(running, running, [], NOW_S)
    assert sink.spans == []
    spans.emit_ended(running, waiting, [], NOW_S)
    spans.emit_ended(waiting, ended, [], NOW_S)
    spans.emit_ended(ended, ended, [], NOW_S)
    one, two = (span for _, span in sink.spans)
    assert [one["name"], two["name"]] == ["attempt 1", "attempt 2"]
    assert (one["startNs"], one["endNs"]) == (ns("2026-01-01T10:00:00.400Z"), ns("2026-01-01T10:00:05Z"))
    assert (two["startNs"], two["endNs"]) == (ns("2026-01-01T10:00:05Z"), ns("2026-01-01T10:00:09Z"))
    assert (one["status"], two["status"]) == ("RankFailed", "ok")
    assert one["parentSpanId"] == two["parentSpanId"] == CLIENT[36:52]
    assert (one["links"], two["links"]) == ([], [attempt_span(ended.metadata, 1)])


def test_an_object_without_a_trace_gets_a_root(sink: RecordingSink) -> None:
    """An object without a trace gets a root span, under which all services have put their spans before it exists."""
    before = at(AllocationStatus(phase=Phase.RUNNING, seq=2, attempt=1))
    end = entry(3, Event.TERMINATED, Phase.TERMINATED, "2026-01-01T10:00:09Z", 1, "Killed")
    after = at(
        AllocationStatus(
            phase=Phase.TERMINATED, seq=3, attempt=1, result=Result.CANCELED, reason="Killed", transitions=[end]
        )
    )
    with spans.write_span(before, after, ["terminated"]):
        pass
    spans.emit_ended(before, after, [], NOW_S)
    found: dict[str, dict[str, Any]] = {span["name"]: span for _, span in sink.spans}
    root = found["allocation"]
    assert (root["spanId"], root["parentSpanId"]) == (traceparent_of(after.metadata)[36:52], "")
    assert {found[name]["parentSpanId"] for name in ("attempt 1", "watcher.terminated")} == {root["spanId"]}
    assert found["attempt 1"]["status"] == "Killed"


def test_a_container_is_told_with_the_write_that_records_its_end(sink: RecordingSink) -> None:
    """The span of a container is emitted once, with the write that records its end, because its pod may be gone by the
    end of the attempt."""
    first, second = a_pod(0).exited(1).it, a_pod(1).exited(0, at_s=12.0).it
    runs = RankStatus(pod_uid=first.metadata.uid, phase=RankState.RUNNING)
    failed = RankStatus(pod_uid=first.metadata.uid, phase=RankState.FAILED, exit_code=1)
    other = RankStatus(pod_uid=second.metadata.uid, phase=RankState.RUNNING)
    restarted = entry(2, Event.RESTARTED, Phase.PENDING, "2026-01-01T10:00:09Z", 2, "RankFailed")
    running = at(AllocationStatus(phase=Phase.RUNNING, attempt=1, ranks=[runs, other]))
    one_ended = at(AllocationStatus(phase=Phase.RUNNING, attempt=1, ranks=[failed, other]))
    again = at(AllocationStatus(phase=Phase.PENDING, attempt=2, transitions=[restarted]))

    spans.emit_ended(running, one_ended, [first, a_pod(1).running().it], NOW_S)
    spans.emit_ended(one_ended, one_ended, [first, second], NOW_S)
    assert [(span["name"], span["status"]) for _, span in sink.spans] == [("container main", "exit 1")]
    spans.emit_ended(one_ended, again, [first, second], NOW_S)
    assert [span["name"] for _, span in sink.spans] == ["container main", "container main", "attempt 1"]
    told = [span["attributes"]["k8s.pod.uid"] for _, span in sink.spans[:2]]
    assert told == [first.metadata.uid, second.metadata.uid]
