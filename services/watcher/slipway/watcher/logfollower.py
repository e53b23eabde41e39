"""Reads one log of a pod from its node, and stores it.

Owns how fast a log is read, when it has been read to its end, and the shared writes of many logs. `loglines.py` decides
what a line is, `podlogs.py` which logs are followed.

Promises: a log is read no faster than its lines are stored; the position that is stored with lines is that of the last
line, so another process continues exactly there; lines are left out only when their node would remove them unread, or
when time is short, and never the last lines.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar, cast

import msgspec

from slipway.crd.meta import ANNOTATION_ADDED, LABEL_ALLOCATION
from slipway.errors import ControlPlaneError, DeadlineError, PermanentError, TransientError, UnavailableError
from slipway.kube.objects import ContainerStatus, Pod
from slipway.kube.scope import raise_only
from slipway.model.ids import AllocationId
from slipway.model.times import format_time, parse_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams.logpacks import EVENT, EVENT_SHARE_BYTES, LogAppended, LogKey, LogPack, LogPosition
from slipway.watcher import exits
from slipway.watcher.informers import Informers
from slipway.watcher.loglines import LineSplitter
from slipway.watcher.ports import LogReader, LogStore

RETRY_S = 0.5
RETRY_PARTS_MAX = 5
"""The pause before a retry is at most this many times `RETRY_S`."""
REFUSALS_MAX = 9
"""The number of times (some 20 s) that a node may answer that it has no log of an ended container. A node also answers
that while its container runtime restarts."""
SETTLE_S = 1.0
"""The wait, after the end of a log, for the news that its container has ended.
Without news, the log is followed again."""
GATHER_S = 0.2
"""The pause after a write of few lines, so that there are fewer and larger writes."""
PROGRESS_S = 1.0
"""The time between two stored states of a line that is rewritten with carriage returns."""
PACK_BYTES = 32 * 1024
"""The bytes of lines that are stored together.
There may be more, because the last piece that was read is never split."""
PIECE_BYTES = 16 * 1024
LAST_BYTES = 72 * 1024
"""The bytes of last lines that are kept when lines are left out. An error message on one output stream of a program may
be this far from the end, because the lines that the pipe of its other stream held at that time come after it."""
OTHERS_S = 15.0
"""After the pod is gone, the leading process has so long to store what it has read."""
GONE_RETRIES_MAX = 30
"""The number of retries of a write to the store after the pod is gone."""
AHEAD_BYTES = 128 * 1024
"""The bytes that are read ahead of the stored lines; the rest waits on the node."""
PACKS_AT_ONCE = 64
LAG_LOOK_S = 2.0
LAG_PART = 0.6
"""The part of a node's log file that may wait to be read before lines are left out."""
LAG_OVER_S = 0.5
LAG_RATE_S = 0.2
"""The least time over which a rate of writing is measured."""
NODE_FILE_BYTES = 10 * 1024 * 1024
"""The default size at which a kubelet begins a new log file (`containerLogMaxSize`).
A kubelet serves only the newest file."""
ONE_FILE_BYTES = 1024 * 1024
"""A log of fewer bytes is assumed to be in one file,
even if a kubelet begins new files earlier than the settings state."""
ROTATION_S = 3.0
"""Kubelets check for full files at most once in this time, so a complete file has the lines of at least this time."""
OPEN_S = 1.0
"""If a node has sent nothing for so long after the request, the log is assumed to be open, without lines."""
LATE_S = 10.0
"""A log that is first read so long after its container's start may have lost its beginning, whatever its rate is then:
kubelets check for full files this often, each at its own times."""
RATE_PART = 0.1
"""A program that prints at this part of the rate that fills a file may have printed faster before."""
SURELY_OPEN_S = 10.0
"""A busy node may open a log up to so long after the request, and begin a new file before that."""
SENT_LATE_S = 0.3
"""If a node sends the first line so long after it was written, it may have opened the log after that line."""
SLOW_RATE_PART = 0.3
"""Like `RATE_PART`, for lines that were written after the log was requested."""
BURST_BYTES = 64 * 1024
"""If a log ended within a second after its first line, its rate is known only if at least this many bytes are left."""
BURST_S = 0.01
"""The least duration that is assumed for such a log."""
PROMPT_S = 2.0
"""A program whose first line comes within this time after its start, and is no flood, had no time to fill a file
before."""

