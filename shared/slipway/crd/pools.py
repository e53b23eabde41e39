"""Resource pools and queues in their wire format: the shared resources, and the rules by which they are shared."""

from typing import Annotated, Any

from msgspec import Meta

from slipway.crd.images import IMAGE_PATTERNS_MAX, ImagePattern
from slipway.crd.meta import (
    FLAVORS_MAX,
    GROUP_VERSION,
    RANKS_MAX,
    Condition,
    Duration,
    Name,
    ObjectMeta,
    Quantities,
    RunAs,
    TolerationSpec,
    Wire,
)
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
    """The defaults of a pool for one kind of workload."""

    image: str = ""
    """container image"""
    command: list[str] = []
    """replaces the command of the kind"""
    args: list[str] = []
    """arguments of the command"""
    resources: dict[str, Any] = {}
    """resources that a rank requests"""
    env: dict[str, str] = {}
    """environment variables; those of the user replace them"""
    port: int | None = None
    """the port to which the proxy connects"""


class ManagedResource(Wire, kw_only=True, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=316)]
    """name of the resource, such as example.com/fpga"""
    ignored_by_scheduler: bool = False
    """only the extender accounts for this resource, not the scheduler"""


class ExtenderTlsConfig(Wire, kw_only=True, frozen=True):
    """TLS settings for an https extender. Files are paths in the containers of the scheduler and the pod worker."""

    insecure: bool = False
    """do not verify its certificate; for tests"""
    server_name: Annotated[str, Meta(max_length=253)] = ""
    """the name that its certificate must have; the host of urlPrefix when empty"""
    ca_data: Annotated[str, Meta(max_length=131072)] = ""
    """base64 of PEM: the certificate authorities for its certificate; those of the system when empty"""
    ca_file: str = ""
    """the certificate authorities as a file"""
    cert_file: str = ""
    """file with our client certificate"""
    key_file: str = ""
    """file with the key of our client certificate"""


class ExtenderSpec(Wire, kw_only=True, frozen=True):
    """A service that takes part in placement, as in kube-scheduler's configuration. An empty verb is not called."""

    url_prefix: Annotated[str, Meta(max_length=1024, pattern=EXTENDER_URL_PATTERN)]
    """http or https URL, to which the verbs are appended"""
    filter_verb: ExtenderVerb = ""
    """verb that returns the nodes that may be used"""
    prioritize_verb: ExtenderVerb = ""
    """verb that scores nodes, 0 to 10"""
    preempt_verb: ExtenderVerb = ""
    """verb that selects the victims of a preemption for a single rank on each node"""
    bind_verb: ExtenderVerb = ""
    """verb that binds the pods; at most one extender may have it"""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """weight of its scores; a score of 10 equals 100 of Slipway's scores"""
    http_timeout: Duration = "5s"
    """timeout of one call"""
    node_cache_capable: bool = False
    """it caches the nodes: only their names are sent"""
    managed_resources: list[ManagedResource] = []
    """it is called only for pods that request one of these; for all pods when empty"""
    ignorable: bool = False
    """scheduling continues without it while it fails"""
    tls_config: ExtenderTlsConfig = ExtenderTlsConfig()


class PolicySpec(Wire, kw_only=True, frozen=True):
    """Another policy for a pool; absent fields have the values of the pool."""

    scores: dict[str, int] | None = None
    """weights of the scores, by name"""
    args: dict[str, dict[str, Any]] | None = None
    """arguments of some scores, by name of the score"""
    sampling: bool | None = None
    """whether only some of the feasible nodes are scored, in large pools"""
    topology: list[str] | None = None
    """node labels from the largest domain to the smallest"""
    aging: Duration | None = None
    """an allocation that has waited this time goes before all younger ones of its queue; 0s: never"""
    backfill: bool | None = None
    """whether smaller allocations may pass a blocked head of a queue"""


class FlavorSpec(Wire, kw_only=True, frozen=True):
    """A named kind of nodes, such as a type of GPUs. A node that has the labels of several belongs to the first of
    them."""

    name: Name
    """its name in queues and launches"""
    node_labels: Annotated[dict[str, str], Meta(min_length=1)]
    """a node with all of these labels belongs to this flavor"""


