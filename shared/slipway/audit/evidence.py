"""What an audit looks at: the history of the objects, the streams, the requests, the containers, and what was promised.

Owns the form of the evidence; whoever has it fills it in: the simulation from its models, a live audit from a watch, a
Redis and the API server's audit log. What is not known stays empty, and the checks that need it find nothing. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from slipway.crd.v1alpha1 import Allocation, ResourcePool
from slipway.kube.objects import Node, Pod
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId

ALLOCATIONS = "allocations"
PODS = "pods"
POOLS = "resourcepools"
NODES = "nodes"
CONFIG_MAPS = "configmaps"
SERVICES = "services"


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken promise. `version` is the resourceVersion at which it was broken, 0 when it is about the end."""

    invariant: str
    subject: str
    message: str
    version: int = 0

    def __str__(self) -> str:
        where = f" at version {self.version}" if self.version else ""
        return f"{self.invariant} {self.subject}{where}: {self.message}"


class Version(msgspec.Struct, kw_only=True):
    """One commit. `obj` is the object after it (for a deletion its last state), `before` the one it replaced."""

    number: int
    at: float
    writer: str
    resource: str
    namespace: str
    name: str
    is_deletion: bool
    obj: Mapping[str, Any]
    before: Mapping[str, Any] | None

    @property
    def uid(self) -> str:
        """The object's uid."""
        return str(self.obj["metadata"]["uid"])


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A write that one of our services asked for, with the fences it carried; `outcome` is `ok` or an error."""

    process: str
    verb: str
    resource: str
    name: str
    uid: str = ""
    resource_version: str = ""
    outcome: str = ""


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a rank's main container, as the machine itself saw it."""

    allocation_uid: str
    attempt: int
    rank: int
    pod_uid: str
    started_at: float
    ended_at: float | None = None
    code: int | None = None


class Promised(msgspec.Struct, frozen=True, kw_only=True):
    """What a client was told: `launched`, `cancelled` or `deleted`."""

    kind: str
    uid: str
    version: int
    at: float


class AckedHint(msgspec.Struct, frozen=True, kw_only=True):
    """A work hint that was acknowledged, and what its allocation still demanded then; `others` are pending hints."""

    allocation: AllocationId
    demands: str
    others: int
    process: str = ""


class AllocationVersion(msgspec.Struct, frozen=True):
    """One version of one allocation, decoded."""

    version: Version
    allocation: Allocation


class PodVersion(msgspec.Struct, frozen=True):
    """One version of one pod, decoded; `pod` is None when it is gone."""

    version: Version
    pod: Pod
    before: Pod | None


class Evidence(msgspec.Struct, kw_only=True, dict=True):
    """Everything that is known. `is_at_rest`: the history ends in a quiet state; `end_at` is when."""

    versions: Sequence[Version]
    streams: Mapping[str, Sequence[AllocationEvent]] = {}
    """{AllocationID: what its stream holds now}"""
    appended: Sequence[AllocationEvent] = ()
    """every entry that was ever appended, in order"""
    requests: Sequence[Request] = ()
    containers: Sequence[Ran] = ()
    promises: Sequence[Promised] = ()
    acked: Sequence[AckedHint] = ()
    pending_hints: int = 0
    has_streams: bool = True
    is_at_rest: bool = True
    end_at: float = 0.0

    @cached_property
    def allocations(self) -> dict[str, list[AllocationVersion]]:
        """{uid: versions}, in order."""
        found: dict[str, list[AllocationVersion]] = {}
        for version in self.of(ALLOCATIONS):
            decoded = AllocationVersion(version, msgspec.convert(version.obj, Allocation))
            found.setdefault(version.uid, []).append(decoded)
        return found

    @cached_property
    def pods(self) -> list[PodVersion]:
        """Every version of every pod, in order."""
        return [
            PodVersion(
                version,
                msgspec.convert(version.obj, Pod),
                msgspec.convert(version.before, Pod) if version.before is not None else None,
            )
            for version in self.of(PODS)
        ]

    @cached_property
    def pools(self) -> list[tuple[Version, ResourcePool]]:
        """Every version of every pool, in order."""
        return [(version, msgspec.convert(version.obj, ResourcePool)) for version in self.of(POOLS)]

    @cached_property
    def nodes(self) -> list[tuple[Version, Node]]:
        """Every version of every node, in order."""
        return [(version, msgspec.convert(version.obj, Node)) for version in self.of(NODES)]

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
