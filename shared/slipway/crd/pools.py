"""Resource pools and queues in their wire format: the shared resources, and the rules by which they are shared."""

from typing import Annotated, Any

from msgspec import Meta

from slipway.crd.images import IMAGE_PATTERNS_MAX, ImagePattern
from slipway.crd.meta import GROUP_VERSION, Condition, ObjectMeta
from slipway.crd.wire import FLAVORS_MAX, RANKS_MAX, Duration, Name, Quantities, RunAs, TolerationSpec, Wire
from slipway.model.lifecycle import Kind

EXTENDER_URL_PATTERN = r"^https?://[^\t\n\f\r /?#@]+(/[^\t\n\f\r ?#@]*)?$"
r"""The kinds of white space are listed one by one, because `\s` is ASCII in the API server and Unicode here: one
no-break space would make the list of all pools unreadable."""
EVICTION_PERIOD_PATTERN = r"^([1-9][0-9]{0,3}[smh]|[1-9][0-9]{0,2}d)$"
"""The pattern excludes 0, so that the API server itself refuses it."""
BEST_EFFORT_ATOMIC = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
"""The provisioning class of the Cluster Autoscaler that adds all nodes of a request or none."""
PROVISIONING_CLASS_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
HALF_LIFE_PATTERN = r"^([1-9][0-9]?h|[1-6][0-9]{2}h|7[01][0-9]h|720h|[1-9]d|[12][0-9]d|30d)$"
"""The half-life has bounds, because usage is stored by the day and the days of ten half-lives are read."""
SHM_SIZE_PATTERN = r"^(|(100|[1-9][0-9]?)%|0|[1-9][0-9]{0,5}(Mi|Gi|Ti))$"
WINDOW_TIME_PATTERN = (
    r"^(19[7-9][0-9]|2[0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
TIME_ZONE_PATTERN = r"^(|[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2})$"
WINDOWS_MAX = 32
ID_RANGES_MAX = 64
ALLOWED_MAX = 64
ShortText = Annotated[str, Meta(min_length=1, max_length=253)]
PRIVILEGE_PATTERN = r"^(root|hostIPC|hostNetwork|[A-Z][A-Z0-9_]{3,62})$"
"""A capability has at least four letters, so that the pattern excludes `ALL`."""
WindowTime = Annotated[str, Meta(max_length=25, pattern=WINDOW_TIME_PATTERN)]
Privilege = Annotated[str, Meta(max_length=63, pattern=PRIVILEGE_PATTERN)]
IdRange = Annotated[str, Meta(max_length=21, pattern=r"^(0|[1-9][0-9]{0,9})(-(0|[1-9][0-9]{0,9}))?$")]
ExtenderVerb = Annotated[str, Meta(max_length=256, pattern=r"^[A-Za-z0-9._~/-]*$")]


class KindDefaults(Wire, kw_only=True, frozen=True):
    """What a pool gives a kind that does not say."""

    image: str = ""
    """container image"""
    command: list[str] = []
    """replaces the command of the kind"""
    args: list[str] = []
    """of the command"""
    resources: dict[str, Any] = {}
    """what a rank asks for"""
    env: dict[str, str] = {}
    """environment, under the user's"""
    port: int | None = None
    """what the proxy shows"""


class ManagedResource(Wire, kw_only=True, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=316)]
    """such as example.com/fpga"""
    ignored_by_scheduler: bool = False
    """only the extender counts it"""


class ExtenderTlsConfig(Wire, kw_only=True, frozen=True):
    """Of an https extender. Files are paths in the containers of the scheduler and the pod worker."""

    insecure: bool = False
    """do not check its certificate; for tests"""
    server_name: Annotated[str, Meta(max_length=253)] = ""
    """the name that its certificate must have; the host of urlPrefix when empty"""
    ca_data: Annotated[str, Meta(max_length=131072)] = ""
    """base64 of PEM: who signs its certificate; those whom the system trusts when empty"""
    ca_file: str = ""
    """the same as a file"""
    cert_file: str = ""
    """our own certificate"""
    key_file: str = ""
    """and its key"""