class EvictionRate(Wire, kw_only=True, frozen=True):
    """How often allocations may be evicted for other allocations: a bucket of `burst` that is refilled with `count` in
    each `per`."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    """evictions in each `per`, over time"""
    per: Annotated[str, Meta(pattern=EVICTION_PERIOD_PATTERN)]
    """one number and its unit, such as 30s, 10m, 1h or 7d"""
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """maximum number of evictions at once; `count` when absent"""


class AutoscalingSpec(Wire, kw_only=True, frozen=True):
    """How the scheduler requests nodes from an autoscaler when allocations of the pool find no capacity."""

    mode: Annotated[str, Meta(pattern="^(ProvisioningRequest|PlaceholderPods)$")] = "ProvisioningRequest"
    """ProvisioningRequest: an object of that kind, for the Cluster Autoscaler; PlaceholderPods: pods of low priority
    with the requests of the ranks, for Karpenter and every autoscaler that reacts to pods"""
    class_name: Annotated[str, Meta(max_length=253, pattern=PROVISIONING_CLASS_PATTERN)] = BEST_EFFORT_ATOMIC
    """the provisioning class of ProvisioningRequests"""
    parameters: Annotated[dict[str, Annotated[str, Meta(max_length=255)]], Meta(max_length=100)] = {}
    """parameters for the provisioning class"""
    max_gangs: Annotated[int, Meta(ge=1, le=1000)] = 4
    """the most allocations for which nodes are requested at the same time"""
    max_ranks: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """the most ranks for which nodes are requested at the same time, over all these allocations"""
    after: Duration = "30s"
    """time without capacity for an allocation before nodes are requested for it"""
    timeout: Duration = "15m"
    """maximum time of the autoscaler for a request; after it the try has failed"""
    backoff: Duration = "5m"
    """pause between a failed try and the next one; it doubles after each further failure"""
    tries: Annotated[int, Meta(ge=1, le=100)] = 3
    """how often nodes are requested for one attempt of an allocation"""


class WindowRepeat(Wire, kw_only=True, frozen=True):
    every: Annotated[str, Meta(pattern="^(Daily|Weekly)$")]
    """Daily or Weekly, at the time of day that the first start has in timeZone"""
    until: WindowTime | None = None
    """no occurrence begins after this time; unlimited when absent"""


class WindowSpec(Wire, kw_only=True, frozen=True):
    """A time in which nodes are reserved: for the allocations of some queues, or for maintenance. Other allocations
    start on these nodes only if their run limit ends them before."""

    name: Name
    """its name in explanations"""
    start: WindowTime
    """start of the first occurrence, such as 2026-12-05T22:00:00+01:00"""
    duration: Duration
    """duration of each occurrence: at most 23h with daily repeats, 167h with weekly ones, else 366 days"""
    repeat: WindowRepeat | None = None
    """how it repeats; when absent it occurs once"""
    time_zone: Annotated[str, Meta(max_length=64, pattern=TIME_ZONE_PATTERN)] = ""
    """IANA name, such as Europe/Berlin: an occurrence keeps its time of day there when clocks change; UTC when empty"""
    queues: Annotated[list[Name], Meta(max_length=64)] = []
    """queues that may use the nodes, with the queues below them; set either this or maintenance"""
    maintenance: bool = False
    """no allocation may use the nodes"""
    node_names: Annotated[list[ShortText], Meta(max_length=256)] = []
    """names of the nodes"""
    node_selector: dict[str, str] = {}
    """labels of the nodes; all nodes of the pool when this and nodeNames are empty"""
    nodes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    """number of reserved nodes of those that nodeSelector matches, nodes that are free at the start first; all when
    absent"""
    gpus: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """in place of nodes: reserve as many nodes as have this number of GPUs together"""
    lead_time: Duration | None = None
    """before each occurrence, no allocation without a run limit starts on the nodes for this time; 24h when absent"""
    on_start: Annotated[str, Meta(pattern="^(Wait|Evict)$")] = "Wait"
    """Evict: preemptible allocations of other queues on the nodes are evicted when an occurrence begins; Wait: they
    continue"""


class FairShare(Wire, kw_only=True, frozen=True):
    """How past GPU time changes the fair share; it decays with time. It does not change the quota of a queue
    (`nominal`)."""

    half_life: Annotated[str, Meta(pattern=HALF_LIFE_PATTERN)]
    """time after which half of a usage remains: from 1h to 720h, or from 1d to 30d"""
    history_weight: Annotated[float, Meta(ge=0, le=4)] = 1.0
    """weight of past usage in the fair share of queues beyond `nominal`; 0: past usage only changes the order of queues
    and users"""


class ResourcePoolSpec(Wire, kw_only=True, frozen=True):
    node_selector: dict[str, str] = {}
    """labels of the nodes of the pool; all nodes when empty"""
    tolerations: list[TolerationSpec] = []
    """taints that all its pods tolerate"""
    scores: dict[str, int] = {}
    """weights of the scores, by name"""
    args: dict[str, dict[str, Any]] = {}
    """arguments of some scores, by name of the score; invalid ones are ignored and reported in the scheduler's log"""
    sampling: bool = False
    """in pools with a hundred or more nodes, score only some of the feasible nodes"""
    topology: list[str] = []
    """node labels from the largest domain to the smallest"""
    binding: Annotated[str, Meta(pattern="^(direct|delegate)$")] = "direct"
    """direct: the pod worker binds the pods; delegate: kube-scheduler binds them to the node of the decision"""
    scheduler_name: Annotated[str, Meta(max_length=253)] = ""
    """with delegate: the scheduler that binds; default-scheduler when empty"""
    aging: Duration = "24h"
    """an allocation that has waited this time goes before all younger ones of its queue, whatever their priority; 0s:
    never"""
    backfill: bool = True
    """the blocked head of a Backfill queue gets a reservation, and allocations may pass it only if they do not delay
    its start; false: Backfill is the same as BestEffortFIFO"""
    defaults: dict[Kind, KindDefaults] = {}
    """defaults for launches, by kind"""
    max_slots_per_pod: int | None = None
    """maximum number of GPUs of one rank"""
    limits_max: Duration | None = None
    """the longest maxRuntime, idleTimeout and pendingTimeout to which a launched allocation may be changed; unlimited
    when absent"""
    termination_grace_max: Duration | None = None
    """the longest terminationGracePeriodSeconds of a pod template; a day when absent"""
    preemption_margin: Duration | None = None
    """how long places are reserved for a preempting allocation after the grace of its victims; 5m when absent"""
    eviction_limit: EvictionRate | None = None
    """how often allocations of the pool are evicted for other allocations, over all queues; unlimited when absent"""
    fair_share: FairShare | None = None
    """how past usage changes the order of queues and users, and the fair share of queues; it is ignored when absent"""
    workspaces: list[Name] = []
    """the workspaces that may use it; all when empty"""
    privileged_templates: bool = False
    """allow pod templates beyond Pod Security "restricted" """
    allowed_privileges: Annotated[list[Privilege], Meta(max_length=ALLOWED_MAX)] = []
    """privileges of pod templates beyond Pod Security "restricted": root, hostIPC, hostNetwork, or capabilities such as
    IPC_LOCK; none when empty. admissionPolicies.privileges of the chart must also list it, and the Pod Security label
    of the workspace must allow it"""
    template_annotations: Annotated[list[Annotated[str, Meta(max_length=317)]], Meta(max_length=64)] = []
    """annotations that pod templates may set in addition to the harmless ones: names, or PREFIX/* for all of a
    prefix"""
    allowed_images: Annotated[list[ImagePattern], Meta(max_length=IMAGE_PATTERNS_MAX)] = []
    """images that pods may run, as patterns such as python, r.example/team, r.example/*/train:v2.* or r.example:5000/;
    every image when empty"""
    allowed_csi_drivers: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """CSI drivers of inline volumes; all when absent, none when empty. It does not apply to volume claims"""
    allowed_runtime_classes: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """runtime classes that a pod template may name; all when absent, none when empty"""
    allowed_token_audiences: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """audiences of service account tokens that a volume may project; when absent, all that
    admissionPolicies.tokenAudiences of the chart lists; none when empty. It does not apply to Slipway's own token"""
    allowed_tolerations: Annotated[list[ShortText], Meta(max_length=ALLOWED_MAX)] | None = None
    """keys of taints that pod templates and roles may tolerate, in addition to those of the pool: names, PREFIX*, or *
    for tolerations of everything; all when absent, none when empty"""
    run_as: RunAs = RunAs()
    """user and groups of pods for which neither the launch nor the workspace sets them: user 1000 and fsGroup 1000 when
    absent"""
    allowed_users: Annotated[list[IdRange], Meta(max_length=ID_RANGES_MAX)] = []
    """uids that pods may run as: numbers, or ranges such as 1000-1999; all uids when empty. Root also requires
    allowedPrivileges or privilegedTemplates"""
    allowed_groups: Annotated[list[IdRange], Meta(max_length=ID_RANGES_MAX)] = []
    """groups that pods may run with, including the group of volumes: numbers, or ranges; all groups when empty. When it
    is set, a pod must set its primary group"""
    shm_size: Annotated[str, Meta(max_length=64, pattern=SHM_SIZE_PATTERN)] = ""
    """default size of /dev/shm for launches: a part of the memory limit such as 25%, a size such as 8Gi, or 0 for the
    64 MB of the container runtime; 50% when empty. A part has no effect for a rank without a memory limit"""
    flavors: Annotated[list[FlavorSpec], Meta(max_length=FLAVORS_MAX)] = []
    """kinds of nodes for which queues have limits and which launches may accept; in the order in which they are
    tried"""
    windows: Annotated[list[WindowSpec], Meta(max_length=WINDOWS_MAX)] = []
    """times in which nodes are reserved for some queues, or for maintenance"""
    extenders: list[ExtenderSpec] = []
    """services that take part in placement, called in this order"""
    autoscaling: AutoscalingSpec | None = None
    """how nodes are requested from an autoscaler; none are requested when absent. When it is set, allocations without
    GPUs are packed onto few nodes, unless the pool sets scores"""
    shadow: PolicySpec | None = None
    """a second policy that is computed on the same state without effect: its decisions are compared and reported"""


