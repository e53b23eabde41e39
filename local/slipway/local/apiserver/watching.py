"""Watches over HTTP: sends the changes in the store's history as lines on a connection.

Owns waking, cursors, bookmarks and the end of a watch. A watch stores a version, not a queue: after each change it
reads the history from its version on. Invariants: between two versions no event is sent twice or left out; a watch
whose version is older than the history sends one ERROR event (410) and ends; memory per watch does not depend on the
client's speed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

import msgspec

from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.registry import ResourceKind
from slipway.local.apiserver.selectors import Predicate, selector
from slipway.local.apiserver.status import StatusError
from slipway.local.apiserver.store import Commit, ServedEvent, visible

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
EventEncoder = Callable[[ServedEvent], bytes]


class WatchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The request of one watch. `version` 0 means that the watch sends the present state first."""

    kind: ResourceKind
    namespace: str | None
    labels: str = ""
    fields: str = ""
    version: int = 0
    timeout_s: float
    bookmarks: bool = False
    sends_initial: bool = False


class Wakers:
    """Wakes the watches of a resource when it changes, and ends all watches when the server stops."""

    def __init__(self, core: ClusterCore) -> None:
        self._by_resource: dict[str, set[asyncio.Event]] = {}
        self.is_closed = False
        core.subscribe(self._wake)

    def add(self, resource: str) -> asyncio.Event:
        waker = asyncio.Event()
        self._by_resource.setdefault(resource, set()).add(waker)
        return waker

    def remove(self, resource: str, waker: asyncio.Event) -> None:
        self._by_resource.get(resource, set()).discard(waker)

    def close(self) -> None:
        self.is_closed = True
        for wakers in self._by_resource.values():
            for waker in wakers:
                waker.set()

    def _wake(self, change: Commit) -> None:
        for waker in self._by_resource.get(change.resource, ()):
            waker.set()


async def watch(
    core: ClusterCore, wakers: Wakers, query: WatchQuery, encode: EventEncoder, *, bookmark_interval_s: float
) -> AsyncGenerator[bytes]:
    """Yield chunks of whole lines. Raises: StatusError 400, only before the first chunk."""
    kind = query.kind
    matches = selector(query.labels, query.fields, kind.readers)
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + query.timeout_s
    bookmark_at = loop.time() + bookmark_interval_s
    waker = wakers.add(kind.resource)
    try:
        cursor = query.version
        if cursor == 0 or query.sends_initial:
            # The state and its version are read together: objects may change while the client receives the first chunk.
            chunk, cursor = b"".join(_initial(core, query, matches, encode)), core.version
            yield chunk
        else:
            yield b""
        while not wakers.is_closed and core.registry.get(kind.resource) is not None:
            waker.clear()
            try:
                changes = core.changes_since(kind.resource, cursor)
            except StatusError as exc:
                yield _line("ERROR", exc.to_json())
                return
            cursor = max(cursor, core.version)
            seen = (visible(change, query.namespace, matches) for change in changes)
            chunk = b"".join(encode(event) for event in seen if event is not None)
            now = loop.time()
            # A bookmark is also sent at the end, as by the real server: a client that continues from its version misses
            # no event, and receives few events again.
            if query.bookmarks and now >= min(bookmark_at, ends_at):
                chunk += bookmark(kind, cursor)
                bookmark_at = now + bookmark_interval_s
            if chunk:
                yield chunk
            if now >= ends_at:
                return
            await _wait(waker, min(ends_at, bookmark_at if query.bookmarks else ends_at))
    finally:
        wakers.remove(kind.resource, waker)


def bookmark(kind: ResourceKind, version: int, *, ends_initial: bool = False) -> bytes:
    meta: Json = {"resourceVersion": str(version), "creationTimestamp": None}
    if ends_initial:
        meta["annotations"] = {INITIAL_EVENTS_END: "true"}
    return _line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta})


def _initial(core: ClusterCore, query: WatchQuery, matches: Predicate | None, encode: EventEncoder) -> Iterable[bytes]:
    for record in core.store.scan(query.kind.resource, query.namespace):
        if matches is None or matches(record.obj):
            key = (query.namespace or "", "")
            change = Commit(record.version, "ADDED", query.kind.resource, key, record, None)
            yield encode(ServedEvent("ADDED", record.obj, record.version, change))
    if query.sends_initial and query.bookmarks:
        yield bookmark(query.kind, core.version, ends_initial=True)


async def _wait(waker: asyncio.Event, until: float) -> None:
    try:
        async with asyncio.timeout_at(until):
            await waker.wait()
    except TimeoutError:
        return


def _line(type: str, obj: Json) -> bytes:
    return b'{"type":"' + type.encode() + b'","object":' + msgspec.json.encode(obj) + b"}\n"