class ExtenderSpec(Wire, kw_only=True, frozen=True):
    """A service with a say in placement, as kube-scheduler's configuration has it. An empty verb is not asked."""

    url_prefix: Annotated[str, Meta(max_length=1024, pattern=EXTENDER_URL_PATTERN)]
    """http or https; the verbs are appended"""
    filter_verb: ExtenderVerb = ""
    """which nodes may be used"""
    prioritize_verb: ExtenderVerb = ""
    """which are better, 0 to 10"""
    preempt_verb: ExtenderVerb = ""
    """who may go from which node to make room for a single rank"""
    bind_verb: ExtenderVerb = ""
    """it binds the pods; of one extender at most"""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """of its scores; 10 counts as 100"""
    http_timeout: Duration = "5s"
    """of one call"""
    node_cache_capable: bool = False
    """it knows the nodes: names are sent instead"""
    managed_resources: list[ManagedResource] = []
    """it is asked about what asks for one of these; about everything when empty"""
    ignorable: bool = False
    """work goes on without it while it fails"""
    tls_config: ExtenderTlsConfig = ExtenderTlsConfig()


class PolicySpec(Wire, kw_only=True, frozen=True):
    """Another policy for a pool: what it does not name is as the pool has it."""

    scores: dict[str, int] | None = None
    """weights of the scores, by name"""
    args: dict[str, dict[str, Any]] | None = None
    """what some scores take, by name of the score"""
    sampling: bool | None = None
    """whether only some of the nodes that would do are compared, in large pools"""
    topology: list[str] | None = None
    """node labels from the largest domain to the smallest"""
    aging: Duration | None = None
    """what has waited so long goes before all younger work of its queue; 0s: never"""
    backfill: bool | None = None
    """whether smaller work may pass a blocked head"""


class FlavorSpec(Wire, kw_only=True, frozen=True):
    """A named kind of nodes, such as a type of GPUs. A node that has the labels of several is of the first."""

    name: Name
    """how queues and launches call it"""
    node_labels: Annotated[dict[str, str], Meta(min_length=1)]
    """all of these labels make a node one of this flavor"""


