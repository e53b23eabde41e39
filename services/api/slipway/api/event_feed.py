"""The events of one allocation, in order and each once: from its stream, and from the object when the stream is behind.

An event is a pure function of the object's metadata and one ring entry. So both sources give the same events, which are
merged by seq. The stream has new events at once, and has more of them than the ring. The object is read from time to
time; while Redis is unavailable, all events come from these reads.

Promises: seq rises by one with each event, except for an event marked `truncated`. The feed ends after `terminated`, or
when the object was deleted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

from slipway.api.lookup import Lookup
from slipway.crd.transitions import created_ms, events_after, id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, NotFoundError, TransientError
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams.codec import cursor_parts
from slipway.streams.ports import EventLog

LOOK_S = 1.0
"""Interval at which the object is read while there is no stream."""
GUARD_S = 5.0
"""Interval at which the object is read while the stream works and has no new event."""
INBOX_MAX = 256
PAGE_MAX = 500

Emit = Callable[[AllocationEvent], Awaitable[None]]


def seq_of_cursor(allocation: Allocation, cursor: str | None) -> int:
    """Return the seq after which a reader continues; 0 without a cursor, or with a cursor of another allocation.

    Raises:
        InvalidError: the text is no cursor.
    """
    if not cursor:
        return 0
    created, seq = cursor_parts(cursor)
    return seq if created == created_ms(allocation) else 0


def cursor_at(allocation: Allocation, seq: int) -> str | None:
    """Return the cursor of the event `seq`; None for seq 0, before the first event."""
    return f"{created_ms(allocation)}-{seq}" if seq else None


class EventFeed:
    """Reads and follows events."""

    def __init__(self, events: EventLog, lookup: Lookup, clock: Clock) -> None:
        self._events = events
        self._lookup = lookup
        self._clock = clock

    async def page(self, allocation: Allocation, *, after: int = 0, limit: int = PAGE_MAX) -> list[AllocationEvent]:
        """Return up to `limit` events after the seq."""
        try:
            cursor = cursor_at(allocation, after)
            stored = await self._events.read(id_of(allocation), after=cursor, limit=limit)
        except TransientError:
            stored = []
        found = [entry.event for entry in stored if entry.event.seq > after]
        if len(found) < limit:
            found += events_after(allocation, found[-1].seq if found else after)
        return found[:limit]

    async def follow(self, allocation: Allocation, *, after: int, emit: Emit) -> None:
        """Emit every event after the seq until the feed ends."""
        following = _ReaderPosition(after, emit)
        for event in await self.page(allocation, after=after):
            await following.take(event)
        if following.is_over or is_past_end(allocation, following.seq):
            return
        inbox = asyncio.Queue[AllocationEvent | None](INBOX_MAX)
        async with TaskGroup() as tasks:
            pumping = tasks.create_task(self._pump(allocation, following.seq, inbox))
            try:
                await self._drain(allocation, following, inbox)
            finally:
                pumping.cancel()

    async def _drain(
        self, allocation: Allocation, following: "_ReaderPosition", inbox: asyncio.Queue[AllocationEvent | None]
    ) -> None:
        while not following.is_over:
            event = await self._next(inbox)
            if event is not None:
                await following.take(event)
                continue
            try:
                allocation = await self._lookup.reload(allocation)
            except NotFoundError:
                await self._take_rest(allocation, following)
                return
            except (TransientError, DeniedError):
                continue  # an API server that has just started refuses every account until it has read the roles
            for missing in events_after(allocation, following.seq):
                await following.take(missing)

    async def _next(self, inbox: asyncio.Queue[AllocationEvent | None]) -> AllocationEvent | None:
        """Return the next event; None when it is time to read the object."""
        try:
            async with asyncio.timeout(GUARD_S):
                return await inbox.get()
        except TimeoutError:
            return None

    async def _take_rest(self, allocation: Allocation, following: "_ReaderPosition") -> None:
        """Emit the events that the stream still has of a deleted object."""
        for event in await self.page(allocation, after=following.seq):
            await following.take(event)

    async def _pump(self, allocation: Allocation, after: int, inbox: asyncio.Queue[AllocationEvent | None]) -> None:
        """Put the events of the stream into the inbox, and None at intervals while there is no stream."""
        cursor = cursor_at(allocation, after)
        while True:
            try:
                async with aclosing(self._events.follow(id_of(allocation), after=cursor)) as found:
                    async for stored in found:
                        await inbox.put(stored.event)
                        cursor = stored.cursor
            except TransientError:
                await self._clock.sleep(LOOK_S)
                await inbox.put(None)


class _ReaderPosition:
    """The position of one reader."""

    def __init__(self, seq: int, emit: Emit) -> None:
        self.seq = seq
        self.is_over = False
        self._emit = emit

    async def take(self, event: AllocationEvent) -> None:
        """Emit an event that is new."""
        if event.seq <= self.seq or self.is_over:
            return
        self.seq = event.seq
        self.is_over = event.type is Event.TERMINATED
        await self._emit(event)


def is_past_end(allocation: Allocation, seq: int) -> bool:
    """Whether a reader at `seq` has read the `terminated` event."""
    return any(entry.type is Event.TERMINATED and entry.seq <= seq for entry in allocation.status.transitions)
