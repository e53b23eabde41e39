"""The core Kubernetes objects, with only the fields that we read.

Objects that we create are plain JSON (`RawObject`), because a user's pod template may contain any field.
"""

from typing import Any

import msgspec

from slipway.crd.meta import Condition, ObjectMeta
from slipway.crd.v1alpha1 import Wire


class ContainerPort(Wire, kw_only=True, frozen=True):
    container_port: int
    host_port: int = 0
    name: str = ""


class Container(Wire, kw_only=True, frozen=True):
    name: str
    image: str = ""
    resources: dict[str, Any] = {}
    ports: list[ContainerPort] = []
    restart_policy: str = ""


class ResourceLists(Wire, kw_only=True, frozen=True):
    requests: dict[str, Any] = {}


class SchedulingGate(Wire, kw_only=True, frozen=True):
    name: str


class PodSpec(Wire, kw_only=True, frozen=True):
    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    containers: list[Container] = []
    init_containers: list[Container] = []
    scheduling_gates: list[SchedulingGate] = []
    termination_grace_period_seconds: int | None = None
    overhead: dict[str, Any] = {}
    resources: ResourceLists | None = None
    affinity: dict[str, Any] = {}
    host_network: bool = False


class StateTerminated(Wire, kw_only=True, frozen=True):
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    signal: int = 0
    started_at: str | None = None
    finished_at: str | None = None


class StateWaiting(Wire, kw_only=True, frozen=True):
    reason: str = ""
    message: str = ""


class StateRunning(Wire, kw_only=True, frozen=True):
    started_at: str | None = None


class ContainerState(Wire, kw_only=True, frozen=True):
    waiting: StateWaiting | None = None
    running: StateRunning | None = None
    terminated: StateTerminated | None = None


class ContainerStatus(Wire, kw_only=True, frozen=True):
    name: str
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    container_id: str = msgspec.field(default="", name="containerID")
    """empty until the runtime has created the container"""
    resources: ResourceLists | None = None
    allocated_resources: dict[str, Any] = {}


class PodStatus(Wire, kw_only=True, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []
    resources: ResourceLists | None = None
    allocated_resources: dict[str, Any] = {}
    start_time: str | None = None


class Pod(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class NodeTaint(Wire, kw_only=True, frozen=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class NodeSpec(Wire, kw_only=True, frozen=True):
    unschedulable: bool = False
    taints: list[NodeTaint] = []


class NodeImage(Wire, kw_only=True, frozen=True):
    names: list[str] = []
    size_bytes: int = 0


class NodeStatus(Wire, kw_only=True, frozen=True):
    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: list[Condition] = []
    images: list[NodeImage] = []


class Node(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class PodTemplate(Wire, kw_only=True, frozen=True):
    """A template that a ProvisioningRequest refers to; its contents are never read."""

    metadata: ObjectMeta


class ProvisioningRequestStatus(Wire, kw_only=True, frozen=True):
    conditions: list[Condition] = []


class ProvisioningRequest(Wire, kw_only=True, frozen=True):
    """A request for nodes from the Cluster Autoscaler. Its spec is immutable and is not read."""

    metadata: ObjectMeta
    status: ProvisioningRequestStatus = ProvisioningRequestStatus()


class ConfigMap(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    data: dict[str, str] = {}
    immutable: bool = False


class Service(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: dict[str, Any] = {}


class VolumeClaimSpec(Wire, kw_only=True, frozen=True):
    storage_class_name: str | None = None
    volume_name: str = ""


class VolumeClaimStatus(Wire, kw_only=True, frozen=True):
    phase: str = ""


class VolumeClaim(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: VolumeClaimSpec = VolumeClaimSpec()
    status: VolumeClaimStatus = VolumeClaimStatus()


class PersistentVolumeSpec(Wire, kw_only=True, frozen=True):
    node_affinity: dict[str, Any] | None = None


class PersistentVolume(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class StorageClass(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    volume_binding_mode: str = "Immediate"


class NamespaceStatus(Wire, kw_only=True, frozen=True):
    phase: str = "Active"


class ReviewedUser(Wire, kw_only=True, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class TokenReviewStatus(Wire, kw_only=True, frozen=True):
    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()
    audiences: list[str] = []
    error: str = ""


class TokenReview(Wire, kw_only=True, frozen=True):
    """The API server's review of a token. The spec, which contains the token, is not read."""

    metadata: ObjectMeta = ObjectMeta()
    status: TokenReviewStatus = TokenReviewStatus()


class AccessReviewStatus(Wire, kw_only=True, frozen=True):
    allowed: bool = False
    denied: bool = False
    reason: str = ""
    evaluation_error: str = ""


class SubjectAccessReview(Wire, kw_only=True, frozen=True):
    """The API server's review of a user's permission."""

    metadata: ObjectMeta = ObjectMeta()
    status: AccessReviewStatus = AccessReviewStatus()


class Namespace(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    status: NamespaceStatus = NamespaceStatus()


class QuotaRequirement(Wire, kw_only=True, frozen=True):
    scope_name: str = ""
    operator: str = ""
    values: list[str] = []


class QuotaSelector(Wire, kw_only=True, frozen=True):
    match_expressions: list[QuotaRequirement] = []


class QuotaSpec(Wire, kw_only=True, frozen=True):
    hard: dict[str, Any] = {}
    scopes: list[str] = []
    scope_selector: QuotaSelector = QuotaSelector()


class QuotaStatus(Wire, kw_only=True, frozen=True):
    used: dict[str, Any] = {}


class ResourceQuota(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


class LimitRangeItem(Wire, kw_only=True, frozen=True):
    type: str = ""
    min: dict[str, Any] = {}
    max: dict[str, Any] = {}
    default: dict[str, Any] = {}
    default_request: dict[str, Any] = {}
    max_limit_request_ratio: dict[str, Any] = {}


class LimitRangeSpec(Wire, kw_only=True, frozen=True):
    limits: list[LimitRangeItem] = []


class LimitRange(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: LimitRangeSpec = LimitRangeSpec()


class LeaseSpec(Wire, kw_only=True, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Wire, kw_only=True, frozen=True):
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class ObjectReference(Wire, kw_only=True, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    field_path: str = ""


class EventSeries(Wire, kw_only=True, frozen=True):
    count: int = 0
    last_observed_time: str | None = None


class KubeEvent(Wire, kw_only=True, frozen=True):
    """A core Event. Older sources count repeats in `count`, newer ones in `series`."""

    metadata: ObjectMeta
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    type: str = "Normal"
    count: int | None = 1
    last_timestamp: str | None = None
    event_time: str | None = None
    series: EventSeries | None = None


class OwnEvent(Wire, kw_only=True, frozen=True):
    """An Event of events.k8s.io that we wrote ourselves: its time, and its repeats."""

    metadata: ObjectMeta
    event_time: str | None = None
    series: EventSeries | None = None


class Secret(Wire, kw_only=True, frozen=True):
    """A Secret. `data` is base64 and does not appear in the repr."""

    metadata: ObjectMeta
    data: dict[str, str] = {}
    type: str = ""
    immutable: bool = False

    def __repr__(self) -> str:
        return f"Secret({self.metadata.name!r})"


class CustomResourceDefinition(Wire, kw_only=True, frozen=True):
    metadata: ObjectMeta
    spec: dict[str, Any] = {}
