"""The bodies of batches: one verb for many allocations, or many launches; and what became of each."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.api.job_schemas import Id, Priority
from slipway.api.schemas import ListMetadata, Problem, Request
from slipway.crd.v1alpha1 import Name, Wire
from slipway.model.lifecycle import Kind, Phase

BATCH_MAX = 1000
"""Allocations of one batch: more are left for the next one."""
MOVES_MAX = 100
"""The same of moves, which are made one after the other: each looks at the whole queue."""
LAUNCHES_MAX = 200
"""Launches of one request: each creates an object, and one with secret values creates two."""


class BatchVerb(StrEnum):
    """What is done to each, called as the routes of one allocation are."""

    KILL = "kill"
    HOLD = "hold"
    RESUME = "resume"
    PRIORITY = "priority"
    MOVE = "move"
    DELETE = "delete"


class Outcome(StrEnum):
    """What became of one allocation."""

    DONE = "done"
    """of a dry run: it would be done"""
    REFUSED = "refused"
    NOT_FOUND = "notFound"
    NOT_REACHED = "notReached"
    """the time of the request was over before its turn came: nothing happened to it, send it again"""


class AllocationSelector(Request, kw_only=True, frozen=True):
    """Those that fit all that is said, of those that the caller may see. Without `phases`: what has not ended; of
    `delete` what has ended, with `force` both."""

    all: bool = False
    """true where nothing else is said"""
    workspace: Name | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    pool: Name | msgspec.UnsetType = msgspec.UNSET
    job: Name | msgspec.UnsetType = msgspec.UNSET
    user: Annotated[str, Meta(min_length=1, max_length=253)] | msgspec.UnsetType = msgspec.UNSET
    kind: Kind | msgspec.UnsetType = msgspec.UNSET
    phases: Annotated[list[Phase], Meta(max_length=len(Phase))] = []
    """in one of these; none: in all but the last, of `delete` in the last"""
    label_selector: Annotated[str, Meta(min_length=1, max_length=4096)] | msgspec.UnsetType = msgspec.UNSET
    """as Kubernetes writes it: `team=vision,sweep!=lr`"""


class BatchRequest(Request, kw_only=True, frozen=True):
    """One verb for the allocations of `ids`, or for those that `selector` chooses."""

    verb: BatchVerb
    """what is done to each, as its route for one allocation does it"""
    ids: Annotated[list[Id], Meta(min_length=1, max_length=BATCH_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """each as an id of one allocation is written: AllocationID, name, or the unique beginning of the id"""
    selector: AllocationSelector | msgspec.UnsetType = msgspec.UNSET
    """what chooses them, instead of ids"""
    limit: Annotated[int, Meta(ge=1, le=BATCH_MAX)] | msgspec.UnsetType = msgspec.UNSET
    """of what is selected, at most so many; metadata.continue of the answer leads to the rest"""
    continue_: Annotated[str, Meta(max_length=4096)] = msgspec.field(name="continue", default="")
    """metadata.continue of the answer before, with the same selector"""
    dry_run: bool = False
    """say what would become of each, and change nothing"""
    force: bool = False
    """of kill: its pods are killed at once; what is on nodes that do not answer is given up for lost. Of delete: also
    what has not ended, which is ended first"""
    grace: Annotated[str, Meta(max_length=32)] = ""
    """of kill: its pods have at most so long, such as 5s"""
    priority: Priority | msgspec.UnsetType = msgspec.UNSET
    """of priority: higher goes first"""
    ahead_of: Id | msgspec.UnsetType = msgspec.UNSET
    """of move: they go before this job or allocation, in the order of `ids`"""
    behind: Id | msgspec.UnsetType = msgspec.UNSET
    """of move: they go behind this one, in the order of `ids`"""


class BatchItem(Wire, kw_only=True, frozen=True):
    """What became of one."""

    id: str
    """the AllocationID; of what was not found, what was asked for"""
    outcome: Outcome
    """done; refused; notFound; notReached: its turn did not come in the time of the request, so send it again"""
    name: str = ""
    workspace: str = ""
    user: str = ""
    phase: str = ""
    """before the verb"""
    result: str = ""
    """how it had ended before the verb"""
    problem: Problem | None = None
    """why it was refused or not found: what the same verb for this one alone would be answered"""


class BatchAnswer(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One item for each, in the order of `ids` or of the list."""

    items: list[BatchItem]
    counts: dict[Outcome, int]
    """{outcome: how many}"""
    dry_run: bool
    """whether nothing was changed"""
    metadata: ListMetadata


class LaunchOutcome(StrEnum):
    """What became of one launch."""

    LAUNCHED = "launched"
    REPLAYED = "replayed"
    """the same Idempotency-Key had launched it before"""
    REFUSED = "refused"
    NOT_REACHED = "notReached"
    """the time of the request was over before its turn came: nothing was launched, send it again"""


class LaunchesRequest(Request, kw_only=True, frozen=True):
    """Launches that have most in common, such as those of an array or replicas behind one Service."""

    launch: dict[str, Any]
    """what they have in common: a launch body; with replicas and a name it is all that is needed"""
    each: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=LAUNCHES_MAX)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    """what is different in each: fields of a launch body that are laid over `launch` as over a template. Each has a
    `name` of its own; none has a workspace or secret values"""


class LaunchItem(Wire, kw_only=True, frozen=True):
    """What became of one launch."""

    name: str
    """as it stands in `each`, or that of the replica"""
    outcome: LaunchOutcome
    """launched; replayed: it was launched before; refused; notReached: send it again"""
    id: str = ""
    """the AllocationID of what is launched"""
    warnings: list[str] = []
    """what may keep it waiting"""
    problem: Problem | None = None
    """why it was refused: what the same launch alone would be answered"""


class LaunchesAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One item for each, in the order of `each` or of the replicas."""

    items: list[LaunchItem]
    counts: dict[LaunchOutcome, int]
    """{outcome: how many}"""