class WireDecision(Wire, kw_only=True, frozen=True):
    id: str
    epoch: int
    """epoch of the ledger at the decision"""
    allocation: str
    """the allocation: namespace/name"""
    uid: str = ""
    """uid of the allocation"""
    attempt: int = 1
    kind: str = "admit"
    """admit, evict or nominate"""
    grows: bool = False
    """for `admit`: it adds ranks to a running attempt; an older release that does not know this field drops the
    decision without applying it"""
    placements: list[int] = []
    """indexes into nodes, one per rank"""
    devices: dict[str, list[int]] = {}
    """devices by rank"""
    ranks: Annotated[list[int], Meta(max_length=RANKS_MAX)] = []
    """for an eviction: the surplus ranks to evict; the whole allocation when empty"""
    victims: Annotated[list[str], Meta(max_length=RANKS_MAX)] = []
    """for a nomination: the uids of the allocations whose places it will use"""
    spec_hash: str = ""
    reason: str = ""
    """the reason"""
    by: str = ""
    """the allocation that needs the capacity"""
    at: str = ""
    """time of the decision"""


class WireEvictionLevel(Wire, kw_only=True, frozen=True):
    queue: str = ""
    """the queue that has the limit; empty for the limit of the pool"""
    used: int
    """how far the bucket is below full, in parts of an eviction: `perMs` parts are one eviction"""
    per_ms: int
    """the period of the limit at that time, in milliseconds"""
    at_ms: int
    """time of the level, in epoch milliseconds"""


