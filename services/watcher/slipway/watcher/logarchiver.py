"""Copies the stream of an allocation's log to its archive, which keeps the lines that the stream's bound drops.

Owns when each allocation is copied, and when its archive is closed. The form of a piece is in
`slipway.logarchive.pieces`.

Promises
- Only the process with the lease copies. It reads from the archive where to continue, so after a restart no line is
  missing and none is stored twice; of two processes that copy at the same time, one creates each piece.
- If a log is written faster than it is copied, the writer waits for a while before the stream would drop unarchived
  lines.
- The end of an allocation waits for the copy for a bounded time, and not at all while the archive does not answer. Then
  a line in the log reports that; lines that are still in the stream are copied once the archive answers again.
- Memory is bounded: the text of `COPIES_AT_ONCE` pieces, and the last line number of each log that is being copied.

Lossy by declaration: lines that the stream drops while the archive does not answer. The line numbers show that they are
missing.
"""

import asyncio
import heapq
import math
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError, InvalidError, PermanentError
from slipway.logarchive import pieces
from slipway.logarchive.archive import LogArchive, record_of
from slipway.logarchive.pieces import ArchiveRecord, LastNumbers, PieceSize
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.model.times import format_time, parse_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams import keys
from slipway.streams.logpacks import PACK_COST_BYTES, STDOUT, LogKey, LogPack, LogPosition, StoredLine
from slipway.watcher.informers import Informers
from slipway.watcher.logfollower import LogPackWriter, event_pack

COPIES_AT_ONCE: Final = 4
COPY_AGE_S: Final = 30.0
"""A line is archived at most this many seconds after it was stored in the stream."""
COPY_BYTES: Final = 512 * 1024
"""A log with this many unarchived bytes is copied at once."""
PIECES_AT_ONCE: Final = 32
"""The number of pieces of one allocation that are copied before other allocations get their turn."""
LOOK_S: Final = 1.0
END_WAIT_S: Final = 10.0
"""The end of a pod waits at most so long for the copy of its log."""
ROOM_WAIT_S: Final = 5.0
"""The writer of a log that is written faster than it is copied waits at most so long."""
CLOSE_S: Final = 60.0
"""The archive of an allocation is closed so long after its end and that of its pods, even if one of its logs has no
recorded end."""
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
SAY_AFTER_S: Final = 10.0
"""A log reports that it is not archived after its copy has failed for so long. A refusal does not pass by itself: it is
reported at once."""
SAY_AT_ONCE: Final = 64
COMPRESSION: Final = 2
"""The least compression of text in the stream: it estimates the size of a pack before the pack is encoded."""
EXPIRY_S: Final = 600.0
EXPIRY_BUSY_S: Final = 5.0
EXPIRY_DELETES_MAX: Final = 500
EXPIRY_LOOKS_MAX: Final = 200
SIZE_PAGES_AT_ONCE: Final = 4
"""The number of listings (of ten thousand pieces each) before other work of the archive gets its turn."""
OLD_AT_ONCE: Final = 16
"""The number of allocations per second that are checked if they ended before the term; the last to end come first."""
DAY_S: Final = 86_400.0

_log = log.get_logger(__name__)


class LogCopySource(Protocol):
    """Reads the log stream that is copied."""

    async def page(self, allocation: AllocationId, *, after: str | None = None) -> list[StoredLine]: ...

    async def positions(self, allocation: AllocationId) -> dict[LogKey, LogPosition]: ...


