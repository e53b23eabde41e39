"""Pod groups: kube-scheduler places all pods of a group or none. The API server serves groups only on request.

Owns the strategy of PodGroup, its priority, and the finalizer that keeps a group as long as one of its pods may run.
Kubernetes 1.37 serves groups only with the feature gate `GenericWorkload` and the API `scheduling.k8s.io/v1beta1`. Both
are off by default, and so are groups here (`ClusterCore.serve_pod_groups`). While groups are not served, a pod that
names a group is stored without that name, as in Kubernetes.

Source: pkg/registry/scheduling/podgroup, pkg/apis/scheduling/validation, plugin/pkg/admission/priority and
scheduling/podgroupprotection, pkg/controller/scheduling/podgroupprotection (behaviour, v1.37).
"""

from typing import TYPE_CHECKING

from slipway.local.apiserver.admission import PRIORITY_MAX, Strategy
from slipway.local.apiserver.objects import Json, finalizers_of, is_deleting, mapping, metadata
from slipway.local.apiserver.options import WriteOptions
from slipway.local.apiserver.podadmission import POD_GROUPS
from slipway.local.apiserver.pods import FINISHED_PHASES
from slipway.local.apiserver.status import FieldCause, bad_value, missing
from slipway.local.apiserver.store import Commit, ObjectKey

if TYPE_CHECKING:
    from slipway.local.apiserver.core import ClusterCore

GROUP, VERSION, PLURAL = "scheduling.k8s.io", "v1beta1", "podgroups"
FINALIZER = f"{GROUP}/podgroup-protection"
_POLICIES = ("basic", "gang")
_FIXED = ("workloadRef", "disruptionMode", "priorityClassName", "priority")


class PodGroupStrategy(Strategy):
    has_status = True
    allows_unconditional_update = False

    def decode(self, obj: Json, options: WriteOptions) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("schedulingPolicy", {})
        spec.setdefault("disruptionMode", {"single": {}})

    def prepare(self, obj: Json) -> None:
        super().prepare(obj)
        obj["status"] = {}
        kept = finalizers_of(obj)
        if FINALIZER not in kept:
            metadata(obj)["finalizers"] = [*kept, FINALIZER]

    def check(self, obj: Json, old: Json | None) -> list[FieldCause]:
        spec = mapping(obj, "spec")
        causes = _policy_causes(mapping(spec, "schedulingPolicy"))
        if int(spec.get("priority") or 0) > PRIORITY_MAX:
            words = f"must be less than or equal to {PRIORITY_MAX}"
            causes.append(bad_value("spec.priority", spec["priority"], words))
        if old is None:
            return causes
        before = mapping(old, "spec")
        causes += [
            bad_value(f"spec.{field}", spec.get(field), "field is immutable")
            for field in _FIXED
            if spec.get(field) != before.get(field)
        ]
        return causes


def named_group(pod: Json) -> str:
    """Return the name of the pod's group, or "" when the pod names none."""
    return str(mapping(mapping(pod, "spec"), "schedulingGroup").get("podGroupName") or "")


class GroupProtection:
    """The controller that removes the finalizer of a deleted group once none of its pods may run."""

    def __init__(self, core: "ClusterCore") -> None:
        self._core = core
        self._pending: dict[ObjectKey, None] = {}

    def note(self, change: Commit) -> None:
        if change.resource == POD_GROUPS and change.type != "DELETED":
            self._pending[change.key] = None
        elif change.resource == "pods" and (name := named_group(change.record.obj)):
            self._pending[change.key[0], name] = None

    def run(self) -> None:
        pending, self._pending = self._pending, {}
        for key in pending:
            record = self._core.store.find(POD_GROUPS, *key)
            if record is None or not is_deleting(record.obj) or FINALIZER not in finalizers_of(record.obj):
                continue
            if not any(_is_active(found.obj, key[1]) for found in self._core.store.scan("pods", key[0])):
                self._core.remove_finalizer(record, self._core.kind(POD_GROUPS), FINALIZER)


def _is_active(pod: Json, group: str) -> bool:
    return named_group(pod) == group and mapping(pod, "status").get("phase") not in FINISHED_PHASES


def _policy_causes(policy: Json) -> list[FieldCause]:
    chosen = [name for name in _POLICIES if policy.get(name) is not None]
    if len(chosen) != 1:
        words = "must specify exactly one of: `basic`, `gang`" if chosen else "must specify one of: `basic`, `gang`"
        return [bad_value("spec.schedulingPolicy", _listed(chosen), words)]
    if chosen == ["gang"]:
        count = mapping(policy, "gang").get("minCount") or 0
        field = "spec.schedulingPolicy.gang.minCount"
        if not count:
            return [missing(field)]
        if int(count) < 1:
            return [bad_value(field, count, "must be greater than or equal to 1")]
    return []


def _listed(chosen: list[str]) -> str:
    return "{" + ", ".join(chosen) + "}" if chosen else ""
