"""The five custom resources of group `slipway.dev`, version `v1alpha1`, in their wire format.

These structs are the only source of the REST body, the CRD schemas (`schema.py`), the CLI's flags and the reference
docs. `spec` is the intent, `status` the observed state. Bounds are in `Meta`; descriptions are in `Meta` or in the
string below a field.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.crd.figures import Usage
from slipway.crd.meta import (
    CONDITIONS_MAX,
    FLAVORS_MAX,
    GROUP_VERSION,
    RANKS_MAX,
    Condition,
    Count,
    Duration,
    Name,
    ObjectMeta,
    Quantities,
    TolerationSpec,
    Wire,
)
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
    """A role of the gang that must reach a state before the ranks of another role start."""

    role: Name
    """a role above this one in the list"""
    until: RoleProgress = RoleProgress.STARTED
    """started: all its ranks run; ready: the readiness probes of all its ranks succeed"""


class RoleSpec(Wire, kw_only=True, frozen=True):
    """One role of a gang: `count` equal ranks."""

    name: Name = "worker"
    """name of the role, unique in the gang"""
    count: Annotated[int, Meta(ge=1, le=RANKS_MAX)] = 1
    """number of ranks"""
    min_available: Annotated[int, Meta(ge=0, le=RANKS_MAX)] | None = None
    """the gang may start with this number of ranks of the role; all of them when absent"""
    resources: dict[str, Any] = {}
    """a map of quantities, or Kubernetes' {requests, limits}"""
    node_selector: dict[str, str] = {}
    """labels that a node must have, in addition to those of the template"""
    affinity: dict[str, Any] = {}
    """a Kubernetes affinity; replaces that of the template"""
    topology_spread_constraints: Annotated[list[dict[str, Any]], Meta(max_length=16)] = []
    """Kubernetes' rules for spreading over domains; replace those of the template"""
    tolerations: list[TolerationSpec] = []
    """in addition to those of the template and of the pool"""
    topology: TopologySpec | None = None
    """places the ranks of the role together in one domain of this node label, as `mode` states"""
    template: dict[str, Any] | None = None
    """replaces the allocation's template for this role"""
    depends_on: Annotated[list[RoleDependency], Meta(max_length=ROLES_MAX)] = []
    """roles that must reach a state before the ranks of this role start; these ranks have their nodes reserved during
    the wait"""
    daemon: bool = False
    """the ranks of the role do not keep the gang running: they are ended after all other ranks have ended"""


class FileSpec(Wire, kw_only=True, frozen=True):
    path: Annotated[str, Meta(min_length=1, max_length=255, description="relative to the working directory")]
    content: Annotated[str, Meta(max_length=SPEC_BYTES_MAX)]
    """the text, or its base64 encoding"""
    encoding: Annotated[str, Meta(pattern="^(utf8|base64)$")] = "utf8"
    mode: Annotated[int, Meta(ge=0, le=0o777)] = 0o644
    """permission bits"""


