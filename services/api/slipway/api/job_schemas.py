"""The bodies of the job queue: jobs, their members, moves, bulk changes, figures."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.api.schemas import ListMetadata, Request
from slipway.crd.v1alpha1 import Count, Name, Position, Wire
from slipway.model.lifecycle import Kind, Phase

Priority = Annotated[int, Meta(ge=0, le=1000)]
Weight = Annotated[int, Meta(ge=1, le=1_000_000)]
Id = Annotated[str, Meta(min_length=1, max_length=130)]
UPDATES_MAX = 500


class JobBody(Request, kw_only=True, frozen=True):
    """A new job: what groups allocations that name it."""

    name: Name
    workspace: Name = "default"
    max_slots: Count | None = None
    priority: Priority | None = None
    weight: Weight = 1
    queue_position: Position = ""


class JobChange(Request, kw_only=True, frozen=True):
    """What may change of a job; null takes a limit or the priority away."""

    max_slots: Count | msgspec.UnsetType | None = msgspec.UNSET
    priority: Priority | msgspec.UnsetType | None = msgspec.UNSET
    weight: Weight | msgspec.UnsetType = msgspec.UNSET
    queue_position: Position | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    """its members that were never admitted move there"""
    interrupt: bool = True
    """a new priority begins running work again; false: it counts from the next attempt on"""


class MoveBody(Request, kw_only=True, frozen=True):
    """One of the two: a job (`name`, or `workspace/name`) or the id of an allocation."""

    ahead_of: Id | msgspec.UnsetType = msgspec.UNSET
    behind: Id | msgspec.UnsetType = msgspec.UNSET
    interrupt: bool = True


class QueueUpdate(Request, kw_only=True, frozen=True):
    """One change of many: of a job or of an allocation."""

    job: Name | msgspec.UnsetType = msgspec.UNSET
    workspace: Name = "default"
    allocation: Id | msgspec.UnsetType = msgspec.UNSET
    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    max_slots: Count | msgspec.UnsetType | None = msgspec.UNSET
    weight: Weight | msgspec.UnsetType = msgspec.UNSET
    ahead_of: Id | msgspec.UnsetType = msgspec.UNSET
    behind: Id | msgspec.UnsetType = msgspec.UNSET
    interrupt: bool = True


class BatchBody(Request, kw_only=True, frozen=True):
    """Each is tried, in order, whatever became of the others."""

    updates: Annotated[list[QueueUpdate], Meta(min_length=1, max_length=UPDATES_MAX)]


class Updated(Wire, kw_only=True, frozen=True):
    """What became of one update; `error` when it was refused."""

    subject: str
    ok: bool
    error: str = ""
    code: str = ""


class BatchView(msgspec.Struct, kw_only=True, frozen=True):
    """`failed` of `items` were refused; `error` joins their reasons."""

    items: list[Updated]
    failed: int
    error: str


class Member(Wire, kw_only=True, frozen=True):
    """An allocation of a job."""

    id: str
    kind: Kind
    phase: Phase
    queue: str
    slots: int = 0
    preemptible: bool = False
    position: int = 0
    """in its queue, while it waits"""
    ahead: int = 0
    code: str = ""
    """the gate that keeps it waiting"""
    message: str = ""
    result: str = ""


class JobView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One job; `members` are filled in when one job is asked for."""

    name: str
    workspace: str
    state: str
    """Running, Scheduled, Queued, or Idle when nothing of it is left: the furthest of its members"""
    queues: list[str]
    position: int
    """of the first of its members that waits, in its queue; 0 when none does"""
    ahead: int
    """how many allocations are before that one"""
    jobs_ahead: int
    """how many jobs, and allocations without one, are before that one"""
    pending: int
    live: int
    ended: int
    slots_in_use: int
    max_slots: int | None
    priority: int | None
    weight: int
    place: str
    created_at: str
    resource_version: str
    spec: dict[str, Any]
    members: list[Member]


class JobChanged(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The job after a change, and what that meant for its members."""

    job: JobView
    preempted: list[str]
    """asked to save their work; they begin again under the new priority"""
    unchanged: list[str]
    """why members stay as they are"""


class Killed(msgspec.Struct, kw_only=True, frozen=True):
    killed: list[str]
    """the ids of what had not ended"""


class JobList(msgspec.Struct, kw_only=True, frozen=True):
    items: list[JobView]
    metadata: ListMetadata


class QueueStats(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What waits and runs in one queue of one pool."""

    pool: str
    queue: str
    queued: int
    """wait for a place"""
    scheduled: int
    """have a place, and do not run yet"""
    running: int
    slots_queued: int
    slots_in_use: int
    oldest_s: float
    """how long the one that waits longest has waited"""


class DayWaits(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How long what was admitted on one day (UTC) had waited."""

    day: str
    pool: str
    queue: str
    admitted: int
    queued_seconds: float
    average_queued_seconds: float


class StatsView(msgspec.Struct, kw_only=True, frozen=True):
    queues: list[QueueStats]
    pools: list[QueueStats]
    """the same summed over the queues of each pool; `queue` is empty"""
    days: list[DayWaits]
