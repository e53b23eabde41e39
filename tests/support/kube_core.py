"""`KubeApi` over the local cluster's core, without sockets: for unit tests, the contract suite and the simulation.

Owns the translation between the port and the core's verbs. Errors go through the same answer table as those of the real
client. Deterministic: the only waits are on the event loop, real or virtual, so equal runs give equal orders. This
module does not run the core's controllers; the test does (`core.settle()`).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from slipway.crd.meta import RawObject
from slipway.errors import ControlPlaneError, TooLargeError, UnavailableError
from slipway.kube import wire
from slipway.kube.errors import ServerStatus, Verb, explain
from slipway.kube.ports import ContainerChannels, Listed, PatchType, WatchEvent, WatchType
from slipway.kube.resources import (
    CRDS,
    EVENTS,
    PODS,
    STORY_EVENTS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Resource,
)
from slipway.kube.rest import BODY_BYTES_MAX, WATCH_S_MAX, WATCH_S_MIN
from slipway.local.apiserver.access import LocalReviews, ReviewRequest
from slipway.local.apiserver.accounts import ServiceAccountTokens
from slipway.local.apiserver.core import ClusterCore, StatusError, WriteOptions
from slipway.local.apiserver.identity import ADMIN
from slipway.local.apiserver.logs import NodeLogs
from slipway.local.apiserver.options import read_delete_options
from slipway.local.apiserver.paging import ListQuery
from slipway.local.apiserver.store import Commit
from slipway.local.apiserver.store import ServedEvent as Seen
from slipway.runtime.clock import Random
from tests.support.commands import ContainerCommand, ScriptedChannels, ScriptedCommands

T = TypeVar("T")
R = TypeVar("R")
Events = list[WatchEvent[T]]
Patch = RawObject | list[RawObject]
Hook = Callable[[Verb, str], Awaitable[None]]
Permit = Callable[[str, Resource[Any], str | None, str], bool]

BOOKMARK_S = 60.0
SILENCE_S = 40.0


async def _hop(_verb: Verb, _plural: str) -> None:
    """Let other tasks run while a call is in flight."""
    await asyncio.sleep(0)


async def _at_once(_verb: Verb, _plural: str) -> None:
    return None


class CoreKube:
    """One client of one core. `permit` answers `may`, `accounts` makes and reviews tokens, `logs` serves pods' logs.

    Faults: `before` and `after` are awaited around every call with (verb, plural), `before` also when a watch opens;
    one that raises loses the request or its answer, one that sleeps delays it. While `is_stalled`, open watches receive
    nothing and break after `silence_s`; while `closes_watches`, they end at once. `lists_at` serves LISTs as a replica
    that lags at that version would.
    """

    def __init__(
        self,
        core: ClusterCore,
        *,
        random: Random,
        logs: NodeLogs | None = None,
        permit: Permit | None = None,
        accounts: ServiceAccountTokens | None = None,
        bookmark_s: float = BOOKMARK_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.core = core
        self.commands = ScriptedCommands()
        self.before: Hook = _hop
        self.after: Hook = _at_once
        self.is_stalled = False
        self.closes_watches = False
        self.lists_at: int | None = None
        self._random = random
        self._logs = logs
        self._permit = permit
        self._accounts = accounts
        self._bookmark_s = bookmark_s
        self._silence_s = silence_s

    async def get(self, resource: Resource[T], name: str, *, namespace: str | None = None) -> T:
        def act() -> T:
            record = self.core.record(self.core.kind(_named(resource)), namespace or "", name)
            return wire.codec_of(resource).decode(record.raw)

        return await self._call(Verb.GET, resource, act)

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
        query = ListQuery(
            labels=label_selector,
            fields=field_selector,
            limit=limit,
            continue_token=continue_,
            version=self.lists_at or 0,
            exact=self.lists_at is not None,
        )

        def act() -> Listed[T]:
            listing = self.core.list(_named(resource), namespace, query)
            codec = wire.codec_of(resource)
            return Listed(
                items=[codec.decode(record.raw) for record in listing.records],
                resource_version=str(listing.version),
                continue_=listing.continue_token,
                remaining_item_count=listing.remaining,
            )

        return await self._call(Verb.LIST, resource, act)

    async def watch(
        self, resource: Resource[T], *, resource_version: str, namespace: str | None = None, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent[T]]:
        await self.before(Verb.WATCH, resource.plural)
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        heard_at = loop.time()
        ends_at = heard_at + self._random.uniform(WATCH_S_MIN, WATCH_S_MAX)
        cursor = int(resource_version or 0)
        end_subscription = self.core.subscribe(self._waker(resource, changed))
        try:
            while loop.time() < ends_at:
                changed.clear()
                if not self.is_stalled:
                    events = self.events_since(resource, cursor, namespace, label_selector)
                    cursor = max(cursor, self.core.version)
                    # As on the real server, a watch from a future version receives nothing until the server reaches
                    # that version.
                    is_reached = cursor <= self.core.version
                    if not events and is_reached and loop.time() >= heard_at + self._bookmark_s:
                        bookmark: WatchEvent[T] = WatchEvent(WatchType.BOOKMARK, None, str(cursor))
                        events = [bookmark]
                    if self.closes_watches:
                        return
                    for event in events:
                        heard_at = loop.time()
                        yield event
                elif loop.time() >= heard_at + self._silence_s:
                    raise UnavailableError(f"watch of {resource.plural} went silent")
                quiet_s = self._silence_s if self.is_stalled else self._bookmark_s
                quiet_until = heard_at + quiet_s
                await _wait(changed, min(ends_at, quiet_until) if quiet_until > loop.time() else ends_at)
            if self.is_stalled:
                await asyncio.sleep(max(0.0, heard_at + self._silence_s - loop.time()))
                raise UnavailableError(f"watch of {resource.plural} went silent")
            if self._bookmark_s < float("inf") and cursor <= self.core.version:
                # The real server sends a bookmark shortly before the end of a watch.
                yield WatchEvent(WatchType.BOOKMARK, None, str(cursor))
        finally:
            end_subscription()

    def events_since(
        self, resource: Resource[T], cursor: int, namespace: str | None = None, label_selector: str = ""
    ) -> Events[T]:
        """The events that a watch from that version would deliver now."""
        codec = wire.codec_of(resource)
        with _Explained(Verb.WATCH):
            events = self.core.watch_since(_named(resource), cursor, namespace, labels=label_selector)
        return [WatchEvent(WatchType(event.type), codec.decode(_raw(event)), str(event.version)) for event in events]

    def _waker(self, resource: Resource[Any], changed: asyncio.Event) -> Callable[[Commit], None]:
        """Wakes a watch when there is something for it: an object of its kind, or the kind itself, has changed."""
        kinds = (_named(resource), _named(CRDS))

        def wake(change: Commit) -> None:
            if change.resource in kinds:
                changed.set()

        return wake

    async def read_log(
        self, namespace: str, pod: str, *, container: str = "", tail_lines: int | None = None, since_time: str = ""
    ) -> bytes:
        query = {"tailLines": "" if tail_lines is None else str(tail_lines)}
        chunks = self._log(namespace, pod, query | {"container": container, "sinceTime": since_time})
        return b"".join([chunk async for chunk in chunks])

    async def follow_log(
        self, namespace: str, pod: str, *, container: str = "", since_time: str = ""
    ) -> AsyncIterator[bytes]:
        query = {"container": container, "sinceTime": since_time, "follow": "true"}
        async for chunk in self._log(namespace, pod, query):
            yield chunk

    @asynccontextmanager
    async def exec(
        self, namespace: str, pod: str, *, container: str, command: Sequence[str], stdin: bool, tty: bool
    ) -> AsyncGenerator[ContainerChannels, None]:
        asked = ContainerCommand(pod=pod, container=container, command=tuple(command), stdin=stdin, tty=tty)

        def act() -> ScriptedChannels:
            self.core.get("pods", namespace, pod)
            return self.commands.start(asked)

        channels = await self._call(Verb.EXEC, PODS, act)
        try:
            yield channels
        finally:
            await self.commands.left(channels)

    async def create(
        self, resource: Resource[T], body: Any, *, namespace: str | None = None, dry_run: bool = False
    ) -> T:
        ready = wire.outgoing(resource, body, namespace)
        sent, where = _sent(ready.body), ready.namespace or ""

        def act() -> T:
            if resource in (TOKEN_REVIEWS, SUBJECT_ACCESS_REVIEWS) and self._accounts is not None:
                asked = ReviewRequest(ADMIN, "", sent)
                reviews = LocalReviews(self.core, self._accounts)
                return _answer(resource, reviews.answer(resource.group, resource.plural, lambda: asked) or {})
            account = getattr(resource, "account", "")
            if account and self._accounts is not None:
                return _answer(resource, self._accounts.issue(where, account, sent))
            return _answer(resource, self.core.create(_named(resource), where, sent, WriteOptions(dry_run=dry_run)))

        return await self._call(Verb.CREATE, resource, act)

    async def replace(self, resource: Resource[T], body: Any) -> T:
        ready = wire.fenced(resource, body)
        sent, where = _sent(ready.body), ready.namespace or ""

        def act() -> T:
            return _answer(resource, self.core.update(_named(resource), where, ready.name, sent))

        return await self._call(Verb.UPDATE, resource, act)

    async def replace_status(self, resource: Resource[T], body: Any) -> T:
        ready = wire.fenced(resource, body)
        sent, where = _sent(ready.body), ready.namespace or ""

        def act() -> T:
            return _answer(resource, self.core.update_status(_named(resource), where, ready.name, sent))

        return await self._call(Verb.UPDATE, resource, act)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        *,
        namespace: str | None = None,
        type_: PatchType = PatchType.MERGE,
    ) -> T:
        sent = _sent(patch)

        def act() -> T:
            changed = self.core.patch(_named(resource), namespace or "", name, sent, media=type_.value)
            return _answer(resource, changed)

        return await self._call(Verb.PATCH, resource, act)

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
        options = read_delete_options(wire.delete_options(uid, resource_version, grace_s, propagation))
        await self._call(
            Verb.DELETE, resource, lambda: self.core.delete(_named(resource), namespace or "", name, options)
        )

    async def bind(self, namespace: str, pod: str, uid: str, node: str) -> None:
        body = wire.binding(namespace, pod, uid, node)
        await self._call(Verb.BIND, PODS, lambda: self.core.bind(namespace, pod, body))

    async def may(
        self, verb: str, resource: Resource[Any], *, namespace: str | None = None, subresource: str = ""
    ) -> bool:
        permit = self._permit
        return await self._call(
            Verb.CREATE, resource, lambda: permit is None or permit(verb, resource, namespace, subresource)
        )

    async def serves(self, resource: Resource[Any]) -> bool:
        def act() -> bool:
            kind = self.core.registry.get(_named(resource))
            return kind is not None and kind.version == resource.version

        return await self._call(Verb.GET, resource, act)

    async def _call(self, verb: Verb, resource: Resource[Any], act: Callable[[], R]) -> R:
        await self.before(verb, resource.plural)
        with _Explained(verb):
            answer = act()
        await self.after(verb, resource.plural)
        return answer

    async def _log(self, namespace: str, pod: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        await self.before(Verb.LOG, PODS.plural)
        if self._logs is None:
            return  # containers here print nothing
        with _Explained(Verb.LOG):
            found = self.core.get(_named(PODS), namespace, pod)
            node_name = str(found.get("spec", {}).get("nodeName") or "")
            if not node_name:
                return
            node = self.core.get("nodes", "", node_name)
            async for chunk in self._logs.read(found, node, query | {"timestamps": "true"}):
                yield chunk


class _Explained:
    """Turns the core's refusals into our errors, as the real client does with responses."""

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, StatusError):
            raise self._meaning(error) from error

    def _meaning(self, error: StatusError) -> ControlPlaneError:
        return explain(self._verb, error.code, msgspec.convert(error.to_json(), ServerStatus))


async def _wait(changed: asyncio.Event, until: float) -> None:
    try:
        async with asyncio.timeout_at(until):
            await changed.wait()
    except TimeoutError:
        return


def _named(resource: Resource[Any]) -> str:
    if resource is STORY_EVENTS:
        return f"{resource.plural}.{resource.version}.{resource.group}/{EVENTS.plural}"  # the same store, another form
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _sent(body: Any) -> Any:
    """Return the body as the server would read it: plain JSON that shares nothing with the caller."""
    encoded = msgspec.json.encode(body)
    if len(encoded) > BODY_BYTES_MAX:
        raise TooLargeError(f"a body of {len(encoded)} B; the API server accepts at most {BODY_BYTES_MAX} B")
    return msgspec.json.decode(encoded)


def _raw(event: Seen) -> bytes:
    """The encoded object of an event; most objects are encoded already."""
    record = event.change.record
    return record.raw if event.obj is record.obj else msgspec.json.encode(event.obj)


def _answer(resource: Resource[T], obj: RawObject) -> T:
    return wire.codec_of(resource).decode(msgspec.json.encode(obj))