class PortSpec(Wire, kw_only=True, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=15, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    port: Annotated[int, Meta(ge=1, le=65535)]
    """the port on which the main container listens"""
    scheme: Annotated[str, Meta(pattern="^(http|https|tcp)$")] = "http"
    """protocol that the proxy uses to the port"""


class SharedServiceSpec(Wire, kw_only=True, frozen=True):
    """A Kubernetes Service of the workspace. It selects the first rank of each allocation that names it."""

    name: Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
    """its name, which is also its address in the workspace"""
    port: Annotated[int, Meta(ge=1, le=65535)]
    """the port of the Service; the main container of the first rank listens on the same port"""


class PreemptSignal(Wire, kw_only=True, frozen=True):
    n: Annotated[int, Meta(ge=0)]
    """number of the signal in its attempt"""
    reason: Annotated[str, Meta(max_length=256)] = ""
    """the reason, as text for people"""
    at: str = ""
    """when the signal was sent, RFC 3339"""
    attempt: Annotated[int, Meta(ge=1)] = 1
    """the attempt for which it was sent"""
    requeue: bool = False
    """a pause: the next attempt follows when the allocation is resumed"""


class Signals(Wire, kw_only=True, frozen=True):
    """Messages of users and ranks to a running allocation; within an attempt `n` only increases."""

    preempt: PreemptSignal | None = None
    """the request to the ranks to save their work and end"""
    acks: dict[str, int] = {}
    """rank -> the n that it has acknowledged"""
    ready: bool = False
    """the service in the rank answers"""
    waiting: bool = False
    """the service in the rank has nothing to show yet"""
    daemons: list[int] = []
    """ranks that do not keep the gang running"""
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    """progress of the work, from 0 to 1"""
    checkpoint_at: str = ""
    """when the work was last saved"""
    lost_nodes: Annotated[list[Annotated[str, Meta(max_length=253)]], Meta(max_length=RANKS_MAX)] = []
    """nodes that an administrator has declared lost: no process of the allocation runs there any more"""
    grace_s: Annotated[int, Meta(ge=1, le=86_400)] | None = None
    """shorter grace period of a forced cancel: its pods have at most this number of seconds to end"""
    attempt: Annotated[int, Meta(ge=1)] = 1
    """the attempt for which the signals were sent"""


class Dependency(Wire, kw_only=True, frozen=True):
    """Another allocation of the workspace that must end before this one may start."""

    allocation: Annotated[str, Meta(min_length=1, max_length=63)]
    """its AllocationID; a launch and an applied object may also give its name"""
    when: DependencyEnd = DependencyEnd.SUCCEEDED
    """how it must end: succeeded, failed (with any other result), or ended (with any result)"""
    result: Result | None = None
    """its result, if it had ended before the launch; written by the API"""


class AllocationSpec(Wire, kw_only=True, frozen=True):
    """The program, its ranks, and the rules for running it."""

    kind: Kind
    """kind of the workload; it determines the defaults of image, command, resources and port"""
    pool: Name = "default"
    """the ResourcePool on whose nodes it runs"""
    queue: Name = "default"
    """the Queue in which it waits; may be changed until it is admitted"""
    job: Name | None = None
    """the Job to which it belongs"""
    priority: Annotated[int, Meta(ge=0, le=1000, description="higher goes first")] = 50
    preemptible: bool = False
    """its queue may borrow for it, and it may be preempted for other allocations"""
    ranks: Annotated[list[RoleSpec], Meta(max_length=ROLES_MAX)] = []
    """the roles of the gang; one role with one rank when absent"""
    topology: TopologySpec | None = None
    """places all ranks of all roles together in one domain of this node label, as `mode` states; a role may also name a
    smaller domain"""
    flavors: Annotated[list[Name], Meta(max_length=FLAVORS_MAX)] = []
    """the flavors of its pool that it accepts, best first; those of its queue or pool when empty"""
    min_available: Annotated[int, Meta(ge=1, le=RANKS_MAX)] | None = None
    """the gang may start with this number of ranks, and is ended when fewer are left; all of them when absent"""
    template: dict[str, Any] = {}
    """a PodTemplateSpec, checked against an allow-list"""
    setup: Annotated[str, Meta(max_length=SETUP_MAX)] = ""
    """a script that runs in the main container of each rank before its program, once in each attempt; the program
    starts only if the script ends with 0, else the rank has failed"""
    home: bool = False
    """HOME of the main containers is a persistent volume of the user: a claim in the workspace, created on first use"""
    shm_size: Annotated[str, Meta(max_length=64)] = ""
    """size of /dev/shm of each rank, such as 8Gi: memory that is included in the memory limit; the default of the pool
    when empty"""
    files: Annotated[list[FileSpec], Meta(max_length=FILES_MAX)] = []
    """small files below the working directory of every rank"""
    context: ContextId | None = None
    """an archive of files that was uploaded before; it is unpacked in the working directory of every rank"""
    env: dict[EnvName, str] = {}
    """environment of the main containers"""
    secret_variables: list[EnvName] = []
    """variables of the main containers whose values are in the Secret slipway-values-UID, which the API creates from
    the secret values of a launch"""
    ports: Annotated[list[PortSpec], Meta(max_length=16)] = []
    """ports to which the proxy connects"""
    service: SharedServiceSpec | None = None
    """a Service that selects the first rank of this allocation, and of other allocations that name it"""
    idle_timeout: Duration | None = None
    """a running attempt ends after this time without use: no traffic through the proxy, and no reported activity"""
    max_runtime: Duration | None = None
    """an attempt ends after this time"""
    max_runtime_override: Duration | None = None
    """replaces the maxRuntime of its queue; set by administrators after the launch"""
    pending_timeout: Duration | None = None
    """it ends after waiting for this time to be admitted, or with a blocked start after its admission"""
    preemption_grace: Duration | None = None
    """time to save its work and end when it is preempted"""
    max_restarts: Annotated[int, Meta(ge=0, le=1000)] = 0
    """number of attempts that may fail by the fault of the user before the allocation fails; with `restart: rank` also
    restarted ranks are counted"""
    restart: RestartUnit | None = None
    """unit of a restart after a failure: gang (all ranks, as the next attempt; also when absent), or rank (a rank whose
    program failed restarts in place, and the other ranks continue)"""
    failure_policy: FailurePolicy | None = None
    """meaning of the failures of ranks, by role and exit code; when absent every failure is included in maxRestarts"""
    success_policy: SuccessPolicy | None = None
    """which ranks must have ended with 0; when absent all ranks that are no daemons"""
    request_hash: Annotated[str, Meta(max_length=64)] = ""
    """hash of the launch request; identifies a repetition of the same request"""
    queue_position: Position = ""
    """its position among allocations with the same priority: a number, lower goes first; the creation time when
    empty"""
    hold: bool = False
    """it does not start until it is resumed"""
    after: Annotated[list[Dependency], Meta(max_length=AFTER_MAX)] = []
    """it does not start before these allocations have ended; it is canceled when one ends in another way than
    required"""
    desired: Annotated[str, Meta(pattern="^(Running|Stopped)$")] = "Running"
    """Stopped cancels it permanently"""
    signals: Signals | None = None
    """messages of users and ranks while it runs"""


class Placement(Wire, kw_only=True, frozen=True):
    rank: int
    """number of the rank, counted over the roles in order"""
    role: str = ""
    node: str
    """the node of the rank"""
    device: list[int] = []
    """numbers of the node's devices that it may use"""


class Admission(Wire, kw_only=True, frozen=True):
    """The decision of the scheduler to start the allocation."""

    decision_id: str
    """id of the decision in the ledger"""
    epoch: int
    """epoch of the ledger at the decision"""
    attempt: int = 1
    """the attempt that it admits"""
    at: str = ""
    """time of the decision"""
    spec_hash: str = ""
    """hash of the complete spec that was admitted"""
    placements: list[Placement] = []
    """one for each rank that starts"""
    max_runtime: Duration | None = None
    """the run limit of its queue, if that is the shorter one"""
    elastic: bool = False
    """its ranks are started in a way that lets other ranks join: the attempt may grow"""
    flavor: str = ""
    """the flavor of its GPUs; empty when the pool has no flavors"""


class Release(Wire, kw_only=True, frozen=True):
    """The commit point of a launch: only pods named here may ever be bound. Index = position in `placements`."""

    attempt: int
    """the attempt that it releases"""
    pod_uids: list[str] = msgspec.field(default_factory=list[str], name="podUIDs")


class RankStatus(Wire, kw_only=True, frozen=True):
    """The observed state of one rank; an exit code is written once."""

    pod_uid: str = msgspec.field(default="", name="podUID")
    """the current or last pod of the rank"""
    node: str = ""
    """the node of the pod"""
    phase: RankState = RankState.PENDING
    """phase of the rank"""
    exit_code: int | None = None
    """exit code of the main container, written once"""
    reason: str = ""
    """why it ended"""


class RingEntry(Wire, kw_only=True, frozen=True):
    """One transition; the last 16 are stored."""

    seq: int
    """number of the transition of the allocation, from 1"""
    attempt: int
    """the attempt to which it belongs"""
    type: Event
    """the event"""
    phase: Phase
    """the phase after the event"""
    reason: str = ""
    """the reason"""
    time: str
    """time of the event"""
    data: dict[str, Any] = {}
    """further data, at most 512 bytes"""


class Stop(Wire, kw_only=True, frozen=True):
    """The stop of an attempt because of a deadline or an eviction, and whether another attempt follows."""

    reason: str
    """the deadline that has passed, or the reason of the eviction"""
    at: str
    """time of the stop"""
    attempt: int = 1
    """the attempt that it stops"""
    requeue: bool = False
    """another attempt follows"""
    by: str = ""
    """the allocation for which it is evicted"""


class Shrink(Wire, kw_only=True, frozen=True):
    """Surplus ranks of an elastic gang that are evicted for other allocations; the gang continues without them."""

    ranks: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=RANKS_MAX)]
    """the evicted ranks, in order; a later growth removes them from this list"""
    attempt: int = 1
    """the attempt to which it belongs"""
    reason: str = ""
    """the reason"""
    at: str = ""
    """when the last of these evictions was decided"""
    by: str = ""
    """the allocation for which they are evicted"""
    told: int = 0
    """number of these ranks that have ended and whose end was published"""


