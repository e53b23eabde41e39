"""The resources that a rank requests: the role's resources apply to the main container of its pod template.

Owns the two forms of `ranks[].resources` (a flat map of quantities, or Kubernetes' {requests, limits}), the choice of
the main container, and the effective request of the pod. Pure; accepts templates of any shape.

The size of `/dev/shm` of a rank is the size that the launch requests, else the default of the pool. A container runtime
provides 64 MB, which is too little for the data that NCCL or the workers of a data loader exchange. Any other size
needs a volume in memory. Data written to it is memory of the container: Kubernetes counts it towards the memory limit,
and schedules only by the request.

Source: Kubernetes, "emptyDir": memory-backed volumes.
"""

import posixpath
from collections.abc import Mapping
from typing import Any, cast

from slipway.crd.fielderrors import Findings
from slipway.crd.meta import ANNOTATION_CHECKPOINTS, ANNOTATION_MAIN_CONTAINER
from slipway.crd.v1alpha1 import ResourcePoolSpec, RoleSpec
from slipway.model.podresources import NOTHING, ContainerResources, PodResources, Quantities
from slipway.model.resources import CPU, MEMORY, Resources, parse_quantity

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


SHM_PATH = "/dev/shm"  # noqa: S108 - a path in the container
OF_RUNTIME = 64 << 20
"""The size in bytes that a container has without a volume."""
DEFAULT_PERCENT = 50
"""Percent of the memory limit when the pool sets no size; Linux uses the same share for a tmpfs."""
SIZE_MIN = 1 << 20


def size_of(asked: str, role: RoleSpec, template: JsonMap, pool: ResourcePoolSpec) -> int:
    """Return the size in bytes of the volume of a resolved role; 0: no volume, its ranks use that of the container
    runtime.

    `asked` is the size that the launch requests. A default is never more than the memory limit.
    """
    if mounts_itself(template):
        return 0
    if asked:
        return parse_quantity(asked)
    if object_of(template.get("spec")).get("hostIPC"):
        return 0  # the pod uses the shared memory of its node
    limit = _memory(role, "limits")
    if pool.shm_size and not pool.shm_size.endswith("%"):
        size = parse_quantity(pool.shm_size)
        return min(size, limit) if limit else size
    percent = int(pool.shm_size.removesuffix("%")) if pool.shm_size else DEFAULT_PERCENT
    size = limit * percent // 100
    # The built-in default only makes it larger than the runtime's; a share that the pool sets is used unchanged.
    return size if pool.shm_size or size > OF_RUNTIME else 0


def check_shared_memory(asked: str, at: str, findings: Findings) -> None:
    """Add an error if `asked` is not a size."""
    if not asked:
        return
    try:
        size = parse_quantity(asked)
    except ValueError:
        findings.refuse(at, f"{asked[:80]!r} is not a size; write a quantity of bytes such as 8Gi")
        return
    if size < SIZE_MIN:
        findings.refuse(at, f"{asked} is {size} bytes; write a size of at least 1Mi, with its unit, such as 8Gi")


def check_role(asked: str, role: RoleSpec, template: JsonMap, at: str, findings: Findings) -> None:
    """Add an error or warning for a size of shared memory that the resolved `role` cannot have.

    `asked` has passed `check_shared_memory`.
    """
    if not asked:
        return
    if mounts_itself(template):
        findings.warn(f"shmSize has no effect on role {role.name}: its pod template mounts {SHM_PATH} itself")
        return
    try:
        size, limit, request = parse_quantity(asked), _memory(role, "limits"), _memory(role, "requests")
    except ValueError:
        return  # the check of the resources has added the error
    if limit and size > limit:
        limits = object_of(role.resources.get("limits"))
        findings.refuse(
            at,
            f"{asked} is above the memory limit {limits[MEMORY]} of role {role.name}, against which {SHM_PATH} counts; "
            "write at most the limit, or raise the limit",
        )
    elif not limit and size > request:
        findings.warn(
            f"shmSize {asked} is above the memory that role {role.name} requests: {SHM_PATH} is memory of the rank, "
            "and the node may run out of it; request as much memory as the program and its shared memory use together"
        )


def mounts_itself(template: JsonMap) -> bool:
    """Whether the template itself mounts a volume at `/dev/shm` in the main container."""
    containers = containers_of(template)
    return bool(containers) and mounts_at(containers[main_container(template)], SHM_PATH)


def mounts_at(container: JsonMap, path: str) -> bool:
    """Whether the container mounts a volume at exactly that path."""
    mounts = objects_of(container.get("volumeMounts"))
    return any(posixpath.normpath(str(mount.get("mountPath") or "")) == path for mount in mounts)


def _memory(role: RoleSpec, part: str) -> int:
    """Return the memory request or limit (`part`) of the role in bytes; 0 when it has none.

    Raises:
        ValueError: a bad quantity; never in a valid spec.
    """
    amount = normal(role.resources).get(part, {}).get(MEMORY)
    return parse_quantity(amount) if amount else 0