class ResourcePoolStatus(Wire, kw_only=True, frozen=True):
    """The scheduler's ledger."""

    epoch: int = 0
    """the fence: each new leader increases it"""
    tick: int = 0
    """number of writes"""
    nodes: list[str] = []
    """the node names to which decisions refer"""
    decisions: list[WireDecision] = []
    """decisions whose effect was not yet observed on the allocation"""
    through: int = 0
    """a resourceVersion of the allocations: from it on they show the effect of every decision that was removed from
    `decisions`"""
    evicted: list[WireEvictionLevel] = []
    """the used part of each eviction limit"""
    conditions: list[Condition] = []


class ResourcePool(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "ResourcePool"
    metadata: ObjectMeta
    spec: ResourcePoolSpec = ResourcePoolSpec()
    status: ResourcePoolStatus = ResourcePoolStatus()


class QueuePreemption(Wire, kw_only=True, frozen=True):
    within_queue: Annotated[str, Meta(pattern="^(Never|LowerPriority|LowerOrNewerEqual)$")] = "Never"
    """which allocations of its own queue it may evict to start an allocation"""
    reclaim: Annotated[str, Meta(pattern="^(Never|LowerPriority|Any)$")] = "Never"
    """which allocations of other queues it may evict to get its fair share"""


class Budget(Wire, kw_only=True, frozen=True):
    gpu_hours: Annotated[float, Meta(gt=0)]
    """GPU hours per window; after they are used, no allocation with GPUs starts before the next window"""
    window: Duration
    """length of a window; windows follow one another from 1970-01-01T00:00:00Z; it is rounded up to whole days"""


class QueueFlavor(Wire, kw_only=True, frozen=True):
    """Limits of a queue for one flavor of its pool. Only GPUs are limited by flavor."""

    name: Name
    """name of the flavor"""
    nominal: Quantities | None = None
    """the quota of the queue: GPUs of this flavor that it owns"""
    borrowing_limit: Quantities | None = None
    """the most that it may use beyond its quota"""
    lending_limit: Quantities | None = None
    """the most of its quota that other queues may borrow"""
    limit: Quantities | None = None
    """the most that it may use in total"""


class FlavorFungibility(Wire, kw_only=True, frozen=True):
    when_can_borrow: Annotated[str, Meta(pattern="^(Borrow|TryNextFlavor)$")] = "Borrow"
    """TryNextFlavor: flavors in which the queue must borrow are tried after all others"""
    when_can_preempt: Annotated[str, Meta(pattern="^(Preempt|TryNextFlavor)$")] = "TryNextFlavor"
    """Preempt: allocations are evicted in a flavor before the next flavor is tried"""


class QueueSpec(Wire, kw_only=True, frozen=True):
    pool: Name = "default"
    """the ResourcePool of the queue"""
    parent: Name | None = None
    """the parent queue"""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """its weight in the fair share"""
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """higher goes first between queues"""
    nominal: Quantities | None = None
    """its quota: resources that it owns"""
    borrowing_limit: Quantities | None = None
    """the most that it may use beyond its quota"""
    lending_limit: Quantities | None = None
    """the most of its quota that other queues may borrow"""
    limit: Quantities | None = None
    """the most that it may use in total"""
    flavors: Annotated[list[QueueFlavor], Meta(max_length=FLAVORS_MAX)] = []
    """limits per flavor, in addition to those above; launches without flavors try these, in this order"""
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    """when the next flavor is tried"""
    ordering: Annotated[str, Meta(pattern="^(StrictFIFO|BestEffortFIFO|Backfill)$")] = "BestEffortFIFO"
    """StrictFIFO: a blocked head blocks the queue; BestEffortFIFO: allocations that fit may pass it; Backfill:
    allocations may pass it only if they do not delay its start"""
    user_order: Annotated[str, Meta(pattern="^(Submission|LeastUsed)$")] = "Submission"
    """LeastUsed: of allocations with the same priority, those of the user with the least used GPU time in the queue go
    first; requires fairShare of the pool"""
    preemption: QueuePreemption = QueuePreemption()
    max_runtime: Duration | None = None
    """an allocation that requests a longer limit, or none, gets this one"""
    min_runtime: Duration | None = None
    """its allocations are not evicted for others before they have run for this time; when absent, as in the parent
    queue; 0s: at any time"""
    eviction_limit: EvictionRate | None = None
    """how often allocations of the queue and of all queues below it are evicted for other allocations; unlimited when
    absent"""
    budgets: Annotated[list[Budget], Meta(max_length=8)] = []
    """GPU hours over time, of the queue and all queues below it"""


class QueueStatus(Wire, kw_only=True, frozen=True):
    conditions: list[Condition] = []


class Queue(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Queue"
    metadata: ObjectMeta
    spec: QueueSpec = QueueSpec()
    status: QueueStatus | None = None
