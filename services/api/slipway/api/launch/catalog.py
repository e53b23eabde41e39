"""A cache of objects that every launch reads: pools, workspaces, queues, jobs. Entries are at most a second old.

Owns the errors for missing objects: which field is wrong, and which values exist. A watch keeps the nodes
(`cluster/watched.py`); the allocatable resources of a pool's nodes are summed up every few seconds.
"""

import asyncio
import functools
import math
from collections.abc import Sequence

import msgspec

from slipway.api.cluster.seen_nodes import SeenNode
from slipway.api.cluster.watched import WatchedObjects
from slipway.api.http.ttl_cache import LoadingCache
from slipway.api.launch.capacity import PoolCapacity, offers_of
from slipway.api.ports import Kube
from slipway.crd.meta import (
    ANNOTATION_POOL,
    ANNOTATION_QUEUE,
    ANNOTATION_TEMPLATE,
    LABEL_WORKSPACE,
)
from slipway.crd.v1alpha1 import Job, Queue, ResourcePool, Template
from slipway.crd.workspacepods import WorkspacePods, read
from slipway.errors import (
    DeniedError,
    FieldError,
    InvalidError,
    NotFoundError,
    StaleError,
    TerminatingError,
    TransientError,
)
from slipway.kube.objects import Namespace
from slipway.kube.resources import JOBS, NAMESPACES, QUEUES, RESOURCE_POOLS, TEMPLATES
from slipway.model.decay import DecayedUsage
from slipway.model.times import parse_duration
from slipway.runtime.clock import Clock

TTL_S = 1.0
PAST_USAGE_TTL_S = 60.0
"""Past use over ten half-lives changes little in a minute. Between two reads, GPUs that are held still add to it."""
OFFERS_TTL_S = 5.0
WORKSPACES_TTL_S = 5.0
NODES_DEADLINE_S = 1.0
NAMES_SHOWN_MAX = 10


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """The launch defaults of a workspace; a field without a default is empty."""

    pool: str = ""
    queue: str = ""
    template: str = ""
    pods: WorkspacePods = WorkspacePods()


