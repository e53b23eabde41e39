"""The kinds of the sequences, and values for their fields, right ones and wrong ones.

Owns the table. Wrong values are mixed with right ones, so that rules are broken about as often as obeyed.
"""

from typing import Any

import msgspec

from tests.models.kubernetes.operations import LANE, Json
from tests.support.allocation_values import SPEC, STATUS

Choices = dict[str, list[Any]]
"""{path with dots: values}; a value of None drops the field."""

DROP = None
ILL_TYPED: tuple[Any, ...] = ({"a": 1}, {"zone": 1}, {"cpu": True}, {"cpu": 1.5}, "yes", "no", "none", "50", 1.5, [])
"""The values below that do not have the type of their field."""
OURS = "slipway.dev/v1alpha1"


class ModelledKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind: the fields of a new object, and the values that they may get later."""

    plural: str
    api: str
    kind: str
    namespaced: bool = True
    has_status: bool = True
    base: Json = {}
    choices: Choices
    status: Choices = {}
    fields: tuple[str, ...] = ()
    """additional field selectors, beyond name and namespace, with a value"""
    weight: int = 1

    @property
    def is_custom(self) -> bool:
        return self.api == OURS

    def path(self, name: str = "", sub: str = "") -> str:
        """The path of the kind."""
        root = f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"
        place = f"/namespaces/{LANE}" if self.namespaced else ""
        return "/".join(part for part in (f"{root}{place}/{self.plural}", name, sub) if part)


_CONTAINER: Json = {"name": "main", "image": "example.invalid/none:1"}
_TOLERATION: Json = {"key": "a", "operator": "Exists", "effect": "NoSchedule"}
_TIME = "2024-05-06T07:08:09Z"


def _in(*values: str, key: str = "zone") -> Json:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _under(prefix: str, choices: Choices) -> Choices:
    return {f"{prefix}.{name}": values for name, values in choices.items()}


_PODS = ModelledKind(
    plural="pods",
    api="v1",
    kind="Pod",
    weight=6,
    base={
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "schedulerName": "nobody",
            "containers": [_CONTAINER],
        }
    },
    choices={
        "spec.restartPolicy": ["Never", "Never", "OnFailure", "Always", "Sometimes"],
        "spec.terminationGracePeriodSeconds": [0, 5, 30, DROP],
        "spec.schedulingGates": [[], [{"name": "example.com/g"}], [{"name": "example.com/g"}, {"name": "h"}], DROP],
        "spec.nodeSelector": [{}, {"zone": "a"}, {"zone": "a", "disk": "ssd"}, {"zone": "b"}, DROP],
        "spec.affinity": [DROP, _in("a"), _in("a", "b"), _in()],
        "spec.tolerations": [[_TOLERATION], [_TOLERATION, {"key": "b", "operator": "Exists"}], DROP],
        "spec.activeDeadlineSeconds": [60, 30, DROP],
        "spec.nodeName": [f"{LANE}-n1"],
        "spec.containers": [
            [_CONTAINER],
            [{**_CONTAINER, "image": "example.invalid/none:2"}],
            [{**_CONTAINER, "image": "example.invalid/none"}],
            [{**_CONTAINER, "command": ["sleep", "1"]}],
            [{**_CONTAINER, "env": [{"name": "A", "value": "1"}]}],
            [{**_CONTAINER, "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}],
            [{**_CONTAINER, "resources": {"limits": {"cpu": 1, "memory": "1024Mi"}}}],
            [{**_CONTAINER, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}],
            [{**_CONTAINER, "resources": {"requests": {"example.com/gpu": 1}}}],
            [{**_CONTAINER, "resources": {"limits": {"example.com/gpu": 2}}}],
            [_CONTAINER, {**_CONTAINER, "name": "side"}],
            [_CONTAINER, _CONTAINER],
            [{"name": "main"}],
            [{"name": "Main", "image": "a"}],
            [],
        ],
        "spec.initContainers": [DROP, [{**_CONTAINER, "name": "first"}]],
        "spec.priorityClassName": ["nothing", DROP, DROP],
        "spec.hostname": ["h", DROP],
    },
    status={
        "status.phase": ["Pending", "Running", "Succeeded", "Failed"],
        "status.podIP": ["10.1.2.3", DROP],
        "status.reason": ["Evicted", DROP],
        "status.message": ["m", DROP],
        "status.startTime": [_TIME, DROP],
        "status.conditions": [
            [{"type": "Ready", "status": "True", "lastTransitionTime": _TIME}],
            [{"type": "Ready", "status": "False"}, {"type": "Initialized", "status": "True"}],
        ],
        "status.containerStatuses": [
            [
                {
                    "name": "main",
                    "image": "i",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": {"exitCode": 3, "reason": "Error", "finishedAt": _TIME}},
                }
            ],
            [
                {
                    "name": "main",
                    "image": "i",
                    "imageID": "",
                    "ready": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": _TIME}},
                }
            ],
        ],
    },
    fields=("status.phase=Running", "status.phase!=Pending", "spec.nodeName=", f"spec.nodeName={LANE}-n1"),
)

_ALLOCATIONS = ModelledKind(
    plural="allocations",
    api=OURS,
    kind="Allocation",
    weight=7,
    base={"spec": {"kind": "training"}},
    choices={
        **_under("spec", {name: [*values, DROP] for name, values in SPEC.items() if name != "kind"}),
        "spec.kind": ["training", "training", "training", "command", "nonsense", DROP],
        "spec.priority": [0, 50, 1000, 1001, -1, "50", 1.5, DROP],
        "spec.hold": [True, False, DROP],
        "spec.preemptionGrace": ["30s", "1h30m", "soon", DROP],
        "spec.queuePosition": ["1", "2.5", "x", DROP],
        "spec.unheard": ["of"],
    },
    status={
        **_under("status", {name: [*values, DROP] for name, values in STATUS.items()}),
        "status.phase": ["Pending", "Assigned", "Running", "Terminated", "Terminated", "Lost"],
        "status.conditions": [
            [{"type": "Admitted", "status": "False", "reason": "NoRoom", "message": "m"}],
            [{"type": "Stuck", "status": "True"}, {"type": "Stuck", "status": "False"}],
            [{"type": "Stuck", "status": "Perhaps"}],
            DROP,
        ],
        "status.message": ["m", DROP],
        "status.ready": [True, False, "yes"],
    },
    fields=("status.phase=Pending", "status.phase!=Terminated", "spec.pool=default", "spec.queue=b"),
)

_POOLS = ModelledKind(
    plural="resourcepools",
    api=OURS,
    kind="ResourcePool",
    namespaced=False,
    weight=2,
    base={"spec": {}},
    choices={
        "spec.nodeSelector": [{"zone": "a"}, {}, {"zone": 1}, DROP],
        "spec.tolerations": [[{"key": "a", "operator": "Exists"}], [{"operator": "Perhaps"}], DROP],
        "spec.binding": ["direct", "delegate", "both", DROP],
        "spec.schedulerName": ["default-scheduler", "slipway", DROP],
        "spec.aging": ["24h", "0s", "a day", DROP],
        "spec.backfill": [True, False, "no", DROP],
        "spec.workspaces": [["a"], ["A"], [], DROP],
        "spec.maxSlotsPerPod": [8, 0, DROP],
        "spec.extenders": [
            DROP,
            [{"urlPrefix": "http://127.0.0.1:1", "filterVerb": "f"}],
            [
                {"urlPrefix": "http://127.0.0.1:1", "bindVerb": "b"},
                {"urlPrefix": "http://127.0.0.1:2", "bindVerb": "b"},
            ],
        ],
    },
    status={
        "status.epoch": [1, 2, 3, 3, 4, DROP],
        "status.tick": [1, 2, 3, DROP],
        "status.decisions": [
            [],
            [{"id": "d", "epoch": 1, "allocation": "a/b", "placements": [0]}],
            [{"id": "d"}],
            DROP,
        ],
        "status.nodes": [["n1", "n2"], [], DROP],
    },
)

_QUEUES = ModelledKind(
    plural="queues",
    api=OURS,
    kind="Queue",
    namespaced=False,
    weight=2,
    base={"spec": {}},
    choices={
        "spec.pool": ["default", "", "p" * 64, DROP],
        "spec.parent": [f"{LANE}-a", f"{LANE}-b", DROP],
        "spec.weight": [1, 5, 0, DROP],
        "spec.nominal": [{"cpu": 1}, {"cpu": "500m", "memory": "1Gi"}, {"cpu": "much"}, {"cpu": 1.5}, DROP],
        "spec.limit": [{"cpu": "1e3"}, {"cpu": True}, DROP],
        "spec.ordering": ["StrictFIFO", "Backfill", "LIFO", DROP],
        "spec.budgets": [[{"gpuHours": 1.5, "window": "24h"}], [{"gpuHours": 0, "window": "24h"}], [{}], DROP],
        "spec.preemption": [{"reclaim": "Any"}, {"reclaim": "All"}, {}, DROP],
    },
    status={
        "status.conditions": [
            [{"type": "Ready", "status": "True"}],
            [{"type": "", "status": "True"}],
            [],
            DROP,
        ],
    },
)

_JOBS = ModelledKind(
    plural="jobs",
    api=OURS,
    kind="Job",
    base={"spec": {}},
    choices={
        "spec.maxSlots": [4, -1, 2**31, DROP],
        "spec.priority": [10, 2000, DROP],
        "spec.weight": [1, 2, 0, DROP],
        "spec.queuePosition": ["3", "first", DROP],
        "spec": [{}, DROP, "none"],
    },
    status={"status.conditions": [[{"type": "Ready", "status": "True", "observedGeneration": 3}], DROP]},
)

_TEMPLATES = ModelledKind(
    plural="templates",
    api=OURS,
    kind="Template",
    has_status=False,
    base={"spec": {}},
    choices={
        "spec.body": [{"kind": "training"}, {"a": {"b": [1, {"c": None}]}}, {"a": {"b": [2]}}, [], DROP],
        "spec.more": [1, DROP],
    },
)

_CONFIG_MAPS = ModelledKind(
    plural="configmaps",
    api="v1",
    kind="ConfigMap",
    weight=3,
    has_status=False,
    choices={
        "data": [{"a": "1"}, {"a": "1", "b": "2"}, {"c": "3"}, {"a/b": "1"}, {"a": 1}, {}, DROP],
        "binaryData": [{"z": "AAEC"}, DROP],
        "immutable": [True, False, DROP, DROP],
    },
)

_SERVICES = ModelledKind(
    plural="services",
    api="v1",
    kind="Service",
    weight=2,
    base={"spec": {"clusterIP": "None", "selector": {"app": "x"}}},
    choices={
        "spec.selector": [{"app": "x"}, {"app": "y"}],
        "spec.ports": [
            [{"port": 80}],
            [{"name": "a", "port": 80}, {"name": "b", "port": 81, "targetPort": 8081}],
            [{"name": "a", "port": 80}, {"name": "a", "port": 81}],
            DROP,
        ],
        "spec.publishNotReadyAddresses": [True, DROP],
    },
)

_LEASES = ModelledKind(
    plural="leases",
    api="coordination.k8s.io/v1",
    kind="Lease",
    weight=3,
    has_status=False,
    base={"spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}},
    choices={
        "spec.holderIdentity": ["a", "b", DROP],
        "spec.leaseDurationSeconds": [15, 1, 0, -1, DROP],
        "spec.leaseTransitions": [0, 1, 2, DROP],
        "spec.renewTime": ["2024-05-06T07:08:09.000001Z", "2024-05-06T07:08:10.500000Z", DROP],
        "spec.acquireTime": ["2024-05-06T07:08:09.000001Z", DROP],
    },
)

_NODES = ModelledKind(
    plural="nodes",
    api="v1",
    kind="Node",
    namespaced=False,
    weight=2,
    base={"spec": {}},
    choices={
        "spec.unschedulable": [True, False, DROP],
        "spec.taints": [
            [{"key": "a", "effect": "NoSchedule"}],
            [{"key": "b", "value": "c", "effect": "NoExecute"}],
            DROP,
        ],
        "metadata.labels.zone": ["a", "b"],
    },
    status={
        "status.capacity": [{"cpu": "4", "memory": "8Gi", "pods": "110"}, {"cpu": 8}],
        "status.allocatable": [{"cpu": "4", "memory": "8Gi"}, {"cpu": "3500m"}],
        "status.conditions": [
            [{"type": "Ready", "status": "True", "lastHeartbeatTime": _TIME}],
            [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}],
        ],
    },
    fields=("spec.unschedulable=true", "metadata.name=«lane»-a"),
)

MODELLED_KINDS = (
    _PODS,
    _ALLOCATIONS,
    _POOLS,
    _QUEUES,
    _JOBS,
    _TEMPLATES,
    _CONFIG_MAPS,
    _SERVICES,
    _LEASES,
    _NODES,
)
