"""Custom resources as the REST API shows them. Pure.

Invariant: an answer shows defaults, so that a client need not know them, but no unset values.

The time that an allocation spent in each phase is computed from its transitions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from slipway.api.allocations.outside_links import OutsideLinks, link_to
from slipway.api.queues.queue_view import gpu_count_of
from slipway.api.schemas import AllocationView, Links, OutsideLink, PodView, Span, TimelineView
from slipway.crd.meta import LABEL_ATTEMPT, LABEL_RANK, LABEL_ROLE
from slipway.crd.roleresources import MAIN_CONTAINER
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation, SharedServiceSpec
from slipway.kube.objects import Pod
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase, RankState
from slipway.model.numbers import number_in
from slipway.model.state_words import word_for
from slipway.model.times import format_time, seconds_between

API_ROOT = "/api/v1"


def allocation_path(allocation_id: str) -> str:
    """Return the path of an allocation in the REST API."""
    return f"{API_ROOT}/allocations/{allocation_id}"


def address_of(service: SharedServiceSpec | None, workspace: str) -> str:
    """Return the address of a Service of the workspace inside the cluster; empty without a Service."""
    return f"{service.name}.{workspace}.svc:{service.port}" if service is not None else ""


def links_of(allocation: Allocation, outside: OutsideLinks) -> Links:
    """Return the links of an allocation."""
    allocation_id = id_of(allocation)
    root = allocation_path(allocation_id)
    return Links(
        self_=root,
        events=f"{root}/events",
        logs=f"{root}/logs",
        explain=f"{root}/explain",
        proxy=f"/proxy/{allocation_id}/",
        trace=f"/trace/{allocation_id}",
        service=address_of(allocation.spec.service, allocation.metadata.namespace) or None,
        outside_logs=link_to(outside.logs, allocation) or None,
        outside=[
            OutsideLink(title=each.title, url=link_to(each.url, allocation), icon=each.icon) for each in outside.others
        ],
    )


def allocation_view(allocation: Allocation, *, outside: OutsideLinks, warnings: tuple[str, ...] = ()) -> AllocationView:
    """Return the allocation as the REST API shows it."""
    meta, spec, status = allocation.metadata, allocation.spec, allocation.status
    allocation_id = id_of(allocation)
    return AllocationView(
        id=allocation_id,
        name=meta.name,
        workspace=meta.namespace,
        kind=spec.kind,
        phase=status.phase,
        state=word_for(status.phase, status.result, hold=spec.hold, ready=status.ready, waiting=status.waiting),
        attempt=status.attempt,
        queue=spec.queue,
        pool=spec.pool,
        job=spec.job,
        user=user_of(allocation),
        gpus=gpu_count_of(allocation),
        priority=spec.priority,
        desired=spec.desired,
        hold=spec.hold,
        ready=status.ready,
        waiting=status.waiting,
        result=status.result,
        reason=status.reason,
        message=status.message,
        created_at=meta.creation_timestamp or "",
        started_at=status.started_at or None,
        ended_at=status.ended_at or None,
        deleting=meta.deletion_timestamp is not None,
        labels=meta.labels,
        resource_version=meta.resource_version,
        warnings=list(warnings),
        links=links_of(allocation, outside),
        spec=shown(spec),
        status=shown(status),
    )


def shown(struct: msgspec.Struct) -> dict[str, Any]:
    """Return `struct` as JSON with its wire names and its scalar defaults; None and empty values are omitted."""
    found: dict[str, Any] = {}
    for name, wire in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True):
        value = _plain(getattr(struct, name))
        if value is not None and value != "" and value != [] and value != {}:
            found[wire] = value
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return shown(value)
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value


def pod_view(pod: Pod, state: RankState | None) -> PodView:
    """Return a pod as the REST API shows it; `state` is that of its rank in the allocation's status."""
    labels, status = pod.metadata.labels, pod.status
    main = next((item for item in status.container_statuses if item.name == MAIN_CONTAINER), None)
    if main is None and status.container_statuses:
        main = status.container_statuses[0]
    ended = main.state.terminated if main else None
    waiting = main.state.waiting if main else None
    return PodView(
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        rank=number_label(labels, LABEL_RANK),
        role=labels.get(LABEL_ROLE, ""),
        attempt=number_label(labels, LABEL_ATTEMPT),
        node=pod.spec.node_name,
        phase=status.phase,
        state=state,
        ip=status.pod_ip,
        reason=status.reason or (waiting.reason if waiting else "") or (ended.reason if ended else ""),
        message=status.message or (waiting.message if waiting else "") or (ended.message if ended else ""),
        exit_code=ended.exit_code if ended else None,
        ready=bool(main and main.ready),
        started_at=status.start_time,
        deleting=pod.metadata.deletion_timestamp is not None,
    )


def number_label(labels: Mapping[str, str], name: str) -> int:
    """Return the number in a label; 0 when the label is missing or no number."""
    return number_in(labels.get(name, "")) or 0


def timeline(allocation_id: AllocationId, events: Sequence[AllocationEvent], now: float) -> TimelineView:
    """Return one span for each period of the same phase and attempt; the last one is open until `terminated`."""
    spans: list[Span] = []
    for index, event in enumerate(events):
        if index and (events[index - 1].phase, events[index - 1].attempt) == (event.phase, event.attempt):
            continue
        if event.phase is Phase.TERMINATED:
            break
        end = next((later.time for later in events[index + 1 :] if _differs(later, event)), None)
        seconds = max(0.0, seconds_between(event.time, end or format_time(now)))
        spans.append(
            Span(
                phase=event.phase,
                attempt=event.attempt,
                from_=event.time,
                to=end,
                seconds=round(seconds, 3),
                reason=event.reason,
            )
        )
    by_phase: dict[str, float] = {}
    for span in spans:
        by_phase[span.phase.value] = round(by_phase.get(span.phase.value, 0.0) + span.seconds, 3)
    return TimelineView(
        id=allocation_id,
        spans=spans,
        seconds_by_phase=by_phase,
        total_seconds=round(sum(span.seconds for span in spans), 3),
    )


def _differs(later: AllocationEvent, event: AllocationEvent) -> bool:
    return (later.phase, later.attempt) != (event.phase, event.attempt)
