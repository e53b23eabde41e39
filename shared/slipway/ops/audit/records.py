"""What an audit is made of, record by record: versions, requests, starts, promises, answers, deliveries, sizes.

Pure data; `evidence.py` holds them together.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

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
"""What is granted for everything that has to happen after a change, or after the last fault."""


class InvariantViolation(msgspec.Struct, frozen=True, kw_only=True):
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


class FencedWrite(msgspec.Struct, frozen=True, kw_only=True):
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


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What one client asked and what it was told. What is not known, or was not said, is empty."""

    at: float
    """when the answer came, or when the client gave up"""
    asked_at: float = 0.0
    client: str = ""
    """one reader with one memory: what it has seen it may not see undone"""
    user: str = ""
    """as whom; an Idempotency-Key is one user's in one workspace"""
    replica: str = ""
    workspace: str = ""
    """the workspace that was asked about; a client of another one is told nothing of it"""
    verb: str = ""
    """`launch`, `cancel`, `get`, `list`, `events`, `delete`, or another route's name"""
    url: str = ""
    idempotency_key: str = ""
    body_hash: str = ""
    status: int = 0
    """HTTP's; 0 when no answer came: it may have been done or not"""
    allocation: str = ""
    """its AllocationID"""
    uid: str = ""
    version: int = 0
    """the resourceVersion that was answered"""
    seq: int = 0
    phase: str = ""
    desired: str = ""
    text: str = ""
    """the body of the answer, as it came"""


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """A string that was planted. A secret stays where it was planted; a workspace's string stays within it."""

    text: str
    workspace: str = ""
    is_secret: bool = False
    planted: str = ""
    """where, in words"""


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """Something that left us as text. `place` is one of PLACES; `name` says which key, object, line or series."""

    place: str
    name: str
    text: str
    workspace: str = ""
    """whose it is; empty when it is of the whole installation"""


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """The way of one work hint: how often it was delivered, and when it was done or became a dead letter."""

    hint: str
    """shard and entry id"""
    allocation: str
    times: int
    added_at: float = 0.0
    done_at: float | None = None
    dead_at: float | None = None
    is_poison: bool = False
    """it cannot be decoded, or its work was made to fail each time"""


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group at the end."""

    stream: str
    group: str
    name: str
    pending: int
    idle_s: float


class Restarted(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which all of us were stopped and started, and nobody changed any workload."""

    begun_at: float
    ended_at: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of a size. `kind` is STREAM_BYTES (subject: an AllocationID) or RSS_BYTES (subject: a process)."""

    kind: str
    subject: str
    at: float
    value: float


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """Stored lines of one log that follow each other without a hole. `printed` is the number that the rank itself gave
    the first of them (0: these lines carry none); `is_state` one line that goes on with carriage returns."""

    number: int
    printed: int = 0
    count: int = 1
    is_state: bool = False

    @property
    def last_number(self) -> int:
        """Of its last line, in its log."""
        return self.number + self.count - 1

    @property
    def last_printed(self) -> int:
        """Of its last line, as the rank has it."""
        return self.printed + self.count - 1 if self.printed else 0


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of one log; `end` is the number that its position has."""

    allocation: str
    """its AllocationID"""
    attempt: int
    rank: int
    container: str = ""
    passages: Sequence[Passage]
    end: int
    is_ended: bool
    is_unread: bool = False
    """readers are told that its end could not be read from its node"""
    marks: Sequence[tuple[int, int]] | None = None
    """(first number, how many) of each gap that a reader of the api was shown; None: it was read from the store"""


class Printed(msgspec.Struct, frozen=True, kw_only=True):
    """What one start of a rank's main container printed, as the machine itself knows it: lines numbered from 1."""

    allocation: str
    allocation_uid: str
    attempt: int
    rank: int
    lines: int
    states: int = 0
    """how many states it printed of lines that go on: each may be stored as a line of its own"""
    ended_at: float | None
    ended_first: bool = False
    """it ended by itself, before its pod was marked deleted: its node keeps the log until then"""
    is_lost: bool = False
    """its machine was gone before all could be read"""
    fits: bool = True
    """it is small enough for nothing of it to be left out"""


REDIS, CONFIG, EVENT, LOG, URL, METRIC = "redis", "configmap", "event", "log", "url", "metric"
PLACES = (REDIS, CONFIG, EVENT, LOG, URL, METRIC)
STREAM_BYTES, RSS_BYTES = "stream_bytes", "rss_bytes"


class AllocationVersion(msgspec.Struct, frozen=True):
    """One version of one allocation, decoded."""

    version: Version
    allocation: Allocation


class PodVersion(msgspec.Struct, frozen=True):
    """One version of one pod, decoded; `pod` is None when it is gone."""

    version: Version
    pod: Pod
    before: Pod | None
