"""`KubeApi` over the local cluster's core, without sockets: for unit tests, the contract suite and the simulation.

Owns the translation between the port and the core's verbs. Errors go through the same answer table as those of the
real client. Deterministic: the only waits are on the event loop, real or virtual, so equal runs give equal orders.
Nobody here runs the core's controllers; whoever drives the test does (`core.settle()`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec

from slipway.crd.meta import RawObject
from slipway.errors import ControlPlaneError, UnavailableError
from slipway.kube import wire
from slipway.kube.answers import ServerStatus, Verb, explain
from slipway.kube.ports import Listed, PatchType, WatchEvent, WatchType
from slipway.kube.resources import PODS, Resource
from slipway.kube.rest import BODY_BYTES_MAX, LOG_LINE_BYTES_MAX, WATCH_S_MAX, WATCH_S_MIN
from slipway.local.apiserver.core import ClusterCore, StatusError, WriteOptions
from slipway.local.apiserver.logs import LogSource
from slipway.local.apiserver.options import read_delete_options
from slipway.local.apiserver.paging import ListQuery
from slipway.runtime.clock import Random

T = TypeVar("T")
Patch = RawObject | list[RawObject]
Permit = Callable[[str, Resource[Any], str | None, str], bool]

BOOKMARK_S = 60.0


class CoreKube:
    """One client of one core. `permit` answers `may`; `logs` serves the pods' logs."""

    def __init__(
        self,
        core: ClusterCore,
        *,
        random: Random,
        logs: LogSource | None = None,
        permit: Permit | None = None,
        bookmark_s: float = BOOKMARK_S,
    ) -> None:
        self.core = core
        self._random = random
        self._logs = logs
        self._permit = permit
        self._bookmark_s = bookmark_s

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        await _hop()
        with _Explained(Verb.GET):
            record = self.core.record(self.core.kind(_named(resource)), namespace or "", name)
            return wire.codec_of(resource).decode(record.raw)

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
        await _hop()
        query = ListQuery(labels=label_selector, fields=field_selector, limit=limit, continue_token=continue_)
        with _Explained(Verb.LIST):
            listing = self.core.list(_named(resource), namespace, query)
            codec = wire.codec_of(resource)
            return Listed(
                items=[codec.decode(record.raw) for record in listing.records],
                resource_version=str(listing.version),
                continue_=listing.continue_token,
                remaining_item_count=listing.remaining,
            )

    async def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str | None = None, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        await _hop()
        loop = asyncio.get_running_loop()
        codec, changed = wire.codec_of(resource), asyncio.Event()
        ends_at = loop.time() + self._random.uniform(WATCH_S_MIN, WATCH_S_MAX)
        bookmark_at = loop.time() + self._bookmark_s
        cursor = int(resource_version or 0)
        end_subscription = self.core.subscribe(lambda _: changed.set())
        try:
            while loop.time() < ends_at:
                changed.clear()
                with _Explained(Verb.WATCH):
                    events = self.core.watch_since(_named(resource), cursor, namespace, labels=label_selector)
                cursor = max(cursor, self.core.version)
                for event in events:
                    yield WatchEvent(
                        WatchType(event.type), codec.decode(msgspec.json.encode(event.obj)), str(event.version)
                    )
                if loop.time() >= bookmark_at:
                    bookmark_at = loop.time() + self._bookmark_s
                    yield WatchEvent(WatchType.BOOKMARK, None, str(cursor))
                await _wait(changed, min(ends_at, bookmark_at))
        finally:
            end_subscription()

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        query = {"tailLines": "" if tail_lines is None else str(tail_lines)}
        chunks = self._log(namespace, pod, query | {"container": container, "sinceTime": since_time})
        return b"".join([chunk async for chunk in chunks])

    async def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        held = b""
        query = {"container": container, "sinceTime": since_time, "follow": "true"}
        async for chunk in self._log(namespace, pod, query):
            *lines, held = (held + chunk).split(b"\n")
            for line in lines:
                yield line
            if len(held) > LOG_LINE_BYTES_MAX:
                yield held
                held = b""
        if held:
            yield held

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T:
        ready = wire.outgoing(resource, body, namespace)
        await _hop()
        with _Explained(Verb.CREATE):
            created = self.core.create(
                _named(resource), ready.namespace or "", _sent(ready.body), WriteOptions(dry_run=dry_run)
            )
            return _answer(resource, created)

    async def replace(self, resource: Resource[T], body: Any) -> T:
        ready = wire.fenced(resource, body)
        await _hop()
        with _Explained(Verb.UPDATE):
            changed = self.core.update(_named(resource), ready.namespace or "", ready.name, _sent(ready.body))
            return _answer(resource, changed)

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        ready = wire.fenced(resource, body)
        await _hop()
        with _Explained(Verb.UPDATE):
            changed = self.core.update_status(_named(resource), ready.namespace or "", ready.name, _sent(ready.body))
            return _answer(resource, changed)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T:
        await _hop()
        with _Explained(Verb.PATCH):
            change = _sent(patch)
            return _answer(
                resource, self.core.patch(_named(resource), namespace or "", name, change, media=type_.value)
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
        await _hop()
        with _Explained(Verb.DELETE):
            options = read_delete_options(wire.delete_options(uid, resource_version, grace_s, propagation))
            self.core.delete(_named(resource), namespace or "", name, options)

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        await _hop()
        with _Explained(Verb.BIND):
            self.core.bind(namespace, pod, wire.binding(namespace, pod, uid, node))

    async def may(
        self, verb: str, resource: Resource[Any], *, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        await _hop()
        return self._permit is None or self._permit(verb, resource, namespace, subresource)

    async def _log(self, namespace: str, pod: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        await _hop()
        if self._logs is None:
            raise UnavailableError("this cluster keeps no logs")
        with _Explained(Verb.LOG):
            found = self.core.get(_named(PODS), namespace, pod)
            node_name = str(found.get("spec", {}).get("nodeName") or "")
            if not node_name:
                raise StatusError(400, "BadRequest", f"pod {pod} does not have a host assigned")
            node = self.core.get("nodes", "", node_name)
            async for chunk in self._logs.read(found, node, query | {"timestamps": "true"}):
                yield chunk


class _Explained:
    """Turns the core's refusals into our errors, as the real client does with a response."""

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StatusError):
            raise self._meaning(error) from error

    def _meaning(self, error: StatusError) -> ControlPlaneError:
        return explain(self._verb, error.code, msgspec.convert(error.to_json(), ServerStatus))


async def _hop() -> None:
    """Others run while a call is on its way."""
    await asyncio.sleep(0)


async def _wait(changed: asyncio.Event, until: float) -> None:
    try:
        async with asyncio.timeout_at(until):
            await changed.wait()
    except TimeoutError:
        return


def _named(resource: Resource[Any]) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _sent(body: Any) -> Any:
    """The body as the server would read it: plain JSON that shares nothing with the caller."""
    encoded = msgspec.json.encode(body)
    if len(encoded) > BODY_BYTES_MAX:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_BYTES_MAX}")
    return msgspec.json.decode(encoded)


def _answer(resource: Resource[T], obj: RawObject) -> T:
    return wire.codec_of(resource).decode(msgspec.json.encode(obj))
