"""The resources that a rank requests: the role's resources apply to the main container of its pod template.

Owns the two forms of `ranks[].resources` (a flat map of quantities, or Kubernetes' {requests, limits}), the choice of
the main container, and the effective request of the pod. Pure; accepts templates of any shape.
"""

from collections.abc import Mapping
from typing import Any, cast

from slipway.crd.meta import ANNOTATION_CHECKPOINTS, ANNOTATION_MAIN_CONTAINER
from slipway.crd.v1alpha1 import RoleSpec
from slipway.model.podresources import NOTHING, ContainerResources, PodResources, Quantities
from slipway.model.resources import CPU, MEMORY, Resources

MAIN_CONTAINER = "main"
FETCHING_CONTAINER = "slipway-context"
"""The init container that downloads the uploaded files."""
WAITING_CONTAINER = "slipway-start-order"
"""The init container in which a rank waits for other roles."""
EPHEMERAL_STORAGE = "ephemeral-storage"
HUGE_PAGES_PREFIX = "hugepages-"
_NESTED = frozenset({"requests", "limits", "claims"})

JsonMap = Mapping[str, Any]
NormalResources = dict[str, dict[str, str]]
"""`{"requests": {name: quantity}, "limits": {...}}`, quantities as strings."""


def object_of(value: Any) -> JsonMap:
    """Return `value` if it is a JSON object, else an empty object."""
    return cast("JsonMap", value) if isinstance(value, Mapping) else {}


def objects_of(value: Any) -> list[JsonMap]:
    """Return the items of `value` as JSON objects; an empty list when it is no list."""
    return [object_of(item) for item in cast("list[Any]", value)] if isinstance(value, list) else []


def containers_of(template: JsonMap) -> list[JsonMap]:
    """Return the containers of a pod template, without its init containers."""
    return objects_of(object_of(template.get("spec")).get("containers"))


def main_container(template: JsonMap) -> int:
    """Return the index of the main container: the one that the annotation names, else `main`, else the first."""
    names = [container.get("name") for container in containers_of(template)]
    annotations = object_of(object_of(template.get("metadata")).get("annotations"))
    for wanted in (annotations.get(ANNOTATION_MAIN_CONTAINER), MAIN_CONTAINER):
        if wanted in names:
            return names.index(wanted)
    return 0


def checkpoints_of(template: JsonMap) -> str:
    """Return the checkpoint folder that the annotation names; empty: none."""
    annotations = object_of(object_of(template.get("metadata")).get("annotations"))
    return str(annotations.get(ANNOTATION_CHECKPOINTS) or "")


def is_nested(resources: JsonMap) -> bool:
    """Whether `resources` has the {requests, limits} form. Those of a container may also have claims, which are no
    amounts."""
    return bool(resources) and resources.keys() <= _NESTED


def is_extended(name: str) -> bool:
    """Whether a resource cannot be overcommitted, so that its limit is its request."""
    return name not in (CPU, MEMORY, EPHEMERAL_STORAGE)


def normal(resources: JsonMap) -> NormalResources:
    """Return `resources` in the {requests, limits} form.

    A limit is also the request when that is missing; a request for an extended resource is also its limit.
    """
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
    """Return `base` with `over` applied to each resource: a resource in `over` replaces both request and limit of
    `base`."""
    low, high = normal(base), normal(over)
    named = {*high.get("requests", {}), *high.get("limits", {})}
    merged = {
        part: {**{n: v for n, v in low.get(part, {}).items() if n not in named}, **high.get(part, {})}
        for part in ("requests", "limits")
    }
    return {part: quantities for part, quantities in merged.items() if quantities}


def pod_resources(role: RoleSpec, template: JsonMap, *, fetches: bool = False, waits: bool = False) -> PodResources:
    """Return the resources of the pod of one rank of `role`, for each container.

    `fetches`: an init container downloads the uploaded files; `waits`: one waits for other roles. They have the
    resources of the main container, without devices.
    """
    spec = object_of(template.get("spec"))
    containers = [_container_resources(container) for container in containers_of(template)]
    main = main_container(template)
    if role.resources and containers:
        own = object_of(containers_of(template)[main].get("resources"))
        containers[main] = _container_resources(
            {"name": containers[main].name, "resources": overlaid(own, role.resources)}
        )
    elif role.resources:
        containers = [_container_resources({"name": MAIN_CONTAINER, "resources": normal(role.resources)})]
    inits = [_container_resources(container) for container in objects_of(spec.get("initContainers"))]
    ours = [name for name, is_there in ((FETCHING_CONTAINER, fetches), (WAITING_CONTAINER, waits)) if is_there]
    if ours and containers:
        own = containers[main]
        requests, limits = without_devices(own.requests), without_devices(own.limits)
        inits = [*(ContainerResources(name=name, requests=requests, limits=limits) for name in ours), *inits]
    return PodResources(tuple(containers), tuple(inits), object_of(spec.get("overhead")))


def without_devices(amounts: JsonMap) -> dict[str, Any]:
    """Return `amounts` without devices and other extended resources."""
    return {name: amount for name, amount in amounts.items() if not is_extended(name)}


def role_requests(role: RoleSpec, template: JsonMap, unstated: Quantities = NOTHING) -> Resources:
    """Return the effective request of one rank of `role`, as Kubernetes computes it, without the defaults of
    LimitRanges.

    `unstated` are the requests assumed for a container without a request.

    Source: Kubernetes, "Pod effective request": containers and sidecars summed, raised to the largest init step.

    Raises:
        ValueError: a bad quantity; never after `resolve` found no error.
    """
    return pod_resources(role, template).requests(unstated)


def _container_resources(container: JsonMap) -> ContainerResources:
    resources = object_of(container.get("resources"))
    return ContainerResources(
        name=str(container.get("name") or ""),
        requests=object_of(resources.get("requests")),
        limits=object_of(resources.get("limits")),
        sidecar=container.get("restartPolicy") == "Always",
    )
