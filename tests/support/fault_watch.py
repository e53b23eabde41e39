"""The faults of a watch: it stalls, closes, expires, repeats events, lags, or leaves states out.

Owns the faults of one watch of one process. A fault may strike at every event, numbered by the event's version:
`stall@watcher.pods:131:before` means that the watcher's watch of pods stops before version 131, with its socket open.
Must not know what the events are for.

| kind | what the watcher of a kind sees |
|---|---|
| stall | nothing for a while, then everything |
| stall-cut, stall-expired | nothing for a while, then the connection breaks, or 410 |
| silent | nothing for as long as the client bears it, then its own error |
| close | the end of the watch, as the server ends it |
| expired | 410 at once |
| duplicate | the event again |
| lag | this event and all others late, for a while |
| coalesce | of each object only the last of several states; of one that came and went nothing |
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import msgspec

from slipway.errors import ExpiredError, UnavailableError
from slipway.kube.ports import WatchEvent, WatchType
from slipway.kube.resources import Resource
from slipway.kube.rest import Timeouts
from slipway.kube.wire import metadata_of
from tests.support.faults import Effect, FaultInjector, Kind, Process
from tests.support.kube_core import CoreKube

T = TypeVar("T")

STALL_S = 20.0
SILENT_S = Timeouts().silence_s
"""The client's own limit of silence."""
LAG_S = 3.0
LAGS_FOR_S = 20.0
WATCH_FAULTS = (
    Kind.STALL,
    Kind.STALL_CUT,
    Kind.STALL_EXPIRED,
    Kind.SILENT,
    Kind.CLOSE,
    Kind.EXPIRED,
    Kind.DUPLICATE,
    Kind.LAG,
    Kind.COALESCE,
)
_STALLS = {Kind.STALL: STALL_S, Kind.STALL_CUT: STALL_S, Kind.STALL_EXPIRED: STALL_S, Kind.SILENT: SILENT_S}


class Watched(msgspec.Struct, Generic[T]):
    """The watched resource, and the version from which it is watched."""

    inner: CoreKube
    resource: Resource[T]
    version: str
    namespace: str | None
    label_selector: str

    def open(self) -> AsyncIterator[WatchEvent[T]]:
        """Open the watch from the current version on."""
        return self.inner.watch(
            self.resource,
            resource_version=self.version,
            namespace=self.namespace,
            label_selector=self.label_selector,
        )

    def last_states(self) -> list[WatchEvent[T]]:
        """Return the last event of each object that has changed since the current version."""
        last: dict[tuple[str, str], WatchEvent[T]] = {}
        came: set[tuple[str, str]] = set()
        since = int(self.version or 0)
        for event in self.inner.events_since(self.resource, since, self.namespace, self.label_selector):
            meta = metadata_of(event.object)
            key = (meta.namespace, meta.name)
            if event.type is WatchType.ADDED and key not in last:
                came.add(key)
            last.pop(key, None)
            last[key] = event
        self.version = str(self.inner.core.version)
        return [event for key, event in last.items() if not (key in came and event.type is WatchType.DELETED)]


async def troubled(watched: Watched[T], process: Process, injector: FaultInjector) -> AsyncIterator[WatchEvent[T]]:
    """The events as the process receives them, with faults."""
    loop = asyncio.get_running_loop()
    lags_until = -1.0
    while True:
        is_coalesced = False
        async for event in watched.open():
            until = max(process.stale_until, process.cut_until)
            if loop.time() < until:
                await asyncio.sleep(until - loop.time())
            kind = await _met(event, watched.resource, process, injector)
            match kind:
                case Kind.STALL | Kind.STALL_CUT | Kind.STALL_EXPIRED | Kind.SILENT:
                    injector.lasts(_STALLS[kind])
                    await asyncio.sleep(_STALLS[kind])
                    _break(kind, watched.resource.plural)
                case Kind.CLOSE:
                    return
                case Kind.LAG:
                    lags_until = loop.time() + LAGS_FOR_S
                    injector.lasts(LAGS_FOR_S + LAG_S)
                case Kind.COALESCE:
                    injector.lasts(STALL_S)
                    await asyncio.sleep(STALL_S)
                    is_coalesced = True
                    break
                case _:
                    pass
            if loop.time() < lags_until:
                await asyncio.sleep(LAG_S)
            watched.version = event.resource_version or watched.version
            yield event
            if kind is Kind.DUPLICATE:
                yield event
        if not is_coalesced:
            return
        for event in watched.last_states():
            yield event


def _break(kind: Kind, plural: str) -> None:
    match kind:
        case Kind.STALL_CUT:
            raise UnavailableError(f"injected: the watch of {plural} was reset")
        case Kind.STALL_EXPIRED:
            raise ExpiredError(f"injected: the version of {plural} is too old")
        case Kind.SILENT:
            raise UnavailableError(f"injected: the watch of {plural} went silent")
        case _:
            return


async def _met(
    event: WatchEvent[Any], resource: Resource[Any], process: Process, injector: FaultInjector
) -> Kind | None:
    if event.object is None:
        return None
    effect = Effect(
        role=f"{process.role}.{resource.plural}",
        process=process.name,
        number=0,
        verb="watch",
        target=resource.plural,
        name=metadata_of(event.object).name,
        resource_version=event.resource_version,
    )
    injector.number_delivery(effect, int(event.resource_version or 0))
    return await injector.strike(process, effect, "before")
