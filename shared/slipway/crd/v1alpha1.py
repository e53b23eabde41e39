"""The five custom resources of group `slipway.dev`, version `v1alpha1`, in their wire format.

These structs are the only source of the REST body, the CRD schemas (`schema.py`), the CLI's flags and the reference
docs. `spec` is the intent, `status` the observed state. Bounds are in `Meta`; descriptions are in `Meta` or in the
string below a field.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.crd.figures import Usage
from slipway.crd.meta import GROUP_VERSION, Condition, ObjectMeta
from slipway.crd.policies import (
    FailureAction,
    FailurePolicy,
    FailureRule,
    RestartUnit,
    SuccessPolicy,
    SuccessTarget,
)
from slipway.crd.pools import (
    Budget,
    EvictionRate,
    ExtenderSpec,
    ExtenderTlsConfig,
    FairShare,
    KindDefaults,
    ManagedResource,
    PolicySpec,
    Queue,
    QueuePreemption,
    QueueSpec,
    QueueStatus,
    ResourcePool,
    ResourcePoolSpec,
    ResourcePoolStatus,
    WindowSpec,
    WireDecision,
)
from slipway.crd.wire import (
    CONDITIONS_MAX,
    FLAVORS_MAX,
    RANKS_MAX,
    Count,
    Duration,
    Name,
    Quantities,
    TolerationSpec,
    Wire,
)
from slipway.model.lifecycle import Event, Kind, Phase, RankState, RoleProgress
from slipway.model.position import POSITION_PATTERN
from slipway.model.reasons import DependencyEnd, Result

__all__ = [
    "AFTER_MAX",
    "CONDITIONS_MAX",
    "FILES_MAX",
    "PREEMPTIONS_MAX",
    "RANKS_MAX",
    "RING_LENGTH",
    "ROLES_MAX",
    "SETUP_MAX",
    "SLICES_MAX",
    "SPEC_BYTES_MAX",
    "Admission",
    "Allocation",
    "AllocationSpec",
    "AllocationStatus",
    "Budget",
    "ContextId",
    "Count",
    "Dependency",
    "DependencyRecord",
    "Duration",
    "EnvName",
    "EvictionRate",
    "ExtenderSpec",
    "ExtenderTlsConfig",
    "FailureAction",
    "FailurePolicy",
    "FailureRule",
    "FairShare",
    "FileSpec",
    "Growth",
    "Job",
    "JobSpec",
    "JobStatus",
    "KindDefaults",
    "ManagedResource",
    "Name",
    "Placement",
    "PolicySpec",
    "PortSpec",
    "Position",
    "PreemptSignal",
    "Preempted",
    "Quantities",
    "Queue",
    "QueuePreemption",
    "QueueSpec",
    "QueueStatus",
    "RankRestart",
    "RankStatus",
    "Release",
    "ResourcePool",
    "ResourcePoolSpec",
    "ResourcePoolStatus",
    "ResourceRequirements",
    "RestartUnit",
    "RingEntry",
    "RoleDependency",
    "RoleSpec",
    "Shrink",
    "Signals",
    "Stop",
    "SuccessPolicy",
    "SuccessTarget",
    "Template",
    "TemplateSpec",
    "TolerationSpec",
    "TopologySpec",
    "WindowSpec",
    "Wire",
    "WireDecision",
]

AFTER_MAX = 256
ROLES_MAX = 16
RING_LENGTH = 16
FILES_MAX = 64
PREEMPTIONS_MAX = 8
SETUP_MAX = 16 * 1024
"""Characters. Linux passes at most 128 KiB to a program in one argument."""
SLICES_MAX = 64
"""Maximum number of kinds of MIG slices in a status."""
SPEC_BYTES_MAX = 256 * 1024

ContextId = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="the SHA-256 of an uploaded archive, in hex")]
Position = Annotated[str, Meta(max_length=63, pattern=POSITION_PATTERN)]
EnvName = str


class ResourceRequirements(Wire, kw_only=True, frozen=True):
    requests: Quantities = {}
    limits: Quantities = {}


class TopologySpec(Wire, kw_only=True, frozen=True):
    key: Annotated[str, Meta(min_length=1, max_length=253, description="node label whose values are the domains")]
    mode: Annotated[str, Meta(pattern="^(required|preferred)$")] = "required"
    """required: all ranks of the role in one domain, or none start; preferred: as few domains as possible"""


class RoleDependency(Wire, kw_only=True, frozen=True):
    """A role of the gang that has to be so far before the ranks of another one start."""

    role: Name
    """a role above this one in the list"""
    until: RoleProgress = RoleProgress.STARTED
    """started: all its ranks run; ready: the readiness probes of all its ranks succeed"""


class RoleSpec(Wire, kw_only=True, frozen=True):
    """One role of a gang: `count` ranks that are alike."""

    name: Name = "worker"
    """tells the roles of a gang apart"""
    count: Annotated[int, Meta(ge=1, le=RANKS_MAX)] = 1
    """how many ranks"""
    min_available: Annotated[int, Meta(ge=0, le=RANKS_MAX)] | None = None
    """the gang may start with so many of this role; all of them when absent"""
    resources: dict[str, Any] = {}
    """a map of quantities, or Kubernetes' {requests, limits}"""
    node_selector: dict[str, str] = {}
    """labels that a node must have; on top of the template's"""
    affinity: dict[str, Any] = {}
    """a Kubernetes affinity; replaces the template's"""
    topology_spread_constraints: Annotated[list[dict[str, Any]], Meta(max_length=16)] = []
    """Kubernetes' rules for spreading over domains; replace the template's"""
    tolerations: list[TolerationSpec] = []
    """on top of the template's and the pool's"""
    topology: TopologySpec | None = None
    """ranks belong together in a domain of this node label"""
    template: dict[str, Any] | None = None
    """replaces the allocation's template for this role"""
    depends_on: Annotated[list[RoleDependency], Meta(max_length=ROLES_MAX)] = []
    """roles that have to be so far before its ranks start; their places are kept meanwhile"""
    daemon: bool = False
    """its ranks do not keep the gang alive: they are ended when all others have"""