class Growth(Wire, kw_only=True, frozen=True):
    """The ranks that an elastic gang got while it ran, in addition to those of its admission and its release."""

    n: Annotated[int, Meta(ge=1)]
    """number of the change of this list within the attempt, from 1"""
    attempt: int = 1
    """the attempt to which it belongs"""
    decision_id: str = ""
    """id in the ledger of the last decision that added ranks"""
    epoch: int = 0
    """epoch of the ledger at the decision"""
    at: str = ""
    """time of the decision"""
    placements: list[Placement] = []
    """one for each added rank, in the order in which they were added"""
    pod_uids: list[str] = msgspec.field(default_factory=list[str], name="podUIDs")
    """the commit point of the added ranks: only pods named here may be bound; index = position in `placements`"""
    left: list[int] = []
    """ranks of the admission that were evicted: their placements in the admission and in the release are no longer
    valid"""
    told: int = 0
    """the last `n` whose ranks have started and whose start was published"""
    not_before: str = ""
    """no rank is added before this time, because added ranks could not start"""
    reason: str = ""
    """why added ranks could not start; empty after others have started"""


class RankRestart(Wire, kw_only=True, frozen=True):
    """A failed rank that was restarted in place, while the other ranks continued."""

    rank: Annotated[int, Meta(ge=0)]
    """number of the rank"""
    n: Annotated[int, Meta(ge=1)]
    """number of its restart within the attempt, from 1"""
    pod_uid: str = msgspec.field(default="", name="podUID")
    """the commit point of the restart: the new pod of the rank, and the only one that may be bound for it"""
    not_before: str = ""
    """its pod is not created before this time"""