class EvictionRate(Wire, kw_only=True, frozen=True):
    """How often work may be evicted for other work: a bucket of `burst` that gets `count` more in each `per`."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    """evictions in each `per`, over time"""
    per: Annotated[str, Meta(pattern=EVICTION_PERIOD_PATTERN)]
    """one number and its unit, such as 30s, 10m, 1h or 7d"""
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """the most at once; `count` when absent"""


class AutoscalingSpec(Wire, kw_only=True, frozen=True):
    """How an autoscaler is asked for nodes when work of the pool has no room."""

    mode: Annotated[str, Meta(pattern="^(ProvisioningRequest|PlaceholderPods)$")] = "ProvisioningRequest"
    """ProvisioningRequest: an object of that kind, for the Cluster Autoscaler; PlaceholderPods: pods of low priority of
    the shape of the ranks, for Karpenter and every autoscaler that looks at pods"""
    class_name: Annotated[str, Meta(max_length=253, pattern=PROVISIONING_CLASS_PATTERN)] = BEST_EFFORT_ATOMIC
    """the provisioning class of ProvisioningRequests"""
    parameters: Annotated[dict[str, Annotated[str, Meta(max_length=255)]], Meta(max_length=100)] = {}
    """what the provisioning class is given"""
    max_gangs: Annotated[int, Meta(ge=1, le=1000)] = 4
    """the most allocations for which nodes are asked at once"""
    max_ranks: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """the most ranks for which nodes are asked at once, over all these allocations"""
    after: Duration = "30s"
    """how long an allocation has had no room before nodes are asked for it"""
    timeout: Duration = "15m"
    """how long the autoscaler may take; then the try has failed"""
    backoff: Duration = "5m"
    """between a try that failed and the next; twice as long after each further one"""
    tries: Annotated[int, Meta(ge=1, le=100)] = 3
    """how often nodes are asked for one attempt of an allocation"""


class WindowRepeat(Wire, kw_only=True, frozen=True):
    every: Annotated[str, Meta(pattern="^(Daily|Weekly)$")]
    """Daily or Weekly, at the time of day that the clocks of timeZone show at the first start"""
    until: WindowTime | None = None
    """no occurrence begins after it; for ever when absent"""


class WindowSpec(Wire, kw_only=True, frozen=True):
    """A time in which nodes are reserved: for the work of some queues, or for maintenance. Other work starts on them
    only if its run limit ends it before."""

    name: Name
    """how explanations call it"""
    start: WindowTime
    """of the first occurrence, such as 2026-12-05T22:00:00+01:00"""
    duration: Duration
    """of each occurrence: at most 23h where it repeats daily, 167h where weekly, else 366 days"""
    repeat: WindowRepeat | None = None
    """once when absent"""
    time_zone: Annotated[str, Meta(max_length=64, pattern=TIME_ZONE_PATTERN)] = ""
    """IANA name, such as Europe/Berlin: a repeat keeps its time of day there when clocks change; UTC when empty"""
    queues: Annotated[list[Name], Meta(max_length=64)] = []
    """queues whose work, and that of the queues below them, may use the nodes; state either these or maintenance"""
    maintenance: bool = False
    """no work may use the nodes"""
    node_names: Annotated[list[ShortText], Meta(max_length=256)] = []
    """the nodes"""
    node_selector: dict[str, str] = {}
    """labels of the nodes; all nodes of the pool when this and nodeNames are empty"""
    nodes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """so many of the nodes that nodeSelector matches, those that are free at the start first; all when absent"""
    gpus: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """instead of nodes: as many nodes as have so many GPUs together"""
    lead_time: Duration | None = None
    """for so long before each occurrence no work without a run limit starts on the nodes; 24h when absent"""
    on_start: Annotated[str, Meta(pattern="^(Wait|Evict)$")] = "Wait"
    """Evict: preemptible work of others that is on the nodes when an occurrence begins is evicted; Wait: it runs on"""


class FairShare(Wire, kw_only=True, frozen=True):
    """How past GPU time counts: it fades with time. What a queue owns (`nominal`) is not touched by it."""

    half_life: Annotated[str, Meta(pattern=HALF_LIFE_PATTERN)]
    """after so long half of a use is left: from 1h to 720h, or from 1d to 30d"""
    history_weight: Annotated[float, Meta(ge=0, le=4)] = 1.0
    """how much past usage shifts what queues deserve beyond `nominal`; 0: it only orders queues and users"""


class ResourcePoolSpec(Wire, kw_only=True, frozen=True):
    node_selector: dict[str, str] = {}
    """labels of the nodes that belong to it; all nodes when empty"""
    tolerations: list[TolerationSpec] = []
    """taints that all its pods tolerate"""
    scores: dict[str, int] = {}
    """weights of the scores, by name"""
    args: dict[str, dict[str, Any]] = {}
    """what some scores take, by name of the score; what is wrong is left out, and said in the scheduler's log"""
    sampling: bool = False
    """in pools of a hundred nodes and more, compare only some of the nodes that would do"""
    topology: list[str] = []
    """node labels from the largest domain to the smallest"""
    binding: Annotated[str, Meta(pattern="^(direct|delegate)$")] = "direct"
    """direct: the pod worker binds; delegate: kube-scheduler does, on the node that was decided"""
    scheduler_name: Annotated[str, Meta(max_length=253)] = ""
    """delegate: the scheduler that binds; default-scheduler when empty"""
    aging: Duration = "24h"
    """what has waited so long goes before all younger work of its queue, whatever the priorities; 0s: never"""
    backfill: bool = True
    """smaller work may pass a blocked head if it ends before the head could start (not acted on yet)"""
    defaults: dict[Kind, KindDefaults] = {}
    """what a kind runs when nobody says"""
    max_slots_per_pod: int | None = None
    """the most GPUs of one rank"""
    limits_max: Duration | None = None
    """the longest maxRuntime, idleTimeout and pendingTimeout to which a launch may be changed afterwards; any when
    absent"""
    termination_grace_max: Duration | None = None
    """the longest terminationGracePeriodSeconds of a pod template; a day when absent"""
    preemption_margin: Duration | None = None
    """how long places are held for work that preempts beyond the grace of its victims; 5m when absent"""
    eviction_limit: EvictionRate | None = None
    """how often work of the pool is evicted for other work, whatever its queue; any number of times when absent"""
    fair_share: FairShare | None = None
    """how past usage counts in the order of queues and users, and in what queues deserve; it does not when absent"""
    workspaces: list[Name] = []
    """the workspaces that may use it; all when empty"""
    privileged_templates: bool = False
    """allow pod templates beyond Pod Security "restricted" """
    allowed_privileges: Annotated[list[Privilege], Meta(max_length=ALLOWED_MAX)] = []
    """what pod templates may have beyond Pod Security "restricted": root, hostIPC, hostNetwork, or capabilities such as
    IPC_LOCK; nothing when empty. admissionPolicies.privileges of the chart has to list it too, and the Pod Security
    label of the workspace has to allow it"""
    template_annotations: Annotated[list[Annotated[str, Meta(max_length=317)]], Meta(max_length=64)] = []
    """annotations that pod templates may set beyond the harmless ones: names, or PREFIX/* for all of a prefix"""
    allowed_images: Annotated[list[ImagePattern], Meta(max_length=IMAGE_PATTERNS_MAX)] = []
    """images that pods may run, as patterns such as python, r.example/team, r.example/*/train:v2.* or r.example:5000/;
    every image when empty"""
    allowed_csi_drivers: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """CSI drivers of inline volumes; every one when absent, none when empty. Volume claims are not meant"""
    allowed_runtime_classes: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """runtime classes that a pod template may name; every one when absent, none when empty"""
    allowed_token_audiences: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """audiences of service account tokens that a volume may project; every one that admissionPolicies.tokenAudiences of
    the chart lists when absent, none when empty. Slipway's own token is not meant"""
    allowed_tolerations: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """keys of taints that pod templates and roles may tolerate beside those of the pool: names, PREFIX*, or * for
    tolerations of everything; every one when absent, none when empty"""
    run_as: RunAs = RunAs()
    """as whom pods run where neither the launch nor its workspace says: user 1000 and fsGroup 1000 when absent"""
    allowed_users: Annotated[list[IdRange], Meta(max_length=ID_RANGES_MAX)] = []
    """uids that pods may run as: numbers, or ranges such as 1000-1999; every uid when empty. Root takes
    allowedPrivileges or privilegedTemplates too"""
    allowed_groups: Annotated[list[IdRange], Meta(max_length=ID_RANGES_MAX)] = []
    """groups that pods may run with, the group of volumes included: numbers, or ranges; every group when empty. A pod
    has to name its primary group then"""
    shm_size: Annotated[str, Meta(max_length=64, pattern=SHM_SIZE_PATTERN)] = ""
    """size of /dev/shm where a launch does not say: a share of the memory limit such as 25%, a size such as 8Gi, or 0
    for the 64 MB of the container runtime; 50% when empty. A rank without a memory limit gets a share of nothing"""
    flavors: Annotated[list[FlavorSpec], Meta(max_length=FLAVORS_MAX)] = []
    """kinds of nodes of which queues have limits, and of which launches accept some; in the order in which they are
    tried"""
    windows: Annotated[list[WindowSpec], Meta(max_length=WINDOWS_MAX)] = []
    """times in which nodes are reserved for some queues, or for maintenance"""
    extenders: list[ExtenderSpec] = []
    """services that have a say in placement, asked in this order"""
    autoscaling: AutoscalingSpec | None = None
    """how an autoscaler is asked for nodes; nothing is asked when absent. Work without GPUs is packed onto few nodes
    then, unless the pool names scores"""
    shadow: PolicySpec | None = None
    """a second policy that is tried on what is seen, and touches nothing: its decisions are compared and reported"""


