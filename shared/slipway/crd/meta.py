"""Object metadata as the Kubernetes API sends it, for our custom resources and the core kinds.

Wire structs: camelCase on the wire, unknown fields are ignored (the server may know more than we do).

This module has the base of all wire structs of the custom resources, and the types that several of them share.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.model.resources import QuantityValue
from slipway.model.times import DURATION_PATTERN

API_GROUP = "slipway.dev"
API_VERSION = "v1alpha1"
GROUP_VERSION = f"{API_GROUP}/{API_VERSION}"

TEARDOWN_FINALIZER = f"{API_GROUP}/teardown"
TRACKING_FINALIZER = f"{API_GROUP}/tracking"

LABEL_ALLOCATION = f"{API_GROUP}/allocation"
LABEL_ALLOCATION_UID = f"{API_GROUP}/allocation-uid"
LABEL_ATTEMPT = f"{API_GROUP}/attempt"
LABEL_POOL = f"{API_GROUP}/pool"
"""On the objects of an attempt: the pool whose nodes its pods use, and whose rules apply to them."""
LABEL_RANK = f"{API_GROUP}/rank"
LABEL_ROLE = f"{API_GROUP}/role"
LABEL_SERVICE = f"{API_GROUP}/service"
"""On a Service that the first ranks of several allocations share, and on the pods that it selects: its name."""
LABEL_WORKSPACE = f"{API_GROUP}/workspace"
LABEL_LAUNCH_KEY = f"{API_GROUP}/launch-key"
"""The name derived from the Idempotency-Key of an allocation, whatever the allocation's own name is."""
LABEL_WEBHOOK = f"{API_GROUP}/webhook"
LABEL_CAPACITY_REQUEST = f"{API_GROUP}/capacity-request"
"""On the objects that request nodes from an autoscaler: the name of the request."""
ANNOTATION_CAPACITY_REQUEST = f"{API_GROUP}/capacity-request"
ANNOTATION_CAPACITY_STATE = f"{API_GROUP}/capacity-state"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "slipway"

ANNOTATION_CREATED = f"{API_GROUP}/created"
"""On a webhook that was moved to another namespace: when it was first created."""
ANNOTATION_MOVED = f"{API_GROUP}/moved-to"
"""On a webhook that was moved to another namespace: that namespace."""
ANNOTATION_FORMER_IDS = f"{API_GROUP}/former-ids"
"""On a restored allocation: its AllocationIDs in earlier clusters, joined by commas."""
ANNOTATION_TRACE = f"{API_GROUP}/trace"
ANNOTATION_USER = f"{API_GROUP}/user"
ANNOTATION_SPEC_HASH = f"{API_GROUP}/spec-hash"
ANNOTATION_ADDED = f"{API_GROUP}/added"
"""On a pod whose rank was added to a running gang or restarted in place: the number of that growth or restart."""
ANNOTATION_DEVICES = f"{API_GROUP}/devices"
"""Numbers of the node's GPUs that the pod was assigned, when the scheduler and not the device plugin chose them."""
ANNOTATION_GPU_MILLI = f"{API_GROUP}/gpu-milli"
"""Thousandths of the one GPU that the pod uses; absent: the whole GPU."""
ANNOTATION_MAIN_CONTAINER = f"{API_GROUP}/main-container"
ANNOTATION_CHECKPOINTS = f"{API_GROUP}/checkpoint-dir"
"""On a pod template: the folder that its main container gets as SLIPWAY_CHECKPOINT_DIR. `$(NAME)` is replaced by the
variable of the rank."""
ANNOTATION_OPENED = f"{API_GROUP}/gate-opened"
"""When the scheduling gate of a pod was removed, so that another scheduler may bind it."""
ANNOTATION_POOL = f"{API_GROUP}/default-pool"
ANNOTATION_QUEUE = f"{API_GROUP}/default-queue"
ANNOTATION_TEMPLATE = f"{API_GROUP}/default-template"
ANNOTATION_SERVICE_ACCOUNTS = f"{API_GROUP}/service-accounts"
"""On a workspace: the service accounts that its ranks may use, besides `default`; names or PREFIX*, comma-separated."""
ANNOTATION_SECRETS = f"{API_GROUP}/secrets"
"""On a workspace: the Secrets of its namespace that pod templates may name; names or PREFIX*, comma-separated. Without
the annotation they may name every Secret."""
ANNOTATION_PULL_SECRETS = f"{API_GROUP}/image-pull-secrets"
"""On a workspace: the Secrets of its namespace with which the images of its pods are pulled; names, comma-separated."""
ANNOTATION_RUN_AS = f"{API_GROUP}/run-as"
"""On a workspace: the uid and groups of launches that set none, as JSON: {"user": 1001, "group": 2001}."""
ANNOTATION_HOME = f"{API_GROUP}/home"
LABEL_HOME = f"{API_GROUP}/home"
"""On a volume claim that is a home directory."""
ANNOTATION_REQUEST_ID = f"{API_GROUP}/request-id"
ANNOTATION_IDEMPOTENCY_KEY = f"{API_GROUP}/idempotency-key"
ANNOTATION_BATCH = f"{API_GROUP}/last-batch"
"""On an allocation: hashes of key and verb of the last batch that changed it, so that a repeated batch acts only
once."""