class Preempted(Wire, kw_only=True, frozen=True):
    """One eviction of the allocation, or of some of its ranks, for another allocation."""

    at: str
    """time of the decision"""
    by: str
    """the allocation that needed the capacity: namespace/name"""
    attempt: int = 1
    """the attempt that was evicted, or some of whose ranks were"""


class DependencyRecord(Wire, kw_only=True, frozen=True):
    """The recorded state of an allocation in `spec.after`; it remains when that allocation is deleted."""

    allocation: Annotated[str, Meta(max_length=63)]
    """the text in `spec.after`"""
    id: Annotated[str, Meta(max_length=63)]
    """its AllocationID"""
    result: Result | None = None
    """its result; absent when it was deleted before its end was observed"""
    recorded_at: str = ""
    """when its end was recorded; empty before that"""


class AllocationStatus(Wire, kw_only=True, frozen=True):
    phase: Phase = Phase.PENDING
    """the current phase"""
    attempt: int = 1
    """number of the attempt, from 1"""
    seq: int = 0
    """number of the last recorded transition"""
    ready: bool = False
    """its service answers"""
    waiting: bool = False
    """its service has nothing to show yet"""
    admission: Admission | None = None
    release: Release | None = None
    ranks: Annotated[list[RankStatus], Meta(max_length=RANKS_MAX)] | None = None
    """one entry per rank, in order"""
    result: Result | None = None
    """the result, after its end"""
    reason: str = ""
    """why it ended, or why its last attempt ended"""
    message: str = ""
    """the reason as text for people"""
    transitions: list[RingEntry] = []
    """the last 16 transitions"""
    stop: Stop | None = None
    dependencies: Annotated[list[DependencyRecord], Meta(max_length=AFTER_MAX)] = []
    """recorded states of the allocations in `spec.after`"""
    shrink: Shrink | None = None
    growth: Growth | None = None
    restarted_ranks: Annotated[list[RankRestart], Meta(max_length=RANKS_MAX)] = []
    """the ranks of this attempt that were restarted in place, in the order of their first restart"""
    preemptions: Annotated[list[Preempted], Meta(max_length=PREEMPTIONS_MAX)] = []
    """its latest evictions for other allocations, newest last"""
    deadlines: dict[str, str] = {}
    """its deadlines: name and time"""
    restarts: int = 0
    """number of attempts that ended by the fault of the user, and of ranks that were restarted in place"""
    infra_restarts: int = 0
    """number of attempts that ended by the fault of nodes or of the system"""
    uncounted_restarts: int = 0
    """number of attempts that ended by a rule with notCounted, and of ranks that were restarted by such a rule"""
    not_before: str = ""
    """end of the backoff: a restarted attempt is not admitted before this time"""
    avoid_nodes: list[str] = []
    """nodes that the next attempt avoids"""
    conditions: Annotated[list[Condition], Meta(max_length=CONDITIONS_MAX)] = []
    started_at: str = ""
    """when the attempt began to run"""
    ended_at: str = ""
    """when it ended"""
    nodes: str = ""
    """the nodes in short form, for printer columns"""
    slots: int = 0
    """number of GPUs that it holds or held"""
    slices: Annotated[dict[str, int], Meta(max_length=SLICES_MAX)] = {}
    """MIG slices that it holds or held, by resource such as nvidia.com/mig-1g.10gb; `slots` includes their sum"""
    usage: Usage | None = None
    """usage of its attempts by day, up to the end of the last ended attempt"""


class Allocation(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Allocation"
    metadata: ObjectMeta
    spec: AllocationSpec
    status: AllocationStatus = AllocationStatus()


class JobSpec(Wire, kw_only=True, frozen=True):
    max_slots: Count | None = None
    """its allocations use at most this number of GPUs together"""
    priority: Annotated[int, Meta(ge=0, le=1000)] | None = None
    """priority of its allocations"""
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """of allocations with the same priority and position, those of the job with the higher weight go first; the fair
    share depends only on queues"""
    queue_position: Position = ""
    """the position of its allocations that have none of their own"""


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
    """fields of a launch body"""


class Template(Wire, kw_only=True, frozen=True):
    api_version: str = GROUP_VERSION
    kind: str = "Template"
    metadata: ObjectMeta
    spec: TemplateSpec = TemplateSpec()
