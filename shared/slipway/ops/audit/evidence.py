"""The evidence of an audit: the history of objects, streams, requests and containers, and the promises to clients.

This module owns the form of the evidence. The simulation fills it from its models; a live audit fills it from a watch,
Redis and the API server's audit log. Unknown evidence stays empty, and the checks that need it find nothing. Pure.

For audits without records of the machines, starts and ends of ranks are read from the statuses of their pods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER
from slipway.crd.roleresources import MAIN_CONTAINER
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, Queue, ResourcePool
from slipway.kube.objects import ContainerState, Node, Pod
from slipway.model.events import AllocationEvent
from slipway.model.times import parse_time
from slipway.ops.audit.records import (
    ALLOCATIONS,
    CONFIG,
    CONFIG_MAPS,
    EVENT,
    LOG,
    METRIC,
    NODES,
    PLACES,
    PODS,
    POOLS,
    QUEUES,
    REDIS,
    RSS_BYTES,
    SERVICES,
    SETTLE_S,
    STREAM_BYTES,
    URL,
    AckedHint,
    AllocationVersion,
    Canary,
    ClientPromise,
    ClientRequest,
    Consumer,
    ContainerRun,
    EmittedText,
    FencedWrite,
    HintHistory,
    InvariantViolation,
    LineRange,
    PodVersion,
    PrintedOutput,
    RestartPeriod,
    SizeSample,
    StoredLog,
    Version,
    attempt_of,
    owner_of,
    rank_of,
)


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


class AuditEvidence(msgspec.Struct, kw_only=True, dict=True):
    """All known evidence. `is_at_rest`: the history ends in a quiet state. `end_at` is the time of its end."""

    versions: Sequence[Version]
    streams: Mapping[str, Sequence[AllocationEvent]] = {}
    """{AllocationID: the events that its stream contains now}."""
    appended: Sequence[AllocationEvent] = ()
    """Every entry that was ever appended, in order."""
    requests: Sequence[FencedWrite] = ()
    containers: Sequence[ContainerRun] = ()
    knows_every_end: bool = True
    """Whether `containers` has the code of every exit. When False, a code of None was not observed and is not
    judged.
    """
    promises: Sequence[ClientPromise] = ()
    acked: Sequence[AckedHint] = ()
    pending_hints: int = 0
    has_streams: bool = True
    is_at_rest: bool = True
    end_at: float = 0.0
    is_sampled: bool = False
    """Whether some versions may be missing, because a watch was listed again or a listing was polled. Then only each
    single version and the whole can be judged, but not two neighbouring versions.
    """
    starts_late: bool = False
    """Whether the history begins with a listing. Then an object's first version may be later than its creation, and
    earlier writes, appends and decisions are not known.
    """
    listed_to: int = 0
    """The resourceVersion of that listing."""
    has_writers: bool = True
    """Whether `Version.writer` is known. Otherwise writes cannot be attributed to a writer."""
    last_fault_at: float | None = None
    """When the last fault ended; None when not known."""
    rest_from: float | None = None
    """Since when no service had work left; None when not known, or never."""
    answers: Sequence[ClientRequest] = ()
    canaries: Sequence[Canary] = ()
    spoken: Sequence[EmittedText] = ()
    deliveries: Sequence[HintHistory] = ()
    consumers: Sequence[Consumer] = ()
    interruptions: int = 0
    """Number of interruptions of our work: a process that died or was suspended, a call that failed."""
    restarts: Sequence[RestartPeriod] = ()
    measures: Sequence[SizeSample] = ()
    logs: Sequence[StoredLog] | None = None
    """Every stored log, and the logs read through the api; None when not known."""
    printed: Sequence[PrintedOutput] = ()
    store_losses: Sequence[tuple[float, float]] = ()
    """Periods of time (start, end). For a container that ended in one of them, the store may have lost lines or refused
    writes.
    """
    crd_rules: Sequence[str] | None = None
    """The validation rules of the API server for allocations; None when not known."""

    @cached_property
    def allocations(self) -> dict[str, list[AllocationVersion]]:
        """{uid: versions}, in order."""
        found: dict[str, list[AllocationVersion]] = {}
        for version in self.of(ALLOCATIONS):
            decoded = AllocationVersion(version, msgspec.convert(version.obj, Allocation))
            found.setdefault(version.uid, []).append(decoded)
        return found

    @cached_property
    def told(self) -> list[ClientRequest]:
        """The answers to clients, each with the uid of its allocation. Answers name only an AllocationID."""
        uids = {str(id_of(history[0].allocation)): uid for uid, history in self.allocations.items()}
        return [
            answer
            if answer.uid or not answer.allocation
            else msgspec.structs.replace(answer, uid=uids.get(answer.allocation, answer.allocation))
            for answer in self.answers
        ]

    @cached_property
    def decoded(self) -> dict[int, AllocationVersion]:
        """{version: the decoded allocation at that version}."""
        return {item.version.number: item for history in self.allocations.values() for item in history}

    @cached_property
    def pods(self) -> list[PodVersion]:
        """Every version of every pod, in order."""
        found: list[PodVersion] = []
        last: dict[str, PodVersion] = {}
        for version in self.of(PODS):
            known, before = last.get(version.uid), None
            if known is not None and known.version.obj is version.before:
                before = known.pod  # it was decoded already
            elif version.before is not None:
                before = msgspec.convert(version.before, Pod)
            item = last[version.uid] = PodVersion(version, msgspec.convert(version.obj, Pod), before)
            found.append(item)
        return found

    @cached_property
    def pools(self) -> list[tuple[Version, ResourcePool]]:
        """Every version of every pool, in order."""
        return [(version, msgspec.convert(version.obj, ResourcePool)) for version in self.of(POOLS)]

    @cached_property
    def queues(self) -> list[tuple[Version, Queue]]:
        """Every version of every queue, in order."""
        return [(version, msgspec.convert(version.obj, Queue)) for version in self.of(QUEUES)]

    @cached_property
    def nodes(self) -> list[tuple[Version, Node]]:
        """Every version of every node, in order."""
        return [(version, msgspec.convert(version.obj, Node)) for version in self.of(NODES)]

    @cached_property
    def runs(self) -> Sequence[ContainerRun]:
        """Every start of a rank's main container: from the machines, or else from the pods' statuses."""
        return self.containers or runs_of(self.pods)

    def is_settled(self, version: Version) -> bool:
        """Whether all work after this version must be done: the end is at rest, or the version is old enough."""
        since = max(version.at, self.last_fault_at or 0.0)
        return self.is_at_rest or self.end_at - since > SETTLE_S

    def of(self, *resources: str) -> Iterator[Version]:
        """Return the versions of these resources."""
        return (version for version in self.versions if version.resource in resources)

    def last(self, resources: Iterable[str]) -> dict[tuple[str, str, str], Version]:
        """Return {(resource, namespace, name): the last version} of the objects that exist at the end."""
        found: dict[tuple[str, str, str], Version] = {}
        for version in self.of(*resources):
            key = (version.resource, version.namespace, version.name)
            if version.is_deletion:
                found.pop(key, None)
            else:
                found[key] = version
        return found


__all__ = [
    "ALLOCATIONS",
    "CONFIG",
    "CONFIG_MAPS",
    "EVENT",
    "LOG",
    "METRIC",
    "NODES",
    "PLACES",
    "PODS",
    "POOLS",
    "QUEUES",
    "REDIS",
    "RSS_BYTES",
    "SERVICES",
    "SETTLE_S",
    "STREAM_BYTES",
    "URL",
    "AckedHint",
    "AllocationVersion",
    "AuditEvidence",
    "Canary",
    "ClientPromise",
    "ClientRequest",
    "Consumer",
    "ContainerRun",
    "EmittedText",
    "FencedWrite",
    "HintHistory",
    "InvariantViolation",
    "LineRange",
    "PodVersion",
    "PrintedOutput",
    "RestartPeriod",
    "SizeSample",
    "StoredLog",
    "Version",
]
