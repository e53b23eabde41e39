"""Reads stream and archive of a log as one: the `LogLines` of an api with a log archive.

Promises: lines are returned in the order of cursors, none twice. Lines up to the last archived one are read from the
archive, later ones from the stream. So lines that the stream's limit dropped are no gap when they are archived. A
cursor from one source is valid in the other, also when the stream is lost. While the archive does not answer, only the
stream is read, and a line in the log states this. Not promised: a line that the stream dropped before it was archived;
its number shows that it is missing.
"""

import bisect
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from slipway.errors import ControlPlaneError, InvalidError, PermanentError, UnavailableError
from slipway.logarchive import pieces
from slipway.logarchive.archive import LogArchive
from slipway.logarchive.pieces import ArchiveRecord, Id
from slipway.model.ids import AllocationId
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.streams import codec, logpacks
from slipway.streams.logpacks import EVENT, STDOUT, LogAppended, LogKey, LogLine, LogPack, LogPosition, StoredLine
from slipway.streams.ports import LogLines

PIECES_HELD_MAX: Final = 6
"""Decompressed pieces in memory, about 10 MB each: a reader reads several pages from one piece."""
INDEX_S: Final = 2.0
INDEXES_MAX: Final = 200
PAGE: Final = 2000

_log = log.get_logger(__name__)


class _Index(msgspec.Struct):
    """The known state of the archive of one allocation."""

    record: ArchiveRecord | None
    starts: list[str]
    places: list[Id]
    end: Id
    looked_at: float


class ArchivedLogs:
    """Reads logs from stream and archive; see the module's docstring."""

    def __init__(self, stream: LogLines, archive: LogArchive, clock: Clock) -> None:
        self._stream, self._archive, self._clock = stream, archive, clock
        self._indexes: OrderedDict[AllocationId, _Index] = OrderedDict()
        self._held: OrderedDict[tuple[AllocationId, str], list[StoredLine]] = OrderedDict()

    async def append(self, packs: Sequence[LogPack]) -> list[LogAppended]:
        return await self._stream.append(packs)

    async def page(self, allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]:
        return await self._stream.page(allocation, after=after)

    async def position(self, allocation: AllocationId, source: LogKey) -> LogPosition:
        return (await self.positions(allocation)).get(source, LogPosition())

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]:
        found = await self._stream.positions(allocation)
        try:
            index = await self._index(allocation, is_fresh=not found)
        except ControlPlaneError:
            return found
        record = index.record
        if record is None:
            return found
        # Lines that the stream dropped are archived. Its counters of dropped lines would be reported as a gap, so they
        # are set to 0.
        joined = {
            source: msgspec.structs.replace(position, first_end=0, kept_from=0) for source, position in found.items()
        }
        for name, number in record.logs.items():
            source = logpacks.source_of(name)
            if source is not None:
                joined.setdefault(source, LogPosition(number=number, is_ended=True))
        return joined

    async def read(self, allocation: AllocationId, *, after: str | None = None, limit: int = 500) -> list[StoredLine]:
        at = codec.cursor_parts(after) if after else (0, 0)
        found: list[StoredLine] = []
        try:
            index = await self._index(allocation)
            found += [each for each in _dropped(index.record) if codec.cursor_parts(each.cursor) > at]
            while len(found) < limit:
                if at >= index.end:
                    # Lines that were archived since the index was read may be dropped from the stream already.
                    index = await self._index(allocation, is_fresh=True)
                if at >= index.end:
                    break
                lines, at = await self._step(allocation, index, at)
                found += lines
        except ControlPlaneError as error:
            return await self._alone(allocation, found, after, limit, error)
        if len(found) >= limit:
            return found[:limit]
        cursor = f"{at[0]}-{at[1]}" if at > (0, 0) else None
        return found + await self._stream.read(allocation, after=cursor, limit=limit - len(found))

    async def tail(self, allocation: AllocationId, *, limit: int) -> list[StoredLine]:
        newest = await self._stream.tail(allocation, limit=limit)
        try:
            index = await self._index(allocation, is_fresh=True)
            found = [each for each in newest if codec.cursor_parts(each.cursor) > index.end]
            for start in reversed(index.starts):
                if len(found) >= limit:
                    break
                found = await self._piece(allocation, index, start) + found
            if len(found) < limit:
                found = [*_dropped(index.record), *found]
        except ControlPlaneError as error:
            return await self._alone(allocation, [], None, limit, error, known=newest)
        return found[-limit:]

    async def follow(self, allocation: AllocationId, *, after: str | None = None) -> AsyncGenerator[list[StoredLine]]:
        cursor, last = after, dict[LogKey, int]()
        while True:
            page = await self.read(allocation, after=cursor, limit=PAGE)
            if not page:
                break
            cursor = page[-1].cursor
            _has_jump(page, last)
            yield page
        async with aclosing(self._stream.follow(allocation, after=cursor)) as found:
            async for page in found:
                if not _has_jump(page, last):
                    yield page
                else:
                    # The stream dropped lines before this reader received them; they may be archived.
                    end = codec.cursor_parts(page[-1].cursor)
                    while joined := await self.read(allocation, after=cursor, limit=PAGE):
                        cursor = joined[-1].cursor
                        joined = [each for each in joined if codec.cursor_parts(each.cursor) <= end]
                        if joined:
                            yield joined
                        if codec.cursor_parts(cursor) >= end:
                            break
                cursor = page[-1].cursor

    async def _alone(
        self,
        allocation: AllocationId,
        found: list[StoredLine],
        after: str | None,
        limit: int,
        error: ControlPlaneError,
        *,
        known: list[StoredLine] | None = None,
    ) -> list[StoredLine]:
        """Read only the stream, with a line at the start of each log which states that the archive cannot be read."""
        if found:
            return found[:limit]
        if isinstance(error, InvalidError):
            raise error
        lines = known if known is not None else await self._stream.read(allocation, after=after, limit=limit)
        _log.warning("log archive not read", allocation=allocation, error=str(error))
        if not lines:
            raise UnavailableError(f"the archived part of the log cannot be read now: {error}", retry_after_s=5.0)
        if after is not None:
            return lines
        sources = sorted({each.line.source for each in lines} | set(await self._stream.positions(allocation)))
        text = f"the archive cannot be read now, so that lines may be missing: {error}"
        ms, seq = codec.cursor_parts(lines[0].cursor)
        marks = [
            StoredLine(cursor=f"{ms}-{max(0, seq - 1)}", line=_mark(source, lines[0].line.time, text))
            for source in sources
            if source.stream == STDOUT
        ]
        return [*marks, *lines][:limit]

    async def _step(self, allocation: AllocationId, index: _Index, at: Id) -> tuple[list[StoredLine], Id]:
        """Return the lines after `at` in the piece that contains them, and the cursor at which to continue."""
        place = max(0, bisect.bisect_right(index.places, at) - 1)
        lines = pieces.after(await self._piece(allocation, index, index.starts[place]), at)
        if lines:
            return lines, codec.cursor_parts(lines[-1].cursor)
        following = index.places[place + 1] if place + 1 < len(index.places) else index.end
        return [], following

    async def _piece(self, allocation: AllocationId, index: _Index, start: str) -> list[StoredLine]:
        key = (allocation, start)
        held = self._held.get(key)
        if held is None:
            if index.record is None:
                return []
            try:
                held = await self._archive.piece(index.record.workspace, allocation, start)
            except PermanentError as error:
                if not isinstance(error, InvalidError):
                    raise
                # Readers see from the numbers that its lines are missing.
                _log.error("piece of an archived log cannot be read", allocation=allocation, start=start)
                held = []
            if not held:
                # The piece was deleted, or cannot be read, so the record is read again.
                self._indexes.pop(allocation, None)
            self._held[key] = held
            while len(self._held) > PIECES_HELD_MAX:
                self._held.popitem(last=False)
        self._held.move_to_end(key)
        return held

    async def _index(self, allocation: AllocationId, *, is_fresh: bool = False) -> _Index:
        now, known = self._clock.monotonic(), self._indexes.get(allocation)
        is_over = known is not None and known.record is not None and bool(known.record.ended_at)
        if known is not None and (is_over or (not is_fresh and now - known.looked_at < INDEX_S)):
            return known
        record = known.record if known is not None and known.record is not None and is_fresh else None
        record = record or await self._archive.record(allocation)
        index = _Index(record=record, starts=[], places=[], end=(0, 0), looked_at=now)
        if record is not None:
            before = known.starts if known is not None else []
            since = before[-1] if before else ""
            index.starts = before + await self._archive.starts(record.workspace, allocation, since=since)
            index.places = [codec.cursor_parts(start) for start in index.starts]
            if index.starts:
                if known is not None and index.starts == before:
                    index.end = known.end
                elif record.ended_at:
                    index.end = codec.cursor_parts(record.end)
                else:
                    lines = await self._piece(allocation, index, index.starts[-1])
                    index.end = codec.cursor_parts(lines[-1].cursor) if lines else index.places[-1]
        self._indexes[allocation] = index
        self._indexes.move_to_end(allocation)
        while len(self._indexes) > INDEXES_MAX:
            self._indexes.popitem(last=False)
        return index


