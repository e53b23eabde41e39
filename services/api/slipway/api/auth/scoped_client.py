"""The Kubernetes client of a caller who cannot see all workspaces: objects of other workspaces do not exist in it.

Owns the filter, so that a route that lists or reads cannot forget it. A route gets this client. It has to name the
unfiltered one (`ApiDeps.whole`) when the order of a shared queue depends on the allocations of all workspaces. Objects
of the cluster (pools, queues, nodes) are visible to all callers. Writes are not filtered: they were authorised before.

Names of other workspaces are removed from sentences about a user's own work. The scheduler writes such sentences into
the object, for operators, and names other allocations as `workspace/name`. A caller who cannot see that workspace reads
the same sentence without the name. Only our own text is changed. Text that a caller has sent is returned unchanged, so
that a caller cannot test with it which workspaces exist.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar, cast

import msgspec

from slipway.api.auth.principal import PermissionCheck, Principal, VisibleWorkspaces
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


OTHERS_WORK = "work of another workspace"
_OUR_WORDS = frozenset({"message", "by", "detail", "change", "helps", "warnings"})
_NOT_OURS = frozenset({"template", "env", "files", "labels", "problem"})
"""Fields with text of a user, whatever the keys inside are, and refusals, which repeat what was sent."""
_BY = "by"
"""A field that contains the whole name of an allocation, and nothing else."""
_NAME = r"/[a-z0-9][-a-z0-9.]*"


class Redactor:
    """The filter for a caller who cannot see the `hidden` workspaces.

    `sees` returns for any name whether the caller may see that workspace: the field `by` can name a deleted workspace.
    """

    def __init__(self, hidden: Iterable[str], sees: Callable[[str], bool]) -> None:
        names = "|".join(re.escape(name) for name in sorted(hidden, key=len, reverse=True))
        self._sees = sees
        self._pattern = re.compile(rf"(?<![-a-z0-9./])(?:{names}){_NAME}") if names else None
        self._maybe = re.compile(rf'"{_BY}":"|(?:{names})/'.encode() if names else f'"{_BY}":"'.encode())

    def __call__(self, raw: bytes) -> bytes:
        """Return a JSON text without the hidden names."""
        if self._maybe.search(raw) is None:
            return raw
        return msgspec.json.encode(self._walked(msgspec.json.decode(raw), is_ours=False))

    def sentence(self, text: str) -> str:
        """Return a sentence of ours without the hidden names."""
        return self._pattern.sub(OTHERS_WORK, text) if self._pattern is not None else text

    def _walked(self, value: Any, *, is_ours: bool) -> Any:
        match value:
            case str():
                return self.sentence(value) if is_ours else value
            case dict():
                items = cast("dict[str, Any]", value).items()
                return {name: self._field(name, item, is_ours=is_ours) for name, item in items}
            case list():
                return [self._walked(item, is_ours=is_ours) for item in cast("list[Any]", value)]
            case _:
                return value

    def _field(self, name: str, item: Any, *, is_ours: bool) -> Any:
        if name in _NOT_OURS:
            return item
        if name == _BY and isinstance(item, str):
            where, slash, _ = item.partition("/")
            return OTHERS_WORK if slash and not self._sees(where) else item
        return self._walked(item, is_ours=name in _OUR_WORDS or (is_ours and not isinstance(item, str)))
