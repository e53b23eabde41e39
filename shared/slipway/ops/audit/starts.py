"""Starts and ends of ranks, read from the statuses of their pods, for audits without records of the machines. Pure."""

from collections.abc import Iterable

from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER
from slipway.crd.roleresources import MAIN_CONTAINER
from slipway.kube.objects import ContainerState, Pod
from slipway.model.times import parse_time
from slipway.ops.audit.labels import attempt_of, owner_of, rank_of
from slipway.ops.audit.records import ContainerRun, PodVersion


def runs_of(pods: Iterable[PodVersion]) -> list[ContainerRun]:
    """Return one entry per pod whose main container has started."""
    found: dict[str, ContainerRun] = {}
    for change in pods:
        pod = change.pod
        if not owner_of(pod):
            continue
        uid = pod.metadata.uid
        known = found.get(uid)
        state = _state_of(pod)
        if known is not None and known.ended_at is not None:
            continue
        if state is not None and (state.running is not None or state.terminated is not None):
            found[uid] = _ran(change, state, known)
        elif change.version.is_deletion and known is not None:
            found[uid] = _ended(known, change.version.at, None)
    return list(found.values())


def _ran(change: PodVersion, state: ContainerState, known: ContainerRun | None) -> ContainerRun:
    pod, at = change.pod, change.version.at
    said = state.running.started_at if state.running is not None else None
    if state.terminated is not None:
        said = state.terminated.started_at
    ran = known or ContainerRun(
        allocation_uid=owner_of(pod),
        attempt=attempt_of(pod),
        rank=rank_of(pod),
        pod_uid=pod.metadata.uid,
        started_at=parse_time(said) if said else at,
    )
    if state.terminated is not None:
        return _ended(ran, at, state.terminated.exit_code)
    return _ended(ran, at, None) if change.version.is_deletion else ran


def _ended(ran: ContainerRun, at: float, code: int | None) -> ContainerRun:
    return ContainerRun(
        allocation_uid=ran.allocation_uid,
        attempt=ran.attempt,
        rank=ran.rank,
        pod_uid=ran.pod_uid,
        started_at=ran.started_at,
        ended_at=at,
        code=code,
    )


def _state_of(pod: Pod) -> ContainerState | None:
    name = pod.metadata.annotations.get(ANNOTATION_MAIN_CONTAINER, MAIN_CONTAINER)
    statuses = pod.status.container_statuses
    for status in statuses:
        if status.name == name:
            return status.state
    return statuses[0].state if statuses else None
