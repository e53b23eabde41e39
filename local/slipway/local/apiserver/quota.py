"""ResourceQuota: refuses a pod with which its namespace would exceed a hard limit.

Owns the computation of usage. Reads the store and writes nothing. Invariant: a finished pod uses nothing except
`count/pods`.
"""

from slipway.local.apiserver.objects import Json, listing, mapping, maps, metadata
from slipway.local.apiserver.pods import FINISHED_PHASES
from slipway.local.apiserver.status import forbidden
from slipway.local.apiserver.store import ApiStore
from slipway.model.resources import format_quantity, parse_thousandths

_PODS = "pods"
_SHORT = {"cpu": "requests.cpu", "memory": "requests.memory", "ephemeral-storage": "requests.ephemeral-storage"}
_MILLI = 1000

Usage = dict[str, int]
"""{name in a quota's hard limits: thousandths}."""


def check_pod(store: ApiStore, pod: Json, namespace: str) -> None:
    """Check a new pod against the namespace's quotas. Raises: StatusError 403 `exceeded quota:` or `failed quota:`."""
    quotas = store.scan("resourcequotas", namespace)
    if not quotas:
        return
    used = usage_of([record.obj for record in store.scan(_PODS, namespace)])
    asked = usage_of([pod])
    name = str(metadata(pod).get("name"))
    for record in quotas:
        hard = mapping(mapping(record.obj, "spec"), "hard")
        limits = {field: parse_thousandths(value) for field, value in hard.items()}
        missing = [field for field in limits if _is_compute(field) and field not in asked and _counts(field)]
        quota = metadata(record.obj)["name"]
        if missing:
            listed = ",".join(sorted(missing))
            raise forbidden(_PODS, name, f"failed quota: {quota}: must specify {listed} for: {_first(pod)}")
        over = sorted(
            field for field, most in limits.items() if field in asked and used.get(field, 0) + asked[field] > most
        )
        if over:
            words = f"exceeded quota: {quota}, requested: {_show(over, asked)}, used: {_show(over, used)}, "
            raise forbidden(_PODS, name, words + f"limited: {_show(over, limits)}")


def usage_of(pods: list[Json]) -> Usage:
    used: Usage = {}
    for pod in pods:
        used["count/pods"] = used.get("count/pods", 0) + _MILLI
        if mapping(pod, "status").get("phase") in FINISHED_PHASES:
            continue
        used["pods"] = used.get("pods", 0) + _MILLI
        for container in maps(listing(mapping(pod, "spec"), "containers")):
            resources = mapping(container, "resources")
            for field in ("requests", "limits"):
                for name, value in mapping(resources, field).items():
                    key = f"{field}.{name}"
                    used[key] = used.get(key, 0) + parse_thousandths(value)
    for short, long in _SHORT.items():
        if long in used:
            used[short] = used[long]
    return used


def observed(store: ApiStore, quota: Json) -> Json:
    """Return the current status of a quota."""
    hard = mapping(mapping(quota, "spec"), "hard")
    pods = [record.obj for record in store.scan(_PODS, str(metadata(quota)["namespace"]))]
    used = usage_of(pods)
    return {"hard": dict(hard), "used": {name: _text(name, used.get(name, 0)) for name in hard}}


def _is_compute(field: str) -> bool:
    return field in _SHORT or field.startswith(("requests.", "limits."))


def _counts(field: str) -> bool:
    """Whether every pod must specify the field. Quotas of extended resources apply only to pods that request them."""
    return field in _SHORT or field.rpartition(".")[2] in ("cpu", "memory")


def _first(pod: Json) -> str:
    containers = maps(listing(mapping(pod, "spec"), "containers"))
    return str(containers[0].get("name")) if containers else ""


def _show(fields: list[str], amounts: Usage) -> str:
    return ",".join(f"{field}={_text(field, amounts.get(field, 0))}" for field in fields)


def _text(field: str, amount: int) -> str:
    scale = _MILLI if field.endswith("cpu") else 1
    return format_quantity(amount if scale == _MILLI else amount // _MILLI, scale=scale)
