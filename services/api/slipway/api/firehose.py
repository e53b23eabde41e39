"""The firehose as a stream of a client: filtered, without the repeats of one connection.

At least once over reconnects: clients dedupe by the CloudEvents id. Those who wait at the same place wait in one read,
so that a thousand open pages at rest cost Redis and this process what one does.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from slipway.api.access.permissions import VisibleWorkspaces
from slipway.api.access.redaction import Blinds
from slipway.api.cloudevents import cloud_event
from slipway.api.sse import Outlet
from slipway.errors import TransientError
from slipway.model.events import AllocationEvent
from slipway.streams.ports import Firehose, FirehoseEvent

BLOCK_S = 5.0
PAGE = 200
SEEN_MAX = 10_000
Look = Callable[[], Awaitable[tuple[VisibleWorkspaces, Blinds | None]]]


class FirehoseFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events; empty means all."""

    workspace: str = ""
    types: frozenset[str] = frozenset()
    allocation: str = ""

    def has(self, event: AllocationEvent) -> bool:
        """Whether the event was asked for."""
        if self.workspace and event.namespace != self.workspace:
            return False
        if self.allocation and event.allocation_id != self.allocation:
            return False
        return not self.types or event.type.value in self.types


class SharedFirehose:
    """A `Firehose` in which reads that wait, and begin at the same place, are one read.

    Who joins a read that has begun waits no longer than the read goes on. When the one who reads leaves, another of
    those who wait reads; an error is raised to all of them.
    """

    def __init__(self, firehose: Firehose, *, on_event: Callable[[AllocationEvent], object] = lambda _: None) -> None:
        """`on_event` is called with each event before its readers get it: once, however many they are."""
        self._firehose = firehose
        self._on_event = on_event
        self._reads: dict[tuple[str | None, int, float], _SharedRead] = {}

    async def tail(self) -> str:
        """The cursor after the newest entries."""
        return await self._firehose.tail()

    async def read(self, *, after: str | None = None, limit: int = 100, block_s: float = 0.0) -> list[FirehoseEvent]:
        """Up to `limit` events per shard after the cursor; waits up to `block_s` seconds for the first."""
        if block_s <= 0:
            return await self._firehose.read(after=after, limit=limit)
        key = (after, limit, block_s)
        shared = self._reads.setdefault(key, _SharedRead())
        done = shared.done
        shared.readers += 1
        try:
            async with shared.turn:
                if shared.done == done:
                    await self._read(shared, key)
                if shared.error is not None:
                    raise shared.error
                return shared.page
        finally:
            shared.readers -= 1
            if not shared.readers:
                del self._reads[key]

    async def _read(self, shared: "_SharedRead", key: tuple[str | None, int, float]) -> None:
        after, limit, block_s = key
        shared.page, shared.error = [], None
        try:
            shared.page = await self._firehose.read(after=after, limit=limit, block_s=block_s)
        except TransientError as error:
            shared.error = error
        for found in shared.page:
            self._on_event(found.event)
        shared.done += 1


class _SharedRead:
    """One read and those who wait for it."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.readers = 0
        self.done = 0
        """reads that have ended; who finds more than at the start takes what the last one found"""
        self.page: list[FirehoseEvent] = []
        self.error: TransientError | None = None


async def follow_all(firehose: Firehose, wanted: FirehoseFilter, cursor: str, outlet: Outlet, look: Look) -> None:
    """Write what comes after the cursor, for ever; `look` says each time what may be seen, and how."""
    seen: set[str] = set()
    order = deque[str]()
    while True:
        page = await firehose.read(after=cursor, limit=PAGE, block_s=BLOCK_S)
        sight, blinds = await look() if page else (VisibleWorkspaces(), None)
        for found in page:
            cursor = found.cursor
            event_id = found.event.event_id
            if event_id in seen or not wanted.has(found.event) or not sight.has(found.event.namespace):
                continue
            seen.add(event_id)
            order.append(event_id)
            if len(order) > SEEN_MAX:
                seen.discard(order.popleft())
            told = cloud_event(found.event)
            await outlet.event(blinds(told) if blinds else told, id_=cursor)
