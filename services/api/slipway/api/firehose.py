"""The firehose as a stream for a client: filtered, and without repeats within one connection.

Delivery is at least once over reconnects: clients deduplicate by the CloudEvents id. Clients that wait at the same
cursor share one read, so that a thousand idle pages cost Redis and this process as much as one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from slipway.api.access.permissions import VisibleWorkspaces
from slipway.api.access.redaction import Redactor
from slipway.api.cloudevents import cloud_event
from slipway.api.sse import StreamOutput
from slipway.errors import TransientError
from slipway.model.events import AllocationEvent
from slipway.streams.ports import Firehose, FirehoseEvent

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