class WireDecision(Wire, kw_only=True, frozen=True):
    id: str
    epoch: int
    """when it was decided"""
    allocation: str
    """namespace/name"""
    uid: str = ""
    """of the allocation"""
    attempt: int = 1
    kind: str = "admit"
    """admit, evict or nominate"""
    grows: bool = False
    """of `admit`: it adds ranks to an attempt that runs; a release that does not know this drops it unapplied"""
    placements: list[int] = []
    """indexes into nodes, one per rank"""
    devices: dict[str, list[int]] = {}
    """devices by rank"""
    ranks: Annotated[list[int], Meta(max_length=RANKS_MAX)] = []
    """of an eviction: the surplus ranks that go; all of it when empty"""
    victims: Annotated[list[str], Meta(max_length=RANKS_MAX)] = []
    """of a nomination: the uids of those whose places it takes"""
    spec_hash: str = ""
    reason: str = ""
    """why"""
    by: str = ""
    """who gets the room"""
    at: str = ""
    """when"""


class WireEvictionLevel(Wire, kw_only=True, frozen=True):
    queue: str = ""
    """of whose limit; empty for that of the pool"""
    used: int
    """parts of an eviction below a full bucket, `perMs` to one"""
    per_ms: int
    """the period of the limit then, in milliseconds"""
    at_ms: int
    """when, in epoch milliseconds"""


