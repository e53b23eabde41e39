"""A pod as a kubelet needs it: the few fields that are read, decoded from watch events without the rest.

Pure. The decoder skips all other fields, which is most of an object (managed fields, volumes, commands).
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import field

T = TypeVar("T")

OVER = ("Succeeded", "Failed")
GRACE_S = 30.0


class Meta(msgspec.Struct, rename="camel", kw_only=True):
    """metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None


class ContainerResources(msgspec.Struct, kw_only=True):
    """resources of a container."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class Container(msgspec.Struct, rename="camel", kw_only=True):
    """One container or init container of a spec."""

    name: str
    image: str = ""
    restart_policy: str = ""
    resources: ContainerResources = field(default_factory=ContainerResources)

    @property
    def is_sidecar(self) -> bool:
        """Whether an init container runs beside the others."""
        return self.restart_policy == "Always"


class Toleration(msgspec.Struct, kw_only=True):
    """One toleration."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Term(msgspec.Struct, kw_only=True):
    """One expression of a node selector."""

    key: str
    operator: str
    values: list[str] = []


class Terms(msgspec.Struct, rename="camel", kw_only=True):
    """Expressions that must all match."""

    match_expressions: list[Term] = []
    match_fields: list[Term] = []


class RequiredNodes(msgspec.Struct, rename="camel", kw_only=True):
    """Terms of which one must match."""

    node_selector_terms: list[Terms] = []


class NodeAffinity(msgspec.Struct, rename="camel", kw_only=True):
    """affinity.nodeAffinity, the required part."""

    required: RequiredNodes | None = field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(msgspec.Struct, rename="camel", kw_only=True):
    """affinity, the part that kubelets read."""

    node_affinity: NodeAffinity | None = None


class Spec(msgspec.Struct, rename="camel", kw_only=True):
    """spec."""

    node_name: str = ""
    containers: list[Container] = []
    init_containers: list[Container] = []
    restart_policy: str = "Always"
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: list[Toleration] = []
    overhead: dict[str, str | int | float] = {}
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    priority_class_name: str = ""


class Condition(msgspec.Struct, rename="camel", kw_only=True):
    """One condition of a status."""

    type: str
    status: str = ""
    last_transition_time: str | None = None


def is_true(conditions: Iterable[Condition], name: str) -> bool:
    """Whether that condition holds."""
    return any(item.type == name and item.status == "True" for item in conditions)


class Terminated(msgspec.Struct, rename="camel", kw_only=True):
    """state.terminated."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class Running(msgspec.Struct, rename="camel", kw_only=True):
    """state.running."""

    started_at: str | None = None


class State(msgspec.Struct, kw_only=True):
    """state or lastState of a container; waiting when neither is set."""

    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, rename="camel", kw_only=True):
    """The last reported state of a container."""

    name: str
    restart_count: int = 0
    state: State = field(default_factory=State)
    last_state: State = field(default_factory=State)


class Status(msgspec.Struct, rename="camel", kw_only=True):
    """status."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    start_time: str = ""
    pod_ip: str = field(name="podIP", default="")
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(msgspec.Struct, kw_only=True):
    """A pod, read from a LIST or a watch. Never changed."""

    metadata: Meta
    spec: Spec = field(default_factory=Spec)
    status: Status = field(default_factory=Status)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def is_deleting(self) -> bool:
        return bool(self.metadata.deletion_timestamp)

    @property
    def is_over(self) -> bool:
        """Whether the API server shows a phase that never changes again."""
        return self.status.phase in OVER

    @property
    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL: the deletion's, else the spec's."""
        asked = self.metadata.deletion_grace_period_seconds
        if asked is None:
            asked = self.spec.termination_grace_period_seconds
        return GRACE_S if asked is None else float(asked)


class ListMeta(msgspec.Struct, rename="camel", kw_only=True):
    """metadata of a LIST."""

    resource_version: str = ""
    continue_: str = field(name="continue", default="")


class Taint(msgspec.Struct, frozen=True, omit_defaults=True):
    """One taint of a node."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(msgspec.Struct, kw_only=True):
    """spec of a node."""

    taints: list[Taint] = []


class NodeStatus(msgspec.Struct, kw_only=True):
    """status of a node."""

    conditions: list[Condition] = []


class Node(msgspec.Struct, kw_only=True):
    """A node, with the fields that its kubelet reads."""

    metadata: Meta
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)

    @property
    def is_ready(self) -> bool:
        """Whether the cluster considers the node ready."""
        return is_true(self.status.conditions, "Ready")


class Listing(msgspec.Struct, Generic[T], kw_only=True):
    """One page of a LIST."""

    metadata: ListMeta = field(default_factory=ListMeta)
    items: list[T] = []


class Bookmark(msgspec.Struct, kw_only=True):
    """The object of a bookmark: everything but its version is empty."""

    metadata: ListMeta


class Event(msgspec.Struct, kw_only=True):
    """One line of a watch; the object of an ERROR is a Status, of a BOOKMARK only a version."""

    type: str
    object: msgspec.Raw


class Refusal(msgspec.Struct, kw_only=True):
    """A Status that is no success."""

    code: int = 0
    reason: str = ""
    message: str = ""


Json = dict[str, Any]
"""A JSON object."""
