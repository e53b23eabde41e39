"""Makes the spans of the watcher in the trace of an allocation: for each write, each ended container, each attempt.

Owns the spans and their attributes. The span of a container is made with the write that records the end of its rank,
because its pod is deleted after that; the span of an attempt is made with the write that ends it. The ids of an
attempt's span follow from the object, so that the next attempt can link to it. So do the ids of the root span, if the
creator of the object set none. The process that wrote the end makes the spans; if it dies at that moment, they are
missing. Must not know how anything is decided.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from slipway.crd.meta import ANNOTATION_TRACE, LABEL_ATTEMPT, LABEL_RANK
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, AllocationStatus
from slipway.kube.objects import ContainerStatus, Pod
from slipway.kube.tracing import attempt_span, has_own_root, traceparent_of
from slipway.model.lifecycle import RANK_ENDS, Event, Phase
from slipway.model.reasons import Result
from slipway.model.times import parse_time
from slipway.runtime import semconv, telemetry
from slipway.watcher.exits import main_status

RANKS_SHOWN = frozenset(map(str, range(8)))
"""The ranks of a gang whose containers get spans."""


def write_span(before: Allocation, after: Allocation, events: Sequence[str]) -> AbstractContextManager[object]:
    """Return the span of a write; `events` are the events that the write records."""
    ranks = after.status.ranks or []
    only = {"k8s.pod.uid": ranks[0].pod_uid, "k8s.node.name": ranks[0].node} if len(ranks) == 1 else {}
    return telemetry.span(
        f"watcher.{events[-1] if events else 'observe'}",
        parent=traceparent_of(before.metadata),
        allocation_id=id_of(before),
        attributes={
            "slipway.phase": after.status.phase.value,
            "slipway.events": ",".join(events),
            "slipway.attempt": after.status.attempt,
            "k8s.namespace.name": before.metadata.namespace,
            **{name: value for name, value in only.items() if value},
        },
    )


def emit_ended(before: Allocation, written: Allocation, pods: Iterable[Pod], now_s: float) -> None:
    """Emit the spans of the containers whose end this write records, and of the attempt that it ends.

    `pods` are the pods that led to the write; `now_s` is in epoch seconds.
    """
    old, new = before.status, written.status
    _containers(before, written, pods, now_s)
    is_over = new.phase is Phase.TERMINATED and old.phase is not Phase.TERMINATED
    if not is_over and new.attempt == old.attempt:
        return
    meta, attempt = written.metadata, old.attempt
    created = parse_time(meta.creation_timestamp) if meta.creation_timestamp else 0.0
    times = [parse_time(entry.time) for entry in new.transitions if entry.attempt == attempt]
    end = parse_time(new.transitions[-1].time) if new.transitions else created
    later = (time for time in times if time > created)
    start = _within_second(created, min(later, default=end)) if attempt == 1 else min(times, default=end)
    reason = new.reason if is_over else (new.transitions[-1].reason if new.transitions else "")
    is_well = is_over and new.result is Result.SUCCEEDED
    root = traceparent_of(meta)
    telemetry.emit(
        f"attempt {attempt}",
        start_s=start,
        end_s=end,
        parent=root,
        itself=attempt_span(meta, attempt),
        links=[attempt_span(meta, attempt - 1)] if attempt > 1 else (),
        allocation_id=id_of(written),
        attributes={
            "slipway.attempt": attempt,
            "slipway.reason": reason,
            "slipway.result": new.result.value if is_over and new.result is not None else "",
            "k8s.namespace.name": meta.namespace,
        },
        error="" if is_well else reason or "ended",
    )
    if is_over and has_own_root(meta):
        telemetry.emit(
            "allocation",
            start_s=created,
            end_s=end,
            parent=root,
            itself=root,
            allocation_id=id_of(written),
            attributes={"k8s.namespace.name": meta.namespace},
        )


def _containers(before: Allocation, written: Allocation, pods: Iterable[Pod], now_s: float) -> None:
    """Emit the spans of the containers, as children of the launch's span that gave their pod its TRACEPARENT."""
    old, new = before.status, written.status
    told, known = _ends(old), _ends(new)
    is_last = new.phase is Phase.TERMINATED or new.attempt != old.attempt
    times = {entry.type: parse_time(entry.time) for entry in new.transitions if entry.attempt == old.attempt}
    seen = traceparent_of(written.metadata), times.get(Event.RUNNING, now_s), times.get(Event.TERMINATING, now_s)
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        labels, uid = pod.metadata.labels, pod.metadata.uid
        is_meant = labels.get(LABEL_ATTEMPT) == str(old.attempt) and labels.get(LABEL_RANK, "0") in RANKS_SHOWN
        status = main_status(pod)
        if is_meant and status is not None and uid not in told and (is_last or uid in known):
            _container(written, pod, status, seen)


def _ends(status: AllocationStatus) -> set[str]:
    """Return the uids of the pods whose end is recorded."""
    return {rank.pod_uid for rank in status.ranks or [] if rank.phase in RANK_ENDS}


def _container(allocation: Allocation, pod: Pod, status: ContainerStatus, seen: tuple[str, float, float]) -> None:
    """Emit the span of one container. `seen`: (the root span, when we saw the attempt run, when we saw it end)."""
    end, (root, ran_s, ended_s) = status.state.terminated, seen
    if end is None or not end.started_at or not end.finished_at:
        return
    meta = pod.metadata
    telemetry.emit(
        f"container {status.name}",
        start_s=_within_second(parse_time(end.started_at), ran_s),
        end_s=_within_second(parse_time(end.finished_at), ended_s),
        parent=meta.annotations.get(ANNOTATION_TRACE) or root,
        allocation_id=id_of(allocation),
        attributes={
            **semconv.pod(meta.namespace, meta.name, meta.uid, pod.spec.node_name or ""),
            "k8s.container.name": status.name,
            "container.image.name": status.image,
            "process.exit.code": end.exit_code,
        },
        error="" if end.exit_code == 0 else f"exit {end.exit_code}",
    )


def _within_second(told_s: float, seen_s: float) -> float:
    """Return a more exact time for one that Kubernetes rounded down to a second.

    It is when we saw the effect, if that is within the same second, else the end of the second.
    """
    return told_s if told_s % 1 else max(told_s, min(told_s + 0.999, seen_s))