RawObject = dict[str, Any]
"""A Kubernetes object as plain JSON."""


def is_ours(label: str) -> bool:
    """Whether only Slipway sets this label of a pod."""
    return label.startswith(f"{API_GROUP}/") or label == LABEL_MANAGED_BY


class OwnerReference(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: list[str] = []
    owner_references: list[OwnerReference] = []
    generate_name: str = ""

    @property
    def version(self) -> int:
        """resourceVersion as an integer, which is comparable from Kubernetes 1.35 on; 0 when unset."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0

    @property
    def fence(self) -> RawObject:
        """The metadata of a PUT that can only change exactly this version of exactly this object."""
        return {
            "name": self.name,
            "namespace": self.namespace,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        }


class Condition(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str | None = None


class ListMeta(
    msgspec.Struct,
    kw_only=True,
    frozen=True,
    rename={
        "continue_": "continue",
        "resource_version": "resourceVersion",
        "remaining_item_count": "remainingItemCount",
    },
    omit_defaults=True,
):
    resource_version: str = ""
    continue_: str = ""
    remaining_item_count: int | None = None


def condition_of(conditions: list[Condition], type_: str) -> Condition | None:
    """Return the condition of that type, or None."""
    return next((condition for condition in conditions if condition.type == type_), None)


CONDITIONS_MAX = 16
RANKS_MAX = 4096
FLAVORS_MAX = 16

Name = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Duration = Annotated[str, Meta(max_length=32, pattern=DURATION_PATTERN, description="such as 90s, 30m or 2h45m")]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Quantities = dict[str, QuantityValue]


class Wire(msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True):
    """Base of the wire structs: camelCase, defaults omitted."""


UnixId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class RunAs(Wire, kw_only=True, frozen=True):
    """User and groups of the processes of a pod, as numbers; an absent field is not set."""

    user: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """uid of the processes: runAsUser"""
    group: UnixId | None = None
    """primary group of the processes: runAsGroup"""
    fs_group: UnixId | None = None
    """group of the volumes, and a further group of the processes: fsGroup"""
    groups: Annotated[list[UnixId], Meta(max_length=32)] = []
    """further groups of the processes: supplementalGroups"""

    @property
    def context(self) -> dict[str, int | list[int]]:
        """The ids as fields of a pod's securityContext."""
        said: dict[str, int | list[int] | None] = {
            "runAsUser": self.user,
            "runAsGroup": self.group,
            "fsGroup": self.fs_group,
            "supplementalGroups": self.groups or None,
        }
        return {field: value for field, value in said.items() if value is not None}


class TolerationSpec(Wire, kw_only=True, frozen=True):
    key: Annotated[str, Meta(max_length=253)] = ""
    operator: Annotated[str, Meta(pattern="^(Equal|Exists)$")] = "Equal"
    value: Annotated[str, Meta(max_length=253)] = ""
    effect: Annotated[str, Meta(pattern="^(|NoSchedule|PreferNoSchedule|NoExecute)$")] = ""
    toleration_seconds: int | None = None
    """seconds for which a NoExecute taint is tolerated; unlimited when absent"""
