"""The cluster feed: its publisher, and what a reader may conclude from it.

This module owns epochs, numbers, heartbeats and the signs of a break. It knows neither the meaning of the objects nor
Redis.

Publisher promises: the states of one object appear in the order in which they were offered. The last state always
appears; a state that was replaced before it was sent does not. Entries are numbered without a gap within an epoch. Each
second, a heartbeat states for each kind up to which resourceVersion everything is published. There is one publisher at
a time: a lease elects it, and each lease term owns a range of epochs. So a publisher whose term is over is refused
(`StaleError`). When the publisher cannot be sure of the content of the feed (its end is gone, its buffer overflowed),
it begins a new epoch.

Reader promises: between `start` and a `FeedBroken`, `read` has returned every entry that was published after the
position of `start`. So the caller does a LIST after `start`, then applies the deltas of `read`. Alternatively the
caller calls `resume` to begin at a snapshot (`snapshot.py`), reads its pages, and applies the deltas of `read`. Not
promised: that a feed exists; `is_fresh` reports this.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

import msgspec

from slipway.errors import ExpiredError, InvalidError, InvariantError, StaleError, TransientError
from slipway.runtime import liveness
from slipway.runtime.clock import Clock
from slipway.streams import codec, keys, snapshot
from slipway.streams.macs import ForgedError
from slipway.streams.ports import Feed, FeedEntry, FeedOp
from slipway.streams.snapshot import FeedSnapshot, SnapshotPosition

EPOCHS_PER_TERM: Final = 1 << 20
BUFFER_MAX: Final = 20_000
BATCH_MAX: Final = 256
_RETRY_S: Final = 0.1
_READ_MAX: Final = 1_000


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """One object as the publisher saw it. `data` is the compact JSON form, empty for a DELETE."""

    kind: str
    op: FeedOp
    key: str
    rv: str
    data: bytes = b""


class FeedPublisher:
    """Publishes deltas for one lease term. `term` rises with each election."""

    def __init__(self, feed: Feed, clock: Clock, *, term: int) -> None:
        self._feed, self._clock, self._term = feed, clock, term
        self._buffer: dict[tuple[str, str, FeedOp], Delta] = {}
        """The latest delta of each object and kind of change, in the order of their offers."""
        self._versions: dict[str, str] = {}
        self._something = asyncio.Event()
        self._epoch = 0
        self._number = 0
        self._end: str | None = None
        self._in_flight: tuple[FeedEntry, ...] = ()
        self._sent: Sequence[Delta] = ()
        """The deltas of the entries in flight."""
        self._beat_at_s = 0.0
        self._appends = 0

    @property
    def epoch(self) -> int:
        """The epoch that is being published; 0 before the start."""
        return self._epoch

    @property
    def appends(self) -> int:
        """Number of appends so far."""
        return self._appends

    @property
    def stands(self) -> SnapshotPosition | None:
        """The position up to which the publishing is confirmed; None before the first entry of this epoch."""
        if self._end is None:
            return None
        return SnapshotPosition(epoch=self._epoch, number=self._number, cursor=self._end)

    def offer(self, delta: Delta) -> None:
        """Buffer a delta, without waiting. A full buffer is dropped as a whole, and a new epoch begins."""
        self._versions[delta.kind] = delta.rv or self._versions.get(delta.kind, "")
        if len(self._buffer) >= BUFFER_MAX:
            if self._epoch:
                self._begin_epoch()
            self._buffer.clear()
        place = (delta.kind, delta.key, delta.op)
        self._buffer.pop(place, None)
        self._buffer[place] = delta
        self._something.set()

    def reached(self, kind: str, rv: str) -> None:
        """Record that the watch of `kind` is complete up to `rv` (its LIST, a bookmark). The next heartbeat states
        this.
        """
        self._versions[kind] = rv

    async def run(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Publish until `goes_on` returns False. It is called at least before each heartbeat, and it may call
        `reached`.

        Raises `StaleError` when another term owns the feed.
        """
        while goes_on():
            has_news = bool(self._buffer or self._in_flight)
            liveness.beat()
            try:
                await self.step()
            except TransientError:
                await self._clock.sleep(_RETRY_S)
                continue
            if has_news:
                # A single change is published at once. Changes that follow closely are published together, which is
                # much cheaper.
                await self._clock.sleep(keys.GATHER_S)
            if not self._buffer:
                self._something.clear()
                left_s = max(0.0, self._beat_at_s - self._clock.monotonic())
                # A timer that sets the same event costs less than a timeout.
                timer = asyncio.get_running_loop().call_later(left_s, self._something.set)
                try:
                    await self._something.wait()
                finally:
                    timer.cancel()

    async def step(self) -> None:
        """Publish the buffered deltas, and a heartbeat when it is due. Raises `TransientError` and `StaleError`."""
        if self._epoch == 0:
            await self._start()
        if self._in_flight:
            await self._settle()
        while self._buffer:
            await self._append(list(islice(self._buffer.values(), BATCH_MAX)))
        if self._clock.monotonic() >= self._beat_at_s:
            beat = Delta(kind="", op=FeedOp.BEAT, key="", rv="", data=codec.encode_beat(self._versions))
            await self._append([beat])
            self._beat_at_s = self._clock.monotonic() + keys.FEED_BEAT_S

    async def _start(self) -> None:
        position = await self._feed.position()
        first = self._term * EPOCHS_PER_TERM
        if position.epoch >= first + EPOCHS_PER_TERM:
            raise StaleError("the feed belongs to a later term")
        self._epoch = max(first, position.epoch)
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        if self._epoch + 1 >= (self._term + 1) * EPOCHS_PER_TERM:
            raise InvariantError("a term of the feed has used up its epochs")
        self._epoch += 1
        self._number, self._end, self._in_flight = 0, None, ()
        self._beat_at_s = self._clock.monotonic()  # so that readers notice the new epoch at once

    async def _append(self, deltas: Sequence[Delta]) -> None:
        epoch, self._sent = self._epoch, deltas
        self._in_flight = tuple(
            FeedEntry(
                epoch=epoch,
                number=self._number + place,
                kind=delta.kind,
                op=delta.op,
                key=delta.key,
                rv=delta.rv,
                data=delta.data,
            )
            for place, delta in enumerate(deltas, start=1)
        )
        try:
            end = await self._feed.append(self._in_flight, after=self._end)
        except ExpiredError:
            self._begin_epoch()
            return
        if epoch == self._epoch:
            self._done(end)

    def _done(self, end: str) -> None:
        for delta in self._sent:
            place = (delta.kind, delta.key, delta.op)
            # A later state of the same object may have replaced it in the buffer during the append.
            if self._buffer.get(place) is delta:
                del self._buffer[place]
        self._number, self._end, self._in_flight = self._in_flight[-1].number, end, ()
        self._appends += 1

    async def _settle(self) -> None:
        """Find out whether an append without an answer took effect."""
        position = await self._feed.position()
        last = self._in_flight[-1]
        if position.epoch > self._epoch:
            raise StaleError("the feed belongs to a later epoch")
        if position.cursor is not None and (position.epoch, position.number) == (last.epoch, last.number):
            self._done(position.cursor)
        elif self._end is not None and position.cursor != self._end:
            self._begin_epoch()
        self._in_flight = ()


