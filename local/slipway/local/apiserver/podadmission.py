"""Admission of new pods and pod groups: fields set from other objects. A pod gets its service account and priority.

A pod group gets its priority. Owns these look-ups. Reads the store; changes only the given object. Invariant: an object
that names a missing object is refused, never stored with a guessed value.

Source: plugin/pkg/admission/serviceaccount, plugin/pkg/admission/priority (behaviour, v1.37; the volume with the
account's token is not added, because no component of this cluster mounts it).
"""

from typing import Any

from slipway.local.apiserver.objects import Json, mapping, metadata, name_of
from slipway.local.apiserver.status import StatusError, forbidden
from slipway.local.apiserver.store import ApiStore

ACCOUNTS = "serviceaccounts"
DEFAULT_ACCOUNT = "default"
PRIORITIES = "priorityclasses.scheduling.k8s.io"
POD_GROUPS = "podgroups.scheduling.k8s.io"
_PODS = "pods"


def admit(store: ApiStore, resource: str, obj: Json, namespace: str) -> None:
    """Complete the spec of a new pod or of a new pod group. Raises: StatusError 403."""
    if resource == _PODS:
        _give_account(store, obj, obj["spec"], namespace)
        _give_priority(store, obj)
    elif resource == POD_GROUPS:
        _give_group_priority(store, obj)


def _give_account(store: ApiStore, pod: Json, spec: Json, namespace: str) -> None:
    name = str(spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT_ACCOUNT)
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    found = store.find(ACCOUNTS, namespace, name)
    if found is None:
        raise _refused(pod, f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found')
    secrets = found.obj.get("imagePullSecrets")
    if secrets and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = secrets


def _give_group_priority(store: ApiStore, group: Json) -> None:
    spec, name = group["spec"], str(metadata(group).get("name", ""))
    computed = int(_class_of(store, POD_GROUPS, group).get("value", 0))
    if spec.get("priority", computed) != computed:
        words = f"priority set in the pod group ({spec['priority']}) must match the priority computed ({computed}) "
        raise forbidden(POD_GROUPS, name, f"{words}based on the priority class set in the spec")
    spec["priority"] = computed


def _class_of(store: ApiStore, resource: str, obj: Json) -> Json:
    """Return the PriorityClass that the object names, else the default class, and set its name; {} without one."""
    spec = obj["spec"]
    name = str(spec.get("priorityClassName") or "")
    if name:
        record = store.find(PRIORITIES, "", name)
        if record is None:
            own = str(metadata(obj).get("name", ""))
            raise forbidden(resource, own, f"no PriorityClass with name {name} was found")
        return record.obj
    if not store.count(PRIORITIES):
        return {}
    defaults = [record.obj for record in store.scan(PRIORITIES) if record.obj.get("globalDefault") is True]
    none: Json = {}
    chosen = min(defaults, key=lambda each: int(each.get("value", 0)), default=none)
    if chosen:
        spec["priorityClassName"] = name_of(chosen)
    return chosen


def _give_priority(store: ApiStore, pod: Json) -> None:
    chosen = _class_of(store, _PODS, pod)
    _settle(pod, "priority", int(chosen.get("value", 0)), "integer value of priority")
    policy = chosen.get("preemptionPolicy", "PreemptLowerPriority")
    _settle(pod, "preemptionPolicy", policy, "string value of PreemptionPolicy")


def _settle(pod: Json, field: str, computed: Any, what: str) -> None:
    given = mapping(pod, "spec").get(field)
    if given is not None and given != computed:
        words = f"the {what} ({given}) must not be provided in pod spec; priority admission controller computed "
        raise _refused(pod, f"{words}{computed} from the given PriorityClass name")
    pod["spec"][field] = computed


def _refused(pod: Json, why: str) -> StatusError:
    return forbidden(_PODS, str(metadata(pod).get("name", "")), why)
