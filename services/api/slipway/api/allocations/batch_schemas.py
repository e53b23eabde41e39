"""The bodies and answers of batches: one verb for many allocations, or many launches."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.api.queues.job_schemas import Id, Priority
from slipway.api.schemas import ListMetadata, Problem, Request
from slipway.crd.v1alpha1 import Name, Wire
from slipway.model.lifecycle import Kind, Phase

BATCH_MAX = 1000
"""Limit of allocations in one batch."""
MOVES_MAX = 100
"""Limit of moves in one batch: moves run one after the other, and each reads the whole queue."""
LAUNCHES_MAX = 200
"""Limit of launches in one request: each creates an object, and a launch with secret values creates two."""


class BatchVerb(StrEnum):
    """The verb of a batch, with the name of the route for one allocation."""

    KILL = "kill"
    HOLD = "hold"
    RESUME = "resume"
    PRIORITY = "priority"
    MOVE = "move"
    DELETE = "delete"


class Outcome(StrEnum):
    """The outcome for one allocation."""

    DONE = "done"
    """in a dry run: it would be done"""
    REFUSED = "refused"
    NOT_FOUND = "notFound"
    NOT_REACHED = "notReached"
    """the request's time ended before the allocation's turn: it was not changed, send it again"""


class AllocationSelector(Request, kw_only=True, frozen=True):
    """Selects allocations that match every given field and that the caller may see.

    Without `phases` it selects allocations that have not ended; for `delete`, allocations that have ended, and with
    `force` both.
    """

    all: bool = False
    """must be true when no other field is given"""
    workspace: Name | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    pool: Name | msgspec.UnsetType = msgspec.UNSET
    job: Name | msgspec.UnsetType = msgspec.UNSET
    user: Annotated[str, Meta(min_length=1, max_length=253)] | msgspec.UnsetType = msgspec.UNSET
    kind: Kind | msgspec.UnsetType = msgspec.UNSET
    phases: Annotated[list[Phase], Meta(max_length=len(Phase))] = []
    """only allocations in one of these phases; the default is described above"""
    label_selector: Annotated[str, Meta(min_length=1, max_length=4096)] | msgspec.UnsetType = msgspec.UNSET
    """a label selector of Kubernetes: `team=vision,sweep!=lr`"""


class BatchRequest(Request, kw_only=True, frozen=True):
    """One verb for the allocations of `ids`, or for those that `selector` selects."""

    verb: BatchVerb
    """the verb, which has the same effect as its route for one allocation"""
    ids: Annotated[list[Id], Meta(min_length=1, max_length=BATCH_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """each an AllocationID, a name, or the unique beginning of an AllocationID"""
    selector: AllocationSelector | msgspec.UnsetType = msgspec.UNSET
    """selects the allocations, instead of ids"""
    limit: Annotated[int, Meta(ge=1, le=BATCH_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """largest number of selected allocations; metadata.continue of the answer leads to the rest"""
    continue_: Annotated[str, Meta(max_length=4096)] = msgspec.field(name="continue", default="")
    """metadata.continue of the previous answer, with the same selector"""
    dry_run: bool = False
    """return the outcome of each, and change nothing"""
    force: bool = False
    """for kill: pods are killed at once, and ranks on nodes that do not answer are marked as lost. For delete: also
    allocations that have not ended, which are ended first"""
    grace: Annotated[str, Meta(max_length=32)] = ""
    """for kill: the longest grace period of the pods, such as 5s"""
    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    """for priority: a higher priority goes first"""
    ahead_of: Id | msgspec.UnsetType = msgspec.UNSET
    """for move: place the allocations before this job or allocation, in the order of `ids`"""
    behind: Id | msgspec.UnsetType = msgspec.UNSET
    """for move: place the allocations behind this job or allocation, in the order of `ids`"""


class BatchItem(Wire, kw_only=True, frozen=True):
    """The outcome for one allocation."""

    id: str
    """the AllocationID; the requested id if the allocation was not found"""
    outcome: Outcome
    """done; refused; notFound; notReached: its turn did not come in the time of the request, so send it again"""
    name: str = ""
    workspace: str = ""
    user: str = ""
    phase: str = ""
    """the phase before the verb"""
    result: str = ""
    """the result before the verb, if the allocation had ended"""
    problem: Problem | None = None
    """why it was refused or not found: the same problem as for a request about this allocation alone"""


class BatchAnswer(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The outcomes of a batch, in the order of `ids` or of the list."""

    items: list[BatchItem]
    counts: dict[Outcome, int]
    """{outcome: number of allocations}"""
    dry_run: bool
    """whether the request was a dry run, which changes nothing"""
    metadata: ListMetadata


class LaunchOutcome(StrEnum):
    """The outcome of one launch."""

    LAUNCHED = "launched"
    REPLAYED = "replayed"
    """the same Idempotency-Key had launched it before"""
    REFUSED = "refused"
    NOT_REACHED = "notReached"
    """the request's time ended before the launch's turn: nothing was launched, send it again"""


class LaunchesRequest(Request, kw_only=True, frozen=True):
    """Launches with many common fields, such as those of an array or replicas behind one Service."""

    launch: dict[str, Any]
    """the common fields: a launch body; with replicas and a name, `each` is not needed"""
    each: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=LAUNCHES_MAX)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    """the differences of each launch: fields of a launch body that are merged over `launch` as over a template. Each
    has its own `name`; none has a workspace or secret values"""


class LaunchItem(Wire, kw_only=True, frozen=True):
    """The outcome of one launch."""

    name: str
    """the name in `each`, or the name of the replica"""
    outcome: LaunchOutcome
    """launched; replayed: it was launched before; refused; notReached: send it again"""
    id: str = ""
    """the AllocationID of the launched allocation"""
    warnings: list[str] = []
    """reasons for which the allocation may have to wait"""
    problem: Problem | None = None
    """why it was refused: the same problem as for this launch alone"""


class LaunchesAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcomes of the launches, in the order of `each` or of the replicas."""

    items: list[LaunchItem]
    counts: dict[LaunchOutcome, int]
    """{outcome: number of launches}"""
