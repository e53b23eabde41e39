"""What admission fills into a new pod from other objects: its service account and its priority.

Owns the two look-ups. Reads the store; changes only the given pod. Invariant: a pod that names an object that does not
exist is refused, never stored with a guess.

Source: plugin/pkg/admission/serviceaccount, plugin/pkg/admission/priority (behaviour, v1.36; the volume with the
account's token is not added: nothing here mounts it).
"""

from typing import Any

from slipway.local.apiserver.objects import Json, mapping, metadata, name_of
from slipway.local.apiserver.status import StatusError, forbidden
from slipway.local.apiserver.store import ApiStore

ACCOUNTS = "serviceaccounts"
DEFAULT_ACCOUNT = "default"
PRIORITIES = "priorityclasses.scheduling.k8s.io"
_PODS = "pods"


def admit(store: ApiStore, pod: Json, namespace: str) -> None:
    """Completes the spec of a new pod. Raises: StatusError 403."""
    spec = pod["spec"]
    _give_account(store, pod, spec, namespace)
    _give_priority(store, pod, spec)


def _give_account(store: ApiStore, pod: Json, spec: Json, namespace: str) -> None:
    name = str(spec.get("serviceAccountName") or spec.get("serviceAccount") or DEFAULT_ACCOUNT)
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    found = store.find(ACCOUNTS, namespace, name)
    if found is None:
        raise _refused(pod, f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found')
    secrets = found.obj.get("imagePullSecrets")
    if secrets and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = secrets


def _give_priority(store: ApiStore, pod: Json, spec: Json) -> None:
    name = str(spec.get("priorityClassName") or "")
    chosen: Json = {}
    if name:
        record = store.find(PRIORITIES, "", name)
        if record is None:
            raise _refused(pod, f"no PriorityClass with name {name} was found")
        chosen = record.obj
    elif store.count(PRIORITIES):
        defaults = [record.obj for record in store.scan(PRIORITIES) if record.obj.get("globalDefault") is True]
        chosen = min(defaults, key=lambda each: int(each.get("value", 0)), default=chosen)
        if chosen:
            spec["priorityClassName"] = name_of(chosen)
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
