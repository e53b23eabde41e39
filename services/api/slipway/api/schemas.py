"""The bodies of the REST API: what clients send, and what they are answered.

Wire structs; those that clients send refuse unknown fields (`decoding.py` says which). A launch body is the spec of the
custom resource plus a few fields, so that one struct stays the source of both.
"""

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from slipway.crd.bounds import ENV_MAX, LABELS_MAX, RANKS_MAX
from slipway.crd.pools import ALLOWED_MAX, Privilege
from slipway.crd.v1alpha1 import AFTER_MAX, SETUP_MAX, AllocationSpec, Dependency, EnvName, Name, Wire
from slipway.crd.wire import RunAs
from slipway.model.lifecycle import Kind, Phase, RankState
from slipway.model.reasons import Result
from slipway.streams.allgather import PEERS_MAX

Labels = dict[str, str]
VOLUMES_MAX = 32
"""Volume claims that a launch mounts by their short form."""
Words = Annotated[list[str], Meta(max_length=1024)]
T = TypeVar("T")


class LaunchDependency(Dependency, kw_only=True, frozen=True):
    """Another allocation of the workspace that has to end before this one may start, or a job: all allocations that it
    has at the launch."""

    allocation: Annotated[str, Meta(max_length=63)] = ""
    """its AllocationID or its name"""
    job: Annotated[str, Meta(max_length=63)] = ""
    """instead of an allocation: those of a job"""