_SECOND_CHARS = 19

_log = log.get_logger(__name__)
T = TypeVar("T")


class LogPackWriter:
    """Stores packs of many logs together; each writer waits for the result of its pack."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.stored: Callable[[LogPack], None] = _ignore
        """called with each pack that was appended"""
        self._waiting: deque[tuple[LogPack, asyncio.Future[LogAppended]]] = deque()
        self._some = asyncio.Event()

    async def write(self, pack: LogPack) -> LogAppended:
        """Append a pack. Raises what the store raises; then the outcome is unknown, and a retry is harmless."""
        answer: asyncio.Future[LogAppended] = asyncio.get_running_loop().create_future()
        self._waiting.append((pack, answer))
        self._some.set()
        return await answer

    async def run(self) -> None:
        """Store packs until cancelled."""
        try:
            while True:
                with liveness.rest(lambda: self._waiting):
                    await self._some.wait()
                self._some.clear()
                while self._waiting:
                    count = min(len(self._waiting), PACKS_AT_ONCE)
                    await self._exchange([self._waiting.popleft() for _ in range(count)])
                    liveness.beat()
        finally:
            _fail(self._waiting)
            self._waiting.clear()

    async def _exchange(self, batch: Sequence[tuple[LogPack, asyncio.Future[LogAppended]]]) -> None:
        # A pack whose writer has given up is not stored: another writer would store its lines as well.
        open_ = [(pack, answer) for pack, answer in batch if not answer.done()]
        if not open_:
            return
        try:
            answers = await self._store.append([pack for pack, _ in open_])
        except ControlPlaneError as error:
            for _, answer in open_:
                if not answer.done():
                    answer.set_exception(error)
            return
        except BaseException:
            _fail(open_)
            raise
        for (pack, answer), found in zip(open_, answers, strict=True):
            if found.is_appended:
                self.stored(pack)
            if not answer.done():
                answer.set_result(found)


def _ignore(pack: LogPack) -> None:
    del pack


async def _no_wait(pack: LogPack) -> None:
    del pack


def _fail(batch: Iterable[tuple[LogPack, asyncio.Future[LogAppended]]]) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(UnavailableError("the writer of logs has stopped"))


class _ChunkBuffer:
    """A buffer of chunks that were read and not yet taken: a bounded number of bytes, however small the chunks are."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._is_over = False
        self._some, self._room = asyncio.Event(), asyncio.Event()

    async def put(self, chunk: bytes) -> None:
        """Add a chunk; wait while there is no room."""
        while self._bytes >= AHEAD_BYTES:
            self._room.clear()
            await self._room.wait()
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        self._some.set()

    def close(self) -> None:
        """Mark the end: no more chunks follow."""
        self._is_over = True
        self._some.set()

    async def take(self) -> bytes | None:
        """Wait for a chunk, then return all buffered bytes; None when no more chunks follow."""
        await self._some.wait()
        found, self._chunks, self._bytes = b"".join(self._chunks), [], 0
        if not self._is_over:
            self._some.clear()
        self._room.set()
        return found or None


class FollowerDeps(msgspec.Struct, frozen=True, kw_only=True):
    """The dependencies of a follower."""

    reader: LogReader
    store: LogStore
    writer: LogPackWriter
    informers: Informers
    clock: Clock
    leads: Callable[[], bool]
    """whether this process is the one that follows logs of running pods;
    if not, the other process may have a log open that cannot be opened any more"""
    node_file_bytes: int = NODE_FILE_BYTES
    """the size in bytes at which a node begins a new log file"""
    room: Callable[[LogPack], Awaitable[None]] = _no_wait
    """waits for a bounded time until the store can accept a pack without dropping unarchived lines"""