class FileSpec(Wire, kw_only=True, frozen=True):
    path: Annotated[str, Meta(min_length=1, max_length=255, description="relative to the working directory")]
    content: Annotated[str, Meta(max_length=SPEC_BYTES_MAX)]
    """the text, or base64 of it"""
    encoding: Annotated[str, Meta(pattern="^(utf8|base64)$")] = "utf8"
    mode: Annotated[int, Meta(ge=0, le=0o777)] = 0o644
    """permission bits"""


class PortSpec(Wire, kw_only=True, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=15, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    port: Annotated[int, Meta(ge=1, le=65535)]
    """what the main container listens on"""
    scheme: Annotated[str, Meta(pattern="^(http|https|tcp)$")] = "http"
    """how the proxy speaks to it"""


class SharedServiceSpec(Wire, kw_only=True, frozen=True):
    """A Kubernetes Service of the workspace. The first ranks of all allocations that name it stand behind it."""

    name: Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """its name, which is its address in the workspace too"""
    port: Annotated[int, Meta(ge=1, le=65535)]
    """the port of the Service; the main container of the first rank listens on the same one"""


class PreemptSignal(Wire, kw_only=True, frozen=True):
    n: Annotated[int, Meta(ge=0)]
    """counts the signals of an attempt"""
    reason: Annotated[str, Meta(max_length=256)] = ""
    """why, for people"""
    at: str = ""
    """when it was given, RFC 3339"""
    attempt: Annotated[int, Meta(ge=1)] = 1
    """the attempt that it is for"""
    requeue: bool = False
    """a pause: the next attempt follows, when it is resumed"""


class Signals(Wire, kw_only=True, frozen=True):
    """What users and ranks tell a running allocation; per attempt, `n` only rises."""

    preempt: PreemptSignal | None = None
    """ranks are asked to save their work and end"""
    acks: dict[str, int] = {}
    """rank -> the n it acknowledges"""
    ready: bool = False
    """the service inside answers"""
    waiting: bool = False
    """the service inside has nothing to show yet"""
    daemons: list[int] = []
    """ranks that do not keep the gang alive"""
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    """how far the work is"""
    checkpoint_at: str = ""
    """when the work was last saved"""
    lost_nodes: Annotated[list[Annotated[str, Meta(max_length=253)]], Meta(max_length=RANKS_MAX)] = []
    """nodes that an admin has given up: nothing of it runs there any more"""
    grace_s: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    """a cancel that is in a hurry: its pods have at most so many seconds to end"""
    attempt: Annotated[int, Meta(ge=1)] = 1
    """the attempt that they belong to"""


class Dependency(Wire, kw_only=True, frozen=True):
    """Another allocation of the workspace that has to end before this one may start."""

    allocation: Annotated[str, Meta(min_length=1, max_length=63)]
    """its AllocationID; a launch and an applied object may also give its name"""
    when: DependencyEnd = DependencyEnd.SUCCEEDED
    """how it has to end: succeeded, failed (with any other result), or ended (with any result)"""
    result: Result | None = None
    """how it had ended already at the launch; written by the API"""


class AllocationSpec(Wire, kw_only=True, frozen=True):
    """What to run, on how many ranks, under which rules."""

    kind: Kind
    """what it is; gives image, command, resources and port that are not said"""
    pool: Name = "default"
    """the ResourcePool whose nodes it runs on"""
    queue: Name = "default"
    """the Queue that it waits in; may change until it is admitted"""
    job: Name | None = None
    """the Job that it belongs to"""
    priority: Annotated[int, Meta(ge=0, le=1000, description="higher goes first")] = 50
    preemptible: bool = False
    """its queue may borrow for it, and it may be asked to make room for others"""
    ranks: Annotated[list[RoleSpec], Meta(max_length=ROLES_MAX)] = []
    """the roles of the gang; one role with one rank when absent"""
    topology: TopologySpec | None = None
    """all ranks of all roles belong together in a domain of this node label; a role may name a smaller one besides"""
    flavors: Annotated[list[Name], Meta(max_length=FLAVORS_MAX)] = []
    """the flavors of its pool that it accepts, the best first; those of its queue or pool when empty"""
    min_available: Annotated[int, Meta(ge=1, le=RANKS_MAX)] | None = None
    """the gang may start with so many ranks, and is torn down below; all of them when absent"""
    template: dict[str, Any] = {}
    """a PodTemplateSpec, validated against an allow-list"""
    setup: Annotated[str, Meta(max_length=SETUP_MAX)] = ""
    """a script that runs first in the main container of each rank, once in each attempt; the program starts if it ends
    with 0, and the rank has failed if it does not"""
    home: bool = False
    """HOME of the main containers is a volume that its user keeps: a claim of the workspace, made on first use"""
    shm_size: Annotated[str, Meta(max_length=64)] = ""
    """size of /dev/shm of each rank, such as 8Gi: memory, which counts against the memory limit; what the pool gives
    when empty"""
    files: Annotated[list[FileSpec], Meta(max_length=FILES_MAX)] = []
    """small files that every rank finds below its working directory"""
    context: ContextId | None = None
    """an archive of files that was uploaded before; every rank finds it unpacked in its working directory"""
    env: dict[EnvName, str] = {}
    """environment of the main containers"""
    secret_variables: list[EnvName] = []
    """variables of the main containers whose values are in the Secret slipway-values-UID, which the API makes of the
    secret values of a launch"""
    ports: Annotated[list[PortSpec], Meta(max_length=16)] = []
    """what the proxy may show"""
    service: SharedServiceSpec | None = None
    """the Service behind which its first rank stands, together with those of other allocations that name it"""
    idle_timeout: Duration | None = None
    """a running attempt ends after so long without use: no traffic through the proxy, and no activity reported"""
    max_runtime: Duration | None = None
    """an attempt ends after so long"""
    max_runtime_override: Duration | None = None
    """stands in for the maxRuntime of its queue; set by administrators, after the launch"""
    pending_timeout: Duration | None = None
    """it ends when it has waited so long: to be admitted, and again while something keeps it from starting"""
    preemption_grace: Duration | None = None
    """how long it may take to make room"""
    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 0
    """so many attempts may fail by the user's own fault before it has failed; with `restart: rank` ranks that start
    again are counted too"""
    restart: RestartUnit | None = None
    """what starts again after a failure: gang (all ranks, as the next attempt; also when absent), or rank (a rank whose
    program failed starts again in its place, while the others run on)"""
    failure_policy: FailurePolicy | None = None
    """what failures of ranks mean, by role and exit code; every failure counts against maxRestarts when absent"""
    success_policy: SuccessPolicy | None = None
    """which ranks must have ended with 0; all that are no daemons when absent"""
    request_hash: Annotated[str, Meta(max_length=64)] = ""
    """hash of the request that made it; tells a repeated launch from another one"""
    queue_position: Position = ""
    """its place among those of the same priority: a number, lower goes first; the time of creation when empty"""
    hold: bool = False
    """it is not started"""
    after: Annotated[list[Dependency], Meta(max_length=AFTER_MAX)] = []
    """it is not started before these allocations have ended; it is canceled when one ends otherwise than asked"""
    desired: Annotated[str, Meta(pattern="^(Running|Stopped)$")] = "Running"
    """Stopped cancels it, for good"""
    signals: Signals | None = None
    """what users and ranks tell it while it runs"""


class Placement(Wire, kw_only=True, frozen=True):
    rank: int
    """counted over the roles in order"""
    role: str = ""
    node: str
    """where it runs"""
    device: list[int] = []
    """devices of the node that it may use"""


class Admission(Wire, kw_only=True, frozen=True):
    """The decision, as the scheduler wrote it to this allocation."""

    decision_id: str
    """the decision in the ledger"""
    epoch: int
    """the ledger's epoch when it was decided"""
    attempt: int = 1
    """the attempt that it is for"""
    at: str = ""
    """when it was decided"""
    spec_hash: str = ""
    """hash of the complete spec that was admitted"""
    placements: list[Placement] = []
    """one per rank that starts"""
    max_runtime: Duration | None = None
    """the limit of its queue, where that is the shorter one"""
    elastic: bool = False
    """its ranks are started so that others can join them: the attempt may grow"""
    flavor: str = ""
    """the flavor of the pool that its GPUs are of; empty where the pool has none"""


class Release(Wire, kw_only=True, frozen=True):
    """The commit point of a launch: only pods named here may ever be bound. Index = position in `placements`."""

    attempt: int
    """the attempt that it is for"""
    pod_uids: list[str] = msgspec.field(default_factory=list[str], name="podUIDs")


class RankStatus(Wire, kw_only=True, frozen=True):
    """One rank as observed; an exit code is written once."""

    pod_uid: str = msgspec.field(default="", name="podUID")
    """the pod that stands or stood for it"""
    node: str = ""
    """where it is"""
    phase: RankState = RankState.PENDING
    """how far it is"""
    exit_code: int | None = None
    """of the main container, written once"""
    reason: str = ""
    """why it ended"""


class RingEntry(Wire, kw_only=True, frozen=True):
    """One transition; the last 16 are kept."""

    seq: int
    """counts the transitions of the allocation, from 1"""
    attempt: int
    """the attempt that it belongs to"""
    type: Event
    """what happened"""
    phase: Phase
    """the phase after it"""
    reason: str = ""
    """why"""
    time: str
    """when"""
    data: dict[str, Any] = {}
    """what else is known, at most 512 bytes"""


class Stop(Wire, kw_only=True, frozen=True):
    """A fired deadline or an eviction: who stops the allocation, and whether it comes back."""

    reason: str
    """the deadline that has passed, or why it was evicted"""
    at: str
    """when"""
    attempt: int = 1
    """the attempt that it is for"""
    requeue: bool = False
    """another attempt follows"""
    by: str = ""
    """the allocation that needs the room"""


class Shrink(Wire, kw_only=True, frozen=True):
    """Surplus ranks of an elastic gang that make room for others; the gang goes on without them."""

    ranks: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=RANKS_MAX)]
    """those that go or have gone, in order; a growth that comes later forgets them"""
    attempt: int = 1
    """the attempt that it is for"""
    reason: str = ""
    """why"""
    at: str = ""
    """when the last of them were told to go"""
    by: str = ""
    """the allocation that needs the room"""
    told: int = 0
    """how many of the ranks have gone and are told of"""