class _Copy(msgspec.Struct):
    """How far one allocation is archived in this term. Times are monotonic seconds."""

    record: ArchiveRecord
    cursor: str = ""
    """the stream's cursor of the last archived line; empty: the archive has to be read first"""
    has_record: bool = False
    numbers: LastNumbers = msgspec.field(default_factory=LastNumbers)
    waiting: dict[LogKey, int] = {}
    """{log: bytes that are stored and not archived}, estimated by their size in the stream"""
    since: float = math.inf
    """when the first of these bytes were stored; infinite when there are none"""
    asked_at: float = math.inf
    """since when the end of a pod waits for the copy; infinite when none waits"""
    ended_at: float = math.inf
    """when this process saw that the allocation has ended; infinite while it has not"""
    had_pods_at: float = -math.inf
    """when the ended allocation was last seen with a pod, whose log may still be read"""
    look_at: float = 0.0
    """when the copy of an ended allocation is checked again"""
    is_urgent: bool = False
    is_running: bool = False
    is_closed: bool = False
    ended_text: str = ""
    """when it ended (RFC 3339), if that was before this process knew of it; else empty"""
    is_old: bool = False
    """it had ended before this process knew of it, so most likely it is archived already"""
    failed_since: float = math.inf
    """since when its copy fails; infinite while it does not"""
    is_reported: bool = False
    """a line in the log already reports that the archive does not answer"""
    moved: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    @property
    def bytes(self) -> int:
        """The bytes of all its logs that are not archived."""
        return sum(self.waiting.values())

    def begin_again(self) -> None:
        """Read the archive again, before the next piece, to find its end."""
        self.cursor, self.numbers = "", LastNumbers()


