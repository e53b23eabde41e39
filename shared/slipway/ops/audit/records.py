"""The records of an audit: versions, requests, starts, promises, answers, deliveries, sizes.

Pure data; `evidence.py` combines them.

The owner of a pod is read from its labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import Pod
from slipway.model.ids import AllocationId

ALLOCATIONS = "allocations"
PODS = "pods"
POOLS = "resourcepools"
NODES = "nodes"
QUEUES = "queues"
CONFIG_MAPS = "configmaps"
SERVICES = "services"


SETTLE_S = 60.0
"""Seconds that are granted for all work after a change, or after the last fault."""


class InvariantViolation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken promise. `version` is the resourceVersion at which it was broken; 0 when it concerns the end."""

    invariant: str
    subject: str
    message: str
    version: int = 0

    def __str__(self) -> str:
        where = f" at version {self.version}" if self.version else ""
        return f"{self.invariant} {self.subject}{where}: {self.message}"


class Version(msgspec.Struct, kw_only=True):
    """One commit. `obj` is the object after it (for a deletion, its last state); `before` is the version that it
    replaced.
    """

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


class FencedWrite(msgspec.Struct, frozen=True, kw_only=True):
    """A write that one of our services requested, with its fences. `outcome` is `ok` or an error."""

    process: str
    verb: str
    resource: str
    name: str
    uid: str = ""
    resource_version: str = ""
    outcome: str = ""


class ContainerRun(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a rank's main container, as observed by the machine."""

    allocation_uid: str
    attempt: int
    rank: int
    pod_uid: str
    started_at: float
    ended_at: float | None = None
    code: int | None = None


class ClientPromise(msgspec.Struct, frozen=True, kw_only=True):
    """A promise to a client: `launched`, `cancelled` or `deleted`."""

    kind: str
    uid: str
    version: int
    at: float


class AckedHint(msgspec.Struct, frozen=True, kw_only=True):
    """An acknowledged work hint, and what its allocation still demanded then. `others` is the number of other pending
    hints.
    """

    allocation: AllocationId
    demands: str
    others: int
    process: str = ""


class ClientRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client and its answer. Unknown or absent values are empty."""

    at: float
    """When the answer arrived, or when the client gave up."""
    asked_at: float = 0.0
    client: str = ""
    """One reader with one memory: it must not read an older state than it has seen."""
    user: str = ""
    """The user of the request. An Idempotency-Key belongs to one user in one workspace."""
    replica: str = ""
    workspace: str = ""
    """The workspace of the request. A client of another workspace must receive nothing of it."""
    verb: str = ""
    """`launch`, `cancel`, `get`, `list`, `events`, `delete`, or the name of another route."""
    url: str = ""
    idempotency_key: str = ""
    body_hash: str = ""
    status: int = 0
    """The HTTP status; 0 when no answer arrived, and then the request may have been carried out or not."""
    allocation: str = ""
    """The AllocationID."""
    uid: str = ""
    version: int = 0
    """The resourceVersion in the answer."""
    seq: int = 0
    phase: str = ""
    desired: str = ""
    text: str = ""
    """The body of the answer, unchanged."""


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """A planted string. A secret must stay where it was planted; a workspace's string must stay within the
    workspace.
    """

    text: str
    workspace: str = ""
    is_secret: bool = False
    planted: str = ""
    """The place where it was planted, in words."""


class EmittedText(msgspec.Struct, frozen=True, kw_only=True):
    """A text that left our services. `place` is one of PLACES; `name` is the key, object, line or series."""

    place: str
    name: str
    text: str
    workspace: str = ""
    """The workspace of the text; empty when it belongs to the whole installation."""


class HintHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one work hint: how often it was delivered, and when it was done or became a dead letter."""

    hint: str
    """Shard and entry id."""
    allocation: str
    times: int
    added_at: float = 0.0
    done_at: float | None = None
    dead_at: float | None = None
    is_poison: bool = False
    """Whether it cannot be decoded, or its work was made to fail each time."""


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group, at the end of the history."""

    stream: str
    group: str
    name: str
    pending: int
    idle_s: float


class RestartPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """A period in which all our services were stopped and started, and no workload was changed."""

    begun_at: float
    ended_at: float


class SizeSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a size. `kind` is STREAM_BYTES (subject: an AllocationID) or RSS_BYTES (subject: a process)."""

    kind: str
    subject: str
    at: float
    value: float


class LineRange(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive stored lines of one log. `printed` is the rank's own number of the first line; 0 when the lines have
    no such number. `is_state` marks one line that is rewritten with carriage returns.
    """

    number: int
    printed: int = 0
    count: int = 1
    is_state: bool = False

    @property
    def last_number(self) -> int:
        """The number of its last line in its log."""
        return self.number + self.count - 1

    @property
    def last_printed(self) -> int:
        """The rank's own number of its last line; 0 when the lines have none."""
        return self.printed + self.count - 1 if self.printed else 0


class StoredLog(msgspec.Struct, frozen=True, kw_only=True):
    """The stored content of one log. `end` is the number of the last line in its stored position (`LogPosition`)."""

    allocation: str
    """The AllocationID."""
    attempt: int
    rank: int
    container: str = ""
    passages: Sequence[LineRange]
    end: int
    is_ended: bool
    is_unread: bool = False
    """Whether readers are told that the end of the log could not be read from its node."""
    marks: Sequence[tuple[int, int]] | None = None
    """(first number, how many) of each gap that a reader of the api was shown; None when it was read from the store."""


class PrintedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The output of one start of a rank's main container, as the machine knows it: lines numbered from 1."""

    allocation: str
    allocation_uid: str
    attempt: int
    rank: int
    lines: int
    states: int = 0
    """Number of printed states of rewritten lines. Each state may be stored as a separate line."""
    ended_at: float | None
    ended_first: bool = False
    """Whether it ended by itself before its pod was marked as deleted. Its node keeps the log at least until then."""
    is_lost: bool = False
    """Whether its machine was gone before all lines could be read."""
    fits: bool = True
    """Whether it is so small that no line may be left out."""


REDIS, CONFIG, EVENT, LOG, URL, METRIC = "redis", "configmap", "event", "log", "url", "metric"
PLACES = (REDIS, CONFIG, EVENT, LOG, URL, METRIC)
STREAM_BYTES, RSS_BYTES = "stream_bytes", "rss_bytes"


class AllocationVersion(msgspec.Struct, frozen=True):
    """One version of one allocation, decoded."""

    version: Version
    allocation: Allocation


class PodVersion(msgspec.Struct, frozen=True):
    """One version of one pod, decoded. `before` is None when the version before it is not known."""

    version: Version
    pod: Pod
    before: Pod | None


def owner_of(pod: Pod) -> str:
    """Return the uid of the pod's allocation; empty when the pod is not ours."""
    return pod.metadata.labels.get(LABEL_ALLOCATION_UID, "")


def attempt_of(pod: Pod) -> int:
    """Return the attempt of the pod; 0 when it has no such label."""
    return _number(pod, LABEL_ATTEMPT)


def rank_of(pod: Pod) -> int:
    """Return the rank of the pod; 0 when it has no such label."""
    return _number(pod, LABEL_RANK)


def _number(pod: Pod, label: str) -> int:
    text = pod.metadata.labels.get(label, "")
    return int(text) if text.isdigit() else 0