class BreakReason(StrEnum):
    """The reason why a reader cannot continue."""

    NEW_EPOCH = "new epoch"
    GAP = "jump in the numbers"
    SILENCE = "silence"
    AWAY = "redis is away"
    CORRUPT = "undecodable entry"
    FORGED = "entry without a code of our keys"


class FeedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The deltas that arrived, in order; possibly none."""

    deltas: tuple[Delta, ...]


class FeedBroken(msgspec.Struct, frozen=True, kw_only=True):
    """The reader may have missed entries. Call `start` again, then LIST."""

    reason: BreakReason


class FeedReader:
    """Follows the feed from its end at the time of `start`."""

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock
        self._cursor: str | None = None
        self._epoch = 0
        self._number = 0
        self._versions: dict[str, str] = {}
        self._heard_at_s = 0.0
        self._has_heard = False
        self._past = 0
        """Entries up to this number existed before the reader started, so they do not prove that a publisher is
        active.
        """
        self._broken: FeedBroken | None = FeedBroken(reason=BreakReason.SILENCE)

    @property
    def silent_s(self) -> float:
        """Seconds since the last sign of the publisher, or since the reader began."""
        return self._clock.monotonic() - self._heard_at_s

    @property
    def is_fresh(self) -> bool:
        """Whether the reader is unbroken and has received an entry of the publisher within the silence limit."""
        age_s = self._clock.monotonic() - self._heard_at_s
        return self._broken is None and self._has_heard and age_s <= keys.FEED_SILENCE_S

    @property
    def is_broken(self) -> bool:
        """Whether `start` must be called before `read` returns anything more."""
        return self._broken is not None

    @property
    def versions(self) -> Mapping[str, str]:
        """{kind: resourceVersion up to which everything was read}, from the last heartbeat."""
        return self._versions

    async def start(self) -> None:
        """Move to the end of the feed. The caller must LIST afterwards. Raises `TransientError` when the feed cannot be
        read.
        """
        position = await self._feed.position()
        self._stand(position.cursor, position.epoch, position.number, past=position.number)

    async def resume(self) -> FeedSnapshot | None:
        """Move to the latest snapshot from which the feed can still be read on.

        Returns None when there is no such snapshot; then call `start`. Raises `TransientError` when the feed cannot be
        read.
        """
        end = await self._feed.position()
        found = await snapshot.find(self._feed, end)
        if found is None or found.stands.number > end.number:
            return None
        self._stand(found.stands.cursor, found.stands.epoch, found.stands.number, past=end.number)
        return found

    def _stand(self, cursor: str | None, epoch: int, number: int, *, past: int) -> None:
        self._cursor, self._epoch, self._number, self._past = cursor, epoch, number, past
        self._versions, self._has_heard, self._broken = {}, False, None
        self._heard_at_s = self._clock.monotonic()

    async def read(self, *, timeout_s: float) -> FeedBatch | FeedBroken:
        """Return the deltas since the last call. Waits up to `timeout_s` for the first entry. A break lasts until
        `start`.
        """
        if self._broken is not None:
            return self._broken
        # A reader may pause for seconds, for example during its LIST of a large cluster. So it first reads the entries
        # that arrived during the pause. Only a publisher can be silent. A reader that took its own pause for silence
        # would LIST for ever.
        silent_s = self._clock.monotonic() - self._heard_at_s
        block_s = max(0.0, min(timeout_s, keys.FEED_SILENCE_S - silent_s))
        try:
            page = await self._page(block_s)
        except TransientError:
            return self._break(BreakReason.AWAY)
        except ForgedError:
            return self._break(BreakReason.FORGED)
        except InvalidError:
            return self._break(BreakReason.CORRUPT)
        if not page and silent_s >= keys.FEED_SILENCE_S:
            return self._break(BreakReason.SILENCE)
        deltas = self._take(page)
        # Deltas before a break are still valid. The next call returns the break.
        return self._broken if self._broken is not None and not deltas else FeedBatch(deltas=deltas)

    async def _page(self, block_s: float) -> Sequence[tuple[str, FeedEntry]]:
        """Return the next page; read once more when there was no answer.

        A deadline may pass while this process is busy (it builds its columns during the first read). A second read
        costs nothing, but a break costs a LIST.
        """
        try:
            return await self._feed.read(self._cursor, limit=_READ_MAX, block_s=block_s)
        except TransientError:
            return await self._feed.read(self._cursor, limit=_READ_MAX, block_s=0.0)

    def _take(self, page: Sequence[tuple[str, FeedEntry]]) -> tuple[Delta, ...]:
        deltas: list[Delta] = []
        for cursor, entry in page:
            # This is also true after an empty feed (epoch 0): changes between our LIST and the begin of the epoch are
            # in no entry.
            if entry.epoch != self._epoch:
                self._break(BreakReason.NEW_EPOCH)
                break
            if entry.number != self._number + 1:
                self._break(BreakReason.GAP)
                break
            self._cursor, self._number = cursor, entry.number
            if entry.number > self._past:
                self._heard_at_s, self._has_heard = self._clock.monotonic(), True
            if entry.op is FeedOp.BEAT:
                self._take_beat(entry.data)
            else:
                deltas.append(Delta(kind=entry.kind, op=entry.op, key=entry.key, rv=entry.rv, data=entry.data))
        return tuple(deltas)

    def _take_beat(self, data: bytes) -> None:
        try:
            self._versions = codec.decode_beat(data)
        except InvalidError:
            self._break(BreakReason.CORRUPT)

    def _break(self, reason: BreakReason) -> FeedBroken:
        self._broken = FeedBroken(reason=reason)
        return self._broken
