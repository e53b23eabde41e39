"""The scheduler's view of the cluster: compact facts about nodes, pods, allocations, queues and jobs.

The cluster feed transports these structs, and `slipway.facts` builds the same structs from a LIST. So both ways give
the same snapshot.
A fact contains nothing that the scheduler does not need.

The HTTP extenders of a pool are facts too: which allocations each is called for, its weight and its timeout. The field
names are those of kube-scheduler (`Extender` of KubeSchedulerConfiguration).
"""

from typing import Any

import msgspec

from slipway.model.eviction_rate import EvictionLimit
from slipway.model.lifecycle import Phase
from slipway.model.resources import Resources

TIMEOUT_S = 5.0
"""kube-scheduler's DefaultExtenderTimeout."""


class ExtenderTls(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """TLS settings for an https extender. Files are paths in the containers of the services that call it."""

    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    ca_data: str = ""
    """PEM"""
    cert_file: str = ""
    key_file: str = ""


class ExtenderFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One extender. An empty verb is never called."""

    url: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    preempt_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    timeout_s: float = TIMEOUT_S
    node_cache_capable: bool = False
    """the extender caches the nodes: only their names are sent"""
    managed_resources: tuple[str, ...] = ()
    """the extender is called only for pods that request one of these; for all pods when empty"""
    ignored_resources: tuple[str, ...] = ()
    """those of `managed_resources` that only the extender accounts for, not the scheduler"""
    ignorable: bool = False
    """scheduling continues without the extender when it fails"""
    tls: ExtenderTls = ExtenderTls()

    @property
    def name(self) -> str:
        """Its address without the scheme: its name in messages and metrics."""
        return self.url.partition("://")[2].rstrip("/")

    def manages(self, requests: Resources) -> bool:
        """Whether the extender is called for pods with these requests."""
        return not self.managed_resources or any(name in requests.amounts for name in self.managed_resources)


SCHEDULING_LABEL = "slipway.dev/scheduling"
"""Label with which an operator drains or disables a node; without it the node is used normally."""
DRAINING = "draining"
"""no new ranks start on the node; running ranks may finish"""
PREEMPTION_MARGIN_S = 300.0
DISABLED = "disabled"
"""no new ranks start on the node, and running ranks are evicted"""


FLAVOR_LABEL = "slipway.dev/flavor"
"""Label that the scheduler sets on each node of a pool with flavors: the name of its flavor, or empty for no flavor."""
SHARING_LABEL = "slipway.dev/gpu-sharing"
"""Label with the value `true` on a node whose GPUs the scheduler assigns device by device; no other pods may use
them."""


PROVISIONING_REQUEST, PLACEHOLDER_PODS = "ProvisioningRequest", "PlaceholderPods"
"""Ways of asking an autoscaler for nodes."""


class Taint(msgspec.Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Toleration(msgspec.Struct, frozen=True, rename="camel"):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    uid: str = ""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    allocatable: Resources = Resources()
    unschedulable: bool = False
    ready: bool = True
    images: dict[str, int] = {}


class PodFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod that is bound, or is ours: its requests and its allocation. `live` is false once Succeeded or Failed."""

    namespace: str
    name: str
    uid: str
    node: str = ""
    requests: Resources = Resources()
    live: bool = True
    allocation_uid: str = ""
    attempt: int = 0
    rank: int = -1
    priority: int = 0
    host_ports: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    """numbers of the GPUs that it was assigned; empty when they are not known"""
    labels: dict[str, str] = {}
    """without the labels that every rank of ours gets: they follow from its allocation"""
    role: str = ""
    affinity: dict[str, Any] = {}
    """only podAffinity and podAntiAffinity: its rules about other pods"""
    scored: Resources = Resources()
    """cpu and memory for scores, when a container has no request; empty when they equal the requests"""
    leaving: bool = False
    """it still runs, and is being deleted"""


class TopologyFact(msgspec.Struct, frozen=True):
    key: str
    mode: str = "required"


class RoleFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One role of a gang; `minimum` is resolved (never None)."""

    name: str
    count: int
    minimum: int
    requests: Resources = Resources()
    """of a rank's pod, including the defaults of the LimitRanges of its namespace"""
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    tolerations: tuple[Toleration, ...] = ()
    topology: TopologyFact | None = None
    host_ports: tuple[int, ...] = ()
    images: tuple[str, ...] = ()
    """of all containers; "" for a container without an image"""
    gpu_milli: int = 0
    namespace: str = ""
    labels: dict[str, str] = {}
    """of its pods, without the labels that every rank gets"""
    spread: tuple[dict[str, Any], ...] = ()
    """Kubernetes' topologySpreadConstraints"""
    node_name: str = ""
    """the only node that it may use; empty: any node"""
    claims: tuple[str, ...] = ()
    """volume claims that it mounts"""
    scored: Resources = Resources()
    """cpu and memory for scores, when a container has no request; empty when they equal the requests"""
    limits: Resources = Resources()
    """limits of a rank's pod, as Kubernetes computes them; a ResourceQuota may bound them"""
    priority_class: str = ""
    is_terminating: bool = False
    """its pods have an activeDeadlineSeconds"""
    flavor: str | None = None
    """the flavor that was chosen for it; empty: nodes without a flavor; None: no flavor was chosen"""
    closed: tuple[str, ...] = ()
    """the windows of the pool whose nodes it may not use; the planner derives them from its run limit and its queue"""


class FirstStatusFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data for the first status of an object: with it the leader admits the allocation without reading the
    object."""

    created_at: str
    """metadata.creationTimestamp, unchanged"""
    generation: int = 1
    user: str | None = None
    trace: str = ""
    told_at: str = ""
    """lastTransitionTime of the condition that explains the wait; empty while there is no such condition"""


class AllocationFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One allocation as the planner sees it. Times are epoch seconds.

    `placements` is rank -> node of the admission of this attempt, empty while Pending. `gate` and `gate_message` are
    the explanation that the object already has, so that the leader does not write an unchanged one.
    """

    namespace: str
    name: str
    uid: str
    version: int
    """metadata.resourceVersion as an integer"""
    pool: str = "default"
    queue: str = "default"
    job: str = ""
    kind: str = "command"
    user: str = ""
    """the user who launched it"""
    priority: int = 0
    position: str = ""
    preemptible: bool = False
    created: float = 0.0
    roles: tuple[RoleFact, ...] = ()
    home: str = ""
    """the volume claim of the requested home directory, created on first use; empty for none"""
    minimum: int = 1
    topology: TopologyFact | None = None
    """for all its roles together"""
    phase: Phase = Phase.PENDING
    phase_since: float = 0.0
    attempt: int = 1
    epoch: int = 0
    decision: str = ""
    desired: str = "Running"
    deleting: bool = False
    hold: bool = False
    waits_for: tuple[tuple[str, str], ...] = ()
    """(allocation, how it must end) for each entry of `spec.after` whose end is not recorded"""
    finalized: bool = False
    """whether it has the teardown finalizer"""
    released: bool = False
    stopping: bool = False
    """status.stop is set for this attempt"""
    leaving_ranks: tuple[int, ...] = ()
    """surplus ranks that are evicted to make room; the other ranks continue"""
    left_ranks: tuple[int, ...] = ()
    """equal to `leaving_ranks` when all of them have ended and their ends are published, else empty; a place is free
    once its pod is observed to be deleted"""
    told_ends: tuple[int, ...] = ()
    """ranks whose end is read from the object and not from their pods: ranks that were added while it ran, and ranks
    that restart in place"""
    growth_decision: str = ""
    """the last decision that added ranks to this attempt"""
    is_elastic: bool = True
    """its ranks were started in a way that lets other ranks join them"""
    grows_after: float = 0.0
    """no rank is added before this time (epoch seconds), because added ranks could not start"""
    placements: dict[int, str] = {}
    devices: dict[int, tuple[int, ...]] = {}
    """{rank: numbers of its GPUs}, when the planner chose them"""
    ended_ranks: tuple[int, ...] = ()
    """ranks whose pods have ended: they use nothing"""
    failed_ranks: tuple[int, ...] = ()
    """the ranks of `ended_ranks` that failed"""
    avoid_nodes: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()
    """the flavors that it accepts, best first; empty: the flavors of its queue or its pool"""
    not_before: float = 0.0
    """end of the backoff of a restarted attempt; 0 for none"""
    deadlines: dict[str, float] = {}
    max_runtime: float | None = None
    beyond_queue: bool = False
    """an administrator has set a run limit for it that replaces the limit of its queue"""
    idle_timeout: float = 0.0
    """seconds; 0 for none"""
    started: float = 0.0
    """when this attempt began to run; 0 before that"""
    checkpoint_at: float = 0.0
    """when it last reported that it saved its work; 0 for never"""
    evictions: tuple[tuple[float, str], ...] = ()
    """(time, key of the allocation that needed the room) of its preemptions that the status still lists, newest last"""
    waiting_since: float = 0.0
    """the start of the wait of this attempt; 0 means its creation"""
    untouched: FirstStatusFact | None = None
    """set while it has the teardown finalizer and its status contains at most the explanation of the wait"""
    invalid: str = ""
    """why the spec can never run; empty when it is valid"""
    out_of_range: str = ""
    """why a LimitRange of its namespace refuses its pods; empty when none does"""
    gate: str = ""
    gate_message: str = ""
    spec_hash: str = ""

    @property
    def key(self) -> str:
        """`<namespace>/<name>`"""
        return f"{self.namespace}/{self.name}"

    @property
    def rank_count(self) -> int:
        """The number of ranks of all roles."""
        return sum(role.count for role in self.roles)

    @property
    def is_wanted(self) -> bool:
        """Whether it should still start: it is not stopping, being deleted or stopped by its user."""
        return not (self.stopping or self.deleting or self.desired == "Stopped")

    def role_of(self, rank: int) -> RoleFact | None:
        """Return the role of a rank; ranks are numbered over the roles in order. None when there is no such rank."""
        for role in self.roles:
            if rank < role.count:
                return role
            rank -= role.count
        return None


class BudgetFact(msgspec.Struct, frozen=True):
    """At most `gpu_ms` (GPU-milliseconds) in each window; windows follow one another from time 0."""

    gpu_ms: int
    window_s: float


SUBMISSION, LEAST_USED = "Submission", "LeastUsed"


class FairShareFact(msgspec.Struct, frozen=True):
    """The weight of past usage in a pool: usage halves in each `half_life_s`.

    `history` is its weight in the fair share of the queues, in thousandths; 0 for none.
    """

    half_life_s: float
    history: int = 1000


class QueueFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    pool: str = "default"
    parent: str = ""
    weight: int = 1
    priority: int = 0
    nominal: Resources | None = None
    borrowing_limit: Resources | None = None
    lending_limit: Resources | None = None
    limit: Resources | None = None
    """these four may contain amounts for the GPUs of a flavor (`gpus_of`)"""
    flavors: tuple[str, ...] = ()
    """the flavors for which it has limits, in the order in which they are tried"""
    when_can_borrow: str = "Borrow"
    """Borrow: a flavor is used although the queue must borrow in it; TryNextFlavor: only when no other flavor has
    room"""
    when_can_preempt: str = "TryNextFlavor"
    """Preempt: allocations are evicted in a flavor before the next flavor is tried; TryNextFlavor: only when no flavor
    has room"""
    ordering: str = "BestEffortFIFO"
    within_queue: str = "Never"
    reclaim: str = "Never"
    max_runtime: float | None = None
    """seconds; an allocation that requests a longer run limit, or none, gets this one"""
    min_runtime: float | None = None
    """seconds for which its running allocations are not evicted for others; None: as in its parent queue"""
    eviction_limit: EvictionLimit | None = None
    """rate of evictions of its allocations, and of those of the queues below it, for other allocations; None: no limit
    of its own"""
    budgets: tuple[BudgetFact, ...] = ()
    user_order: str = SUBMISSION
    """LEAST_USED: of allocations with equal priority, those of the user with the least usage go first"""
    invalid: str = ""
    """why its spec is invalid, else empty; no allocation starts in an invalid queue or in the queues below it"""


class JobFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    namespace: str
    name: str
    max_slots: int | None = None
    priority: int | None = None
    weight: int = 1
    position: str = ""


class FlavorFact(msgspec.Struct, frozen=True):
    """A named kind of nodes: the nodes that have all of `node_labels`."""

    name: str
    node_labels: dict[str, str]


class AutoscalingFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the scheduler requests nodes for a pool from an autoscaler. Times are seconds."""

    mode: str = PROVISIONING_REQUEST
    class_name: str = ""
    """the provisioning class of a ProvisioningRequest"""
    parameters: dict[str, str] = {}
    max_gangs: int = 4
    max_ranks: int = 256
    after_s: float = 30.0
    timeout_s: float = 900.0
    backoff_s: float = 300.0
    tries: int = 3


class WindowFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A window of a pool: a time in which some of its nodes are reserved. Times are epoch seconds."""

    name: str
    start: float = 0.0
    """of the first occurrence"""
    duration: float = 0.0
    every: str = ""
    """Daily or Weekly; empty: once"""
    until: float | None = None
    """no occurrence begins after it"""
    time_zone: str = "UTC"
    """time zone in which the start has the same time of day in each occurrence"""
    queues: tuple[str, ...] = ()
    """the queues that may use the nodes, with the queues below them; empty: maintenance, no queue may"""
    node_names: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    nodes: int | None = None
    """the number of matching nodes that are reserved; when this and `gpus` are None, all matching nodes"""
    gpus: int | None = None
    """the number of GPUs that the reserved nodes have together"""
    lead_s: float = 0.0
    """seconds before each occurrence in which no allocation without a run limit starts on the nodes"""
    evicts: bool = False
    """preemptible allocations of other queues on the nodes are evicted when an occurrence begins"""
    invalid: str = ""
    """why it is invalid, else empty; an invalid window reserves nothing"""


class PoolFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pool's policy: which nodes belong to it and how they are scored."""

    name: str
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    scores: dict[str, int] = {}
    args: dict[str, dict[str, Any]] = {}
    """{score: its args}"""
    sampling: bool = False
    """in large pools only a part of the feasible nodes is scored"""
    topology: tuple[str, ...] = ()
    binding: str = "direct"
    backfill: bool = True
    aging: float = 0.0
    """seconds of waiting after which an allocation goes before all younger ones, whatever their priority; 0 for
    never"""
    workspaces: tuple[str, ...] = ()
    """the workspaces that may use it; empty: all"""
    flavors: tuple[FlavorFact, ...] = ()
    """a node that has the labels of several flavors belongs to the first of them"""
    preemption_margin_s: float = PREEMPTION_MARGIN_S
    """seconds for which places are reserved for a preempting allocation, after the grace of its victims"""
    eviction_limit: EvictionLimit | None = None
    """rate of evictions for other allocations; None: no limit"""
    fair_share: FairShareFact | None = None
    """the weight of past usage; None: past usage is ignored"""
    extenders: tuple[ExtenderFact, ...] = ()
    """called in this order"""
    autoscaling: AutoscalingFact | None = None
    """None: the scheduler requests no nodes"""
    windows: tuple[WindowFact, ...] = ()
    """times in which nodes are reserved for some queues, or for maintenance"""
    shadow: "PoolFact | None" = None
    """the pool under its shadow policy"""


class WorkspaceFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A namespace, and whether allocations may run in it."""

    name: str
    is_workspace: bool = False
    terminating: bool = False
    labels: dict[str, str] = {}


class QuotaScope(msgspec.Struct, frozen=True, omit_defaults=True):
    """One requirement that selects the pods of a ResourceQuota, as in its `scopeSelector`."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


class QuotaFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a namespace's ResourceQuota that bounds pods. Amounts are thousandths."""

    namespace: str
    name: str
    hard: dict[str, int] = {}
    """{name in the quota: its limit}"""
    used: dict[str, int] = {}
    """{name in the quota: amount in use}, as Kubernetes reports it"""
    scopes: tuple[QuotaScope, ...] = ()
    """only pods that match all scopes are counted"""


class RangeBounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of a LimitRange for each container, or for the pod as a whole: {resource: quantity}."""

    min: dict[str, str] = {}
    max: dict[str, str] = {}
    default: dict[str, str] = {}
    """the limit of a container without a limit"""
    default_request: dict[str, str] = {}
    """the request of a container without a request"""
    max_ratio: dict[str, str] = {}
    """the largest limit as a multiple of the request"""


class LimitRangeFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a namespace's LimitRange that is about pods and containers."""

    namespace: str
    name: str
    container: RangeBounds = RangeBounds()
    pod: RangeBounds = RangeBounds()


VOLUMES = "volumes"
"""The kind name of the volume claims of waiting allocations. They are not in the cluster feed; they are read by
name."""


class VolumeFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A volume claim and where its volume can be reached."""

    namespace: str
    name: str
    volume: str = ""
    """the volume to which it is bound; empty: not bound yet, or not known"""
    zones: dict[str, tuple[str, ...]] = {}
    """{zone or region label: values of the nodes that reach the volume}; nodes without these labels also reach it"""
    terms: tuple[dict[str, Any], ...] = ()
    """Kubernetes' nodeSelectorTerms of the volume: a node that matches one of them reaches it; empty: all nodes reach
    it"""
    waits: str = ""
    """why a pod that mounts it cannot start yet; empty when it can"""
    is_unread: bool = False
    """it is being read for the first time; until then `waits` states only that"""
