"""What a rank asks for: the resources of a role, put on the main container of its pod template.

Owns the two spellings of `ranks[].resources` (a flat map of quantities, or Kubernetes' {requests, limits}), which
container is the main one, and the effective request of the pod. Pure; assumes nothing about the template's shape.
"""

from collections.abc import Mapping
from typing import Any, cast

from slipway.crd.meta import ANNOTATION_CHECKPOINTS, ANNOTATION_MAIN_CONTAINER
from slipway.crd.v1alpha1 import RoleSpec
from slipway.model.podresources import NOTHING, ContainerAsk, PodAsk, Quantities
from slipway.model.resources import CPU, MEMORY, Resources

MAIN_CONTAINER = "main"
FETCHING_CONTAINER = "slipway-context"
WAITING_CONTAINER = "slipway-start-order"
"""the init container that puts uploaded files in place"""
EPHEMERAL_STORAGE = "ephemeral-storage"
HUGE_PAGES_PREFIX = "hugepages-"
_NESTED = frozenset({"requests", "limits", "claims"})

JsonMap = Mapping[str, Any]
NormalResources = dict[str, dict[str, str]]
"""`{"requests": {name: quantity}, "limits": {...}}`, quantities as strings."""


def object_of(value: Any) -> JsonMap:
    """`value` when it is a JSON object, else an empty one."""
    return cast("JsonMap", value) if isinstance(value, Mapping) else {}


def objects_of(value: Any) -> list[JsonMap]:
    """The items of `value` as JSON objects; nothing when it is no list."""
    return [object_of(item) for item in cast("list[Any]", value)] if isinstance(value, list) else []


def containers_of(template: JsonMap) -> list[JsonMap]:
    """The containers of a pod template, without its init containers."""
    return objects_of(object_of(template.get("spec")).get("containers"))


def main_container(template: JsonMap) -> int:
    """The index of the main container: the one that the annotation names, else `main`, else the first."""
    names = [container.get("name") for container in containers_of(template)]
    annotations = object_of(object_of(template.get("metadata")).get("annotations"))
    for wanted in (annotations.get(ANNOTATION_MAIN_CONTAINER), MAIN_CONTAINER):
        if wanted in names:
            return names.index(wanted)
    return 0


def checkpoints_of(template: JsonMap) -> str:
    """The folder of checkpoints that the annotation names; empty: none."""
    annotations = object_of(object_of(template.get("metadata")).get("annotations"))
    return str(annotations.get(ANNOTATION_CHECKPOINTS) or "")


def is_nested(resources: JsonMap) -> bool:
    """Whether `resources` is in the {requests, limits} form; a container's may name claims too: no amounts."""
    return bool(resources) and resources.keys() <= _NESTED


def is_extended(name: str) -> bool:
    """Whether a resource cannot be overcommitted, so that its limit is its request."""
    return name not in (CPU, MEMORY, EPHEMERAL_STORAGE)


def normal(resources: JsonMap) -> NormalResources:
    """`resources` in the {requests, limits} form: limits fill up requests, extended requests fill up limits."""
    requests, limits = resources, object_of(None)
    if is_nested(resources):
        requests, limits = object_of(resources.get("requests")), object_of(resources.get("limits"))
    asked = {name: str(value) for name, value in {**limits, **requests}.items()}
    capped = {name: str(value) for name, value in limits.items()}
    for name, value in asked.items():
        if is_extended(name):
            capped.setdefault(name, value)
    return {"requests": asked, **({"limits": capped} if capped else {})}


def overlaid(base: JsonMap, over: JsonMap) -> NormalResources:
    """`over` laid over `base`, resource by resource; a resource named in `over` loses its old request and limit."""
    low, high = normal(base), normal(over)
    named = {*high.get("requests", {}), *high.get("limits", {})}
    merged = {
        part: {**{n: v for n, v in low.get(part, {}).items() if n not in named}, **high.get(part, {})}
        for part in ("requests", "limits")
    }
    return {part: quantities for part, quantities in merged.items() if quantities}


def pod_ask(role: RoleSpec, template: JsonMap, *, fetches: bool = False, waits: bool = False) -> PodAsk:
    """The resources of the pod of one rank of `role`, container by container.

    `fetches`: an init container puts the uploaded files in place; `waits`: one waits for other roles. They have the
    resources of the main container, without devices.
    """
    spec = object_of(template.get("spec"))
    containers = [_ask(container) for container in containers_of(template)]
    main = main_container(template)
    if role.resources and containers:
        own = object_of(containers_of(template)[main].get("resources"))
        containers[main] = _ask({"name": containers[main].name, "resources": overlaid(own, role.resources)})
    elif role.resources:
        containers = [_ask({"name": MAIN_CONTAINER, "resources": normal(role.resources)})]
    inits = [_ask(container) for container in objects_of(spec.get("initContainers"))]
    ours = [name for name, is_there in ((FETCHING_CONTAINER, fetches), (WAITING_CONTAINER, waits)) if is_there]
    if ours and containers:
        own = containers[main]
        requests, limits = without_devices(own.requests), without_devices(own.limits)
        inits = [*(ContainerAsk(name=name, requests=requests, limits=limits) for name in ours), *inits]
    return PodAsk(tuple(containers), tuple(inits), object_of(spec.get("overhead")))


def without_devices(amounts: JsonMap) -> dict[str, Any]:
    """What a container needs of `amounts` that uses no device."""
    return {name: amount for name, amount in amounts.items() if not is_extended(name)}


def role_requests(role: RoleSpec, template: JsonMap, unstated: Quantities = NOTHING) -> Resources:
    """The effective request of one rank of `role`, as Kubernetes counts the pod; `unstated` is what a container counts
    as that states no request. What LimitRanges add is not in it.

    Source: Kubernetes, "Pod effective request": containers and sidecars summed, raised to the largest init step.

    Raises:
        ValueError: a bad quantity; never after `resolve` found no error.
    """
    return pod_ask(role, template).requests(unstated)


def _ask(container: JsonMap) -> ContainerAsk:
    resources = object_of(container.get("resources"))
    return ContainerAsk(
        name=str(container.get("name") or ""),
        requests=object_of(resources.get("requests")),
        limits=object_of(resources.get("limits")),
        sidecar=container.get("restartPolicy") == "Always",
    )
