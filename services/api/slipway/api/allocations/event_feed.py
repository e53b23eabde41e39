"""Events for clients: those of one allocation, in order and each once, and the firehose.

The events of one allocation come from its stream, and from the object when the stream is behind. An event is a pure
function of the object's metadata and one ring entry. So both sources give the same events, which are merged by seq. The
stream has new events at once, and has more of them than the ring. The object is read from time to time; while Redis is
unavailable, all events come from these reads.

Promises: seq rises by one with each event, except for an event marked `truncated`. The feed ends after `terminated`, or
when the object was deleted.

The firehose is filtered for a client, and has no repeats within one connection. Delivery is at least once over
reconnects: clients deduplicate by the CloudEvents id. Clients that wait at the same cursor share one read, so that a
thousand idle pages cost Redis and this process as much as one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec

from slipway.api.allocations.lookup import Lookup
from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.auth.scoped_client import Redactor
from slipway.api.http.cloudevents import cloud_event
from slipway.api.http.streaming import StreamOutput
from slipway.crd.transitions import created_ms, events_after, id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, NotFoundError, TransientError
from slipway.model.events import AllocationEvent
from slipway.model.lifecycle import Event
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams.codec import cursor_parts
from slipway.streams.ports import EventLog, Firehose, FirehoseEvent

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


BLOCK_S = 5.0
PAGE = 200
SEEN_MAX = 10_000
GAP = msgspec.json.encode(
    {
        "message": "events after your last event id were removed, because more events followed than are kept: "
        "read the allocations again; the stream continues with the oldest event that is left"
    }
)
Look = Callable[[], Awaitable[tuple[VisibleWorkspaces, Redactor | None]]]


class FirehoseFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The events that a client wants; an empty field means all."""

    workspace: str = ""
    types: frozenset[str] = frozenset()
    allocation: str = ""

    def has(self, event: AllocationEvent) -> bool:
        """Whether the client wants the event."""
        if self.workspace and event.namespace != self.workspace:
            return False
        if self.allocation and event.allocation_id != self.allocation:
            return False
        return not self.types or event.type.value in self.types


class SharedFirehose:
    """A `Firehose` in which waiting reads with the same cursor are one read.

    A reader that joins a running read waits until that read ends. When the reader that runs the read is cancelled,
    another waiting reader starts it again. An error is raised to all waiting readers.
    """

    def __init__(self, firehose: Firehose, *, on_event: Callable[[AllocationEvent], object] = lambda _: None) -> None:
        """`on_event` is called once with each event of a read, before its readers get the event."""
        self._firehose = firehose
        self._on_event = on_event
        self._reads: dict[tuple[str | None, int, float], _SharedRead] = {}

    async def tail(self) -> str:
        """Return the cursor after the newest entries."""
        return await self._firehose.tail()

    async def has_lost(self, after: str) -> bool:
        """Whether events after the cursor may have been removed because a shard was full."""
        return await self._firehose.has_lost(after)

    async def read(self, *, after: str | None = None, limit: int = 100, block_s: float = 0.0) -> list[FirehoseEvent]:
        """Return up to `limit` events per shard after the cursor; wait up to `block_s` seconds for the first."""
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
    """One read, with the number of its readers."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.readers = 0
        self.done = 0
        """number of ended reads; a reader that finds a higher number than at its start uses the last result"""
        self.page: list[FirehoseEvent] = []
        self.error: TransientError | None = None


async def follow_all(firehose: Firehose, wanted: FirehoseFilter, cursor: str, output: StreamOutput, look: Look) -> None:
    """Write the cursor, then all events after it, for ever; `look` returns for each page what the client may see.

    Where events after the cursor may be gone, an entry named `gap` comes first: when the client returns late, and when
    it reads more slowly than events come.
    """
    await output.stands_at(cursor)
    is_behind = True
    seen: set[str] = set()
    order = deque[str]()
    while True:
        if is_behind and await firehose.has_lost(cursor):
            await output.event(GAP, name="gap")
        page = await firehose.read(after=cursor, limit=PAGE, block_s=BLOCK_S)
        is_behind = len(page) >= PAGE
        visible, redactor = await look() if page else (VisibleWorkspaces(), None)
        for found in page:
            cursor = found.cursor
            event_id = found.event.event_id
            if event_id in seen or not wanted.has(found.event) or not visible.has(found.event.namespace):
                continue
            seen.add(event_id)
            order.append(event_id)
            if len(order) > SEEN_MAX:
                seen.discard(order.popleft())
            told = cloud_event(found.event)
            await output.event(redactor(told) if redactor else told, id_=cursor)
