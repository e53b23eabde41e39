"""The five custom resources of group `slipway.dev`, version `v1alpha1`, as they travel on the wire.

These structs are the one source of the REST body, the CRD schemas (`schema.py`), the CLI's flags and the
reference docs. `spec` is intent, `status` is what was observed. Descriptions and bounds stand in `Meta`.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.crd.meta import GROUP_VERSION, Condition, ListMeta, ObjectMeta
from slipway.model.duration import DURATION_PATTERN
from slipway.model.lifecycle import Event, Kind, Phase, RankState
from slipway.model.quantity import QuantityValue
from slipway.model.reasons import Result

RANKS_MAX = 4096
ROLES_MAX = 16
RING_LENGTH = 16
FILES_MAX = 64
CONDITIONS_MAX = 16
SPEC_BYTES_MAX = 256 * 1024

Name = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Duration = Annotated[str, Meta(max_length=32, pattern=DURATION_PATTERN, description="such as 90s, 30m or 2h45m")]
EnvName = str
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Quantities = dict[str, QuantityValue]


class Wire(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    """Base of the wire structs: camelCase, defaults omitted."""


class ResourceRequirements(Wire, kw_only=True, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class TopologySpec(Wire, kw_only=True, frozen=True):
    key: Annotated[str, Meta(min_length=1, max_length=253, description="node label whose values are the domains")]
    mode: Annotated[str, Meta(pattern="^(required|preferred)$")] = "required"


class TolerationSpec(Wire, kw_only=True, frozen=True):
    key: Annotated[str, Meta(max_length=253)] = ""
    operator: Annotated[str, Meta(pattern="^(Equal|Exists)$")] = "Equal"
    value: Annotated[str, Meta(max_length=253)] = ""
    effect: Annotated[str, Meta(pattern="^(|NoSchedule|PreferNoSchedule|NoExecute)$")] = ""
    toleration_seconds: int | None = None


class RoleSpec(Wire, kw_only=True, frozen=True):
    """One role of a gang: `count` ranks that are alike."""

    name: Name = "worker"
    count: Annotated[int, Meta(ge=1, le=RANKS_MAX)] = 1
    min_available: Annotated[int, Meta(ge=0, le=RANKS_MAX)] | None = None
    resources: dict[str, Any] = {}
    """a map of quantities, or Kubernetes' {requests, limits}"""
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] = {}
    tolerations: list[TolerationSpec] = []
    topology: TopologySpec | None = None
    template: dict[str, Any] | None = None
    """replaces the allocation's template for this role"""


class FileSpec(Wire, kw_only=True, frozen=True):
    path: Annotated[str, Meta(min_length=1, max_length=255, description="relative to the working directory")]
    content: Annotated[str, Meta(max_length=SPEC_BYTES_MAX)]
    encoding: Annotated[str, Meta(pattern="^(utf8|base64)$")] = "utf8"
    mode: Annotated[int, Meta(ge=0, le=0o777)] = 0o644