def _dropped(record: ArchiveRecord | None) -> list[StoredLine]:
    """Return a line for each log whose archived lines were deleted because of the archive's size limit; it states
    this."""
    if record is None or not record.dropped_at:
        return []
    text = (
        f"the archived part of this log was deleted early, on {record.dropped_at}: the archive has a bound "
        "of bytes (SLIPWAY_LOG_ARCHIVE_BYTES_MAX), and the logs that ended first are deleted"
    )
    named = [logpacks.source_of(name) for name, number in record.logs.items() if number]
    known = sorted(source for source in named if source is not None)
    # A record without an end contains no names of logs.
    sources = known or [LogKey(attempt=max(1, record.attempt), rank=rank) for rank in range(record.ranks)]
    return [
        StoredLine(cursor=f"0-{number}", line=_mark(source, record.dropped_at, text))
        for number, source in enumerate(sources, 1)
    ]


def _mark(source: LogKey, time: str, text: str) -> LogLine:
    """Return a line about a log, addressed to that log, so that readers of only this log see it."""
    return LogLine(
        attempt=source.attempt, rank=source.rank, container=source.container, stream=EVENT, time=time, text=text
    )


def _has_jump(page: Sequence[StoredLine], last: dict[LogKey, int]) -> bool:
    """Whether lines are missing in a page, by comparison with the last number of each log; updates `last`."""
    has_jump = False
    for each in page:
        line = each.line
        if line.stream != STDOUT or line.number <= 0:
            continue
        source = line.source
        before = last.get(source)
        has_jump = has_jump or (before is not None and line.number > before + 1)
        last[source] = max(before or 0, line.number)
    return has_jump