class LogFollower:
    """Reads one log to its end, and stores it."""

    def __init__(
        self, deps: FollowerDeps, *, pod: Pod, source: LogKey, container: str, is_fresh: bool, share_bytes: int
    ) -> None:
        self.pod = pod
        self.news = asyncio.Event()
        """set when the pod has changed"""
        self.gone_at = math.inf
        """when the pod's object was gone (monotonic seconds); infinite while it exists"""
        self.is_hurried = False
        """time is short: all lines but the last ones are left out"""
        self.is_store_away = False
        """the store does not answer, and the lines wait for it"""
        self.has_end = False
        """the store has the mark that no more lines follow"""
        self.moved_at = deps.clock.monotonic()
        self.waits_since = math.inf
        """since when it waits for its node to send more (monotonic seconds); infinite while it does not wait"""
        self.cut_at = 0.0
        """when `end_read` was last called (monotonic seconds)"""
        self._reader, self._store, self._writer = deps.reader, deps.store, deps.writer
        self._informers = deps.informers
        self._clock = clock = deps.clock
        self._leads, self._room, self._node_file_bytes = deps.leads, deps.room, deps.node_file_bytes
        self._source = source
        self._container = container
        self._share_bytes = share_bytes
        self._allocation = AllocationId(pod.metadata.labels.get(LABEL_ALLOCATION, ""))
        self._number = 0
        self._stored = LogPosition()
        """the position of the stored log, as this reader believes"""
        self._splitter = LineSplitter(LogPosition())
        self._lines: deque[bytes] = deque()
        self._pieces: deque[bytes] = deque()
        self._known: LogPosition | None = LogPosition() if is_fresh else None
        """the position of the log in the store; None: it has to be read from the store"""
        self._is_stored = False
        # `_is_short`: whether the last read may have ended before the end. `_read_until`:
        # the newest line of a read that reached the end. `_end_mark`: where the last complete read ended.
        self._is_short, self._read_until, self._end_mark = False, "", LineSplitter(LogPosition()).end_mark
        self._unended: LineSplitter | None = None
        """the splitter of the last read, if that read ended within a line: the log may be gone at the next read"""
        # `_bytes`: the bytes that wait to be stored. `_log_bytes`: the least size of the log, infinite when another
        # process has read its beginning.
        # `_kept_bytes`: the part of `_bytes` that was kept when lines were left out.
        self._bytes, self._kept_bytes, self._log_bytes = 0, 0, 0.0
        self._read_lag = ReadLag(clock, deps.node_file_bytes)
        self._progress_at = 0.0
        # When the log was last requested from the node (epoch seconds), the bytes since then,
        # and when a chunk was last taken.
        self._asked_at, self._asked_bytes, self._took_at = 0.0, 0, 0.0
        self._first_took_at = 0.0
        """when its first line was taken (epoch seconds)"""
        self._opens_at = math.inf
        """from when on the log is assumed to be open on its node (monotonic seconds)"""
        self._is_beginning_judged = False
        self._buffer: _ChunkBuffer | None = None
        self._is_cut = False
        self._given_up = ""
        """why the log is not read to its end; empty while it is read"""
        self._is_given_up = asyncio.Event()

    async def run(self) -> None:
        """Read until the log is stored to its end, or cannot be. Raises only errors that are bugs of ours."""
        try:
            await self._read_to_end()
        except ControlPlaneError as error:
            await self.abandon(str(error))

    @property
    def _newest_pod(self) -> Pod:
        """The pod as it was last observed; once it is gone, as this follower last saw it."""
        return self._informers.pods.by_uid(self.pod.metadata.uid) or self.pod

    @property
    def _is_gone(self) -> bool:
        return self.gone_at < math.inf

    @property
    def is_open(self) -> bool:
        """Whether its node has begun to send the log: the rest then follows, even if the pod is deleted."""
        return self._clock.monotonic() >= self._opens_at

    @property
    def _is_one_file(self) -> bool:
        """Whether the log is too small for its node to have begun a second file."""
        return self._log_bytes < min(self._node_file_bytes, ONE_FILE_BYTES)

    async def abandon(self, why: str) -> None:
        """Report in the log that its end is missing, and `why`; then mark it as ended."""
        _log.warning("log given up", pod=self.pod.metadata.name, container=self._container, error=why)
        with suppress(ControlPlaneError):
            before = self._unended
            if before is not None and before.position(self._number).place == self._stored.place:
                self._splitter = before
                await self._store_rest()
            await self._report(unread_text(self._source, why), "unread")
            await self._finish()

    def end_read(self) -> None:
        """End this read, because the node sends nothing although the log has ended:
        store what was read, and read again."""
        self.cut_at = self._clock.monotonic()
        self._is_cut = True
        if self._buffer is not None:
            self._buffer.close()

    def give_up(self, why: str) -> None:
        """End the reading for lack of time: store what was read, and report that the rest is missing."""
        self._given_up = self._given_up or why
        self._is_given_up.set()
        self.end_read()

    async def _read_to_end(self) -> None:
        """Follow the log. Once the container has ended, read the rest, unless the last read already covers its end."""
        failures, read_until = 0, 0.0
        while True:
            await self._begin()
            if self._is_stored:
                self.has_end = True
                return
            self.pod = self._newest_pod
            if self._given_up:
                raise DeadlineError(self._given_up)
            is_over = has_ended(self.pod, self._container)
            try:
                is_read = is_over and 0.0 < ended_at(self.pod, self._container) <= read_until
                if not is_read:
                    is_whole = await self._follow()
                    # Lines that were read and not stored, or that another process stored, have to be read again to the
                    # end. A kubelet that began a new file before its reader reached the end of the old one ends the
                    # response there. So a log that may have two files is read once more, for the lines after that.
                    is_all = is_whole and not self._is_short and self._is_one_file
                    failures, read_until = 0, self._clock.now() if is_all else 0.0
                    is_read = is_whole and ((is_over and not self._is_short) or (self._is_gone and self._is_one_file))
            except (TransientError, PermanentError) as error:
                # An earlier complete read is no evidence for the lines since then: the node's clock may be behind ours.
                failures, read_until = failures + 1, 0.0
                if self._is_final(error, failures, is_over=is_over):
                    raise
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S * min(failures, RETRY_PARTS_MAX)):
                        await self._is_given_up.wait()
                continue
            if not is_read:
                await self._wait_for_change()
            elif await self._finish():
                return

    def _is_final(self, error: ControlPlaneError, failures: int, *, is_over: bool) -> bool:
        """Whether nothing more can be read.

        A process that does not lead waits for the leading one, which may have the log open although it cannot be opened
        any more.
        """
        if not self._leads():
            waited_s = self._clock.monotonic() - self.gone_at
            return waited_s > OTHERS_S or (is_over and isinstance(error, TransientError) and failures > REFUSALS_MAX)
        # `PodLogs`, which waits for the end of the log, decides when it is too late, and calls `give_up`.
        return self._is_gone or (is_over and isinstance(error, PermanentError) and failures > REFUSALS_MAX)

    async def _begin(self) -> None:
        """Continue from the position of this log in the store."""
        position, self._known = self._known, None
        if position is None:
            position = await self._retry(lambda: self._store.position(self._allocation, self._source))
        # A rank that was added again, or restarted, continues in the same log:
        # the end that the store has is then that of the previous pod's log.
        is_next = position.is_ended and self._is_later(position)
        self._is_stored = position.is_ended and not is_next
        if position.number > self._stored.number:
            self.moved_at = self._clock.monotonic()
            # Another process has read the beginning of this pod's log, or the whole log of the previous pod.
            self._log_bytes = 0.0 if is_next else math.inf
        self._number, self._stored = position.number, position
        self._splitter = LineSplitter(LogPosition() if is_next else position)
        self._lines.clear()
        self._pieces.clear()
        self._bytes = self._kept_bytes = 0

    def _is_later(self, position: LogPosition) -> bool:
        """Whether the stored log ended before this pod, which was added to a running gang, began its log.

        The time of the last line and that of the container's start are by the clocks of nodes. The creation of the pod
        is by the clock of the API server, and is used only while the start is unknown.
        """
        pod = self._newest_pod
        meta = pod.metadata
        if ANNOTATION_ADDED not in meta.annotations:
            return False
        began_at = started_at(pod, self._container) or (
            parse_time(meta.creation_timestamp) if meta.creation_timestamp else 0.0
        )
        return began_at > 0.0 and (not position.time or parse_time(position.time) < began_at)

    async def _follow(self) -> bool:
        """Read and store until the log ends; return False when another process has stored lines of it."""
        self._buffer = buffer = _ChunkBuffer()
        self._is_cut = False
        try:
            async with TaskGroup() as tasks:
                reading = tasks.create_task(self._pump(buffer))
                try:
                    return await self._take_all(buffer, reading)
                finally:
                    reading.cancel()
                    # An exception passes through this frame, and the task that raised it would keep a reference to it.
                    del reading
        except BaseExceptionGroup as group:
            raise_only(group)
        finally:
            self._buffer = None
            self.waits_since = math.inf

    async def _pump(self, buffer: _ChunkBuffer) -> ControlPlaneError | None:
        meta = self.pod.metadata
        self._asked_at, self._asked_bytes = self._clock.now(), 0
        self._is_beginning_judged = bool(self._splitter.since)
        self._opens_at = min(self._opens_at, self._clock.monotonic() + OPEN_S)
        try:
            stream = self._reader.follow_log(
                meta.namespace, meta.name, container=self._container, since_time=self._splitter.since
            )
            async with aclosing(cast("AsyncGenerator[bytes]", stream)) as found:
                async for chunk in found:
                    self._opens_at = 0.0
                    await buffer.put(chunk)
        except ControlPlaneError as error:
            buffer.close()
            return error
        buffer.close()
        return None

    async def _take_all(self, buffer: _ChunkBuffer, reading: "asyncio.Task[ControlPlaneError | None]") -> bool:
        self._is_short = False
        while not await self._take_some(buffer):
            is_many = self._bytes >= self._kept_bytes + PACK_BYTES
            if not await self._store_lines(keep_last=self._is_behind()):
                return False
            if not is_many:
                await self._clock.sleep(GATHER_S)
        error = UnavailableError("its node stopped sending it") if self._is_cut else await reading
        pod = self._newest_pod
        is_end = False
        if error is None and has_ended(pod, self._container):
            # When an API server loses a node, its response ends as usual. So a short read has reached the end only if
            # the next read ends there too. For a pod that is being deleted, there may be no next read, because its node
            # deletes the containers: the unfinished line is then the last one.
            before, self._end_mark = self._end_mark, self._splitter.end_mark
            is_leaving = pod.metadata.deletion_timestamp is not None and not self._splitter.is_behind
            is_end = not self._splitter.is_short or before == self._end_mark or is_leaving
        if is_end:
            self._add(self._splitter.end())
            if self._splitter.is_other_file:
                await self._report_gap(
                    self._stored.time, ended_at(pod, self._container) + 1.0, "may be missing: its node may have"
                )
        self._is_short = self._splitter.is_short and not is_end
        if self._splitter.has_rest or error is None:
            self._unended = self._splitter if self._splitter.has_rest else None
        if not await self._store_lines():
            return False
        if error is not None:
            try:
                raise error
            finally:
                # Otherwise the frame in the error's traceback keeps a reference to the error.
                del error, reading
        self._read_until = self._splitter.newest
        return True

    async def _take_some(self, buffer: _ChunkBuffer) -> bool:
        """Wait for a chunk and take the available lines, up to a pack; return True when the log has ended.

        A piece that is taken is stored whole, because the stored position is that of its last line.
        """
        if not self._pieces:
            self.waits_since = min(self.waits_since, self._clock.monotonic())
            try:
                async with asyncio.timeout(PROGRESS_S if self._splitter.is_open else None):
                    found = await buffer.take()
            except TimeoutError:
                self._show_progress()
                return False
            self.waits_since = math.inf
            if found is None:
                return True
            self._pieces.extend(found[at : at + PIECE_BYTES] for at in range(0, len(found), PIECE_BYTES))
        while self._pieces and self._bytes < self._kept_bytes + PACK_BYTES:
            piece, before = self._pieces.popleft(), self._splitter.newest
            self._add(self._splitter.feed(piece))
            if before and before[:_SECOND_CHARS] != self._splitter.newest[:_SECOND_CHARS]:
                await self._check_gap(before, self._splitter.newest)
            self._took_at = self._clock.now()
            if self._splitter.first and not self._first_took_at:
                self._first_took_at = self._took_at
            # These are all bytes that the node sent, also those that are left out of the stored lines.
            self._asked_bytes += len(piece)
            self._log_bytes += len(piece)
            self._read_lag.add(len(piece), self._splitter.newest)
        if self._splitter.is_open and self._clock.monotonic() >= self._progress_at + PROGRESS_S:
            self._show_progress()
        return False

    def _show_progress(self) -> None:
        self._add(self._splitter.progress())
        self._progress_at = self._clock.monotonic()

    def _add(self, lines: Sequence[bytes]) -> None:
        self._lines.extend(lines)
        self._number += len(lines)
        self._bytes += sum(map(len, lines)) + len(lines)
        if lines:
            self.moved_at = self._clock.monotonic()

    def _is_behind(self) -> bool:
        # Nodes remove lines only of running containers: the log of an ended container is kept as long as its pod.
        is_running = not has_ended(self._newest_pod, self._container)
        return self.is_hurried or (self._read_lag.is_too_much(self._splitter.newest) and is_running)

    async def _store_lines(self, *, keep_last: bool = False) -> bool:
        """Store the waiting lines; with `keep_last` leave out all but the last ones, which stay in the buffer."""
        if keep_last:
            while self._bytes >= LAST_BYTES:
                self._bytes -= len(self._lines.popleft()) + 1
                telemetry.DELIVERIES.labels(stream="logs", outcome="dropped").inc()
            self._kept_bytes = self._bytes
            return True
        if not self._lines:
            return True
        if self._splitter.is_torn:
            await self._report_gap(
                self._stored.time, parse_time(self._splitter.resumed_at), "are missing: its node had"
            )
            self._splitter.is_torn = False
        if self._splitter.is_first_second_over:
            await self._check_beginning()
        lines, self._lines, self._bytes = list(self._lines), deque[bytes](), 0
        self._kept_bytes = 0
        return await self._append(self._pack(self._number - len(lines) + 1, lines))

    async def _report_gap(self, since: str, until_s: float, how: str) -> None:
        """Report in the log that lines from `since` until `until_s` (epoch seconds) are missing, or may be.

        A reader that has read one file to its end has missed nothing if the next line came before another file could be
        full.
        """
        if since == self._read_until and until_s - parse_time(since) < ROTATION_S:
            return
        text = f"lines of {_source_text(self._source)} after {since} {how} removed them, unread"
        await self._report(text, f"torn {since}")

    def _pack(self, first: int, lines: Sequence[bytes], *, is_ended: bool = False) -> LogPack:
        return LogPack(
            allocation=self._allocation,
            source=self._source,
            after=self._stored,
            first=first,
            lines=lines,
            position=self._splitter.position(self._number, is_ended=is_ended),
            share_bytes=self._share_bytes,
        )

    async def _append(self, pack: LogPack) -> bool:
        if pack.lines and not self.is_hurried:
            await self._room(pack)
        answer = await self._retry(lambda: self._writer.write(pack))
        self._known = answer.position
        if not answer.is_appended and answer.position.place != pack.position.place:
            return False
        # A refusal at the same position means that an earlier write succeeded and its response was lost.
        self._stored = answer.position
        self.moved_at = self._clock.monotonic()
        return True

    async def _finish(self) -> bool:
        """Mark the log in the store as complete; return whether that succeeded."""
        if not await self._store_rest():
            return False
        await self._check_beginning()
        self.has_end = await self._append(self._pack(self._number + 1, [], is_ended=True))
        return self.has_end

    async def _check_beginning(self) -> None:
        """Report in the log if its beginning is missing, or may be.

        A node does not report that it has removed the beginning of a log. If lines were written before they were
        requested, at a rate that has filled a file since the container's start, they are not the first lines. At a
        lower rate, or after a late read, it is unknown, and the log reports that. A log that is read in time is
        complete, even if its program was silent for long. A busy node may open a log later than it was requested: a
        flood that begins in that time may have lost its beginning, and the log reports that. If a node sends a flood's
        first line at once, it had the log open before.
        """
        if self._is_beginning_judged or not self._splitter.first:
            return
        self._is_beginning_judged = True
        pod, first = self._newest_pod, self._splitter.first
        began_at, first_at = started_at(pod, self._container), parse_time(first)
        if not began_at or first_at >= self._asked_at + SURELY_OPEN_S:
            return
        waited_s, late_s = first_at - began_at, self._asked_at - began_at
        since = f"lines of {_source_text(self._source)} before {first}"
        at_this_rate = waited_s * self._splitter.first_second_bytes
        if first_at >= self._asked_at:
            came_s = self._first_took_at - first_at
            is_open_late = waited_s >= ROTATION_S or came_s >= SENT_LATE_S
            if is_open_late and at_this_rate >= SLOW_RATE_PART * self._node_file_bytes:
                why = f"its node may have opened its log {waited_s + max(0.0, came_s):.0f} s after its start"
                await self._report(f"{since} may be missing: {why}, and have removed them, unread", f"begun {first}")
            return
        is_late = late_s >= LATE_S and waited_s >= PROMPT_S
        is_unknown = is_late or self._is_burst(waited_s) or at_this_rate >= RATE_PART * self._node_file_bytes
        if at_this_rate >= self._node_file_bytes:
            why = f"before its log was read, it printed for {waited_s:.0f} s at a rate that fills its file"
            await self._report(
                f"{since} are likely to be missing: {why}; its node had removed them, unread", f"begun {first}"
            )
        elif is_unknown:
            why = f"its log was first read {late_s:.0f} s after its start"
            await self._report(
                f"{since} may be missing: {why}, and its node may have removed them, unread", f"begun {first}"
            )

    def _is_burst(self, waited_s: float) -> bool:
        """Whether the rest of a log that ended within a second was written so fast that a file may have been full
        before.

        Its node may have begun the file of that rest just before the end.
        """
        size, took_s = self._splitter.first_second_bytes, self._splitter.first_second_s
        if waited_s < PROMPT_S or size < BURST_BYTES or took_s >= 1.0:
            return False
        return waited_s * size / max(took_s, BURST_S) >= RATE_PART * self._node_file_bytes

    async def _check_gap(self, before: str, after: str) -> None:
        """Report in the log that lines may be missing between two consecutive lines, given by their times.

        After the end of a file, a kubelet continues in the newest file, whatever files it has begun and removed since.
        So lines may be missing if the second line was written before the first was read, and if a file could have been
        written in between at the previous rate. A program that printed that much and then paused looks the same.
        """
        step_s = parse_time(after) - parse_time(before)
        was_there = self._took_at < parse_time(after)
        if step_s < ROTATION_S or self._asked_bytes < ONE_FILE_BYTES or was_there:
            return
        if step_s * self._read_lag.rate_at(before) >= SLOW_RATE_PART * self._node_file_bytes:
            await self._report_gap(before, math.inf, "may be missing: its node may have")

    async def _store_rest(self) -> bool:
        """Store the rest; a last line without a line end is a line too, because nothing can follow it."""
        self._add(self._splitter.end())
        return await self._store_lines()

    async def _report(self, text: str, key: str) -> None:
        """Add a line about this log for its readers, once for each `key`."""
        now = format_time(self._clock.now(), "microseconds")
        pack = event_pack(
            self._allocation, self._source, f"{now} {text}", f"{key} {self.pod.metadata.uid} {self._container}", 1
        )
        await self._retry(lambda: self._writer.write(pack))

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Call the store until it answers, and return its answer; the lines that were read wait."""
        failures = 0
        while True:
            try:
                found = await ask()
                self.is_store_away = False
                return found
            except TransientError:
                failures += 1
                self.is_store_away = True
                if (self._is_gone or self._given_up) and failures > GONE_RETRIES_MAX:
                    raise
                await self._clock.sleep(RETRY_S * min(failures, RETRY_PARTS_MAX))

    async def _wait_for_change(self) -> None:
        """Wait a moment for a change of the pod whose log has ended, unless its container is known to have ended."""
        self.news.clear()
        if has_ended(self._newest_pod, self._container):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self.news.wait()


class ReadLag:
    """Estimates whether a log is written faster than it is read, so that its node would remove lines unread.

    Only the times of lines are known: the bytes that wait on the node are the delay of the newest line, times the
    recent rate of writing. The least delay that was ever seen is assumed to be the difference between the clocks.
    """

    def __init__(self, clock: Clock, node_file_bytes: int = NODE_FILE_BYTES) -> None:
        self._clock = clock
        self._bytes_max = LAG_PART * node_file_bytes
        self._looked_at = clock.monotonic()
        self._bytes = 0
        self._newest_s = 0.0
        self._rate = 0.0
        """the rate of writing between the last two measurements, in bytes a second"""
        self._offset_s = math.inf
        self._is_too_much = False

    def add(self, size: int, newest: str) -> None:
        """Note that `size` bytes were read; `newest` is the time of the newest line of all."""
        self._bytes += size
        if not newest:
            return
        newest_s = parse_time(newest)
        # This is measured with each piece. The first piece is the most exact, because a flood delays all later ones.
        self._offset_s = min(self._offset_s, self._clock.now() - newest_s)
        if not self._newest_s:
            self._looked_at, self._bytes, self._newest_s = self._clock.monotonic(), 0, newest_s

    def is_too_much(self, newest: str) -> bool:
        """Whether too much waits on the node; measured every `LAG_LOOK_S`. `newest` as in `add`."""
        now = self._clock.monotonic()
        if not newest or now - self._looked_at < LAG_LOOK_S:
            return self._is_too_much and self._delay_s(newest) > LAG_OVER_S
        newest_s = parse_time(newest)
        written_s, spent_s = newest_s - self._newest_s, now - self._looked_at
        if written_s > 0:
            self._rate = self._bytes / written_s
            waits = self._delay_s(newest) * self._rate
            self._is_too_much = written_s < spent_s and waits > self._bytes_max
        self._looked_at, self._bytes, self._newest_s = now, 0, newest_s
        return self._is_too_much

    def rate_at(self, newest: str) -> float:
        """Return the recent rate of writing in bytes a second, up to the line of this time."""
        written_s = parse_time(newest) - self._newest_s
        return max(self._rate, self._bytes / written_s if written_s >= LAG_RATE_S else 0.0)

    def _delay_s(self, newest: str) -> float:
        return self._clock.now() - parse_time(newest) - self._offset_s if newest else 0.0


def unread_text(source: LogKey, why: str) -> str:
    """Return the line that tells readers of a log that its end is missing."""
    return f"the end of the log of {_source_text(source)} could not be read from its node: {why}"


def _source_text(source: LogKey) -> str:
    return f"container {source.container}" if source.container else "this rank"


def event_pack(allocation: AllocationId, source: LogKey, line: str, key: str, count: int) -> LogPack:
    """Return a pack with a line about a rank; `key` and `count` as in `LogPack`."""
    return LogPack(
        allocation=allocation,
        source=LogKey(attempt=source.attempt, rank=source.rank, stream=EVENT),
        after=LogPosition(),
        first=1,
        lines=[line.replace("\n", " ").encode("utf-8", "replace")],
        position=LogPosition(),
        share_bytes=EVENT_SHARE_BYTES,
        key=key,
        count=count,
    )


def has_ended(pod: Pod, container: str) -> bool:
    """Whether that container of the pod has ended, so that its log does not grow any more."""
    found = status_of(pod, container)
    return exits.is_over(pod) or (found is not None and found.state.terminated is not None)


def ended_at(pod: Pod, container: str) -> float:
    """Return when the container ended by its node (epoch seconds, rounded down to whole ones); 0 when unknown."""
    found = status_of(pod, container)
    ended = found.state.terminated if found is not None else None
    return parse_time(ended.finished_at) if ended is not None and ended.finished_at else 0.0


def started_at(pod: Pod, container: str) -> float:
    """Return when the container started by its node (epoch seconds, rounded down to whole ones); 0 when unknown."""
    found = status_of(pod, container)
    said = (found.state.running or found.state.terminated) if found is not None else None
    return parse_time(said.started_at) if said is not None and said.started_at else 0.0


def status_of(pod: Pod, container: str) -> ContainerStatus | None:
    statuses: list[ContainerStatus] = [*pod.status.init_container_statuses, *pod.status.container_statuses]
    return next((status for status in statuses if status.name == container), None)
