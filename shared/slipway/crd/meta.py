"""Object metadata as the Kubernetes API sends it: shared by our custom resources and the core kinds.

Wire structs: camelCase on the wire, unknown fields are ignored (the server may know more than we do).
"""

from typing import Any

import msgspec

API_GROUP = "slipway.dev"
API_VERSION = "v1alpha1"
GROUP_VERSION = f"{API_GROUP}/{API_VERSION}"

TEARDOWN_FINALIZER = f"{API_GROUP}/teardown"
TRACKING_FINALIZER = f"{API_GROUP}/tracking"

LABEL_ALLOCATION = f"{API_GROUP}/allocation"
LABEL_ALLOCATION_UID = f"{API_GROUP}/allocation-uid"
LABEL_ATTEMPT = f"{API_GROUP}/attempt"
LABEL_POOL = f"{API_GROUP}/pool"
"""Of the objects of an attempt: the pool whose nodes its pods use, and whose rules they are held to."""
LABEL_RANK = f"{API_GROUP}/rank"
LABEL_ROLE = f"{API_GROUP}/role"
LABEL_SERVICE = f"{API_GROUP}/service"
"""The Service that the first ranks of several allocations share: on that Service, and on the pods behind it."""
LABEL_WORKSPACE = f"{API_GROUP}/workspace"
LABEL_LAUNCH_KEY = f"{API_GROUP}/launch-key"
"""the name that the Idempotency-Key of an allocation stands for, whatever its own name is"""
LABEL_WEBHOOK = f"{API_GROUP}/webhook"
LABEL_CAPACITY_REQUEST = f"{API_GROUP}/capacity-request"
"""Of what stands for nodes that were asked of an autoscaler: the name of the request"""
ANNOTATION_CAPACITY_REQUEST = f"{API_GROUP}/capacity-request"
ANNOTATION_CAPACITY_STATE = f"{API_GROUP}/capacity-state"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "slipway"

ANNOTATION_CREATED = f"{API_GROUP}/created"
"""of a webhook that was moved: when it was first made"""
ANNOTATION_MOVED = f"{API_GROUP}/moved-to"
"""of a webhook that is kept in another namespace now: which"""
ANNOTATION_FORMER_IDS = f"{API_GROUP}/former-ids"
"""AllocationIDs that it had in clusters before this one, joined by commas"""
ANNOTATION_TRACE = f"{API_GROUP}/trace"
ANNOTATION_USER = f"{API_GROUP}/user"
ANNOTATION_SPEC_HASH = f"{API_GROUP}/spec-hash"
ANNOTATION_ADDED = f"{API_GROUP}/added"
"""Of a pod whose rank came to a running gang, added or started again: the number of that growth or restart."""
ANNOTATION_DEVICES = f"{API_GROUP}/devices"
"""numbers of the GPUs of the node that the pod was given, where it was not the device plugin that chose"""
ANNOTATION_GPU_MILLI = f"{API_GROUP}/gpu-milli"
"""thousandths of that one GPU; all of them when it is absent"""
ANNOTATION_MAIN_CONTAINER = f"{API_GROUP}/main-container"
ANNOTATION_CHECKPOINTS = f"{API_GROUP}/checkpoint-dir"
"""Of a pod template: the folder that its main container is told as SLIPWAY_CHECKPOINT_DIR. `$(NAME)` of a variable of
the rank is replaced in it."""
ANNOTATION_OPENED = f"{API_GROUP}/gate-opened"
"""when a pod was left to another scheduler: its gate was opened"""
ANNOTATION_POOL = f"{API_GROUP}/default-pool"
ANNOTATION_QUEUE = f"{API_GROUP}/default-queue"
ANNOTATION_TEMPLATE = f"{API_GROUP}/default-template"
ANNOTATION_SERVICE_ACCOUNTS = f"{API_GROUP}/service-accounts"
"""Of a workspace: the service accounts that its ranks may run as, beside `default`; names or PREFIX*, with commas."""
ANNOTATION_SECRETS = f"{API_GROUP}/secrets"
"""Of a workspace: the Secrets of its namespace that pod templates may name; names or PREFIX*, with commas. Without the
annotation every one may be named."""
ANNOTATION_PULL_SECRETS = f"{API_GROUP}/image-pull-secrets"
"""Of a workspace: Secrets of its namespace that the images of its pods are pulled with; names, with commas."""
ANNOTATION_RUN_AS = f"{API_GROUP}/run-as"
ANNOTATION_HOME = f"{API_GROUP}/home"
LABEL_HOME = f"{API_GROUP}/home"
"""Of a volume claim that is a home directory."""
"""Of a workspace: as whom launches there run that do not say, as JSON: {"user": 1001, "group": 2001}."""
ANNOTATION_REQUEST_ID = f"{API_GROUP}/request-id"
ANNOTATION_IDEMPOTENCY_KEY = f"{API_GROUP}/idempotency-key"
ANNOTATION_BATCH = f"{API_GROUP}/last-batch"
"""Of an allocation: hashes of the key and the verb of the last batch that changed it: one sent twice acts once."""

RawObject = dict[str, Any]


def is_ours(label: str) -> bool:
    """Whether a pod's label is one that we alone set."""
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
        """resourceVersion as an integer (comparable from Kubernetes 1.35 on); 0 when unset."""
        return int(self.resource_version) if self.resource_version.isdigit() else 0

    @property
    def fence(self) -> RawObject:
        """What a PUT must say so that it can only hit this very version of this very object."""
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
    """The condition of that type, if any."""
    return next((condition for condition in conditions if condition.type == type_), None)


"""A Kubernetes object as plain JSON."""
