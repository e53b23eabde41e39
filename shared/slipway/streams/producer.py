"""Writing to the streams from hot paths: rings of transitions, and offers that never wait.

This module finds the events of a ring that are missing in its stream, and owns the bounded buffers of the lossy values.
It does not know Redis.

Promises: `RingPublisher` appends the missing events of a ring to the allocation's stream, in order, even when others
publish at the same time. `BestEffortWriter.offer_*` never block and never raise. Values that do not fit are dropped and
counted. Only activity is kept while the server is away.

A hint has a producer span, to which the pod worker's span links on the other side of the stream. The span has no
duration, because hints are collected and sent together.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from slipway.errors import InvalidError, PermanentError, TransientError
from slipway.model.events import AllocationEvent
from slipway.model.ids import AllocationId
from slipway.runtime import liveness, semconv, telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.liveness import Loop
from slipway.streams import keys
from slipway.streams.ports import Activity, EntryOutcome, EventLog, SpanRecord, StreamEntry, Tally, TraceLog

T = TypeVar("T")

WRITE_BEHIND: Final = Loop(
    name="write-behind", bound_s=120.0, moves="each batch of spans and activity", rests="a span or an activity"
)
"""The loop that runs `BestEffortWriter.step`."""

_GAP_ROUNDS_MAX: Final = 4
_SPANS_EVERY_S: Final = 0.6
"""No user watches spans as they end, and the spans of one launch are best written together."""
_AWAY_S: Final = 2.0
"""Seconds between attempts to write activity while the server is away."""
_WRITE_MAX: Final = 1_000
"""Limit on the values in one exchange."""


class Ring(msgspec.Struct, frozen=True, kw_only=True):
    """The events that are still in an allocation's status, ascending by seq. `expire_s` as in `StreamEntry`."""

    events: tuple[AllocationEvent, ...]
    expire_s: int | None = None


def missing_entries(ring: Ring, last_seq: int | None) -> list[StreamEntry]:
    """Return the entries that a stream with the end `last_seq` lacks. The first after a hole is marked `truncated:
    from-to`.
    """
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
    """Appends the missing events of rings to their streams."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def publish(self, rings: Sequence[Ring]) -> int:
        """Append the missing events; return how many entries were new. Idempotent.

        Raises `UnavailableError` or `DeadlineError` (publish the same rings again later), and `InvalidError` for two
        rings of one allocation.
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
            # A gap means that the stream changed after its last seq was read, so read it again.
            gaps = {
                entry.event.allocation_id
                for entry, answer in zip(entries, answers, strict=True)
                if answer.outcome is EntryOutcome.GAP
            }
            open_rings = {allocation: ring for allocation, ring in open_rings.items() if allocation in gaps}
            if not open_rings:
                return appended
        raise TransientError("the stream changes faster than it can be published to")


class _OfferBuffer(Generic[T]):
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
        """Write the current entries, many allocations at once. Entries that cannot be written are dropped and
        counted.
        """
        left = len(self._buffer)
        while left > 0 and self._buffer:
            groups: dict[AllocationId, list[T]] = {}
            # A concurrent `flush` may have removed entries, so the length is read again after each await.
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


class _ActivityBuffer:
    """The newest sign of activity of each allocation and source, until it is written.

    No activity is lost while the server is away for some time.
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
        """Write the current entries; False when the server is away and the entries are kept."""
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
    """The ports that receive best-effort offers."""

    @property
    def traces(self) -> TraceLog: ...
    @property
    def activity(self) -> Activity: ...


class BestEffortWriter:
    """Buffered spans and activity, written later. A loop of the service runs `step`."""

    def __init__(
        self, sinks: LossySinks, clock: Clock, tally: Tally, *, size: int = 10_000, every_s: float = 0.2
    ) -> None:
        self._sinks, self._clock, self._every_s = sinks, clock, every_s
        self._spans_at_s = 0.0
        self._spans = _OfferBuffer[SpanRecord](size, "spans_dropped", tally)
        self._touches = _ActivityBuffer(size, tally)
        self._something = asyncio.Event()

    def offer_span(self, allocation: AllocationId, span: SpanRecord) -> bool:
        """Buffer a finished span; False when it was dropped."""
        self._something.set()
        return self._spans.offer(allocation, span)

    def offer_activity(self, allocation: AllocationId, source: str, at_s: float) -> bool:
        """Buffer a sign of activity; False when it was dropped."""
        self._something.set()
        return self._touches.offer(allocation, source, at_s)

    async def step(self) -> None:
        """Wait for a value, then write. When draining, call `flush` once more."""
        with liveness.rest(lambda: len(self._spans) or len(self._touches)):
            await self._something.wait()
        self._something.clear()
        is_away = not await self._write()
        if self._clock.monotonic() >= self._spans_at_s:
            await self._spans.flush(self._sinks.traces.append)
            self._spans_at_s = self._clock.monotonic() + _SPANS_EVERY_S
        # Collect values during the pause, so that there are fewer and larger writes.
        await self._clock.sleep(_AWAY_S if is_away else self._every_s)
        if len(self._spans) or is_away:
            self._something.set()

    async def flush(self) -> None:
        """Write the buffered values now. Never raises for an absent server."""
        await self._write()
        await self._spans.flush(self._sinks.traces.append)

    async def _write(self) -> bool:
        """Write the activity; False when it is kept for later."""
        return await self._touches.flush(self._sinks.activity.touch)


def hint_traceparent(cause: str, allocation: AllocationId) -> str:
    """Return the traceparent for a hint about this allocation. `cause` is the traceparent of the span that caused the
    hint.
    """
    stream = keys.work(keys.shard_of(allocation))
    sent = telemetry.emit(
        f"send {keys.WORK.prefix.rstrip(':')}",
        parent=cause,
        allocation_id=allocation,
        attributes=semconv.sends(stream),
        kind=telemetry.SpanKind.PRODUCER,
    )
    return sent or cause
