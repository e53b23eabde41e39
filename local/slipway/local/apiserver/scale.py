"""The scale subresource: reads and writes only the number of pods of a workload.

Owns the Scale object. Pure. Invariant: a write to scale changes only the number of replicas.

Source: pkg/registry/apps/deployment/storage ScaleREST, autoscaling/v1 (behaviour, v1.37).
"""

from slipway.local.apiserver.objects import Json, clone, mapping, metadata
from slipway.local.apiserver.status import bad_value, invalid

_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def read(obj: Json) -> Json:
    """Return the Scale of a workload."""
    spec = mapping(obj, "spec")
    wanted = int(spec.get("replicas", 1))
    shown: Json = {"replicas": int(mapping(obj, "status").get("replicas", 0))}
    selector = _text(mapping(spec, "selector"))
    if selector:
        shown["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata(obj)[field] for field in _META if field in metadata(obj)},
        "spec": {"replicas": wanted} if wanted else {},
        "status": shown,
    }


def write(obj: Json, scale: Json) -> Json:
    """Return the workload with the replicas that the Scale requests. Raises: StatusError 422."""
    replicas = int(mapping(scale, "spec").get("replicas") or 0)
    if replicas < 0:
        cause = bad_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise invalid("Scale.autoscaling", str(metadata(obj)["name"]), [cause])
    changed: Json = clone(obj)
    changed["spec"]["replicas"] = replicas
    for field in ("uid", "resourceVersion"):
        if metadata(scale).get(field):
            changed["metadata"][field] = metadata(scale)[field]
    return changed


def _text(selector: Json) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(mapping(selector, "matchLabels").items()))
