"""The bodies and answers of job routes: jobs, their members, moves, bulk changes, statistics."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.api.schemas import DEFAULT_WORKSPACE, ListMetadata, Request
from slipway.crd.v1alpha1 import Count, Name, Position, Wire
from slipway.model.lifecycle import Kind, Phase

Priority = Annotated[int, Meta(ge=0, le=1000)]
Weight = Annotated[int, Meta(ge=1, le=1_000_000)]
Id = Annotated[str, Meta(min_length=1, max_length=130)]
UPDATES_MAX = 500


class JobBody(Request, kw_only=True, frozen=True):
    """A new job: a group of the allocations that name it."""

    name: Name
    workspace: Name = DEFAULT_WORKSPACE
    max_slots: Count | None = None
    priority: Priority | None = None
    weight: Weight = 1
    queue_position: Position = ""


class JobChange(Request, kw_only=True, frozen=True):
    """The fields of a job that can change; null removes a limit or the priority."""

    max_slots: Count | msgspec.UnsetType | None = msgspec.UNSET
    priority: Priority | msgspec.UnsetType | None = msgspec.UNSET
    weight: Weight | msgspec.UnsetType = msgspec.UNSET
    queue_position: Position | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    """queue to which the members that were never admitted move"""
    interrupt: bool = True
    """whether a new priority restarts running members; false: it applies from their next attempt on"""


class MoveBody(Request, kw_only=True, frozen=True):
    """The target of a move, in exactly one of aheadOf and behind: a job (`name`, `workspace/name`) or an allocation."""

    ahead_of: Id | msgspec.UnsetType = msgspec.UNSET
    behind: Id | msgspec.UnsetType = msgspec.UNSET
    interrupt: bool = True


class QueueUpdate(Request, kw_only=True, frozen=True):
    """One of many changes: of a job or of an allocation."""

    job: Name | msgspec.UnsetType = msgspec.UNSET
    workspace: Name = DEFAULT_WORKSPACE
    allocation: Id | msgspec.UnsetType = msgspec.UNSET
    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    max_slots: Count | msgspec.UnsetType | None = msgspec.UNSET
    weight: Weight | msgspec.UnsetType = msgspec.UNSET
    ahead_of: Id | msgspec.UnsetType = msgspec.UNSET
    behind: Id | msgspec.UnsetType = msgspec.UNSET
    interrupt: bool = True


class BatchBody(Request, kw_only=True, frozen=True):
    """Many changes. They are made in order, and a refused change does not stop the others."""

    updates: Annotated[list[QueueUpdate], Meta(min_length=1, max_length=UPDATES_MAX)]


class Updated(Wire, kw_only=True, frozen=True):
    """The outcome of one update; `error` is the reason when it was refused."""

    subject: str
    ok: bool
    error: str = ""
    code: str = ""


class BatchView(msgspec.Struct, kw_only=True, frozen=True):
    """The outcomes of many updates: `failed` is the number of refused updates, `error` joins their reasons."""

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
    """position in its queue, from 1; 0 when it does not wait"""
    ahead: int = 0
    code: str = ""
    """code of the gate that it waits for"""
    message: str = ""
    result: str = ""


class JobView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One job; `members` is filled only in the answer about one job."""

    name: str
    workspace: str
    state: str
    """Running, Scheduled or Queued, by its most advanced member; Idle without members that wait or run"""
    queues: list[str]
    position: int
    """position of its first waiting member in that member's queue, from 1; 0 when no member waits"""
    ahead: int
    """number of allocations before that member"""
    jobs_ahead: int
    """number of jobs, and allocations without a job, before that member"""
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
    """The job after a change, and the effect of the change on its members."""

    job: JobView
    preempted: list[str]
    """ids of members that were signalled to save their work; they restart with the new priority"""
    unchanged: list[str]
    """sentences that explain why members did not change"""


class Killed(msgspec.Struct, kw_only=True, frozen=True):
    killed: list[str]
    """ids of the members that had not ended"""


class JobList(msgspec.Struct, kw_only=True, frozen=True):
    items: list[JobView]
    metadata: ListMetadata


class QueueStats(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The waiting and running allocations of one queue of one pool."""

    pool: str
    queue: str
    queued: int
    """number of allocations that wait for admission"""
    scheduled: int
    """number of allocations that are admitted and do not run yet"""
    running: int
    slots_queued: int
    slots_in_use: int
    oldest_s: float
    """longest waiting time of an allocation that waits now, in seconds"""


class DayWaits(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The waiting times of the allocations that were admitted on one day (UTC)."""

    day: str
    pool: str
    queue: str
    admitted: int
    queued_seconds: float
    average_queued_seconds: float


class StatsView(msgspec.Struct, kw_only=True, frozen=True):
    queues: list[QueueStats]
    pools: list[QueueStats]
    """the sums over the queues of each pool; `queue` is empty"""
    days: list[DayWaits]
