"""The bodies of the REST API: requests of clients, and the answers to them.

Wire structs. Request bodies refuse unknown fields; the error names them (`http/decoding.py`). A launch body is the spec
of the custom resource plus a few fields, so that one struct is the source of both.
"""

from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from slipway.crd.bounds import ENV_MAX, LABELS_MAX, RANKS_MAX
from slipway.crd.meta import RunAs
from slipway.crd.pools import ALLOWED_MAX, Privilege
from slipway.crd.v1alpha1 import AFTER_MAX, SETUP_MAX, AllocationSpec, Dependency, EnvName, Name, Wire
from slipway.model.lifecycle import Kind, Phase, RankState
from slipway.model.reasons import Result
from slipway.streams.allgather import PEERS_MAX

DEFAULT_WORKSPACE = "default"
"""The workspace of a request that names none."""
Labels = dict[str, str]
VOLUMES_MAX = 32
"""The most volume claims that a launch mounts by the short form `volumes`."""
Words = Annotated[list[str], Meta(max_length=1024)]
T = TypeVar("T")


class LaunchDependency(Dependency, kw_only=True, frozen=True):
    """Another allocation of the workspace, or a job, that must end before this allocation may start. A job means all
    allocations that it has at the time of the launch."""

    allocation: Annotated[str, Meta(max_length=63)] = ""
    """its AllocationID or its name"""
    job: Annotated[str, Meta(max_length=63)] = ""
    """name of a job, instead of an allocation"""


