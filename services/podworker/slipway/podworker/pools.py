"""Reads and caches the resource pools, and the settings of a workspace for its pods.

Owns how old a cached pool and workspace may be; every launch needs both. A pool's defaults are part of the admitted
spec, and the admission has the hash of that spec. A cached pool that yields this hash is correct, whatever its age; a
cached pool that does not is read again. Of a workspace, only the pull Secrets for images may come from the cache. If a
spec names a service account or a Secret, or has a home directory, the workspace is read again.
"""

import msgspec

from slipway.crd import podrules, podtemplate
from slipway.crd.meta import ANNOTATION_USER
from slipway.crd.resolve import Resolved, resolve
from slipway.crd.roleresources import object_of
from slipway.crd.transitions import user_of
from slipway.crd.v1alpha1 import Allocation, AllocationSpec, ResourcePool
from slipway.crd.workspacepods import HomeTemplate, WorkspacePods, no_homes, read
from slipway.errors import InvalidError, NotFoundError
from slipway.kube.resources import NAMESPACES, RESOURCE_POOLS
from slipway.podworker.ports import Kube
from slipway.runtime.clock import Clock

AGE_MAX_S = 30.0
POOLS_MAX = 1024
WORKSPACES_MAX = 1024


class AdmittedSpec(msgspec.Struct, frozen=True, tag=True):
    """The admitted spec, and its pool."""

    spec: AllocationSpec
    pool: ResourcePool
    pull_secrets: tuple[str, ...] = ()
    """the Secrets of the workspace for pulling images"""
    home: HomeTemplate | None = None
    """the template for home directories of the workspace; None when it has none"""


class PoolMismatch(msgspec.Struct, frozen=True, tag=True):
    """The pool does not yield the admitted spec any more: `reason` is PoolChanged or PoolGone."""

    reason: str
    message: str


class Pools:
    """Reads pools and caches them for `AGE_MAX_S` seconds."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._known: dict[str, tuple[float, ResourcePool]] = {}
        self._workspaces: dict[str, tuple[float, WorkspacePods]] = {}

    async def admitted_spec(self, allocation: Allocation) -> AdmittedSpec | PoolMismatch:
        """Return the resolved spec that the admission of `allocation` is for; PoolMismatch when the pool does not
        yield it any more.

        Raises:
            InvalidError: the spec is not valid.
        """
        name = allocation.spec.pool
        wanted = allocation.status.admission.spec_hash if allocation.status.admission else ""
        pool = self._cached(name)
        if pool is not None:
            resolved = resolve(allocation, pool)
            if not wanted or resolved.spec_hash == wanted:
                return await self._checked(allocation, resolved, pool)
        try:
            pool = await self._read(name)
        except NotFoundError:
            return PoolMismatch("PoolGone", f"pool {name} does not exist any more")
        resolved = resolve(allocation, pool)
        if wanted and resolved.spec_hash != wanted:
            return PoolMismatch("PoolChanged", f"the defaults of pool {name} have changed since the admission")
        return await self._checked(allocation, resolved, pool)

    async def _checked(self, allocation: Allocation, resolved: Resolved, pool: ResourcePool) -> AdmittedSpec:
        """Return the admitted spec, if its workspace allows the service accounts and the Secrets in it."""
        spec = resolved.spec
        templates = [object_of(template) for template in (spec.template, *(role.template for role in spec.ranks))]
        is_named = any(
            podtemplate.named_account(template) or any(podrules.secrets_of(object_of(template.get("spec"))))
            for template in templates
        )
        is_named = is_named or spec.home
        # A spec that names an account or a Secret needs a fresh read, so that a revoked permission ends with the next
        # attempt.
        workspace = await self._workspace(allocation.metadata.namespace, is_fresh=is_named)
        if is_named:
            resolved = resolve(allocation, pool, accounts=workspace.accounts, secrets=workspace.released)
        if resolved.errors:
            first = resolved.errors[0]
            raise InvalidError(f"{first.pointer}: {first.detail}", fields=resolved.errors)
        if spec.home:
            _check_home(allocation, workspace)
        return AdmittedSpec(resolved.spec, pool, workspace.pull_secrets, workspace.home)

    async def pool(self, name: str) -> ResourcePool:
        """Return a pool, from a cache that is at most `AGE_MAX_S` old.

        Raises:
            NotFoundError: there is no pool of that name.
        """
        return self._cached(name) or await self._read(name)

    async def _workspace(self, name: str, *, is_fresh: bool) -> WorkspacePods:
        """Return the settings of the workspace for its pods; at most `AGE_MAX_S` old, or read now if `is_fresh`."""
        read_s, known = self._workspaces.get(name, (0.0, None))
        if known is None or is_fresh or self._clock.monotonic() - read_s >= AGE_MAX_S:
            known = read((await self._kube.get(NAMESPACES, name)).metadata.annotations)
            if len(self._workspaces) >= WORKSPACES_MAX:
                self._workspaces.clear()
            self._workspaces[name] = (self._clock.monotonic(), known)
        return known

    def _cached(self, name: str) -> ResourcePool | None:
        read_s, pool = self._known.get(name, (0.0, None))
        return pool if self._clock.monotonic() - read_s < AGE_MAX_S else None

    async def _read(self, name: str) -> ResourcePool:
        pool = await self._kube.get(RESOURCE_POOLS, name)
        if len(self._known) >= POOLS_MAX:
            self._known.clear()
        self._known[name] = (self._clock.monotonic(), pool)
        return pool


def _check_home(allocation: Allocation, workspace: WorkspacePods) -> None:
    """Raise InvalidError when the workspace has no template for home directories, or the allocation has no user."""
    if workspace.home is None:
        raise InvalidError(f"/home: {no_homes(allocation.metadata.namespace)}")
    if not user_of(allocation, ""):
        detail = f"the allocation has no user; set the annotation {ANNOTATION_USER}, or launch it by the API"
        raise InvalidError(f"/home: {detail}")
