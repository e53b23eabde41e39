"""The size of `/dev/shm` of a rank: the size that the launch requests, else the default of the pool.

A container runtime provides 64 MB, which is too little for the data that NCCL or the workers of a data loader exchange.
Any other size needs a volume in memory. Data written to it is memory of the container: Kubernetes counts it towards the
memory limit, and schedules only by the request.

Owns the rules for the size, and the checks of a requested size. Pure.

Source: Kubernetes, "emptyDir": memory-backed volumes.
"""

import posixpath

from slipway.crd.fielderrors import Findings
from slipway.crd.roleresources import JsonMap, containers_of, main_container, normal, object_of, objects_of
from slipway.crd.v1alpha1 import ResourcePoolSpec, RoleSpec
from slipway.model.quantity import parse_quantity
from slipway.model.resources import MEMORY

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


def check(asked: str, at: str, findings: Findings) -> None:
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
    """Add an error or warning for a size that the resolved `role` cannot have; `asked` has passed `check`."""
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
