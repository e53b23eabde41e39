"""Writing to the streams from hot paths: rings of transitions, and offers that never wait.

Owns what of a ring is missing in its stream, and the bounded buffers of the lossy kinds. Knows nothing of Redis.

Promises: `RingPublisher` brings an allocation's stream up to its ring, in order, whoever else publishes at the same
time. `BestEffort.offer_*` never block and never raise; what does not fit is dropped and counted. Activity alone is kept
while the server is away.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from slipway.errors import InvalidError, PermanentError, TransientError
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.runtime import liveness
from slipway.runtime.clock import Clock
from slipway.runtime.liveness import Loop
from slipway.streams.ports import Activity, EntryOutcome, EventLog, SpanRecord, StreamEntry, Tally, TraceLog

T = TypeVar("T")

WRITE_BEHIND: Final = Loop(
    name="write-behind", bound_s=120.0, moves="each batch of spans and activity", rests="a span or an activity"
)
"""The loop that runs `BestEffort.step`."""

_GAP_ROUNDS_MAX: Final = 4
_SPANS_EVERY_S: Final = 0.6
"""Nobody watches spans as they end, and those of one launch belong together."""
_AWAY_S: Final = 2.0
"""Between attempts to tell of activity that the server was not there for."""
_WRITE_MAX: Final = 1_000
"""Values in one exchange."""


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """The events that an allocation's status still holds, ascending by seq; `expire_s` as in `StreamEntry`."""

    events: tuple[AllocationEvent, ...]
    expire_s: int | None = None


def missing_entries(ring: Ring, last_seq: int | None) -> list[StreamEntry]:
    """What a stream that ends with `last_seq` lacks; the first after a hole is marked `truncated: from-to`."""
    found: list[StreamEntry] = []
    expected = 1 if last_seq is None else last_seq + 1
    oldest_seq = ring.events[0].seq if ring.events else None
    for event in ring.events:
        if event.seq < expected:
            continue
        marked = event
        if event.seq > expected:
            marked = msgspec.structs.replace(event, truncated=f"{expected}-{event.seq - 1}")
        found.append(StreamEntry(event=marked, oldest_seq=oldest_seq, expire_s=ring.expire_s))
        expected = event.seq + 1
    return found