class LogArchiver:
    """Copies streams to the archive while this process leads.
    `woken(uid, delay)` queues an allocation for a reconcile."""

    def __init__(
        self,
        archive: LogArchive,
        source: LogCopySource,
        writer: LogPackWriter,
        informers: Informers,
        clock: Clock,
        *,
        days: int,
        bytes_max: int = 0,
        woken: Callable[[str, float], None],
    ) -> None:
        self._archive, self._source, self._writer = archive, source, writer
        self._informers, self._clock, self._woken = informers, clock, woken
        self._days, self._bytes_max = days, bytes_max
        self._sizes = _ArchiveSizes()
        self._old_at = -math.inf
        """when allocations with `is_old` were checked last (monotonic seconds)"""
        self._leads = False
        self._copies: dict[AllocationId, _Copy] = {}
        """the allocations whose archive may be behind"""
        self._closed: set[AllocationId] = set()
        """the allocations that still exist and whose archives are closed"""
        self._some = asyncio.Event()
        self._failures = 0
        self._retry_at = -math.inf
        self._expiry_after = ""

    # --- calls from other parts -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a term: check every allocation whose archive may be behind."""
        self._leads = True
        self._copies.clear()
        self._closed.clear()

    def end(self) -> None:
        """End the term: another process copies now."""
        self._leads = False
        for copy in self._copies.values():
            copy.moved.set()

    def note_stored(self, pack: LogPack) -> None:
        """Note a pack that was stored in the stream."""
        if not (self._leads and pack.lines):
            return
        copy = self._copies.get(pack.allocation)
        if copy is None:
            if pack.allocation not in self._closed:
                self._some.set()
            return
        copy.is_old = False
        copy.waiting[pack.source] = copy.waiting.get(pack.source, 0) + _cost(pack)
        copy.since = min(copy.since, self._clock.monotonic())
        if copy.bytes >= COPY_BYTES:
            self._some.set()

    async def wait_for_room(self, pack: LogPack) -> None:
        """Wait until the stream can store this pack without dropping unarchived lines.

        It waits at most `ROOM_WAIT_S`, and not while the archive does not answer.
        """
        copy = self._copies.get(pack.allocation)
        until = self._clock.monotonic() + ROOM_WAIT_S
        while (
            copy is not None
            and self._leads
            and not self._is_failing
            and copy.waiting.get(pack.source, 0) + _cost(pack) > pack.share_bytes // 2 > 0
            and copy.waiting.get(pack.source, 0) > 0
        ):
            copy.is_urgent = True
            self._some.set()
            copy.moved.clear()
            left_s = until - self._clock.monotonic()
            if left_s <= 0:
                return
            try:
                async with asyncio.timeout(left_s):
                    await copy.moved.wait()
            except TimeoutError:
                return

    def is_archived(self, allocation: AllocationId, uid: str) -> bool:
        """Whether all stored lines of the allocation are archived, or need not be waited for.

        There is no wait while the archive does not answer or another process copies, and none after `END_WAIT_S`. If
        the result is False, the allocation is queued for another reconcile.
        """
        copy = self._copies.get(allocation)
        if not self._leads or copy is None or self._is_failing:
            return True
        if copy.since == math.inf and not copy.is_running and copy.cursor:
            copy.asked_at = math.inf
            return True
        now = self._clock.monotonic()
        copy.asked_at = min(copy.asked_at, now)
        if now >= copy.asked_at + END_WAIT_S:
            return True
        copy.is_urgent, copy.is_old = True, False
        self._some.set()
        self._woken(uid, END_WAIT_S)
        return False

    @property
    def _is_failing(self) -> bool:
        return self._failures > 0

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Copy the logs that are due; if none is, or the archive does not answer, wait until the next look is due."""
        self._discover()
        now = self._clock.monotonic()
        telemetry.LOG_ARCHIVE_LAG.set(max([0.0, *(now - each.since for each in self._copies.values())]))
        if now < self._retry_at:
            await self._rest(self._retry_at - now)
            return
        due = sorted(
            (copy for copy in self._copies.values() if self._is_due(copy, now) and not copy.is_old),
            key=lambda each: (not each.is_urgent, each.since),
        )[: COPIES_AT_ONCE * 16]
        due += self._due_old_copies(now)
        lanes = asyncio.Semaphore(COPIES_AT_ONCE)
        async with TaskGroup() as tasks:
            for copy in due:
                tasks.create_task(self._process(copy, lanes))
        if not due:
            await self._rest(LOOK_S)

    def _due_old_copies(self, now: float) -> list[_Copy]:
        """Return a few of the allocations that ended before the term: a bounded rate, however many are retained."""
        if now < self._old_at + LOOK_S:
            return []
        old = [copy for copy in self._copies.values() if copy.is_old and self._is_due(copy, now)]
        if not old:
            return []
        self._old_at = now
        return heapq.nlargest(OLD_AT_ONCE, old, key=lambda each: each.ended_text)

    async def _rest(self, seconds: float) -> None:
        self._some.clear()
        liveness.beat(seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._some.wait()
        except TimeoutError:
            return

    def _discover(self) -> None:
        """Begin a copy for each allocation that is not known in this term: its archive may be behind."""
        now, there = self._clock.monotonic(), set[AllocationId]()
        for allocation in self._informers.allocations.items():
            id_ = id_of(allocation)
            there.add(id_)
            if id_ in self._closed:
                continue
            copy = self._copies.get(id_)
            if copy is None:
                if not _may_have_log(allocation):
                    continue
                copy = self._new_copy(allocation)
                if copy is None:
                    self._closed.add(id_)
                    continue
                self._copies[id_] = copy
            if allocation.status.attempt != copy.record.attempt:
                copy.record = msgspec.structs.replace(copy.record, attempt=allocation.status.attempt)
            if allocation.status.phase is Phase.TERMINATED and copy.ended_at == math.inf:
                copy.ended_at = now
        self._closed &= there
        for id_, copy in list(self._copies.items()):
            if id_ in there:
                continue
            if copy.cursor and not copy.has_record and not copy.waiting:
                del self._copies[id_]
            else:
                copy.ended_at = min(copy.ended_at, now)

    def _new_copy(self, allocation: Allocation) -> _Copy | None:
        """Return a new copy; None if the stream has expired, so that its lines are archived or lost already."""
        ended_at = parse_time(allocation.status.ended_at) if allocation.status.ended_at else math.inf
        age_s = self._clock.now() - ended_at
        if age_s > keys.LOGS.ttl_s:
            return None
        is_old = age_s > CLOSE_S
        return _Copy(
            record=record_of(allocation),
            ended_text=allocation.status.ended_at or "",
            is_urgent=not is_old,
            is_old=is_old,
        )

    def _is_due(self, copy: _Copy, now: float) -> bool:
        return (
            not copy.cursor
            or copy.is_urgent
            or copy.bytes >= COPY_BYTES
            or now - copy.since >= COPY_AGE_S
            or (copy.ended_at < math.inf and now >= copy.look_at)
        )

    async def _process(self, copy: _Copy, lanes: asyncio.Semaphore) -> None:
        async with lanes:
            if self._clock.monotonic() < self._retry_at:
                return
            copy.is_running, copy.look_at = True, self._clock.monotonic() + LOOK_S
            try:
                # A copy that finds no new lines asks only the stream, so it does not show that the archive answers.
                if await self._copy(copy):
                    self._failures, copy.failed_since, copy.is_reported = 0, math.inf, False
            except InvalidError as error:
                _log.error("log not archived", allocation=copy.record.allocation, error=str(error))
                copy.is_closed = True
            except ControlPlaneError as error:
                await self._fail(copy, error)
            finally:
                copy.is_running = False
                copy.moved.set()
                liveness.beat()
                if copy.is_closed and self._copies.get(copy.record.allocation) is copy:
                    del self._copies[copy.record.allocation]
                    self._closed.add(copy.record.allocation)

    async def _fail(self, copy: _Copy, error: ControlPlaneError) -> None:
        now = self._clock.monotonic()
        self._failures += 1
        copy.failed_since = min(copy.failed_since, now)
        self._retry_at = now + min(RETRY_MAX_S, RETRY_S * 2 ** min(self._failures - 1, 6))
        telemetry.LOG_ARCHIVE_FAILURES.inc()
        _log.warning("log not archived", allocation=copy.record.allocation, error=str(error))
        for each in self._copies.values():
            each.moved.set()
            # Reconcile the ended object again, because it need not wait for an archive that does not answer.
            if each.asked_at < math.inf:
                self._woken(each.record.uid, 0.0)
        # Most logs that wait get no turn now, because their copies are paused while the archive does not answer.
        late = [
            each
            for each in self._copies.values()
            if not each.is_reported and now >= each.since + COPY_AGE_S + SAY_AFTER_S
        ]
        if isinstance(error, PermanentError) or now >= copy.failed_since + SAY_AFTER_S:
            late.insert(0, copy)
        await asyncio.gather(*(self._report(each, str(error)) for each in late[:SAY_AT_ONCE]))

    async def _report(self, copy: _Copy, why: str) -> None:
        """Report in the log that its lines are not archived yet, once until a copy succeeds again."""
        if copy.is_reported:
            return
        copy.is_reported = True
        waited_s = self._clock.monotonic() - copy.since
        now = format_time(self._clock.now(), "microseconds")
        which = f"since {format_time(self._clock.now() - waited_s)}" if waited_s >= 0 else "from here on"
        text = (
            f"lines {which} are not archived yet: {why}. They are archived when the archive answers; lines that "
            "the size limit of this log drops before then are missing"
        )
        source = LogKey(attempt=max(1, copy.record.attempt), rank=0)
        pack = event_pack(copy.record.allocation, source, f"{now} {text}", f"archive away {now}", 1)
        try:
            async with asyncio.timeout(LOOK_S):
                await self._writer.write(pack)
        except (ControlPlaneError, TimeoutError):
            copy.is_reported = False

    async def _copy(self, copy: _Copy) -> bool:
        """Copy the lines that the archive does not have yet, and close the archive if the allocation has ended.

        Return whether the archive answered.
        """
        id_, workspace, has_answered = copy.record.allocation, copy.record.workspace, not copy.cursor
        if not copy.cursor:
            found = await self._archive.record(id_)
            copy.has_record = found is not None
            if found is not None and found.ended_at:
                copy.is_closed = True
                return True
            copy.cursor, lines = await self._archive.end_of(workspace, id_) if found else (pieces.START, [])
            copy.numbers.fresh(lines)
        positions = await self._source.positions(id_) if copy.ended_at < math.inf else {}
        for _ in range(PIECES_AT_ONCE):
            waiting, since, began_at = dict(copy.waiting), copy.since, self._clock.monotonic()
            try:
                lines, is_all = await self._next_piece(copy)
                is_first = not lines or await self._store(copy, lines)
            except BaseException:
                # The piece may be stored nevertheless, and `numbers` has lines that may not be.
                copy.begin_again()
                raise
            if not is_first:
                copy.begin_again()
                return True
            has_answered = has_answered or bool(lines)
            taken = waiting if is_all else _sizes(lines)
            left = {source: size - taken.get(source, 0) for source, size in copy.waiting.items()}
            copy.waiting = {source: size for source, size in left.items() if size > 0}
            copy.since = math.inf if not copy.waiting else (began_at if is_all else since)
            copy.moved.set()
            liveness.beat()
            if is_all:
                copy.is_urgent = False
                if copy.asked_at < math.inf:
                    copy.asked_at = math.inf if not copy.waiting else copy.asked_at
                    self._woken(copy.record.uid, 0.0)
                return await self._close(copy, positions) or has_answered
        return has_answered

    async def _next_piece(self, copy: _Copy) -> tuple[list[StoredLine], bool]:
        """Return the lines of the next piece, and whether the stream has no more."""
        found, size, cursor = list[StoredLine](), 0, copy.cursor
        while size < pieces.PIECE_BYTES:
            page = await self._source.page(copy.record.allocation, after=cursor if cursor != pieces.START else None)
            if not page:
                return found, True
            cursor = page[-1].cursor
            fresh = copy.numbers.fresh(page)
            found += fresh
            size += sum(map(pieces.size_of, fresh))
        return found, False

    async def _store(self, copy: _Copy, lines: list[StoredLine]) -> bool:
        """Store a piece; return False when another process was first."""
        record = copy.record
        if not copy.has_record:
            await self._archive.write_record(record)
            copy.has_record = True
        size = await self._archive.add(record.workspace, record.allocation, copy.cursor, lines)
        if not size:
            return False
        telemetry.LOG_ARCHIVE_BYTES.inc(size)
        copy.cursor = lines[-1].cursor
        return True

    async def _close(self, copy: _Copy, positions: dict[LogKey, LogPosition]) -> bool:
        """Close the archive of an ended allocation, once its pods are gone and its logs have ends, or `CLOSE_S` is
        over: its record gets `ended_at`. Return whether the archive answered.

        A pod is kept while its log is read. So while a pod exists, its log may have no position in the stream yet.
        Lines that were stored after the last page was read are copied first.
        """
        if copy.ended_at == math.inf or copy.waiting:
            return False
        now, has_pods = self._clock.monotonic(), bool(self._informers.pods_of(copy.record.uid))
        if has_pods:
            copy.had_pods_at = now
        logs = {source: position for source, position in positions.items() if source.stream == STDOUT}
        have_ends = bool(logs) and all(position.is_ended for position in logs.values())
        since = copy.ended_at if have_ends else max(copy.ended_at, copy.had_pods_at)
        if now - since < (LOOK_S if have_ends and not has_pods else CLOSE_S):
            return False
        copy.is_closed = True
        if copy.has_record:
            numbers = {source.name: position.number for source, position in logs.items()}
            copy.record = msgspec.structs.replace(
                copy.record,
                ended_at=format_time(self._clock.now()),
                end=copy.cursor,
                logs={**copy.numbers.named(), **numbers},
            )
            await self._archive.write_record(copy.record)
        copy.waiting, copy.numbers = {}, LastNumbers()
        copy.since = math.inf
        return copy.has_record

    # --- retention --------------------------------------------------------------------------------------------------

    async def expire(self) -> float:
        """Delete some archived logs that are too old, or more than the bound allows;
        return after how many seconds to go on."""
        if not self._informers.is_synced:
            return LOOK_S
        return min(await self._expire_old(), await self._expire_excess())

    async def _expire_old(self) -> float:
        """Delete archives that are too old; never of an allocation whose object still exists."""
        if not self._days:
            return EXPIRY_S
        there = self._existing_ids()
        ids, self._expiry_after = await self._archive.records(after=self._expiry_after, limit=EXPIRY_LOOKS_MAX)
        deleted = 0
        for id_ in ids:
            if id_ in there or id_ in self._copies:
                continue
            record = await self._archive.record(id_)
            liveness.beat()
            if record is None or not _is_older(record, self._clock.now() - self._days * DAY_S):
                continue
            deleted += await self._archive.forget(record, most=EXPIRY_DELETES_MAX - deleted)
            liveness.beat()
            if deleted >= EXPIRY_DELETES_MAX:
                return EXPIRY_BUSY_S
        return EXPIRY_BUSY_S if self._expiry_after else EXPIRY_S

    async def _expire_excess(self) -> float:
        """Measure the archive. Beyond its bound, delete the logs that ended first, and note that in their records."""
        sizes, now = self._sizes, self._clock.monotonic()
        if not self._bytes_max:
            return EXPIRY_S
        if now < sizes.again_at:
            return sizes.again_at - now
        for _ in range(SIZE_PAGES_AT_ONCE if not sizes.is_whole else 0):
            page, sizes.after = await self._archive.sizes(after=sizes.after)
            sizes.add(page)
            liveness.beat()
            if not sizes.after:
                sizes.is_whole = True
                break
        if not sizes.is_whole:
            return EXPIRY_BUSY_S
        telemetry.LOG_ARCHIVE_SIZE.set(sizes.total)
        deleted, there = 0, self._existing_ids()
        for of in sizes.oldest():
            if sizes.total <= self._bytes_max:
                break
            if self._may_grow(of.allocation, there):
                continue
            count, is_all = await self._delete_pieces(of, EXPIRY_DELETES_MAX - deleted)
            deleted += count
            liveness.beat()
            if not is_all:
                return EXPIRY_BUSY_S
            sizes.remove(of)
            telemetry.LOG_ARCHIVE_SIZE.set(sizes.total)
        self._sizes = _ArchiveSizes(again_at=now + EXPIRY_S)
        return EXPIRY_S

    def _existing_ids(self) -> set[AllocationId]:
        return {id_of(allocation) for allocation in self._informers.allocations.items()}

    def _may_grow(self, id_: AllocationId, there: set[AllocationId]) -> bool:
        """Whether the archive of the allocation may get more pieces or another record.

        `there` has the ids of the allocations that exist.

        That is the case until its copy closes it. An allocation that exists and is not known in this term may get a
        copy at any moment.
        """
        return id_ in self._copies or (id_ in there and id_ not in self._closed)

    async def _delete_pieces(self, of: "_ArchivedSize", most: int) -> tuple[int, bool]:
        """Note the deletion in the record first, then delete up to `most` pieces;
        return how many, and whether all are gone."""
        record, now = await self._archive.record(of.allocation), format_time(self._clock.now())
        if record is not None and not record.dropped_at:
            ended_at = record.ended_at or now
            await self._archive.write_record(msgspec.structs.replace(record, ended_at=ended_at, dropped_at=now))
            _log.warning("archived log deleted before its time", allocation=of.allocation, bytes=of.bytes)
            telemetry.LOG_ARCHIVE_DROPPED.inc(of.bytes)
        return await self._archive.delete_pieces(of.workspace, of.allocation, most=most)


class _ArchivedSize(msgspec.Struct):
    """The size of one allocation's pieces."""

    workspace: str
    allocation: AllocationId
    bytes: int = 0
    newest_ms: int = 0
    """when its last piece was stored, in epoch milliseconds"""


