"""What an audit looks at: the history of the objects, the streams, the requests, the containers, and what was promised.

Owns the form of the evidence; whoever has it fills it in: the simulation from its models, a live audit from a watch, a
Redis and the API server's audit log. What is not known stays empty, and the checks that need it find nothing. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation, Queue, ResourcePool
from slipway.kube.objects import Node, Pod
from slipway.model.events import AllocationEvent
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
    Answered,
    Canary,
    Consumer,
    Delivered,
    FencedWrite,
    InvariantViolation,
    Logged,
    Measured,
    Passage,
    PodVersion,
    Printed,
    Promised,
    Ran,
    Restarted,
    Spoken,
    Version,
)
from slipway.ops.audit.starts import runs_of


class AuditEvidence(msgspec.Struct, kw_only=True, dict=True):
    """Everything that is known. `is_at_rest`: the history ends in a quiet state; `end_at` is when."""

    versions: Sequence[Version]
    streams: Mapping[str, Sequence[AllocationEvent]] = {}
    """{AllocationID: what its stream holds now}"""
    appended: Sequence[AllocationEvent] = ()
    """every entry that was ever appended, in order"""
    requests: Sequence[FencedWrite] = ()
    containers: Sequence[Ran] = ()
    knows_every_end: bool = True
    """`containers` has the code of every exit. False: a code of None was not observed, and is not judged."""
    promises: Sequence[Promised] = ()
    acked: Sequence[AckedHint] = ()
    pending_hints: int = 0
    has_streams: bool = True
    is_at_rest: bool = True
    end_at: float = 0.0
    is_sampled: bool = False
    """Some versions may be missing (a watch that was relisted, a listing that was polled): what holds between two
    neighbouring versions cannot be judged then, only what holds in each, or over all."""
    starts_late: bool = False
    """The history begins with a listing: an object's first version need not be its creation, what was written,
    appended or decided before is not known."""
    listed_to: int = 0
    """the resourceVersion of that listing"""
    has_writers: bool = True
    """`Version.writer` is known; else nobody can be told apart by who wrote."""
    last_fault_at: float | None = None
    """when the last fault was over; None: not known"""
    rest_from: float | None = None
    """since when nobody had anything left to do; None: not known, or never"""
    answers: Sequence[Answered] = ()
    canaries: Sequence[Canary] = ()
    spoken: Sequence[Spoken] = ()
    deliveries: Sequence[Delivered] = ()
    consumers: Sequence[Consumer] = ()
    interruptions: int = 0
    """how often anything came between us and our work: a process that died or slept, a call that failed"""
    restarts: Sequence[Restarted] = ()
    measures: Sequence[Measured] = ()
    logs: Sequence[Logged] | None = None
    """every log that the store holds, and what was read through the api; None: not known"""
    printed: Sequence[Printed] = ()
    store_losses: Sequence[tuple[float, float]] = ()
    """spans of time: of what ended in one of them the store may have lost something, or could not be written"""
    crd_rules: Sequence[str] | None = None
    """the validation rules that the API server holds for allocations; None: not known"""

    @cached_property
    def allocations(self) -> dict[str, list[AllocationVersion]]:
        """{uid: versions}, in order."""
        found: dict[str, list[AllocationVersion]] = {}
        for version in self.of(ALLOCATIONS):
            decoded = AllocationVersion(version, msgspec.convert(version.obj, Allocation))
            found.setdefault(version.uid, []).append(decoded)
        return found

    @cached_property
    def told(self) -> list[Answered]:
        """What clients were told, each with the uid that is meant: answers name an AllocationID only."""
        uids = {str(id_of(history[0].allocation)): uid for uid, history in self.allocations.items()}
        return [
            answer
            if answer.uid or not answer.allocation
            else msgspec.structs.replace(answer, uid=uids.get(answer.allocation, answer.allocation))
            for answer in self.answers
        ]

    @cached_property
    def decoded(self) -> dict[int, AllocationVersion]:
        """{version: what the allocation was then}."""
        return {item.version.number: item for history in self.allocations.values() for item in history}

    @cached_property
    def pods(self) -> list[PodVersion]:
        """Every version of every pod, in order."""
        found: list[PodVersion] = []
        last: dict[str, PodVersion] = {}
        for version in self.of(PODS):
            known, before = last.get(version.uid), None
            if known is not None and known.version.obj is version.before:
                before = known.pod  # it was read already
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
    def runs(self) -> Sequence[Ran]:
        """Every start of a rank's main container: as the machines saw it, or else as the pods' statuses tell."""
        return self.containers or runs_of(self.pods)

    def is_settled(self, version: Version) -> bool:
        """Whether what was left to do after this version must be done: the end is at rest, or it is a while ago."""
        since = max(version.at, self.last_fault_at or 0.0)
        return self.is_at_rest or self.end_at - since > SETTLE_S

    def of(self, *resources: str) -> Iterator[Version]:
        """The versions of these resources."""
        return (version for version in self.versions if version.resource in resources)

    def last(self, resources: Iterable[str]) -> dict[tuple[str, str, str], Version]:
        """{(resource, namespace, name): the last version} of what exists at the end."""
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
    "Answered",
    "AuditEvidence",
    "Canary",
    "Consumer",
    "Delivered",
    "FencedWrite",
    "InvariantViolation",
    "Logged",
    "Measured",
    "Passage",
    "PodVersion",
    "Printed",
    "Promised",
    "Ran",
    "Restarted",
    "Spoken",
    "Version",
]
