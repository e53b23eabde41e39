"""What the scheduler knows: compact facts about nodes, pods, allocations, queues and jobs.

The same struct travels in the cluster feed and is built from a LIST (`crd/facts.py`, `kube`), so that both
ways give the same snapshot. A fact carries nothing that placement does not need.
"""

from typing import Any

import msgspec

from slipway.model.eviction_rate import EvictionLimit
from slipway.model.extenders import ExtenderFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import Resources

SCHEDULING_LABEL = "slipway.dev/scheduling"
"""What an operator wants of a node, as a label of it; absent means that it is used like any other."""
DRAINING = "draining"
"""nothing new; what runs there may finish"""
PREEMPTION_MARGIN_S = 300.0
DISABLED = "disabled"
"""nothing new, and what runs there is evicted"""


FLAVOR_LABEL = "slipway.dev/flavor"
"""What the scheduler gives to each node of a pool with flavors: the name of its flavor, empty for none of them"""
SHARING_LABEL = "slipway.dev/gpu-sharing"
"""`true` on a node whose GPUs the scheduler hands out device by device; nobody else may use them there"""


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
    """A pod that is bound, or is ours: what it uses and whose it is. `live` is false once Succeeded or Failed."""

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
    """numbers of the GPUs that it was given; empty when nobody knows"""
    labels: dict[str, str] = {}
    """without those that every rank of ours gets: they follow from whose it is"""
    role: str = ""
    affinity: dict[str, Any] = {}
    """podAffinity and podAntiAffinity alone: what it wants of pods beside it"""
    scored: Resources = Resources()
    """cpu and memory as scores count them, where a container states no request; empty when it is the requests"""
    leaving: bool = False
    """it lives, and is being deleted"""


class TopologyFact(msgspec.Struct, frozen=True):
    key: str
    mode: str = "required"


class RoleFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One role of a gang; `minimum` is resolved (never None)."""

    name: str
    count: int
    minimum: int
    requests: Resources = Resources()
    """of a rank's pod, with what the LimitRanges of its namespace give to its containers"""
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    tolerations: tuple[Toleration, ...] = ()
    topology: TopologyFact | None = None
    host_ports: tuple[int, ...] = ()
    images: tuple[str, ...] = ()
    """of all containers, "" for one without"""
    gpu_milli: int = 0
    namespace: str = ""
    labels: dict[str, str] = {}
    """of its pods, beyond those that every rank gets"""
    spread: tuple[dict[str, Any], ...] = ()
    """Kubernetes' topologySpreadConstraints"""
    node_name: str = ""
    """the one node that it may go to; any when empty"""
    claims: tuple[str, ...] = ()
    """volume claims that it mounts"""
    scored: Resources = Resources()
    """cpu and memory as scores count them, where a container states no request; empty when it is the requests"""
    limits: Resources = Resources()
    """what its pods may use at most, as Kubernetes counts it; a ResourceQuota may bound it"""
    priority_class: str = ""
    is_terminating: bool = False
    """its pods have an activeDeadlineSeconds"""
    flavor: str | None = None
    """the flavor that was chosen for it, empty for the nodes of none; None where none was chosen"""
    closed: tuple[str, ...] = ()
    """the windows of the pool whose nodes it may not use, as the planner finds them for its run limit and its queue"""