class LaunchBody(AllocationSpec, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A launch: only `kind` is required; pool, queue, workspace, image and command have defaults where the pool gives
    them."""

    name: Annotated[str, Meta(max_length=40, description="readable name; generated when absent")] = ""
    workspace: Name = DEFAULT_WORKSPACE
    labels: Annotated[Labels, Meta(max_length=LABELS_MAX)] = {}
    after: Annotated[list[LaunchDependency], Meta(max_length=AFTER_MAX)] = []  # pyright: ignore[reportIncompatibleVariableOverride] - read only
    """it does not start before these allocations have ended; it is canceled when one ends with another result than
    requested"""
    env: Annotated[dict[EnvName, str], Meta(max_length=ENV_MAX, description="environment of the main containers")] = {}
    image: Annotated[str, Meta(max_length=1024, description="image of the main container of every role")] = ""
    command: Annotated[Words, Meta(description="command of the main container, passed on unchanged")] = []
    run: Annotated[
        str,
        Meta(
            max_length=SETUP_MAX,
            description="a script as the program of the main container, instead of command: bash runs it, or sh "
            "where the image has no bash, and it stops at the first command that fails",
        ),
    ] = ""
    args: Annotated[Words, Meta(description="arguments of the main container, passed on unchanged")] = []
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
            description="environment of the main container with secret values, which are never shown again: {NAME: "
            "VALUE}; stored in a Secret of the allocation",
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
            description="place where every rank finds and stores its checkpoints, as SLIPWAY_CHECKPOINT_DIR: CLAIM "
            "for a folder of this allocation on a volume claim of the workspace, CLAIM/FOLDER for one "
            "that several share",
        ),
    ] = ""
    replicas: Annotated[int, Meta(ge=1)] | None = None
    """number of allocations to launch, named NAME-0, NAME-1 and so on, behind the Service that `service` names. Only
    POST /allocations/launches launches them; a dry run of POST /allocations shows the first one"""
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
    """default: the rank whose token the call has, else 0"""
    n: Annotated[int, Meta(ge=1)] | None = None
    attempt: Annotated[int, Meta(ge=1)] | None = None


class FlagBody(Request, kw_only=True, frozen=True):
    """With `attempt`, a late call is refused when that attempt has ended."""

    value: bool = True
    attempt: Annotated[int, Meta(ge=1)] | None = None


class ProgressBody(Request, kw_only=True, frozen=True):
    """At least one of `progress` and `checkpoint` must be set."""

    progress: Annotated[float, Meta(ge=0, le=1, description="completed part, 0 to 1")] | None = None
    checkpoint: bool = False
    """the work has just been saved; a preemption soon after loses the least work"""
    attempt: Annotated[int, Meta(ge=1)] | None = None


class ActivityBody(Request, kw_only=True, frozen=True):
    """`at` is the time of the activity (RFC 3339); default: now."""

    at: str = ""


class NodeBody(Request, kw_only=True, frozen=True):
    """An empty body: the path names the node."""


class TemplateBody(Request, kw_only=True, frozen=True):
    """A named partial launch body; a launch that names it is merged over it."""

    name: Name = ""
    workspace: Name = DEFAULT_WORKSPACE
    body: dict[str, Any]


class OutsideLink(Wire, kw_only=True, frozen=True):
    """A link to another system with more information about a workload, as the operators configured it."""

    title: str
    url: str
    icon: str = ""
    """name of an icon that portals such as Backstage know, for example `dashboard`; empty: none"""


class Links(Wire, kw_only=True, frozen=True):
    self_: str = msgspec.field(name="self")
    events: str
    logs: str
    explain: str
    proxy: str
    trace: str
    """a page that shows the trace as a waterfall"""
    service: str | None = None
    """address inside the cluster of the Service that leads to its first rank: NAME.WORKSPACE.svc:PORT"""
    outside_logs: str | None = None
    """its logs in the cluster's own log system, if the operators configured one (SLIPWAY_LOGS_URL_TEMPLATE)"""
    outside: list[OutsideLink] = []
    """links to other systems with more information about it, in the order of SLIPWAY_OUTSIDE_LINKS"""


class AllocationView(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):  # not a Wire: an answer shows its defaults
    """One allocation; `spec` and `status` are those of the custom resource."""

    id: str
    name: str
    workspace: str
    kind: Kind
    phase: Phase
    state: str
    """one word for people: the phase, or a more specific word such as the result, Held or Ready"""
    attempt: int
    queue: str
    pool: str
    job: str | None
    user: str
    gpus: float = 0.0
    """GPUs that its ranks request together; a part or a slice of a GPU is a fraction, such as 0.429"""
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
    """A list of allocations with the requested fields of each; with all fields when none were requested."""

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
    """1 for the first allocation of its queue"""
    ahead: int
    """number of allocations of its queue that are before it"""
    slots_ahead: int = 0
    """whole GPUs that the allocations before it request"""
    code: str = ""
    """code of the gate that it waits for"""
    message: str = ""
    slots: int = 0
    since: str = ""
    """when this attempt began to wait"""
    job: str = ""
    jobs_ahead: int
    """number of jobs, and of allocations without a job, before it"""
    place: str = ""
    """the number that orders it among allocations of its priority; the lowest is first"""


class WaitingList(msgspec.Struct, kw_only=True, frozen=True):
    """A part of the allocations that wait in a queue and that the caller may see, in the order of the queue."""

    items: list[Waiting]
    first: int
    """position of the first item among all matching allocations, from 1"""
    count: int
    """number of all matching allocations"""
    metadata: ListMetadata


class Change(Wire, kw_only=True, frozen=True):
    """A change that would let the allocation start."""

    kind: str
    detail: str
    until: str = ""


class Deadline(Wire, kw_only=True, frozen=True):
    """A deadline that will end the allocation: `pending`, `idle`, `maxRuntime` or `preemption`. `at` is absent when the
    time is unknown."""

    name: str
    at: str = ""
    detail: str


class LikelyStart(Wire, kw_only=True, frozen=True):
    """Likely bounds of a start, estimated from the run times and the arrivals of work in its pool. `latest` is absent
    when it may be later than the forecast reaches (30 days)."""

    earliest: str
    latest: str = ""


class StartView(Wire, kw_only=True, frozen=True):
    """Bounds of a start. `latest` assumes that all work uses its whole run limit and no new work arrives; it is absent
    when the bound is unknown. `likely` is narrower and also exists without run limits, but it is not certain. When it
    is absent, `likelyUnknown` is the reason."""

    earliest: str = ""
    latest: str = ""
    likely: LikelyStart | None = None
    likely_unknown: str = ""


class ForeseenView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The planner's forecast at this moment. `reasons` are the numbers of nodes by the reason that excludes them.
    `change` is the smallest change that would let the allocation start, as data; `helps` is the same in words. With an
    empty `code` it starts at once."""

    code: str
    message: str
    reasons: dict[str, int]
    ahead_slots: int
    change: list[dict[str, Any]]
    helps: list[str]
    estimated_start: StartView


class Holder(Wire, kw_only=True, frozen=True):
    """An admitted allocation that occupies resources which another one waits for; `since` is when it was admitted."""

    id: str
    user: str
    slots: int
    since: str


class ExplainView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Why the allocation is in its phase. While it waits: the first gate that blocks it (`code`), its position, and the
    changes that would help (`change`). `deadlines` are those that will end it, the next one first. `foreseen` is
    present when the caller requested a forecast and there is one. `holders` are the largest allocations that occupy
    what it waits for and that the caller may see; `othersHolding` is the number of the others."""

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
    """whose allocations go first, by past usage; empty where past usage is not considered"""
    holders: list[Holder] = []
    others_holding: int = 0


class Span(Wire, kw_only=True, frozen=True):
    """One period of an allocation in one phase and attempt; it has not ended when `to` is absent."""

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
    """`preempt` is true when the ranks must acknowledge `n`, save their work and end with exit code 0.

    The request is from a user, or from the scheduler because other work needs the room or a time limit is reached. At
    `deadline` the ranks that still run are killed; it is empty until it is set, a moment later. With `requeue` the next
    attempt follows.
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
    """the allocation that needs the room, if there is one: workspace/name"""


class StartOrderView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """`start` is true once all roles that the rank's role depends on have started or are ready, as the role requires;
    else `message` names the missing roles."""

    attempt: int
    start: bool
    """whether the rank may start"""
    message: str = ""
    """the roles that it waits for"""


class Address(msgspec.Struct, kw_only=True, frozen=True):
    rank: int
    role: str
    host: str


class RendezvousView(msgspec.Struct, kw_only=True, frozen=True):
    """The addresses of the ranks of the current attempt, by rank; `ready` when all of them have an address.

    Until then `missing` lists the ranks without an address, and `message` describes their state.
    """

    attempt: int
    size: int
    ready: bool
    addresses: list[Address]
    missing: list[int]
    message: str


class GatherBody(Request, kw_only=True, frozen=True):
    """One peer of an all-gather. A request with the same `requestId` replaces the earlier one."""

    request_id: Annotated[str, Meta(pattern="^[!-~]{1,128}$", description="1 to 128 printable characters")]
    num_peers: Annotated[
        int, Meta(ge=1, le=PEERS_MAX, description="number of peers that must arrive; all peers send the same number")
    ]
    data: Any = None
    """any JSON, at most 64 KiB; all peers together at most 1 MiB"""
    group: Annotated[str, Meta(pattern="^[A-Za-z0-9._:/#-]{1,64}$", description="name of the all-gather")] = "default"
    rank: Annotated[int, Meta(ge=0, le=RANKS_MAX - 1)] | None = None
    """orders the peer in the answer; default: the rank whose token the call has, else after all peers with a rank"""
    attempt: Annotated[int, Meta(ge=1)] | None = None
    timeout_seconds: Annotated[float, Meta(ge=0, le=600)] = 300.0


class GatherView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The data of all peers, ordered by rank, then by request id. `position` is the caller's place in it; null when the
    caller was too late."""

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
    """traceparents of other spans that it follows from, in addition to its parent"""


class TraceView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The spans of one allocation, ordered by their start."""

    id: str
    trace_id: str
    spans: list[TraceSpan]
    warnings: list[str]


class Items(msgspec.Struct, Generic[T], kw_only=True, frozen=True, omit_defaults=True):
    """A list without pages. `warnings` name the parts of it that may be out of date."""

    items: list[T]
    warnings: list[str] = []


class Me(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    user: str
    auth: str
    workspaces: list[str]
    roles: dict[str, str] = {}
    """the roles of a token, {workspace or `*`: viewer, editor or admin}"""
    expires_at: str = ""
    """when the credential expires (RFC 3339); absent when that is unknown"""


class ContextView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """An uploaded archive; a launch uses its `id` as `context`."""

    id: str
    workspace: str
    bytes: int
    files: int
    unpacked_bytes: int


class FlavorUse(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The quota and the usage of a queue in one flavor of its pool, in GPUs."""

    name: str
    """name of the flavor"""
    nominal: float | None
    """the queue's nominal quota of this flavor, in GPUs; null: the queue has no quota for it"""
    gpus_in_use: float
    """GPUs of this flavor that the admitted work of the queue occupies"""


class EvictionLimitView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A limit on how often the work of a queue is evicted for other work, and the evictions that it still allows."""

    of: str
    """the queue that sets the limit; empty: its pool does"""
    count: int
    """evictions allowed in each `per`, on average"""
    per: str
    """the period, such as 10m or 1h"""
    burst: int
    """the most evictions at once"""
    left: int
    """evictions that are allowed now"""
    next_at: str
    """when one more eviction will be allowed; empty while all of `burst` are allowed"""


class WindowView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A window of a pool: its current or next occurrence, its queues, and the nodes that it reserves."""

    name: str
    """name of the window"""
    queues: list[str]
    """queues whose work may use the nodes; empty: maintenance, no work may use them"""
    start: str
    """start of the current or next occurrence; empty when there is no further one"""
    end: str
    """end of the same occurrence"""
    is_begun: bool
    """the occurrence has begun"""
    every: str
    """Daily or Weekly; empty: once"""
    time_zone: str
    """time zone in which the start repeats at the same time of day"""
    nodes: int | None
    """number of matching nodes to reserve; null: all of them, or as many as `gpus` needs"""
    gpus: int | None
    """reserve as many nodes as have this number of GPUs together; null: see `nodes`"""
    matching: int
    """number of nodes of the pool that it may reserve"""
    lead_time_s: float
    """seconds before its start in which no work without a run limit starts on the nodes"""
    on_start: str
    """Wait or Evict"""
    notes: list[str]
    """errors and doubts about the window"""


class UserPast(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The past GPU usage of a user in a queue, after decay."""

    user: str
    gpu_hours: float
    """GPU-hours after decay"""


class QueuePast(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The past GPU usage of a queue and all queues below it, after decay."""

    name: str
    weight: int
    """the weight of the queue"""
    gpu_hours: float
    """GPU-hours after decay"""
    used_percent: float
    """its part of the usage of it and its siblings"""
    weight_percent: float
    """its part of the weights of it and its siblings; a queue with a larger part of the usage goes later"""


class FairShareView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The effect of past usage in a queue. `users` are those of the queue that the caller may see."""

    half_life: str
    """time after which half of a usage has decayed"""
    history_weight: float
    """how much past usage changes the fair share of queues; 0: it only changes their order"""
    user_order: str
    """Submission, or LeastUsed: at equal priority, allocations of the user with less past usage go first"""
    queues: list[QueuePast]
    """the queue and its siblings; the one with the least usage by weight is first"""
    users: list[UserPast]
    """the user with the most usage is first"""


class QueueView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One queue. Only the answer for a single queue has `waiting`, `flavors`, `windows` and the values that depend on
    the queues above it."""

    name: str
    pool: str
    pending: int
    live: int
    slots_in_use: int
    spec: dict[str, Any]
    flavors: list[FlavorUse]
    """quota and usage by flavor, in the order of its pool"""
    min_runtime: str
    """how long its work runs before it may be evicted for other work, set by the queue or by a queue above it; empty:
    at any time"""
    eviction_limits: list[EvictionLimitView]
    """the limits of the queue, of the queues above it, and of its pool"""
    windows: list[WindowView]
    """windows of its pool: those that still occur, or that cannot be parsed"""
    waiting: list[Waiting]
    fair_share: FairShareView | None = None
    """past usage of the queue, its siblings and its users; null where the pool does not consider past usage"""


class PoolView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One pool: its nodes, their allocatable resources, and its admitted work."""

    name: str
    nodes: int
    allocatable: dict[str, str]
    gpus: float = 0.0
    """GPUs that its nodes have together; a slice of a GPU is a fraction, such as 0.429"""
    pending: int
    live: int
    epoch: int
    tick: int
    open_decisions: int
    windows: list[WindowView]
    """times in which nodes of the pool are reserved: those that still occur, or that cannot be parsed; the next one
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
    """whole devices that the rank requests"""


class NodeView(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One node and the ranks that are placed on it."""

    name: str
    pool: str
    """the pool that the node is in, the first by name; empty: it is in none"""
    ready: bool
    schedulable: bool
    """it is not cordoned, draining or disabled"""
    scheduling: str
    """enabled, draining, disabled or cordoned"""
    labels: dict[str, str]
    taints: list[dict[str, Any]]
    allocatable: dict[str, str]
    used: dict[str, str]
    """resources that the ranks on the node request"""
    gpu_type: str
    """the type of its GPUs: the flavor of the pool that it belongs to, else the type in its labels"""
    gpus: int
    """whole devices that it has"""
    gpus_used: int
    """whole devices that its ranks request"""
    ranks: list[Held]


class ReplayAllBody(Request, kw_only=True, frozen=True):
    source: Annotated[str, Meta(pattern="^(|work|webhook)$", description="work or webhook; empty: all")] = ""


class ReplayedView(msgspec.Struct, kw_only=True, frozen=True):
    """The number of dead letters that were sent again; `reasons` are the reasons for which the others were refused."""

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