class LaunchBody(AllocationSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A launch: only `kind` is required; pool, queue, workspace, image and command have defaults where the pool gives
    them."""

    name: Annotated[str, Meta(max_length=40, description="readable name; made up when absent")] = ""
    workspace: Name = "default"
    labels: Annotated[Labels, Meta(max_length=LABELS_MAX)] = {}
    after: Annotated[list[LaunchDependency], Meta(max_length=AFTER_MAX)] = []  # pyright: ignore[reportIncompatibleVariableOverride] - read only
    """it is not started before these allocations have ended; it is canceled when one ends otherwise than asked"""
    env: Annotated[dict[EnvName, str], Meta(max_length=ENV_MAX, description="environment of the main containers")] = {}
    image: Annotated[str, Meta(max_length=1024, description="image of the main container of every role")] = ""
    command: Annotated[Words, Meta(description="command of the main container, which gets it as it is here")] = []
    run: Annotated[
        str,
        Meta(
            max_length=SETUP_MAX,
            description="a script as the program of the main container, instead of command: bash runs it, or sh where "
            "the image has no bash, and it ends at a command that fails",
        ),
    ] = ""
    args: Annotated[Words, Meta(description="arguments of the main container, which gets them as they are here")] = []
    secrets: Annotated[
        dict[str, str],
        Meta(
            max_length=ENV_MAX,
            description="environment of the main container from Secrets of the workspace: {NAME: SECRET/KEY}",
        ),
    ] = {}
    secret_values: Annotated[
        dict[str, str],
        Meta(
            max_length=ENV_MAX,
            description="environment of the main container that nothing shows again: {NAME: VALUE}; kept in a Secret "
            "of the allocation",
            extra_json_schema={"writeOnly": True},
        ),
    ] = {}
    gpu_type: Annotated[
        str, Meta(max_length=63, description="the one flavor of the pool that it accepts. Short form of flavors")
    ] = ""
    architecture: Annotated[
        str,
        Meta(
            pattern="^(|amd64|arm64)$",
            description="the processor of the nodes of every rank: amd64 or arm64. Short form of the label "
            "kubernetes.io/arch in template.spec.nodeSelector",
        ),
    ] = ""
    service_account: Annotated[
        str,
        Meta(
            max_length=253,
            description="service account of every rank; the workspace allows it by an annotation. Short form of "
            "template.spec.serviceAccountName",
        ),
    ] = ""
    volumes: Annotated[
        dict[str, str],
        Meta(
            max_length=VOLUMES_MAX,
            description="volume claims of the workspace in the main container of every role: {PATH: CLAIM}, or "
            "{PATH: CLAIM:ro} to mount one read-only. Short form of volumes and volumeMounts in template.spec",
        ),
    ] = {}
    checkpoints: Annotated[
        str,
        Meta(
            max_length=1024,
            description="where every rank finds and keeps its checkpoints, as SLIPWAY_CHECKPOINT_DIR: CLAIM for a "
            "folder of this allocation on a volume claim of the workspace, CLAIM/FOLDER for one that several share",
        ),
    ] = ""
    replicas: Annotated[int, Meta(ge=1)] | None = None
    """so many allocations, NAME-0 and so on, behind the Service of service: launched by POST /allocations/launches; a
    dry run of POST /allocations shows the first one"""
    privileges: Annotated[
        list[Privilege],
        Meta(
            max_length=ALLOWED_MAX,
            description="root, hostIPC, hostNetwork, or capabilities of the main container such as IPC_LOCK; the pool "
            "allows them by name. Short form of the fields of template.spec",
        ),
    ] = []
    run_as: Annotated[
        RunAs,
        Meta(
            description="user and groups of every rank, within what the pool allows. Short form of runAsUser, "
            "runAsGroup, fsGroup and supplementalGroups in template.spec.securityContext",
        ),
    ] = RunAs()


class Request(msgspec.Struct, kw_only=True, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Base of small request bodies."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The body of every refusal."""

    type: str
    title: str
    status: int
    detail: str = ""
    instance: str = ""
    code: str = ""
    errors: list[dict[str, str]] = []
    """[{pointer, detail}]: JSON pointers into the request body"""
    trace_id: str = ""


class PriorityBody(Request, kw_only=True, frozen=True):
    priority: Annotated[int, Meta(ge=0, le=1000, description="higher goes first")]


class PreemptBody(Request, kw_only=True, frozen=True):
    reason: Annotated[str, Meta(max_length=256)] = ""


class AckBody(Request, kw_only=True, frozen=True):
    """`n` is the preemption that is acknowledged; without it, the current one."""

    rank: Annotated[int, Meta(ge=0)] | None = None
    """default: the one whose token calls, else 0"""
    n: Annotated[int, Meta(ge=1)] | None = None
    attempt: Annotated[int, Meta(ge=1)] | None = None


class FlagBody(Request, kw_only=True, frozen=True):
    """`attempt` refuses a late call of an attempt that is over."""

    value: bool = True
    attempt: Annotated[int, Meta(ge=1)] | None = None


class ProgressBody(Request, kw_only=True, frozen=True):
    """At least one of `progress` and `checkpoint` is said."""

    progress: Annotated[float, Meta(ge=0, le=1, description="part that is done, 0 to 1")] | None = None
    checkpoint: bool = False
    """the work has just been saved: whoever is to make room for others loses least soon after"""
    attempt: Annotated[int, Meta(ge=1)] | None = None


class ActivityBody(Request, kw_only=True, frozen=True):
    """Optional: when it was active (RFC 3339); default now."""

    at: str = ""


class NodeBody(Request, kw_only=True, frozen=True):
    """Nothing is said beside the name."""


class TemplateBody(Request, kw_only=True, frozen=True):
    """A named partial launch body, merged under a request."""

    name: Name = ""
    workspace: Name = "default"
    body: dict[str, Any]


class OutsideLink(Wire, kw_only=True, frozen=True):
    """A place beside Slipway that has more about a workload, as the operators have set it up."""

    title: str
    url: str
    icon: str = ""
    """a name that portals such as Backstage know, for example `dashboard`; empty: none"""


class Links(Wire, kw_only=True, frozen=True):
    self_: str = msgspec.field(name="self")
    events: str
    logs: str
    explain: str
    proxy: str
    trace: str
    """a page: the waterfall"""
    service: str | None = None
    """the address in the cluster of the Service behind which its first rank stands: NAME.WORKSPACE.svc:PORT"""
    outside_logs: str | None = None
    """where the cluster keeps its logs beside Slipway, if its operators have said so (SLIPWAY_LOGS_URL_TEMPLATE)"""
    outside: list[OutsideLink] = []
    """other places that have more about it, in the order of the setting (SLIPWAY_OUTSIDE_LINKS)"""


class AllocationView(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):  # not a Wire: an answer shows its defaults
    """One allocation as the API answers it; `spec` and `status` are those of the custom resource."""

    id: str
    name: str
    workspace: str
    kind: Kind
    phase: Phase
    state: str
    """one word for people: the phase, or what says more, such as the result, Held or Ready"""
    attempt: int
    queue: str
    pool: str
    job: str | None
    user: str
    gpus: float = 0.0
    """how many its ranks ask for together; a part or a slice of one counts as that part, such as 0.429"""
    priority: int
    desired: str
    hold: bool
    ready: bool
    waiting: bool
    result: Result | None
    reason: str
    message: str
    created_at: str
    started_at: str | None
    ended_at: str | None
    deleting: bool
    labels: Labels
    resource_version: str
    warnings: list[str]
    links: Links
    spec: dict[str, Any]
    status: dict[str, Any]


class ListMetadata(msgspec.Struct, kw_only=True, frozen=True, rename={"continue_": "continue"}, omit_defaults=True):
    continue_: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    remaining_item_count: int | None = msgspec.field(default=None, name="remainingItemCount")


class AllocationList(msgspec.Struct, kw_only=True, frozen=True):
    items: list[AllocationView]
    metadata: ListMetadata


class MaskedList(msgspec.Struct, kw_only=True, frozen=True):
    """A list of allocations with those fields of each that were asked for; all of them, where none were."""

    items: list[Any]
    metadata: ListMetadata


class Waiting(Wire, kw_only=True, frozen=True):
    """One pending allocation and its place in its queue."""

    id: str
    name: str
    workspace: str
    user: str
    kind: Kind
    queue: str
    priority: int
    position: int
    """1 for the first of its queue"""
    ahead: int
    """how many of its queue are before it"""
    slots_ahead: int = 0
    """whole GPUs that those before it ask for"""
    code: str = ""
    """the gate that keeps it waiting"""
    message: str = ""
    slots: int = 0
    since: str = ""
    """when this attempt began to wait"""
    job: str = ""
    jobs_ahead: int
    """how many jobs, and allocations without one, are before it"""
    place: str = ""
    """the number that orders it among those of its priority; lower goes first"""


class WaitingList(msgspec.Struct, kw_only=True, frozen=True):
    """A part of those that wait in a queue and that the caller may see, in their order."""

    items: list[Waiting]
    first: int
    """where the part begins among all that match: 1 at the beginning"""
    count: int
    """how many match in all"""
    metadata: ListMetadata


class Change(Wire, kw_only=True, frozen=True):
    """One thing that would let it start."""

    kind: str
    detail: str
    until: str = ""


class Deadline(Wire, kw_only=True, frozen=True):
    """What will end it by itself: `pending`, `idle`, `maxRuntime` or `preemption`; `at` is absent when nobody knows."""

    name: str
    at: str = ""
    detail: str


class LikelyStart(Wire, kw_only=True, frozen=True):
    """Likely bounds of a start, by how long work of its pool ran and what arrived there. `latest` is absent where it
    may be later than is foreseen (30 days)."""

    earliest: str
    latest: str = ""


class StartView(Wire, kw_only=True, frozen=True):
    """Bounds of a start. `latest` holds when everything uses up its run limit and nothing new comes; absent: nobody
    knows. `likely` is narrower, also without run limits, and not certain; without it `likelyUnknown` says why."""

    earliest: str = ""
    latest: str = ""
    likely: LikelyStart | None = None
    likely_unknown: str = ""


class ForeseenView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What the planner says of it now, asked afresh. `reasons` are nodes by what refuses them; `change` is the smallest
    change that would let it start, as data, and `helps` the same in words. Without a `code` it starts at once."""

    code: str
    message: str
    reasons: dict[str, int]
    ahead_slots: int
    change: list[dict[str, Any]]
    helps: list[str]
    estimated_start: StartView


class Holder(Wire, kw_only=True, frozen=True):
    """An admitted allocation that has what another waits for; `since` is when it was admitted."""

    id: str
    user: str
    slots: int
    since: str


class ExplainView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Why it stands where it stands. While it waits: the first gate that keeps it (`code`), its place, and what would
    help (`change`). `deadlines` are what will end it by themselves, the next one first. `foreseen` is there when it was
    asked for, and could be told. `holders` are the largest that have what it waits for, among those that the caller may
    see; `othersHolding` counts the rest."""

    id: str
    phase: Phase
    code: str
    message: str
    position: int
    ahead: int
    change: list[Change]
    jobs_ahead: list[str]
    queue: str
    pool: str
    since: str
    attempt: int
    result: Result | None
    reason: str
    ranks: list[dict[str, Any]]
    conditions: list[dict[str, Any]]
    deadlines: list[Deadline] = []
    foreseen: ForeseenView | None = None
    fair_share: str = ""
    """whose work goes first by what users have used; empty where that does not count"""
    holders: list[Holder] = []
    others_holding: int = 0


class Span(Wire, kw_only=True, frozen=True):
    """One stretch of the life of an allocation; open when `to` is absent."""

    phase: Phase
    attempt: int
    from_: str = msgspec.field(name="from")
    to: str | None = None
    seconds: float
    reason: str = ""


class TimelineView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    id: str
    spans: list[Span]
    seconds_by_phase: dict[str, float]
    total_seconds: float


class PodView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One pod of an allocation."""

    name: str
    uid: str
    rank: int
    role: str
    attempt: int
    node: str
    phase: str
    state: RankState | None
    ip: str
    reason: str
    message: str
    exit_code: int | None
    ready: bool
    started_at: str | None
    deleting: bool


class PreemptionView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """`preempt` is true when the ranks are to acknowledge `n`, save their work and end with exit code 0.

    Whoever asks: a user, or the system, for the sake of others or because the time is up. `deadline` is when what has
    not ended is killed (empty until it is set, a moment later); with `requeue` the next attempt follows.
    """

    preempt: bool
    n: int
    reason: str
    at: str
    deadline: str
    requeue: bool
    attempt: int
    acks: dict[str, int]
    by: str = ""
    """who needs the room, if others do: workspace/name"""


class StartOrderView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """`start` is true once all roles that the rank's role depends on are so far; else `message` says which are not."""

    attempt: int
    start: bool
    """the rank may start"""
    message: str = ""
    """for which roles it waits"""


class Address(msgspec.Struct, kw_only=True, frozen=True):
    rank: int
    role: str
    host: str


class RendezvousView(msgspec.Struct, kw_only=True, frozen=True):
    """Where the ranks of the current attempt are, by rank; `ready` when all of them have an address.

    Until then `missing` names those that have none, and `message` says what is known of them.
    """

    attempt: int
    size: int
    ready: bool
    addresses: list[Address]
    missing: list[int]
    message: str


class GatherBody(Request, kw_only=True, frozen=True):
    """One peer of an all-gather. The same `requestId` again takes the place of the request before it."""

    request_id: Annotated[str, Meta(pattern="^[!-~]{1,128}$", description="1 to 128 printable characters")]
    num_peers: Annotated[int, Meta(ge=1, le=PEERS_MAX, description="how many must come; all say the same")]
    data: Any = None
    """any JSON, at most 64 KiB; all peers together at most 1 MiB"""
    group: Annotated[str, Meta(pattern="^[A-Za-z0-9._:/#-]{1,64}$", description="name of the all-gather")] = "default"
    rank: Annotated[int, Meta(ge=0, le=RANKS_MAX - 1)] | None = None
    """where it stands in the answer; default: the rank whose token calls, else after those that say one"""
    attempt: Annotated[int, Meta(ge=1)] | None = None
    timeout_seconds: Annotated[float, Meta(ge=0, le=600)] = 300.0


class GatherView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What all brought, by rank, then by request id. `position` is the caller's; null when it came too late."""

    position: int | None
    request_ids: list[str]
    ranks: list[int | None]
    num_peers: int
    group: str
    attempt: int
    data: list[Any]


class LogLineView(Wire, kw_only=True, frozen=True):
    cursor: str = ""
    attempt: int
    rank: int
    stream: str
    time: str
    text: str
    container: str = ""
    number: int = 0
    missing: int = 0


class TraceSpan(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    service: str
    start_ns: int
    end_ns: int
    ok: bool
    attributes: dict[str, str]
    kind: str
    """internal, server, client, producer or consumer"""
    links: list[str]
    """traceparents of what it follows from, beside its parent"""


class TraceView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The spans of one allocation, ascending by start."""

    id: str
    trace_id: str
    spans: list[TraceSpan]
    warnings: list[str]


class Items(msgspec.Struct, Generic[T], kw_only=True, frozen=True, omit_defaults=True):
    """A list that has no pages. `warnings` say what of it may not be as it is now."""

    items: list[T]
    warnings: list[str] = []


class Me(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    user: str
    auth: str
    workspaces: list[str]
    roles: dict[str, str] = {}
    """{workspace or `*`: viewer, editor or admin}, of a token"""
    expires_at: str = ""
    """until when the credential counts, where that is known"""


class ContextView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """An uploaded archive; `id` is what a launch names as its `context`."""

    id: str
    workspace: str
    bytes: int
    files: int
    unpacked_bytes: int


class FlavorUse(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What a queue owns and uses of one flavor of its pool, in GPUs."""

    name: str
    """of the flavor"""
    nominal: float | None
    """the GPUs of it that the queue owns; null: the queue says nothing of it"""
    gpus_in_use: float
    """the GPUs of it that its admitted work has"""


class EvictionLimitView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A limit on how often the work of a queue is evicted for other work, and what is left of it."""

    of: str
    """the queue that states it; empty: its pool does"""
    count: int
    """evictions in each `per`, over time"""
    per: str
    """the period, such as 10m or 1h"""
    burst: int
    """the most at once"""
    left: int
    """evictions that may be made now"""
    next_at: str
    """when one more may be made; empty while none is used up"""


class WindowView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A window of a pool: its occurrence that stands or comes next, for whom it is, and which nodes it reserves."""

    name: str
    """of the window"""
    queues: list[str]
    """whose work may use the nodes; empty: maintenance, no work may"""
    start: str
    """of the occurrence that stands, or of the next; empty when there is none any more"""
    end: str
    """of the same occurrence"""
    is_begun: bool
    """it stands now"""
    every: str
    """Daily or Weekly; empty: once"""
    time_zone: str
    """where the time of day of its start repeats"""
    nodes: int | None
    """so many of the nodes that match; null: all of them, or as many as have `gpus`"""
    gpus: int | None
    """as many nodes as have so many GPUs together; null: see `nodes`"""
    matching: int
    """nodes of the pool that it may be about"""
    lead_time_s: float
    """for so long before its start no work without a run limit starts on the nodes"""
    on_start: str
    """Wait or Evict"""
    notes: list[str]
    """what is wrong or doubtful about it"""


class UserPast(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What a user has used of GPUs in a queue, as far as it has not faded."""

    user: str
    gpu_hours: float
    """GPU-hours that still count"""


class QueuePast(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What a queue and all below it have used of GPUs, as far as it has not faded."""

    name: str
    weight: int
    """as the queue has it"""
    gpu_hours: float
    """GPU-hours that still count"""
    used_percent: float
    """of what it and its siblings have used"""
    weight_percent: float
    """its part of their weights: a queue that has used a larger part stands behind"""


class FairShareView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How past use counts in a queue. Users are the queue's own, and those that the caller may see."""

    half_life: str
    """after so long half of a use is left"""
    history_weight: float
    """how much past use shifts what queues deserve; 0: it only orders"""
    user_order: str
    """Submission, or LeastUsed: among work of one priority, that of the user who has used less goes first"""
    queues: list[QueuePast]
    """the queue and its siblings, who has used least by weight first"""
    users: list[UserPast]
    """who has used most first"""


class QueueView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One queue; `waiting`, `flavors`, `windows` and what holds by the queues above it are only filled in when one
    queue is asked for."""

    name: str
    pool: str
    pending: int
    live: int
    slots_in_use: int
    spec: dict[str, Any]
    flavors: list[FlavorUse]
    """of its pool, in the order of the pool"""
    min_runtime: str
    """how long its work runs before it makes room for others, by its own word or that of a queue above it; empty: it
    makes room at any time"""
    eviction_limits: list[EvictionLimitView]
    """of the queue, of those above it, and of its pool"""
    windows: list[WindowView]
    """of its pool: those that still occur, or that cannot be understood"""
    waiting: list[Waiting]
    fair_share: FairShareView | None = None
    """what it, its siblings and its users have used; null where the pool does not count that"""


class PoolView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One pool: its nodes, what they offer, and what is admitted."""

    name: str
    nodes: int
    allocatable: dict[str, str]
    gpus: float = 0.0
    """what GPUs its nodes offer together; a slice of one counts as that part, such as 0.429"""
    pending: int
    live: int
    epoch: int
    tick: int
    open_decisions: int
    windows: list[WindowView]
    """times in which nodes of the pool are reserved: those that still occur, or that cannot be understood; the next one
    first"""
    spec: dict[str, Any]


class Held(msgspec.Struct, kw_only=True, frozen=True):
    """A rank on a node."""

    id: str
    rank: int
    phase: Phase
    user: str
    queue: str
    gpus: int
    """whole devices that the rank asks for"""


class NodeView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One node and what is placed on it."""

    name: str
    pool: str
    """the first by name of the pools that it is in; empty: it is in none"""
    ready: bool
    schedulable: bool
    """it is not cordoned, draining or disabled"""
    scheduling: str
    """enabled, draining, disabled or cordoned"""
    labels: dict[str, str]
    taints: list[dict[str, Any]]
    allocatable: dict[str, str]
    used: dict[str, str]
    """what the ranks here ask for"""
    gpu_type: str
    """what its labels say of its devices"""
    gpus: int
    """whole devices that it offers"""
    gpus_used: int
    """of these, how many are asked for"""
    ranks: list[Held]


class ReplayAllBody(Request, kw_only=True, frozen=True):
    source: Annotated[str, Meta(pattern="^(|work|webhook)$", description="work or webhook; empty: all")] = ""


class ReplayedView(msgspec.Struct, kw_only=True, frozen=True):
    """How many letters were sent again; `reasons` says why some were not."""

    replayed: int
    refused: int
    reasons: list[str]


class LetterView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One dead letter."""

    id: str
    source: str
    entry_id: str
    cause: str
    deliveries: int
    fields: dict[str, str]


class TemplateView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    name: str
    workspace: str
    resource_version: str
    created_at: str
    body: dict[str, Any]