class Catalog:
    """Cached reads for launches, and of past use."""

    def __init__(self, kube: Kube, clock: Clock, nodes: WatchedObjects[SeenNode]) -> None:
        self._kube = kube
        self._nodes = nodes
        self._pools = LoadingCache[str, ResourcePool](clock, ttl_s=TTL_S)
        self._queues = LoadingCache[str, Queue](clock, ttl_s=TTL_S)
        self._jobs = LoadingCache[tuple[str, str], Job](clock, ttl_s=TTL_S)
        self._namespaces = LoadingCache[str, Namespace](clock, ttl_s=TTL_S)
        self._workspaces = LoadingCache[str, list[str]](clock, ttl_s=WORKSPACES_TTL_S)
        self.past_usage = LoadingCache[tuple[str, int], DecayedUsage](clock, ttl_s=PAST_USAGE_TTL_S)
        """{(pool, half-life): past use}"""
        self._offers = LoadingCache[tuple[str, int], PoolCapacity](clock, ttl_s=OFFERS_TTL_S)

    async def pool(self, name: str) -> ResourcePool:
        """Return the pool. Raises InvalidError at `/pool` when it does not exist."""
        try:
            return await self._pools.get(name, lambda: self._kube.get(RESOURCE_POOLS, name))
        except NotFoundError as error:
            listed = await self._kube.list(RESOURCE_POOLS)
            have = names_shown([pool.metadata.name for pool in listed.items])
            raise _missing("/pool", f"there is no pool {name}; {have}") from error

    async def pool_for(self, name: str, workspace: str) -> ResourcePool:
        """Return the pool. Raises InvalidError at `/pool` when it does not exist, or `workspace` may not use it."""
        pool = await self.pool(name)
        if pool.spec.workspaces and workspace not in pool.spec.workspaces:
            raise _missing(
                "/pool",
                (f"pool {name} is not for workspace {workspace}; {names_shown(await self.pools_of(workspace))}"),
            )
        return pool

    async def pools_of(self, workspace: str) -> list[str]:
        """Return the pools that a workspace may use."""
        return (await self.pools_by_workspace([workspace]))[workspace]

    async def pools_by_workspace(self, workspaces: Sequence[str]) -> dict[str, list[str]]:
        """Return {workspace: the pools that it may use}."""
        pools = sorted((await self._kube.list(RESOURCE_POOLS)).items, key=lambda pool: pool.metadata.name)
        return {
            name: [pool.metadata.name for pool in pools if not pool.spec.workspaces or name in pool.spec.workspaces]
            for name in workspaces
        }

    def forget_workspace(self, name: str) -> None:
        """Drop a workspace from the cache, because it has just changed."""
        self._namespaces.forget(name)

    async def queue_warning(self, name: str, pool: str) -> str:
        """Return why an allocation will wait for its queue; empty when the pool has the queue."""
        try:
            queue = await self._queues.get(name, lambda: self._kube.get(QUEUES, name))
        except NotFoundError:
            return f"there is no queue {name}: the allocation waits until the queue is created"
        if queue.spec.pool != pool:
            return f"queue {name} belongs to pool {queue.spec.pool}, not {pool}: the allocation waits (UnknownQueue)"
        return ""

    async def queue(self, name: str) -> Queue:
        """Return the queue. Raises InvalidError at `/queue` when it does not exist."""
        try:
            return await self._queues.get(name, lambda: self._kube.get(QUEUES, name))
        except NotFoundError as error:
            have = names_shown([queue.metadata.name for queue in (await self._kube.list(QUEUES)).items])
            raise _missing("/queue", f"there is no queue {name}; {have}") from error

    async def check_queue(self, name: str, pool: str) -> None:
        """Raise InvalidError at `/queue` when the pool has no such queue."""
        why = await self.queue_warning(name, pool)
        if not why:
            return
        have = [queue.metadata.name for queue in (await self._kube.list(QUEUES)).items if queue.spec.pool == pool]
        if name not in have:
            raise _missing("/queue", f"pool {pool} has no queue {name}; {names_shown(have)}")

    async def check_job(self, name: str, workspace: str) -> None:
        """Raise InvalidError at `/job` when the workspace has no such job, and so no limits of the job would apply."""
        try:
            await self._jobs.get((workspace, name), lambda: self._kube.get(JOBS, name, namespace=workspace))
        except NotFoundError as error:
            have = names_shown([job.metadata.name for job in (await self._kube.list(JOBS, namespace=workspace)).items])
            detail = f"workspace {workspace} has no job {name}; {have}; create it with: slipway job create {name}"
            raise _missing("/job", detail) from error

    async def run_limit_warning(self, name: str, max_runtime: str | None) -> str:
        """Return a warning when a queue ends the allocation before its own `max_runtime`; empty otherwise."""
        length_s, name, text = await self.run_limit(name)
        if not name or (max_runtime and _seconds(max_runtime) <= length_s):
            return ""
        asked = (
            f"not after the {max_runtime} that the launch sets" if max_runtime else "although the launch sets no limit"
        )
        return f"queue {name} ends its allocations after {text}, {asked}"

    async def run_limit(self, name: str) -> tuple[float, str, str]:
        """Return the shortest `maxRuntime` of a queue and its parents: (seconds, the queue's name, the text of it).

        Return (infinity, empty, empty) when no queue has one.
        """
        seen: set[str] = set()
        limits: list[tuple[float, str, str]] = []
        while name and name not in seen:
            seen.add(name)
            try:
                queue = await self._queues.get(name, functools.partial(self._kube.get, QUEUES, name))
            except NotFoundError:
                break
            if queue.spec.max_runtime:
                limits.append((_seconds(queue.spec.max_runtime), name, queue.spec.max_runtime))
            name = queue.spec.parent or ""
        return min(limits, default=(math.inf, "", ""))

    async def check_workspace(self, name: str) -> None:
        """Raise InvalidError at `/workspace` when it is no workspace, TerminatingError when it is being deleted."""
        try:
            namespace = await self._namespaces.get(name, lambda: self._kube.get(NAMESPACES, name))
        except NotFoundError as error:
            have = names_shown(await self.workspaces())
            raise _missing("/workspace", f"there is no namespace {name[:80]}; {have}") from error
        if namespace.status.phase == "Terminating" or namespace.metadata.deletion_timestamp:
            raise TerminatingError(f"workspace {name} is being deleted")
        if namespace.metadata.labels.get(LABEL_WORKSPACE) != "true":
            raise _missing(
                "/workspace",
                f"namespace {name} is not a workspace; make it one with: kubectl label namespace {name} "
                f"{LABEL_WORKSPACE}=true",
            )

    async def defaults(self, workspace: str) -> Defaults:
        """Return the defaults for launches in the workspace; all empty when the workspace does not exist."""
        try:
            found = await self._namespaces.get(workspace, lambda: self._kube.get(NAMESPACES, workspace))
        except NotFoundError:
            return Defaults()
        marks = found.metadata.annotations
        return Defaults(
            pool=marks.get(ANNOTATION_POOL, ""),
            queue=marks.get(ANNOTATION_QUEUE, ""),
            template=marks.get(ANNOTATION_TEMPLATE, ""),
            pods=read(marks),
        )

    async def workspaces(self) -> list[str]:
        """Return the names of all workspaces."""
        listed = await self._kube.list(NAMESPACES, label_selector=f"{LABEL_WORKSPACE}=true")
        return sorted(namespace.metadata.name for namespace in listed.items)

    async def workspace_names(self) -> list[str]:
        """Return the names of all workspaces from the cache, at most `WORKSPACES_TTL_S` old."""
        return await self._workspaces.get("", self.workspaces)

    async def template(self, name: str, workspace: str) -> Template:
        """Return the template. Raises InvalidError at `/template` when it does not exist."""
        try:
            return await self._kube.get(TEMPLATES, name, namespace=workspace)
        except (NotFoundError, InvalidError) as error:
            listed = await self._kube.list(TEMPLATES, namespace=workspace)
            have = names_shown([template.metadata.name for template in listed.items])
            raise _missing("/template", f"there is no template {name} in workspace {workspace}; {have}") from error

    async def offers_if_quick(self, pool: ResourcePool) -> PoolCapacity | None:
        """Return the allocatable resources of the pool's nodes; None when they are not known within a second.

        A missing answer is acceptable, because only a warning needs it.
        """
        if self._nodes.is_away:
            return None
        key = (pool.metadata.uid, pool.metadata.generation)
        try:
            async with asyncio.timeout(NODES_DEADLINE_S):
                return await self._offers.get(key, lambda: self._load_offers(pool))
        except (TransientError, StaleError, DeniedError, TimeoutError):
            return None

    async def _load_offers(self, pool: ResourcePool) -> PoolCapacity:
        return offers_of(pool, await self._nodes.items())


def names_shown(names: list[str]) -> str:
    """Return the existing names as a sentence for an error."""
    if not names:
        return "there are none yet"
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"there are: {', '.join(sorted(names)[:NAMES_SHOWN_MAX])}{more}"


def _missing(at: str, detail: str) -> InvalidError:
    return InvalidError(f"{at.removeprefix('/')}: {detail}", fields=(FieldError(at, detail),))


def _seconds(duration: str) -> float:
    try:
        return parse_duration(duration)
    except ValueError:
        return math.inf