class RingPublisher:
    """Brings streams up to their rings."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def publish(self, rings: Sequence[Ring]) -> int:
        """Append what is missing; answers how many entries were new. Idempotent.

        Raises `UnavailableError` or `DeadlineError` (publish the same again later), and `InvalidError` for two rings of
        one allocation.
        """
        open_rings = {ring.events[0].allocation_id: ring for ring in rings if ring.events}
        if len(open_rings) != sum(bool(ring.events) for ring in rings):
            raise InvalidError("two rings of one allocation")
        appended = 0
        for _ in range(_GAP_ROUNDS_MAX):
            last_seqs = await self._log.last_seqs(tuple(open_rings))
            entries = [
                entry
                for ring, last_seq in zip(open_rings.values(), last_seqs, strict=True)
                for entry in missing_entries(ring, last_seq)
            ]
            if not entries:
                return appended
            answers = await self._log.append(entries)
            appended += sum(answer.outcome is EntryOutcome.APPENDED for answer in answers)
            # A gap means that the stream changed since it was asked: ask again.
            gaps = {
                entry.event.allocation_id
                for entry, answer in zip(entries, answers, strict=True)
                if answer.outcome is EntryOutcome.GAP
            }
            open_rings = {allocation: ring for allocation, ring in open_rings.items() if allocation in gaps}
            if not open_rings:
                return appended
        raise TransientError("the stream changes faster than it can be published to")


class _Offers(Generic[T]):
    """A bounded buffer of (allocation, value)."""

    def __init__(self, size: int, counter: str, tally: Tally) -> None:
        self._size, self._counter, self._tally = size, counter, tally
        self._buffer: deque[tuple[AllocationId, T]] = deque()

    def __len__(self) -> int:
        return len(self._buffer)

    def offer(self, allocation: AllocationId, value: T) -> bool:
        if len(self._buffer) >= self._size:
            self._tally.count(self._counter)
            return False
        self._buffer.append((allocation, value))
        return True

    async def flush(self, write: Callable[[dict[AllocationId, list[T]]], Awaitable[None]]) -> None:
        """Write everything that is here now, many allocations at once; what cannot be written is dropped, counted."""
        left = len(self._buffer)
        while left > 0 and self._buffer:
            groups: dict[AllocationId, list[T]] = {}
            # Whoever else writes at the same time has taken some: the buffer is looked at again after each await.
            count = min(left, len(self._buffer), _WRITE_MAX)
            left -= count
            for _ in range(count):
                allocation, value = self._buffer.popleft()
                groups.setdefault(allocation, []).append(value)
            try:
                await write(groups)
            except (TransientError, PermanentError):
                self._tally.count(self._counter, count)
            liveness.beat()


class _Touches:
    """The newest sign of activity of each allocation and source, until it is written.

    A server that is away for a while loses none.
    """

    def __init__(self, size: int, tally: Tally) -> None:
        self._size, self._tally = size, tally
        self._newest: dict[AllocationId, dict[str, float]] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def offer(self, allocation: AllocationId, source: str, at_s: float) -> bool:
        if allocation not in self._newest and len(self._newest) >= self._size:
            self._tally.count("activity_dropped")
            return False
        of = self._newest.setdefault(allocation, {})
        of[source] = max(at_s, of.get(source, at_s))
        return True

    async def flush(self, write: Callable[[dict[AllocationId, dict[str, float]]], Awaitable[None]]) -> bool:
        """Write what is here now; False when the server is away and it is kept."""
        left = list(self._newest)
        while left:
            batch = {allocation: self._newest.pop(allocation) for allocation in left[:_WRITE_MAX]}
            left = left[_WRITE_MAX:]
            try:
                await write(batch)
            except TransientError:
                for allocation, seen in batch.items():
                    for source, at_s in seen.items():
                        self.offer(allocation, source, at_s)
                return False
            except PermanentError:
                self._tally.count("activity_dropped", len(batch))
            liveness.beat()
        return True


class LossySinks(Protocol):
    """The ports that best-effort offers end in."""

    @property
    def traces(self) -> TraceLog: ...
    @property
    def activity(self) -> Activity: ...


class BestEffort:
    """Spans and activity, buffered and written behind: `step` is a loop of the service."""

    def __init__(
        self, sinks: LossySinks, clock: Clock, tally: Tally, *, size: int = 10_000, every_s: float = 0.2
    ) -> None:
        self._sinks, self._clock, self._every_s = sinks, clock, every_s
        self._spans_at_s = 0.0
        self._spans = _Offers[SpanRecord](size, "spans_dropped", tally)
        self._touches = _Touches(size, tally)
        self._something = asyncio.Event()

    def offer_span(self, allocation: AllocationId, span: SpanRecord) -> bool:
        """Take a finished span; False when it was dropped."""
        self._something.set()
        return self._spans.offer(allocation, span)

    def offer_activity(self, allocation: AllocationId, source: str, at_s: float) -> bool:
        """Take a sign of activity; False when it was dropped."""
        self._something.set()
        return self._touches.offer(allocation, source, at_s)

    async def step(self) -> None:
        """Wait for something, then write it; call `flush` once more when draining."""
        with liveness.rest(lambda: len(self._spans) or len(self._touches)):
            await self._something.wait()
        self._something.clear()
        is_away = not await self._write()
        if self._clock.monotonic() >= self._spans_at_s:
            await self._spans.flush(self._sinks.traces.append)
            self._spans_at_s = self._clock.monotonic() + _SPANS_EVERY_S
        # Gather what comes meanwhile: fewer, larger writes.
        await self._clock.sleep(_AWAY_S if is_away else self._every_s)
        if len(self._spans) or is_away:
            self._something.set()

    async def flush(self) -> None:
        """Write what is buffered now; never raises for an absent server."""
        await self._write()
        await self._spans.flush(self._sinks.traces.append)

    async def _write(self) -> bool:
        """Activity; False when it is kept for later."""
        return await self._touches.flush(self._sinks.activity.touch)