class ResourcePoolStatus(Wire, kw_only=True, frozen=True):
    """The scheduler's ledger."""

    epoch: int = 0
    """rises with each leader: the fence"""
    tick: int = 0
    """counts the writes"""
    nodes: list[str] = []
    """the names that decisions point to"""
    decisions: list[WireDecision] = []
    """what is decided and not yet seen on the allocation"""
    through: int = 0
    """a resourceVersion of the allocations: what has left `decisions` shows in them from there on"""
    evicted: list[WireEvictionLevel] = []
    """how much of each eviction limit is used up"""
    conditions: list[Condition] = []


class ResourcePool(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "ResourcePool"
    metadata: ObjectMeta
    spec: ResourcePoolSpec = ResourcePoolSpec()
    status: ResourcePoolStatus = ResourcePoolStatus()


class QueuePreemption(Wire, kw_only=True, frozen=True):
    within_queue: Annotated[str, Meta(pattern="^(Never|LowerPriority|LowerOrNewerEqual)$")] = "Never"
    """whom of its own queue it may evict to start work"""
    reclaim: Annotated[str, Meta(pattern="^(Never|LowerPriority|Any)$")] = "Never"
    """whom of other queues it may evict to get what it deserves"""


class Budget(Wire, kw_only=True, frozen=True):
    gpu_hours: Annotated[float, Meta(gt=0)]
    """once so many are used in a window, nothing with GPUs starts before the next"""
    window: Duration
    """windows follow one another from 1970-01-01T00:00:00Z; whole days, to which anything else is rounded up"""


class QueueFlavor(Wire, kw_only=True, frozen=True):
    """Limits of a queue that are about one flavor of its pool. Only GPUs are counted by flavor."""

    name: Name
    """of the flavor"""
    nominal: Quantities | None = None
    """the GPUs of it that the queue owns"""
    borrowing_limit: Quantities | None = None
    """the most it may use beyond that"""
    lending_limit: Quantities | None = None
    """the most of its own that others may borrow"""
    limit: Quantities | None = None
    """the most it may ever use"""


class FlavorFungibility(Wire, kw_only=True, frozen=True):
    when_can_borrow: Annotated[str, Meta(pattern="^(Borrow|TryNextFlavor)$")] = "Borrow"
    """TryNextFlavor: flavors in which it would have to borrow are tried after all others"""
    when_can_preempt: Annotated[str, Meta(pattern="^(Preempt|TryNextFlavor)$")] = "TryNextFlavor"
    """Preempt: room is made in a flavor before the next is tried"""


class QueueSpec(Wire, kw_only=True, frozen=True):
    pool: Name = "default"
    """the ResourcePool that it shares"""
    parent: Name | None = None
    """the queue above it"""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """its part of what is shared"""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """higher goes first between queues"""
    nominal: Quantities | None = None
    """what it owns"""
    borrowing_limit: Quantities | None = None
    """the most it may use beyond that"""
    lending_limit: Quantities | None = None
    """the most of its own that others may borrow"""
    limit: Quantities | None = None
    """the most it may ever use"""
    flavors: Annotated[list[QueueFlavor], Meta(max_length=FLAVORS_MAX)] = []
    """limits per flavor, beside those above; launches that name no flavor try these, in this order"""
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    """when the next flavor is tried"""
    ordering: Annotated[str, Meta(pattern="^(StrictFIFO|BestEffortFIFO|Backfill)$")] = "BestEffortFIFO"
    """StrictFIFO: the head blocks; BestEffortFIFO: what fits goes; Backfill: for now as BestEffortFIFO"""
    user_order: Annotated[str, Meta(pattern="^(Submission|LeastUsed)$")] = "Submission"
    """LeastUsed: among work of one priority, that of the user who has used less GPU time in the queue goes first; takes
    fairShare of the pool"""
    preemption: QueuePreemption = QueuePreemption()
    max_runtime: Duration | None = None
    """an allocation that asks for more, or for no limit, gets this one"""
    min_runtime: Duration | None = None
    """its work makes no room for others before it has run so long; absent: as the queue above; 0s: at any time"""
    eviction_limit: EvictionRate | None = None
    """how often work of the queue and of all below it is evicted for other work; any number of times when absent"""
    budgets: Annotated[list[Budget], Meta(max_length=8)] = []
    """GPU hours over time, of the queue and all below it"""


class QueueStatus(Wire, kw_only=True, frozen=True):
    conditions: list[Condition] = []


class Queue(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Queue"
    metadata: ObjectMeta
    spec: QueueSpec = QueueSpec()
    status: QueueStatus | None = None
