"""The Kubernetes client of a caller who cannot see all workspaces: objects of other workspaces do not exist in it.

Owns the filter, so that a route that lists or reads cannot forget it. A route gets this client. It has to name the
unfiltered one (`ApiDeps.whole`) when the order of a shared queue depends on the allocations of all workspaces. Objects
of the cluster (pools, queues, nodes) are visible to all callers. Writes are not filtered: they were authorised before.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import msgspec

from slipway.api.access.permissions import PermissionCheck, VisibleWorkspaces
from slipway.api.access.principal import Principal
from slipway.api.ports import Kube
from slipway.crd.meta import API_GROUP, RawObject
from slipway.errors import NotFoundError
from slipway.kube.ports import ContainerChannels, Listed, PatchType
from slipway.kube.resources import NAMESPACES, Resource

T = TypeVar("T")
_Patch = RawObject | list[RawObject]


class VisibleKube:
    """The client `kube` without the objects that `principal` may not see."""

    def __init__(self, kube: Kube, principal: Principal) -> None:
        self._kube = kube
        self._principal = principal

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        """Return the object. Raises NotFoundError also when the caller may not see its workspace."""
        where = name if resource is NAMESPACES else namespace
        if where is not None and not (await self._visible("get", resource)).has(where):
            raise NotFoundError(f"there is no {resource.kind} {name[:80]!r} in workspace {where[:80]!r}")
        return await self._kube.get(resource, name, namespace=namespace)

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> Listed[T]:
        """Return the visible objects. A page may be empty, and the number of remaining objects is not given."""
        if not resource.namespaced and resource is not NAMESPACES:
            return await self._kube.list(
                resource,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continue_=continue_,
            )
        visible = await self._visible("list", resource)
        if namespace is not None and not visible.has(namespace):
            return Listed(items=[], resource_version="")
        if namespace is None and visible.only is not None and len(visible.only) == 1 and resource.namespaced:
            namespace = next(iter(visible.only))
        listed = await self._kube.list(
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
            continue_=continue_,
        )
        if visible.is_whole:
            return listed
        items = [each for each in listed.items if visible.has(_workspace_of(resource, each))]
        return msgspec.structs.replace(listed, items=items, remaining_item_count=None)

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T:
        """Pass the call on, unfiltered."""
        return await self._kube.create(resource, body, namespace=namespace, dry_run=dry_run)

    async def replace(self, resource: Resource[T], body: Any) -> T:
        """Pass the call on, unfiltered."""
        return await self._kube.replace(resource, body)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: _Patch,
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T:
        """Pass the call on, unfiltered."""
        return await self._kube.patch(resource, name, patch, namespace=namespace, type_=type_)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        propagation: str = "Background",
    ) -> None:
        """Pass the call on, unfiltered."""
        await self._kube.delete(
            resource,
            name,
            namespace=namespace,
            uid=uid,
            resource_version=resource_version,
            grace_s=grace_s,
            propagation=propagation,
        )

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        """Pass the call on, unfiltered: the caller has found the pod before."""
        return await self._kube.read_log(
            namespace, pod, container=container, tail_lines=tail_lines, since_time=since_time
        )

    def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        """Pass the call on, unfiltered: the caller has found the pod before."""
        return self._kube.follow_log(namespace, pod, container=container, since_time=since_time)

    def exec(
        self, namespace: str, pod: str, *, container: str, command: Sequence[str], stdin: bool, tty: bool
    ) -> AbstractAsyncContextManager[ContainerChannels]:
        """Pass the call on, unfiltered: the caller has found the pod before."""
        return self._kube.exec(namespace, pod, container=container, command=command, stdin=stdin, tty=tty)

    async def _visible(self, verb: str, resource: Resource[Any]) -> VisibleWorkspaces:
        """Return the workspaces where the caller may see the kind; other API groups are visible with allocations."""
        kind = resource.plural if resource.group == API_GROUP else "allocations"
        return await self._principal.visible_workspaces(PermissionCheck(verb, kind))


def _workspace_of(resource: Resource[Any], item: Any) -> str:
    meta = item.metadata
    return str(meta.name if resource is NAMESPACES else meta.namespace)