class Growth(Wire, kw_only=True, frozen=True):
    """The ranks that an elastic gang got while it ran, beside those of its admission and its release."""

    n: Annotated[int, Meta(ge=1)]
    """counts the changes of this list within the attempt, from 1"""
    attempt: int = 1
    """the attempt that it is for"""
    decision_id: str = ""
    """the last decision in the ledger that added ranks"""
    epoch: int = 0
    """the ledger's epoch when it was decided"""
    at: str = ""
    """when it was decided"""
    placements: list[Placement] = []
    """one per rank that was added, in the order in which they were added"""
    pod_uids: list[str] = msgspec.field(default_factory=list[str], name="podUIDs")
    """the commit point of the added ranks: only pods named here may be bound; index = position in `placements`"""
    left: list[int] = []
    """ranks of the admission that have made room: their places in the admission and in the release are over"""
    told: int = 0
    """the `n` whose ranks have started and are told of"""
    not_before: str = ""
    """no rank is added before this time, because some could not start"""
    reason: str = ""
    """why those could not start, until others have"""


class RankRestart(Wire, kw_only=True, frozen=True):
    """A rank that failed and was started again in its place, while the others ran on."""

    rank: Annotated[int, Meta(ge=0)]
    """its number"""
    n: Annotated[int, Meta(ge=1)]
    """counts its restarts within the attempt, from 1"""
    pod_uid: str = msgspec.field(default="", name="podUID")
    """the commit point of the restart: its pod from then on; the only one that may be bound for it"""
    not_before: str = ""
    """its pod is not created before this time"""