class PortSpec(Wire, kw_only=True, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=15, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    port: Annotated[int, Meta(ge=1, le=65535)]
    scheme: Annotated[str, Meta(pattern="^(http|https|tcp)$")] = "http"


class PreemptSignal(Wire, kw_only=True, frozen=True):
    n: Annotated[int, Meta(ge=0)]
    reason: Annotated[str, Meta(max_length=256)] = ""
    at: str = ""
    attempt: Annotated[int, Meta(ge=1)] = 1


class Signals(Wire, kw_only=True, frozen=True):
    """What users and ranks tell a running allocation; per attempt, `n` only rises."""

    preempt: PreemptSignal | None = None
    acks: dict[str, int] = {}
    """rank -> the n it acknowledges"""
    ready: bool = False
    waiting: bool = False
    daemons: list[int] = []
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    attempt: Annotated[int, Meta(ge=1)] = 1


class AllocationSpec(Wire, kw_only=True, frozen=True):
    """What to run, on how many ranks, under which rules."""

    kind: Kind
    pool: Name = "default"
    queue: Name = "default"
    job: Name | None = None
    priority: Annotated[int, Meta(ge=0, le=1000, description="higher goes first")] = 50
    preemptible: bool = False
    ranks: Annotated[list[RoleSpec], Meta(max_length=ROLES_MAX)] = []
    min_available: Annotated[int, Meta(ge=1, le=RANKS_MAX)] | None = None
    template: dict[str, Any] = {}
    """a PodTemplateSpec, validated against an allow-list"""
    files: Annotated[list[FileSpec], Meta(max_length=FILES_MAX)] = []
    env: dict[EnvName, str] = {}
    ports: Annotated[list[PortSpec], Meta(max_length=16)] = []
    idle_timeout: Duration | None = None
    max_runtime: Duration | None = None
    pending_timeout: Duration | None = None
    preemption_grace: Duration | None = None
    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 0
    request_hash: Annotated[str, Meta(max_length=64)] = ""
    queue_position: Annotated[str, Meta(max_length=63)] = ""
    hold: bool = False
    desired: Annotated[str, Meta(pattern="^(Running|Stopped)$")] = "Running"
    signals: Signals | None = None


class Placement(Wire, kw_only=True, frozen=True):
    rank: int
    role: str = ""
    node: str
    device: list[int] = []


class Admission(Wire, kw_only=True, frozen=True):
    """The decision, as the scheduler wrote it to this allocation."""

    decision_id: str
    epoch: int
    attempt: int = 1
    at: str = ""
    spec_hash: str = ""
    placements: list[Placement] = []


class Release(Wire, kw_only=True, frozen=True):
    """The commit point of a launch: only pods named here may ever be bound. Index = position in `placements`."""

    attempt: int
    pod_uids: list[str] = msgspec.field(default_factory=list[str], name="podUIDs")


class RankStatus(Wire, kw_only=True, frozen=True):
    """One rank as observed; an exit code is written once."""

    pod_uid: str = msgspec.field(default="", name="podUID")
    node: str = ""
    phase: RankState = RankState.PENDING
    exit_code: int | None = None
    reason: str = ""


class RingEntry(Wire, kw_only=True, frozen=True):
    """One transition; the last 16 are kept."""

    seq: int
    attempt: int
    type: Event
    phase: Phase
    reason: str = ""
    time: str
    data: dict[str, Any] = {}


class Stop(Wire, kw_only=True, frozen=True):
    """A fired deadline or an eviction: who stops the allocation, and whether it comes back."""

    reason: str
    at: str
    attempt: int = 1
    requeue: bool = False
    by: str = ""


class AllocationStatus(Wire, kw_only=True, frozen=True):
    phase: Phase = Phase.PENDING
    attempt: int = 1
    seq: int = 0
    ready: bool = False
    waiting: bool = False
    admission: Admission | None = None
    release: Release | None = None
    ranks: Annotated[list[RankStatus], Meta(max_length=RANKS_MAX)] | None = None
    result: Result | None = None
    reason: str = ""
    message: str = ""
    transitions: list[RingEntry] = []
    stop: Stop | None = None
    deadlines: dict[str, str] = {}
    restarts: int = 0
    """attempts that ended by the user's own fault"""
    infra_restarts: int = 0
    not_before: str = ""
    """a restarted attempt is not admitted before this time"""
    avoid_nodes: list[str] = []
    conditions: Annotated[list[Condition], Meta(max_length=CONDITIONS_MAX)] = []
    started_at: str = ""
    ended_at: str = ""
    nodes: str = ""
    """the nodes in short, for printer columns"""
    slots: int = 0


class Allocation(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Allocation"
    metadata: ObjectMeta
    spec: AllocationSpec
    status: AllocationStatus = AllocationStatus()


class KindDefaults(Wire, kw_only=True, frozen=True):
    """What a pool gives a kind that does not say."""

    image: str = ""
    command: list[str] = []
    args: list[str] = []
    resources: dict[str, Any] = {}
    env: dict[str, str] = {}
    port: int | None = None


class ResourcePoolSpec(Wire, kw_only=True, frozen=True):
    node_selector: dict[str, str] = {}
    tolerations: list[TolerationSpec] = []
    scores: dict[str, int] = {}
    topology: list[str] = []
    binding: Annotated[str, Meta(pattern="^(direct|delegate)$")] = "direct"
    backfill: bool = True
    defaults: dict[Kind, KindDefaults] = {}
    max_slots_per_pod: int | None = None
    privileged_templates: bool = False
    """allow pod templates beyond Pod Security "restricted" """


class WireDecision(Wire, kw_only=True, frozen=True):
    id: str
    epoch: int
    allocation: str
    uid: str = ""
    attempt: int = 1
    kind: str = "admit"
    placements: list[int] = []
    devices: dict[str, list[int]] = {}
    spec_hash: str = ""
    reason: str = ""
    by: str = ""
    at: str = ""


class ResourcePoolStatus(Wire, kw_only=True, frozen=True):
    """The scheduler's ledger."""

    epoch: int = 0
    tick: int = 0
    nodes: list[str] = []
    decisions: list[WireDecision] = []
    conditions: list[Condition] = []


class ResourcePool(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "ResourcePool"
    metadata: ObjectMeta
    spec: ResourcePoolSpec = ResourcePoolSpec()
    status: ResourcePoolStatus = ResourcePoolStatus()


class QueuePreemption(Wire, kw_only=True, frozen=True):
    within_queue: Annotated[str, Meta(pattern="^(Never|LowerPriority|LowerOrNewerEqual)$")] = "Never"
    reclaim: Annotated[str, Meta(pattern="^(Never|LowerPriority|Any)$")] = "Never"


class Budget(Wire, kw_only=True, frozen=True):
    gpu_hours: Annotated[float, Meta(gt=0)]
    window: Duration


class QueueSpec(Wire, kw_only=True, frozen=True):
    pool: Name = "default"
    parent: Name | None = None
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    nominal: Quantities | None = None
    borrowing_limit: Quantities | None = None
    lending_limit: Quantities | None = None
    limit: Quantities | None = None
    ordering: Annotated[str, Meta(pattern="^(StrictFIFO|BestEffortFIFO|Backfill)$")] = "BestEffortFIFO"
    preemption: QueuePreemption = QueuePreemption()
    max_runtime: Duration | None = None
    budgets: list[Budget] = []


class QueueStatus(Wire, kw_only=True, frozen=True):
    conditions: list[Condition] = []


class Queue(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Queue"
    metadata: ObjectMeta
    spec: QueueSpec = QueueSpec()
    status: QueueStatus | None = None


class JobSpec(Wire, kw_only=True, frozen=True):
    max_slots: Count | None = None
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    queue_position: Annotated[str, Meta(max_length=63)] = ""


class JobStatus(Wire, kw_only=True, frozen=True):
    conditions: list[Condition] = []


class Job(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Job"
    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus | None = None


class TemplateSpec(Wire, kw_only=True, frozen=True):
    """A partial launch body, merged under a request."""

    body: dict[str, Any] = {}


class Template(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Template"
    metadata: ObjectMeta
    spec: TemplateSpec = TemplateSpec()


class ObjectList(Wire, kw_only=True, frozen=True):
    """Base of the typed lists; `kube/client.py` decodes `items` itself."""

    metadata: ListMeta = ListMeta()
