"""All bound pods of the cluster, by one LIST and one WATCH, for as long as it takes.

Owns the position in the history and the diff of a LIST that comes again. It tells a `Listener` what it sees, in order.
"""

import asyncio
from typing import Protocol
from urllib.parse import quote

import msgspec

from tests.conformance.kubelets.connections import Connections, LostConnectionError, RefusedError
from tests.conformance.kubelets.objects import Mark, Pod, PodEvent, PodList

PODS = "/api/v1/pods?fieldSelector=spec.nodeName%21%3D"
PAGE = 500
PAUSE_S = 0.2
WATCH_S = 600

_event = msgspec.json.Decoder(PodEvent)
_pod = msgspec.json.Decoder(Pod)
_mark = msgspec.json.Decoder(Mark)
_list = msgspec.json.Decoder(PodList)


class Listener(Protocol):
    """Who is told."""

    def see(self, pod: Pod) -> None:
        """A bound pod, new or changed."""
        ...

    def forget(self, uid: str) -> None:
        """Its object is gone."""
        ...


class Feed:
    """`run` lives until it is cancelled; `synced` is set after the first LIST."""

    def __init__(self, wire: Connections, listener: Listener) -> None:
        self.synced = asyncio.Event()
        self.relists = 0
        self._wire = wire
        self._listener = listener
        self._known: set[str] = set()
        self._position = ""
        self._is_expired = False

    async def run(self) -> None:
        """Raises RefusedError when pods may not be read at all."""
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
            page = _list.decode(await self._wire.call("GET", f"{PODS}&limit={PAGE}&continue={token}"))
            for pod in page.items:
                seen.add(pod.uid)
                self._listener.see(pod)
            token = quote(page.metadata.continue_)
            if not token:
                break
        for uid in self._known - seen:
            self._listener.forget(uid)
        self._known = seen
        self._position = page.metadata.resource_version
        self.synced.set()

    async def _watch(self) -> None:
        target = f"{PODS}&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}&resourceVersion={self._position}"
        self._is_expired = False
        await self._wire.lines(target, self._take)
        if self._is_expired:
            self._position = ""

    def _take(self, line: bytes) -> None:
        event = _event.decode(line)
        if event.type == "ERROR":
            self._is_expired = True
            return
        if event.type == "BOOKMARK":
            # Its pod is none: the list of its containers is null.
            self._position = _mark.decode(event.object).metadata.resource_version
            return
        pod = _pod.decode(event.object)
        self._position = pod.metadata.resource_version
        if event.type == "DELETED":
            self._known.discard(pod.uid)
            self._listener.forget(pod.uid)
        else:
            self._known.add(pod.uid)
            self._listener.see(pod)
