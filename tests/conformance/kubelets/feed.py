"""Lists and watches all objects of one kind until it is cancelled.

Owns the resource version and the diff of a repeated LIST. It passes what it sees to a `Listener`, in order.
"""

import asyncio
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from tests.conformance.kubelets.connections import Connections, LostConnectionError, RefusedError
from tests.conformance.kubelets.objects import Bookmark, Event, Listing, Meta

BOUND_PODS = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"
PAGE = 500
PAUSE_S = 0.2
WATCH_S = 600

_event = msgspec.json.Decoder(Event)
_mark = msgspec.json.Decoder(Bookmark)


class HasMeta(Protocol):
    """Any object."""

    @property
    def metadata(self) -> Meta:
        """The object's metadata."""
        ...


T = TypeVar("T", bound=HasMeta)
T_contra = TypeVar("T_contra", contravariant=True)


class Listener(Protocol[T_contra]):
    """Receives the objects of a feed."""

    def see(self, item: T_contra) -> None:
        """Receive an object, new or changed."""
        ...

    def forget(self, uid: str) -> None:
        """Receive the uid of a deleted object."""
        ...


class Feed(Generic[T]):
    """`target` is a path with a parameter. `run` ends only when cancelled; `synced` is set after the first LIST."""

    def __init__(self, wire: Connections, listener: Listener[T], target: str, kind: type[T]) -> None:
        self.synced = asyncio.Event()
        self.relists = 0
        self._wire = wire
        self._listener = listener
        self._target = target
        self._item = msgspec.json.Decoder(kind)
        self._list_of = msgspec.json.Decoder(Listing[kind])
        self._known: set[str] = set()
        self._position = ""
        self._is_expired = False

    async def run(self) -> None:
        """List and watch until cancelled. Raises RefusedError when the server refuses to list the objects."""
        while True:
            try:
                if not self._position:
                    await self._list()
                await self._watch()
            except (LostConnectionError, RefusedError) as error:
                if isinstance(error, RefusedError) and error.code in (401, 403):
                    raise
                if isinstance(error, RefusedError) and error.code == 410:
                    self._position = ""
                await asyncio.sleep(PAUSE_S)

    async def _list(self) -> None:
        self.relists += 1
        seen: set[str] = set()
        token = ""
        while True:
            answer = await self._wire.call("GET", f"{self._target}&limit={PAGE}&continue={token}")
            page = self._list_of.decode(answer)
            for item in page.items:
                seen.add(item.metadata.uid)
                self._listener.see(item)
            token = quote(page.metadata.continue_)
            if not token:
                break
        for uid in self._known - seen:
            self._listener.forget(uid)
        self._known = seen
        self._position = page.metadata.resource_version
        self.synced.set()

    async def _watch(self) -> None:
        asked = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={self._position}"
        self._is_expired = False
        await self._wire.lines(f"{self._target}&{asked}", self._take)
        if self._is_expired:
            self._position = ""

    def _take(self, line: bytes) -> None:
        event = _event.decode(line)
        if event.type == "ERROR":
            self._is_expired = True
            return
        if event.type == "BOOKMARK":
            # A bookmark's object is empty: the containers of its pod are null.
            self._position = _mark.decode(event.object).metadata.resource_version
            return
        item = self._item.decode(event.object)
        meta = item.metadata
        self._position = meta.resource_version
        if event.type == "DELETED":
            self._known.discard(meta.uid)
            self._listener.forget(meta.uid)
        else:
            self._known.add(meta.uid)
            self._listener.see(item)