class Untouched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the first status of an object is made from: with it the leader admits without reading the object."""

    created_at: str
    """metadata.creationTimestamp as it stands there"""
    generation: int = 1
    user: str | None = None
    trace: str = ""
    told_at: str = ""
    """since when it is told that it waits (a condition's lastTransitionTime); empty while it was told nothing"""


class AllocationFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One allocation as the planner sees it. Times are epoch seconds.

    `placements` is rank -> node of the admission of this attempt, empty while Pending. `gate` and
    `gate_message` are the explanation that the object already carries, so that an unchanged one is not written.
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
    """who launched it"""
    priority: int = 0
    position: str = ""
    preemptible: bool = False
    created: float = 0.0
    roles: tuple[RoleFact, ...] = ()
    home: str = ""
    """the volume claim of the home directory that it asks for, made on first use; empty for none"""
    minimum: int = 1
    topology: TopologyFact | None = None
    """of all its roles together"""
    phase: Phase = Phase.PENDING
    phase_since: float = 0.0
    attempt: int = 1
    epoch: int = 0
    decision: str = ""
    desired: str = "Running"
    deleting: bool = False
    hold: bool = False
    waits_for: tuple[tuple[str, str], ...] = ()
    """(allocation, how it has to end) of those in `spec.after` whose end is not recorded"""
    finalized: bool = False
    """carries the teardown finalizer"""
    released: bool = False
    stopping: bool = False
    """status.stop is set for this attempt"""
    leaving_ranks: tuple[int, ...] = ()
    """surplus ranks that were told to make room; the rest goes on"""
    left_ranks: tuple[int, ...] = ()
    """those of them that are gone, when all are told of: their places are free once their pods are seen to be gone"""
    told_ends: tuple[int, ...] = ()
    """ranks whose end the object tells, and not their pods: those that were added while it ran, and those that start
    again in their place"""
    growth_decision: str = ""
    """the last decision that added ranks to this attempt"""
    is_elastic: bool = True
    """its ranks were started so that others can join them"""
    grows_after: float = 0.0
    """no rank is added before (epoch seconds): some could not start"""
    placements: dict[int, str] = {}
    devices: dict[int, tuple[int, ...]] = {}
    """{rank: numbers of the GPUs that it was given} where the planner chose them"""
    ended_ranks: tuple[int, ...] = ()
    """ranks whose pods have ended: they use nothing"""
    failed_ranks: tuple[int, ...] = ()
    """those of them that failed"""
    avoid_nodes: tuple[str, ...] = ()
    flavors: tuple[str, ...] = ()
    """the flavors that it accepts, the best first; those of its queue or its pool when empty"""
    not_before: float = 0.0
    """backoff of a restarted attempt"""
    deadlines: dict[str, float] = {}
    max_runtime: float | None = None
    beyond_queue: bool = False
    """an administrator has set a run limit for it in place of its queue's"""
    idle_timeout: float = 0.0
    """seconds; 0 for none"""
    started: float = 0.0
    """when this attempt began to run; 0 while it does not"""
    checkpoint_at: float = 0.0
    """when it last saved its work, as far as is known; 0 for never"""
    evictions: tuple[tuple[float, str], ...] = ()
    """(when, the key of whom it made room for) of its preemptions that are still told, newest last"""
    waiting_since: float = 0.0
    """since when this attempt waits; 0 stands for its creation"""
    untouched: Untouched | None = None
    """set while the teardown finalizer stands and nobody has written more of a status than why it waits"""
    invalid: str = ""
    """why the spec can never run; empty when it is sound"""
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
        """Ranks over all roles."""
        return sum(role.count for role in self.roles)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still wants it to start."""
        return not (self.stopping or self.deleting or self.desired == "Stopped")

    def role_of(self, rank: int) -> RoleFact | None:
        """The role of a rank (ranks are numbered over the roles in order); None when there is no such rank."""
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
    """How past usage counts in a pool: it halves in each `half_life_s`; `history` is its say in what queues deserve, in
    thousandths, 0 for none."""

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
    """amounts of these four may name the GPUs of a flavor (`gpus_of`)"""
    flavors: tuple[str, ...] = ()
    """the flavors that it has limits of, the first to be tried first"""
    when_can_borrow: str = "Borrow"
    """Borrow: work goes into a flavor in which it has to borrow; TryNextFlavor: only where no other has room"""
    when_can_preempt: str = "TryNextFlavor"
    """Preempt: room is made in a flavor before the next is tried; TryNextFlavor: only where no flavor has room"""
    ordering: str = "BestEffortFIFO"
    within_queue: str = "Never"
    reclaim: str = "Never"
    max_runtime: float | None = None
    """seconds; what asks for more, or for no limit, gets this one"""
    min_runtime: float | None = None
    """seconds for which its running work makes no room for others; None: as the queue above"""
    eviction_limit: EvictionLimit | None = None
    """how often its work and that of the queues below it is evicted for other work; None: no limit of its own"""
    budgets: tuple[BudgetFact, ...] = ()
    user_order: str = SUBMISSION
    """LEAST_USED: among work of one priority, that of the user who has used less goes first"""
    invalid: str = ""
    """what of it nobody understands; nothing starts in it and below it"""


class JobFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    namespace: str
    name: str
    max_slots: int | None = None
    priority: int | None = None
    weight: int = 1
    position: str = ""


class FlavorFact(msgspec.Struct, frozen=True):
    """A named kind of nodes: those that have all of `node_labels`."""

    name: str
    node_labels: dict[str, str]


class AutoscalingFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an autoscaler is asked for nodes of a pool. Times are seconds."""

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
    """where the time of day of the start repeats"""
    queues: tuple[str, ...] = ()
    """those whose work, and that of the queues below them, may use the nodes; empty: maintenance, no work may"""
    node_names: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    nodes: int | None = None
    """so many of the nodes that match; all of them when None, and `gpus` is None too"""
    gpus: int | None = None
    """nodes that have so many GPUs together"""
    lead_s: float = 0.0
    """for so long before each occurrence no work without a run limit starts on the nodes"""
    evicts: bool = False
    """preemptible work of others on the nodes is evicted when an occurrence begins"""
    invalid: str = ""
    """what of it cannot be understood; it reserves nothing then"""


class PoolFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pool's policy: which nodes belong to it and how they are scored."""

    name: str
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    scores: dict[str, int] = {}
    args: dict[str, dict[str, Any]] = {}
    """{score: its args}"""
    sampling: bool = False
    """a part of the feasible nodes is looked at, in large pools"""
    topology: tuple[str, ...] = ()
    binding: str = "direct"
    backfill: bool = True
    aging: float = 0.0
    """seconds after which what waits goes before all that is younger, whatever the priorities; 0 for never"""
    workspaces: tuple[str, ...] = ()
    """those that may use it; all when empty"""
    flavors: tuple[FlavorFact, ...] = ()
    """a node that has the labels of several is of the first"""
    preemption_margin_s: float = PREEMPTION_MARGIN_S
    """how long places are held for work that preempts beyond the grace of its victims"""
    eviction_limit: EvictionLimit | None = None
    """how often work is evicted for other work; None: no limit"""
    fair_share: FairShareFact | None = None
    """how past usage counts; None: it does not"""
    extenders: tuple[ExtenderFact, ...] = ()
    """asked in this order"""
    autoscaling: AutoscalingFact | None = None
    """None: no autoscaler is asked for nodes"""
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
    """Which pods a ResourceQuota counts: one requirement, as in its `scopeSelector`."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


class QuotaFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ResourceQuota of a namespace, as far as it bounds pods. Amounts are thousandths."""

    namespace: str
    name: str
    hard: dict[str, int] = {}
    """{name in the quota: the most}"""
    used: dict[str, int] = {}
    """{name in the quota: in use}, as Kubernetes has counted it"""
    scopes: tuple[QuotaScope, ...] = ()
    """a pod that does not match all of them is not counted"""


class RangeBounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a LimitRange says of each container, or of the pod as a whole: {resource: quantity}."""

    min: dict[str, str] = {}
    max: dict[str, str] = {}
    default: dict[str, str] = {}
    """the limit of a container that states none"""
    default_request: dict[str, str] = {}
    """the request of a container that states none"""
    max_ratio: dict[str, str] = {}
    """the largest limit as a multiple of the request"""


class LimitRangeFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A LimitRange of a namespace, as far as it is about pods."""

    namespace: str
    name: str
    container: RangeBounds = RangeBounds()
    pod: RangeBounds = RangeBounds()


VOLUMES = "volumes"
"""The kind of the claims of waiting work, beside those of the cluster feed: they are read by name."""


class VolumeFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A volume claim and where its volume can be reached."""

    namespace: str
    name: str
    volume: str = ""
    """what it is bound to; empty: nothing yet, or not known"""
    zones: dict[str, tuple[str, ...]] = {}
    """{zone or region label: values of it from which the volume can be reached, as from nodes without such labels}"""
    terms: tuple[dict[str, Any], ...] = ()
    """Kubernetes' nodeSelectorTerms of the volume: a node that reaches it matches one of them; empty: all reach it"""
    waits: str = ""
    """why what mounts it cannot start yet; empty when it can"""
    is_unread: bool = False
    """it is being read for the first time: `waits` says so, and is true for a moment only"""