class _ArchiveSizes(msgspec.Struct):
    """The size of the whole archive, as far as it is measured. Times are monotonic seconds."""

    again_at: float = -math.inf
    after: str = ""
    """the position in the listing where the measurement continues"""
    is_whole: bool = False
    total: int = 0
    found: dict[AllocationId, _ArchivedSize] = {}

    def add(self, page: list[PieceSize]) -> None:
        for each in page:
            of = self.found.setdefault(
                each.allocation, _ArchivedSize(workspace=each.workspace, allocation=each.allocation)
            )
            of.bytes += each.bytes
            of.newest_ms = max(of.newest_ms, each.stored_ms)
            self.total += each.bytes

    def remove(self, of: _ArchivedSize) -> None:
        """Subtract an allocation whose pieces are deleted."""
        del self.found[of.allocation]
        self.total -= of.bytes

    def oldest(self) -> list[_ArchivedSize]:
        """Return the sizes, sorted by the time of the last piece."""
        return sorted(self.found.values(), key=lambda each: each.newest_ms)


def _is_older(record: ArchiveRecord, than: float) -> bool:
    """Whether the allocation ended before `than` (epoch seconds);
    without a recorded end, whether it was created before."""
    at = record.ended_at or record.created_at
    return bool(at) and parse_time(at) < than


def _may_have_log(allocation: Allocation) -> bool:
    """Whether the pods of the allocation may have printed lines: its phase is beyond Pending."""
    return allocation.status.phase is not Phase.PENDING


def _cost(pack: LogPack) -> int:
    return PACK_COST_BYTES + (sum(map(len, pack.lines)) + len(pack.lines)) // COMPRESSION


def _sizes(lines: list[StoredLine]) -> dict[LogKey, int]:
    found: dict[LogKey, int] = {}
    for each in lines:
        source, size = each.line.source, len(each.line.text) + len(each.line.time) + 2
        found[source] = found.get(source, 0) + size // COMPRESSION
    return found