class Preempted(Wire, kw_only=True, frozen=True):
    """One time that it made room for another allocation."""

    at: str
    """when it was decided"""
    by: str
    """who needed the room: namespace/name"""
    attempt: int = 1
    """the attempt that made room, or some of its ranks"""


class DependencyRecord(Wire, kw_only=True, frozen=True):
    """What is known of an allocation in `spec.after`; it stays when that allocation is deleted."""

    allocation: Annotated[str, Meta(max_length=63)]
    """as `spec.after` names it"""
    id: Annotated[str, Meta(max_length=63)]
    """its AllocationID"""
    result: Result | None = None
    """how it ended; absent when it was deleted before that was seen"""
    recorded_at: str = ""
    """when its end was recorded; empty while it has not ended"""


class AllocationStatus(Wire, kw_only=True, frozen=True):
    phase: Phase = Phase.PENDING
    """where it stands"""
    attempt: int = 1
    """counts the attempts, from 1"""
    seq: int = 0
    """the last transition that is recorded"""
    ready: bool = False
    """its service answers"""
    waiting: bool = False
    """its service has nothing to show yet"""
    admission: Admission | None = None
    release: Release | None = None
    ranks: Annotated[list[RankStatus], Meta(max_length=RANKS_MAX)] | None = None
    """one per rank, in order"""
    result: Result | None = None
    """how it ended"""
    reason: str = ""
    """why it ended, or why its attempt did"""
    message: str = ""
    """the same for people"""
    transitions: list[RingEntry] = []
    """the last 16"""
    stop: Stop | None = None
    dependencies: Annotated[list[DependencyRecord], Meta(max_length=AFTER_MAX)] = []
    """what is known of the allocations in `spec.after`"""
    shrink: Shrink | None = None
    growth: Growth | None = None
    restarted_ranks: Annotated[list[RankRestart], Meta(max_length=RANKS_MAX)] = []
    """the ranks of this attempt that were started again in their place, in the order of their first restart"""
    preemptions: Annotated[list[Preempted], Meta(max_length=PREEMPTIONS_MAX)] = []
    """whom it made room for lately, newest last"""
    deadlines: dict[str, str] = {}
    """what ends it, and when"""
    restarts: int = 0
    """attempts that ended by the user's own fault, and ranks that were started again in their place"""
    infra_restarts: int = 0
    """attempts that ended by the fault of nodes or of the system"""
    uncounted_restarts: int = 0
    """attempts that ended by a rule with notCounted, and ranks that were started again by one"""
    not_before: str = ""
    """a restarted attempt is not admitted before this time"""
    avoid_nodes: list[str] = []
    """nodes that the next attempt keeps away from"""
    conditions: Annotated[list[Condition], Meta(max_length=CONDITIONS_MAX)] = []
    started_at: str = ""
    """when the attempt began to run"""
    ended_at: str = ""
    """when it ended"""
    nodes: str = ""
    """the nodes in short, for printer columns"""
    slots: int = 0
    """GPUs that it holds or held"""
    slices: Annotated[dict[str, int], Meta(max_length=SLICES_MAX)] = {}
    """MIG slices that it holds or held, by resource such as nvidia.com/mig-1g.10gb; together they are in `slots`"""
    usage: Usage | None = None
    """what its attempts used, day by day, up to the end of the last one"""


class Allocation(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Allocation"
    metadata: ObjectMeta
    spec: AllocationSpec
    status: AllocationStatus = AllocationStatus()


class JobSpec(Wire, kw_only=True, frozen=True):
    max_slots: Count | None = None
    """its allocations use at most so many GPUs together"""
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """of its allocations"""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """of what has the same priority and place, the heavier goes first; shares are between queues"""
    queue_position: Position = ""
    """the place of its allocations that have none of their own"""


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
    """as a launch has it"""


class Template(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Template"
    metadata: ObjectMeta
    spec: TemplateSpec = TemplateSpec()
