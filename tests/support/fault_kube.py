"""`KubeApi` as one simulated process sees it: each call is numbered, and faults strike at the calls.

Owns which calls are effects, and where on the way to the server and back a fault may strike. Must not know what a fault
does.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

from slipway.crd.meta import RawObject
from slipway.errors import DeadlineError, UnavailableError
from slipway.kube.errors import Verb
from slipway.kube.ports import ContainerChannels, Listed, PatchType, WatchEvent
from slipway.kube.resources import LEASES, PODS, Resource
from slipway.kube.wire import metadata_of
from slipway.local.apiserver.status import StatusError
from tests.support.fault_watch import Watched, troubled
from tests.support.faults import Effect, FaultInjector, Kind, Process, noted
from tests.support.kube_core import CoreKube

T = TypeVar("T")
R = TypeVar("R")
Patch = RawObject | list[RawObject]

SLOW_S = 4.0
"""How long a slow answer takes, in seconds."""
LATE_S = 3.0
"""After this time the server does a call whose caller has stopped waiting."""


class ProcessKube:
    """`KubeApi` as one process sees it. `lag_s` is {plural: how late its watch is}."""

    def __init__(self, inner: CoreKube, process: Process, injector: FaultInjector) -> None:
        inner.before = inner.after = _nothing
        self._inner = inner
        self._process = process
        self._trouble = injector
        self._listed: set[str] = set()
        self.lag_s: dict[str, float] = {}
        self.committed_at: Callable[[int], float] = lambda _version: 0.0
        """The loop time at which each version was committed; needed for the lag."""

    # --- reads ------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        effect = self._effect(Verb.GET, resource, name, namespace=namespace)
        return await self._read(effect, lambda: self._inner.get(resource, name, namespace=namespace))

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
        whole = not (namespace or label_selector or field_selector)
        at = self._replica_of(resource) if whole else None
        return await self._read(
            self._effect(Verb.LIST, resource, "", namespace=namespace),
            lambda: self._replica(at).list(
                resource,
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                limit=limit,
                continue_=continue_,
            ),
        )

    async def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str | None = None, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        self._trouble.check(self._process)
        await self._trouble.latency()
        self._reach()
        watched = Watched(self._inner, resource, resource_version, namespace, label_selector)
        plural = resource.plural
        async for event in troubled(watched, self._process, self._trouble):
            lag_s = self.lag_s.get(plural, 0.0)
            if lag_s:
                due = self.committed_at(int(event.resource_version or 0)) + lag_s
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            yield event

    async def may(
        self, verb: str, resource: Resource[Any], *, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        effect = self._effect(Verb.CREATE, resource, verb, namespace=namespace)
        effect.target = "selfsubjectaccessreviews"
        return await self._read(
            effect, lambda: self._inner.may(verb, resource, namespace=namespace, subresource=subresource)
        )

    async def serves(self, resource: Resource[Any]) -> bool:
        effect = self._effect(Verb.GET, resource, "")
        return await self._read(effect, lambda: self._inner.serves(resource))

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        return await self._read(
            self._effect(Verb.LOG, PODS, pod, namespace),
            lambda: self._inner.read_log(
                namespace, pod, container=container, tail_lines=tail_lines, since_time=since_time
            ),
        )

    async def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        self._trouble.check(self._process)
        await self._trouble.latency()
        effect = self._effect(Verb.LOG, PODS, pod, namespace)
        effect.role = f"{self._process.role}.reads"
        self._trouble.number_read(self._process, effect)
        if await self._trouble.strike(self._process, effect, "before") is Kind.SLOW:
            await self._slowly()
        self._reach()
        async for line in self._inner.follow_log(namespace, pod, container=container, since_time=since_time):
            yield line

    @asynccontextmanager
    async def exec(
        self, namespace: str, pod: str, *, container: str, command: Sequence[str], stdin: bool, tty: bool
    ) -> AsyncGenerator[ContainerChannels, None]:
        self._trouble.check(self._process)
        async with self._inner.exec(
            namespace, pod, container=container, command=command, stdin=stdin, tty=tty
        ) as channels:
            yield channels

    # --- writes -----------------------------------------------------------------------------------------------------

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T:
        name, *_ = _named(body)
        return await self._write(
            self._effect(Verb.CREATE, resource, name, namespace=namespace),
            lambda: self._inner.create(resource, body, namespace=namespace, dry_run=dry_run),
        )

    async def replace(self, resource: Resource[T], body: Any) -> T:
        effect = self._effect(Verb.UPDATE, resource, *_named(body))
        effect.is_recurring = resource is LEASES
        return await self._write(effect, lambda: self._inner.replace(resource, body))

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        effect = self._effect(Verb.UPDATE, resource, *_named(body))
        effect.target += "/status"
        return await self._write(effect, lambda: self._inner.replace_status(resource, body))

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T:
        return await self._write(
            self._effect(Verb.PATCH, resource, name, namespace=namespace),
            lambda: self._inner.patch(resource, name, patch, namespace=namespace, type_=type_),
        )

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
        effect = self._effect(Verb.DELETE, resource, name, "", uid or "", resource_version or "", namespace=namespace)
        await self._write(
            effect,
            lambda: self._inner.delete(
                resource,
                name,
                namespace=namespace,
                uid=uid,
                resource_version=resource_version,
                grace_s=grace_s,
                propagation=propagation,
            ),
        )

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        effect = self._effect(Verb.BIND, PODS, pod, namespace, uid)
        await self._write(effect, lambda: self._inner.bind(namespace, pod, uid, node))

    # --- the way to the server and back
    # ---------------------------------------------------------------------------------------

    def _effect(
        self,
        verb: Verb,
        resource: Resource[Any],
        name: str,
        namespace_: str = "",
        uid: str = "",
        resource_version: str = "",
        *,
        namespace: str | None = None,
    ) -> Effect:
        return Effect(
            role=self._process.role,
            process=self._process.name,
            number=0,
            verb=verb.value,
            target=resource.plural,
            name=name,
            namespace=namespace or namespace_,
            uid=uid,
            resource_version=resource_version,
        )

    async def _read(self, effect: Effect, call: Callable[[], Awaitable[R]]) -> R:
        injector, process = self._trouble, self._process
        injector.check(process)
        await injector.latency()
        effect.role = f"{process.role}.reads"
        injector.number_read(process, effect)
        if await injector.strike(process, effect, "before") is Kind.SLOW:
            await self._slowly()
        self._reach()
        answer = await call()
        await injector.latency()
        return answer

    async def _slowly(self) -> None:
        """Count a call in flight: a process that waits for an answer is not at rest."""
        self._trouble.lasts(SLOW_S)
        await asyncio.sleep(SLOW_S)

    async def _write(self, effect: Effect, call: Callable[[], Awaitable[R]]) -> R:
        injector, process = self._trouble, self._process
        injector.check(process)
        await injector.latency()
        injector.number(process, effect)
        match await injector.strike(process, effect, "before"):
            case Kind.TOUCHED:
                self._touch(effect)
            case Kind.SLOW:
                await self._slowly()
                injector.check(process)
            case Kind.TIMEOUT_LATE:
                effect.outcome = DeadlineError.__name__
                injector.lasts(LATE_S)
                injector.later(LATE_S, call)
                raise DeadlineError("injected: no answer in time, and it happens later")
            case _:
                pass
        with noted(effect):
            self._reach()
            answer = await call()
        await injector.strike(process, effect, "after")
        await injector.latency()
        return answer

    def _replica_of(self, resource: Resource[Any]) -> int | None:
        """Return the version at which its first LIST of a kind is served, while its replica lags."""
        if asyncio.get_running_loop().time() >= self._process.stale_until or resource.plural in self._listed:
            return None
        self._listed.add(resource.plural)
        return self._process.stale_version

    def _replica(self, version: int | None) -> CoreKube:
        self._inner.lists_at = version
        return self._inner

    def _reach(self) -> None:
        """Raise while the process is cut off."""
        if asyncio.get_running_loop().time() < self._process.cut_until:
            raise UnavailableError("injected: connection refused")

    def _touch(self, effect: Effect) -> None:
        """Write the object as another writer."""
        resource = effect.target.partition("/")[0]
        kind = next(item for item in self._inner.core.registry.storage_kinds() if item.plural == resource)
        note = {"metadata": {"annotations": {"example.com/touched": str(effect.number)}}}
        with suppress(StatusError):
            self._inner.core.patch(kind.resource, effect.namespace, effect.name, note)


def _named(body: Any) -> tuple[str, str, str, str]:
    """(name, namespace, uid, resourceVersion)."""
    if isinstance(body, dict):
        meta = cast("RawObject", body)["metadata"]
        return meta["name"], meta.get("namespace", ""), meta.get("uid", ""), meta.get("resourceVersion", "")
    known = metadata_of(body)
    return known.name, known.namespace, known.uid, known.resource_version


async def _nothing(_verb: Verb, _plural: str) -> None:
    """Let `CoreKube` not wait: this class adds the process's latency itself."""
