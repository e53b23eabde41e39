"""The log lines of one allocation: from its stream, or directly from its pods when there is no stream.

Owns the filter of lines (rank, attempt, container, since), the marks of missing lines, and the end of following. Lines
from pods have no cursor, so a client cannot resume after them.

Promises:
- Each stored line is sent once, in the order of its log.
- Where lines of a wanted rank are missing, there is a mark with their number, also when the filter selects lines by
  time, stream or text. Where an answer from the pods is cut, or the log of a pod cannot be read, there is a mark with
  the reason. For an ended allocation, each log that is not stored to its end has a mark.
- When neither the stream nor the pods can be read, the answer is an error and not empty.
- Following ends when the log of each rank is stored to its end and was sent, or when no line has arrived for `END_S`
  after the end of the allocation.
Not promised: lines of a deleted pod while Redis is unavailable.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

import msgspec

from slipway.api.allocations.lookup import Lookup
from slipway.api.allocations.pattern import Pattern
from slipway.api.allocations.view import number_label
from slipway.api.ports import Kube
from slipway.api.schemas import LogLineView
from slipway.crd.meta import ANNOTATION_MAIN_CONTAINER, LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import (
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    InvalidError,
    NotFoundError,
    PermanentError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from slipway.kube.objects import Pod
from slipway.kube.resources import PODS
from slipway.kube.rest import LOG_BYTES_MAX
from slipway.model.ids import AllocationId
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams.codec import cursor_parts
from slipway.streams.logpacks import EVENT, STDOUT, GapFinder, LogKey, LogLine, LogPosition, StoredLine
from slipway.streams.ports import LogLines

LINES_MAX = 10_000
LINES_AT_ONCE = 2000
"""Number of lines in one read of the store."""
CHARS_AT_ONCE = 65_536
"""Number of characters that are searched before the event loop serves other requests."""
LOOK_S = 0.5
"""Interval at which following checks whether the allocation has ended."""
SETTLE_S = 1.0
"""How long after the end of an allocation lines may still arrive, when the store has no log of it or never answered."""
END_S = 20.0
"""How long following waits for a log that is not stored to its end, after the allocation's end and the last line."""
ENDS_S, ENDS_LOOK_S = 3.0, 0.1
"""A read that begins within ENDS_S after the end of an allocation waits for its complete logs, but no longer than until
ENDS_S after that end. It checks every ENDS_LOOK_S."""
OPEN_SAID_MAX = 100
"""Limit of marks for logs that are not stored to their end, or that cannot be read; the last mark has the number of the
others."""
MAY_COME_S = 600.0
"""How long after the end of an allocation missing lines may still be stored."""

STORE_TRIES = 3
STORE_WAIT_S = 0.5
"""Tries of the store, and the pause between them, before the pods are read: a busy server may answer later."""
RETRY_AFTER_S = 2.0
POD_LINES_MAX = 10_000
"""Limit of lines that are read from one pod: its last ones."""
PODS_BYTES_MAX = 32 * 1024 * 1024
"""Limit of bytes that are read from all pods of an allocation for one answer."""

INBOX_MAX = 8
"""Limit of pages of lines that wait for a slow client."""

_FRACTION = re.compile(r"\.(\d+)")

Emit = Callable[[Sequence[LogLineView]], Awaitable[None]]
StandsAt = Callable[[str], Awaitable[None]]
BEGINNING = "0-0"
"""The cursor before the first line of any log."""
T = TypeVar("T")


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The lines that a client wants; None means all.

    `since` and `until` are epoch seconds. `search` is a text in any case, or a pattern. `is_reversed` puts the newest
    line first; `tail` still selects the newest lines. `after` and `before` are cursors: their own lines are left out.
    """

    ranks: frozenset[int] | None = None
    attempt: int | None = None
    container: str = ""
    """name of an init container or a sidecar; empty for the main container"""
    streams: frozenset[str] | None = None
    search: str | Pattern | None = None
    is_reversed: bool = False
    since: float | None = None
    until: float | None = None
    tail: int | None = None
    head: int | None = None
    after: str | None = None
    before: str | None = None

    def has(self, line: LogLineView) -> bool:
        """Whether the client wants the line."""
        if self.ranks is not None and line.rank not in self.ranks:
            return False
        if line.container != self.container:
            return False
        if line.missing:
            return self.attempt is None or line.attempt == self.attempt
        if self.streams is not None and line.stream not in self.streams:
            return False
        if self.attempt is not None and line.attempt != self.attempt:
            return False
        if self.search is not None and not _is_found(self.search, line.text):
            return False
        at = parse_time(line.time) if line.time and (self.since, self.until) != (None, None) else None
        return at is None or ((self.since is None or at >= self.since) and (self.until is None or at < self.until))

    @property
    def is_of_all(self) -> bool:
        """Whether every line is wanted, so that the last lines of the log are also the last wanted lines."""
        asked = (self.ranks, self.attempt, self.streams, self.search, self.since, self.until)
        return not self.container and all(each is None for each in asked)

    @property
    def lines_of_pod(self) -> int:
        """The number of last lines to request from a pod."""
        return self.tail if self.tail and self.is_of_all else POD_LINES_MAX


class LogFeed:
    """Reads and follows log lines."""

    def __init__(self, logs: LogLines, kube: Kube, lookup: Lookup, clock: Clock) -> None:
        self._logs = logs
        self._kube = kube
        self._lookup = lookup
        self._clock = clock

    async def containers(self, allocation: Allocation) -> set[str]:
        """Return the init containers and sidecars with stored lines."""
        positions = await self._asked(lambda: self._logs.positions(id_of(allocation)))
        return {source.container for source in positions if source.container}

    async def page(self, allocation: Allocation, wanted: LogFilter) -> list[LogLineView]:
        """Return the lines that exist now, in the wanted order: at most `LINES_MAX`, not counting marks of gaps.

        If there are more, these are the oldest lines, or the newest with `tail` or `is_reversed`. The next page begins
        after the last cursor; the next older page ends before the oldest one. A page of the oldest lines ends with a
        line and not with a mark, because a mark has no cursor: the mark is sent with the line behind it.
        """
        is_newest = wanted.head is None and (wanted.tail is not None or wanted.is_reversed)
        limit = LINES_MAX if wanted.head is None else wanted.head
        if is_newest and wanted.tail is not None:
            limit = wanted.tail
        is_backwards = is_newest and wanted.is_reversed
        found: deque[LogLineView] = deque(maxlen=limit if is_newest and not is_backwards else None)
        open_: list[LogLineView] = []
        unread: list[LogLineView] = []
        if limit:
            open_ = await self.marks_of_open(allocation, wanted) if wanted.before is None else []
            async with aclosing(self.pages(allocation, wanted)) as pages:
                async for lines in pages:
                    unread += filter(_is_of_unread, lines)
                    found.extend(line for line in lines if not _is_of_unread(line))
                    if is_backwards and len(found) > 2 * limit:
                        found = deque(_last(found, limit))
                    if not is_newest and len(found) >= limit and _count(found) >= limit:
                        break
        lines = _last(found, limit) if is_backwards else list(found) if is_newest else _first(found, limit)
        if len(lines) < len(found) and wanted.head is None and not any(line.cursor for line in lines):
            # Lines of pods have no cursor for a next page, so the newest lines are the most useful ones.
            lines = [_older_left_out(found[-limit]), *list(found)[-limit:]]
        if wanted.tail is not None and not is_backwards:
            lines = lines[-wanted.tail :] if wanted.tail else []
        is_to_the_end = limit > 0 and wanted.before is None and (is_newest or len(lines) == len(found))
        if is_to_the_end and not (lines and all(line.cursor == "" for line in lines)):
            # Lines without any cursor come from the pods, and already contain marks where they are cut.
            lines += open_
        lines += unread
        return lines[::-1] if wanted.is_reversed else lines

    async def marks_of_open(self, allocation: Allocation, wanted: LogFilter) -> list[LogLineView]:
        """Return a mark for each log of an ended allocation that is not stored to its end.

        Empty while the store does not answer. Call it before reading the lines: then a log without a mark is read to
        its end.
        """
        status = allocation.status
        if status.phase is not Phase.TERMINATED:
            return []
        until = parse_time(status.ended_at) + ENDS_S if status.ended_at else 0.0
        while True:
            try:
                positions = await self._logs.positions(id_of(allocation))
            except TransientError:
                return []
            open_, now = open_logs(allocation, positions), self._clock.now()
            if not open_ or not until - ENDS_S <= now < until:
                return _open_marks(allocation, wanted, open_, now=now)
            await self._clock.sleep(ENDS_LOOK_S)

    async def pages(self, allocation: Allocation, wanted: LogFilter) -> AsyncGenerator[list[LogLineView]]:
        """Yield all wanted lines that exist now, oldest first, with the marks of gaps.

        Raises:
            TransientError: neither the store nor the pods can be read, or the store stopped answering half-way.
        """
        is_begun = wanted.after is not None or wanted.before is not None
        try:
            async with aclosing(self._stored(allocation, wanted)) as pages:
                async for lines in pages:
                    is_begun = True
                    yield lines
        except TransientError as error:
            # Lines of pods have no cursor, so they cannot continue after the last line of the store.
            if is_begun:
                raise
            found = await self._of_pods(allocation, wanted)
            if found.why_unread and _may_have_printed(allocation):
                raise UnavailableError(
                    f"the log cannot be read now: its store does not answer, and {found.why_unread} ({error})",
                    retry_after_s=RETRY_AFTER_S,
                ) from error
            yield found.lines
            return
        if not is_begun:
            yield (await self._of_pods(allocation, wanted)).lines

    async def _stored(self, allocation: Allocation, wanted: LogFilter) -> AsyncGenerator[list[LogLineView]]:
        """Yield the pages of the store that have lines."""
        id_, cursor = id_of(allocation), wanted.after
        positions = await self._asked(lambda: self._logs.positions(id_))
        # The newest lines can be read from the end, unless unwanted lines are between them.
        is_tail = wanted.after is None and wanted.before is None and wanted.tail is not None and wanted.is_of_all
        if is_tail and not any(source.container for source in positions):
            stored = await self._asked(lambda: self._logs.tail(id_, limit=max(1, wanted.tail or 0)))
            if stored:
                yield await _chosen(stored, wanted, GapFinder(positions, is_whole=False))
                return
        gaps = GapFinder(positions, is_whole=wanted.after is None)
        while True:
            after = cursor
            stored = await self._asked(lambda after=after: self._logs.read(id_, after=after, limit=LINES_AT_ONCE))
            if stored:
                cursor = stored[-1].cursor
                wished = stored if wanted.before is None else _older(stored, wanted.before)
                yield await _chosen(wished, wanted, gaps)
                if len(wished) < len(stored):
                    return
            if len(stored) < LINES_AT_ONCE:
                return

    async def _asked(self, ask: Callable[[], Awaitable[T]], *, tries: int = STORE_TRIES) -> T:
        """Return the answer of the store, with a few retries. Raises the error of the last try."""
        for _ in range(tries - 1):
            try:
                return await ask()
            except TransientError:
                await self._clock.sleep(STORE_WAIT_S)
        return await ask()

    async def follow(
        self, allocation: Allocation, wanted: LogFilter, emit: Emit, stands_at: StandsAt | None = None
    ) -> None:
        """Emit all present and new lines, until the allocation has ended and all lines were sent.

        A client that continues after a cursor gets all lines behind it, also with `tail`. `stands_at` is called with
        the cursor at which following begins when `tail` leaves no line to emit.
        """
        if wanted.after is not None:
            wanted = msgspec.structs.replace(wanted, tail=None)
        inbox = asyncio.Queue[list[LogLineView]](INBOX_MAX)
        session = _Session(allocation, wanted)
        async with TaskGroup() as tasks:
            source = tasks.create_task(self._source(session, inbox))
            try:
                await self._drain(session, inbox, emit, stands_at)
            finally:
                source.cancel()

    async def _drain(
        self,
        session: "_Session",
        inbox: asyncio.Queue[list[LogLineView]],
        emit: Emit,
        stands_at: StandsAt | None,
    ) -> None:
        looked_at = quiet_since = self._clock.monotonic()
        is_over = session.allocation.status.phase is Phase.TERMINATED
        tail = session.wanted.tail
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    lines = await inbox.get()
                quiet_since = self._clock.monotonic()
                if tail is not None:
                    is_only_unread = bool(lines) and all(map(_is_of_unread, lines))
                    lines, tail = _newest(lines, tail), tail if is_only_unread else None
                if lines:
                    await emit(lines)
                elif stands_at is not None and session.begins_at is not None:
                    await stands_at(session.begins_at)
                continue
            except TimeoutError:
                pass
            now = self._clock.monotonic()
            if not is_over and now - looked_at >= LOOK_S:
                is_over, looked_at = await self._has_ended(session), now
                quiet_since = now if is_over else quiet_since
            if is_over and await self._is_complete(session, now - quiet_since, emit) and inbox.empty():
                await self._say_open(session, emit)
                return

    async def _say_open(self, session: "_Session", emit: Emit) -> None:
        """Emit, at the end of following, the marks of logs that are not stored to their end.

        If the store has no log, or does not answer, each rank that ran gets a mark, unless the client has got lines.
        """
        try:
            positions = await self._logs.positions(id_of(session.allocation))
        except TransientError:
            positions = {}
        if positions or not (session.has_met_any or session.is_of_pods):
            open_ = open_logs(session.allocation, positions)
            marks = _open_marks(session.allocation, session.wanted, open_, now=self._clock.now())
            if marks:
                await emit(marks)

    async def _is_complete(self, session: "_Session", quiet_s: float, emit: Emit) -> bool:
        """Whether all lines of an ended allocation were sent, or no further line will arrive.

        If no line was ever stored, the lines of the pods are sent, while the pods exist.
        """
        if session.gaps is None or quiet_s >= END_S:
            return quiet_s >= SETTLE_S
        try:
            positions = await self._logs.positions(id_of(session.allocation))
            # Lines and positions are stored together, so a line behind the cursor now has still to be sent.
            rest = await self._logs.read(id_of(session.allocation), after=session.cursor, limit=1)
        except TransientError:
            return False
        is_stored = not rest and not open_logs(session.allocation, positions)
        if positions or not _may_have_printed(session.allocation):
            return is_stored
        if quiet_s < SETTLE_S:
            return False
        tail = None if session.has_met_any else session.wanted.tail
        fresh = await self._new_of_pods(session)
        lines = fresh.lines if tail is None else _newest(fresh.lines, tail)
        if lines:
            session.is_of_pods = not fresh.why_unread
            await emit(lines)
        return is_stored or not fresh.why_unread

    async def _gaps(self, allocation: Allocation, wanted: LogFilter) -> GapFinder:
        return GapFinder(await self._logs.positions(id_of(allocation)), is_whole=wanted.after is None)

    async def _source(self, session: "_Session", inbox: asyncio.Queue[list[LogLineView]]) -> None:
        """Put lines into the inbox: from the stream, or from the pods while the stream is unavailable."""
        allocation, wanted = session.allocation, session.wanted
        cursor = wanted.after
        is_first, is_away = True, False
        while True:
            try:
                if session.gaps is None:
                    session.gaps = await self._gaps(allocation, wanted)
                if is_first and wanted.tail is not None and cursor is None and not session.has_met_any:
                    # The client gets the last lines that exist now, and then all new lines.
                    session.cursor = cursor = await self._start_with_tail(session, inbox)
                is_first = False
                async with aclosing(self._logs.follow(id_of(allocation), after=cursor)) as found:
                    async for page in found:
                        cursor = page[-1].cursor
                        fresh = [each for each in page if session.is_new(each.line)]
                        lines = await _chosen(fresh, wanted, session.gaps, is_told=session.was_polled)
                        if lines:
                            await inbox.put(lines)
                        session.cursor = cursor
            except TransientError:
                # Lines that came from pods are not sent again from the store, even if the pods had only the last ones.
                is_away = not await self._answers(id_of(allocation), tries=1 if is_away else STORE_TRIES)
                if is_away:
                    await self._poll_pods(session, inbox)
                await self._clock.sleep(LOOK_S)

    async def _answers(self, id_: AllocationId, *, tries: int) -> bool:
        """Whether the store answers."""
        try:
            await self._asked(lambda: self._logs.positions(id_), tries=tries)
        except TransientError:
            return False
        return True

    async def _start_with_tail(self, session: "_Session", inbox: asyncio.Queue[list[LogLineView]]) -> str | None:
        allocation, wanted, tail = session.allocation, session.wanted, session.wanted.tail or 0
        found: deque[LogLineView] = deque(maxlen=tail)
        cursor: str | None = None
        last: dict[LogKey, LogLine] = {}
        gaps = await self._gaps(allocation, wanted)
        while True:
            after = cursor
            stored = await self._asked(
                lambda after=after: self._logs.read(id_of(allocation), after=after, limit=LINES_AT_ONCE)
            )
            if stored:
                cursor = stored[-1].cursor
                last |= {each.line.source: each.line for each in stored}
                found.extend(await _chosen(stored, wanted, gaps))
            if len(stored) < LINES_AT_ONCE:
                break
        # The lines are recorded only here: if the store fails half-way, the next try has to read all of them again.
        for line in last.values():
            session.is_new(line)
        session.gaps, session.begins_at = gaps, cursor or BEGINNING
        await inbox.put(list(found))
        return cursor

    async def _has_ended(self, session: "_Session") -> bool:
        try:
            session.allocation = await self._lookup.reload(session.allocation)
        except NotFoundError:
            return True
        except (TransientError, DeniedError):
            return False
        return session.allocation.status.phase is Phase.TERMINATED

    async def _poll_pods(self, session: "_Session", inbox: asyncio.Queue[list[LogLineView]]) -> None:
        """Put the new lines of the pods into the inbox."""
        fresh = await self._new_of_pods(session)
        if fresh.lines:
            await inbox.put(fresh.lines)

    async def _new_of_pods(self, session: "_Session") -> "_PodLogs":
        """Return the new lines of the pods, for each rank those after its own last line."""
        wanted = session.wanted
        if session.has_met_any:
            # After the first lines, `tail` must not drop any new line.
            wanted = msgspec.structs.replace(wanted, tail=None)
        try:
            found = await self._of_pods(session.allocation, wanted)
        except TransientError:
            return _PodLogs([], "the pods cannot be listed")
        return found._replace(lines=session.take_polled(found.lines))

    async def _of_pods(self, allocation: Allocation, wanted: LogFilter) -> "_PodLogs":
        """Return the wanted lines of the existing pods. Raises TransientError when the pods cannot be listed."""
        selector = f"{LABEL_ALLOCATION_UID}={allocation.metadata.uid}"
        pods = await self._kube.list(PODS, namespace=allocation.metadata.namespace, label_selector=selector)
        found, bytes_read, is_any = list[list[LogLineView]](), 0, False
        unread, why_unread = list[LogLineView](), "no pod has the log"
        for pod in pods.items:
            run = _RankRun.of(pod, wanted.container)
            if wanted.ranks is not None and run.rank not in wanted.ranks:
                continue
            if wanted.attempt not in (None, run.attempt):
                continue
            if bytes_read >= PODS_BYTES_MAX:
                most = f"{PODS_BYTES_MAX // 2**20} MiB"
                begun_at = pod.metadata.creation_timestamp or ""
                found.append([run.mark(begun_at, "lines of this rank are not shown here", most)])
                continue
            try:
                text = await self._of_pod(pod, wanted)
            except (TransientError, PermanentError) as error:
                unread.append(run.mark_of_unread(_why_unread(error)))
                why_unread = f"no log can be read from the nodes: {_why_unread(error)}"
                continue
            if text is not None:
                is_any, bytes_read = True, bytes_read + len(text)
                found.append(run.lines(text, wanted))
        return _PodLogs([*_merged(found), *_bounded(unread)], "" if is_any else why_unread)

    async def _of_pod(self, pod: Pod, wanted: LogFilter) -> bytes | None:
        """Return the log of a pod; None when it has none: not started yet, gone, or without that container.

        Raises TransientError or PermanentError when it may have a log, and the log cannot be read.
        """
        meta = pod.metadata
        container = wanted.container or meta.annotations.get(ANNOTATION_MAIN_CONTAINER, "")
        try:
            return await self._kube.read_log(
                meta.namespace, meta.name, container=container, tail_lines=wanted.lines_of_pod
            )
        except NotFoundError:
            return None
        except ControlPlaneError as error:
            has_none = isinstance(error, InvalidError) and bool(wanted.container)
            if has_none or not _has_begun(pod, container):
                return None
            raise


def _has_begun(pod: Pod, container: str) -> bool:
    """Whether the container was created on its node, so that it may have a log. An empty name: the main container."""
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    known = next((each for each in statuses if container in ("", each.name)), None)
    return pod.status.phase != "Pending" if known is None else bool(known.container_id)


def _why_unread(error: ControlPlaneError) -> str:
    match error:
        case DeniedError():
            return "the api has no permission to read logs of pods"
        case ThrottledError():
            return "too many requests to the API server"
        case DeadlineError():
            return "no answer in time"
        case PermanentError():
            return "the API server refuses the request"
        case _:
            return "the API server or the node does not answer"


class _PodLogs(NamedTuple):
    """What the pods of an allocation have of its log."""

    lines: list[LogLineView]
    """the wanted lines, all ranks merged by time, with marks where they are cut, and then a mark for each log that
    cannot be read"""
    why_unread: str
    """why no log was read; empty when at least one was"""


def _merged(logs: Iterable[Sequence[LogLineView]]) -> list[LogLineView]:
    """Merge the logs of ranks by time. Each log keeps its own order, even if the clock of its node was changed."""
    found: list[tuple[tuple[float, str], LogLineView]] = []
    for log in logs:
        newest = (0.0, "")
        for line in log:
            newest = max(newest, _moment(line.time))
            found.append((newest, line))
    found.sort(key=lambda each: each[0])
    return [line for _, line in found]


def _moment(time: str) -> tuple[float, str]:
    """Return (epoch seconds, nine digits of their fraction): nodes write different offsets and numbers of digits."""
    if not time:
        return 0.0, ""
    fraction = _FRACTION.search(time)
    return parse_time(_FRACTION.sub("", time)), fraction[1][:9].ljust(9, "0") if fraction else "0" * 9


def _may_have_printed(allocation: Allocation) -> bool:
    return allocation.status.release is not None or allocation.status.attempt > 1


def _older_left_out(first: LogLineView) -> LogLineView:
    run = _RankRun(first.attempt, first.rank, first.container)
    return run.mark(first.time, "older lines are not shown here", f"the last {LINES_MAX} lines of all ranks together")


class _RankRun(NamedTuple):
    """A container of a rank in an attempt."""

    attempt: int
    rank: int
    container: str

    @classmethod
    def of(cls, pod: Pod, container: str) -> "_RankRun":
        labels = pod.metadata.labels
        return cls(number_label(labels, LABEL_ATTEMPT), number_label(labels, LABEL_RANK), container)

    def lines(self, text: bytes, wanted: LogFilter) -> list[LogLineView]:
        """Return the wanted lines of a log from the kubelet, with marks where it is cut."""
        all_: list[LogLineView] = []
        for each in text.removesuffix(b"\n").split(b"\n") if text else ():
            all_.append(self.line(each.decode("utf-8", "replace"), before=all_[-1].time if all_ else ""))
        found = [line for line in all_ if wanted.has(line)]
        if all_ and len(all_) >= POD_LINES_MAX and wanted.lines_of_pod == POD_LINES_MAX:
            most = f"the last {POD_LINES_MAX} lines of a rank"
            found.insert(0, self.mark(all_[0].time, "older lines of this rank are not shown here", most))
        if all_ and len(text) >= LOG_BYTES_MAX:
            most = f"{LOG_BYTES_MAX // 2**20} MiB of a rank"
            found.append(self.mark(all_[-1].time, "newer lines of this rank are not shown here", most))
        return found

    def line(self, text: str, *, before: str = "") -> LogLineView:
        """Parse a line of the kubelet: the time, a blank, the text.

        Text that a node inserts between lines has no time, and gets the time of the line before. A progress bar
        rewrites its line with carriage returns: only the newest state is returned, as from the store.
        """
        time, _, rest = text.partition(" ")
        try:
            parse_time(time)
        except ValueError:
            time, rest = before, text
        rest = rest.rstrip("\r").rpartition("\r")[2]
        return LogLineView(
            attempt=self.attempt, rank=self.rank, stream=STDOUT, time=time, text=rest, container=self.container
        )

    def mark(self, time: str, what: str, most: str) -> LogLineView:
        """Return the mark that tells readers where an answer from a pod is cut."""
        text = f"{what}: this answer comes from the nodes, not from the store of logs, and is limited to {most}"
        return LogLineView(
            attempt=self.attempt, rank=self.rank, stream=EVENT, time=time, text=text, container=self.container
        )

    def mark_of_unread(self, why: str) -> LogLineView:
        """Return the mark that tells readers why no line of this log is shown. It belongs to no time."""
        text = f"the log of this rank cannot be read from its node now: {why}"
        return LogLineView(
            attempt=self.attempt, rank=self.rank, stream=EVENT, time="", text=text, container=self.container
        )


class _Session:
    """The state of one client that follows: what was sent to it."""

    def __init__(self, allocation: Allocation, wanted: LogFilter) -> None:
        self.allocation = allocation
        self.wanted = wanted
        self.cursor = wanted.after
        """cursor of the last entry whose lines were sent, or wait in the inbox"""
        self.begins_at: str | None = None
        """with `tail`: cursor of the last entry that existed when following began"""
        self.gaps: GapFinder | None = None
        """None until the store has answered"""
        self.is_of_pods = False
        """whether no line was stored and the lines of the pods were sent instead"""
        self._newest_s: dict[_RankRun, float] = {}
        """{rank: time of its newest line from the store, epoch seconds}"""
        self._polled_s: dict[_RankRun, float] = {}
        """{rank: time of its newest line from its pod, epoch seconds}"""
        self._polled_attempt = 0
        """the latest attempt with lines from pods"""
        self._timeless: set[tuple[_RankRun, str]] = set()
        """lines without a time: a kubelet may answer with such a message instead of a log"""
        self._last: dict[LogKey, int] = {}

    def is_new(self, line: LogLine) -> bool:
        """Whether this line of the store is new. A store that lost its lines is filled again, and repeats lines."""
        if line.number <= 0 or line.stream != STDOUT:
            return True
        source = line.source
        if line.number <= self._last.get(source, 0):
            return False
        self._last[source] = line.number
        if line.time:
            run = _RankRun(line.attempt, line.rank, line.container)
            self._newest_s[run] = max(self._newest_s.get(run, 0.0), parse_time(line.time))
        return True

    @property
    def has_met_any(self) -> bool:
        """Whether the client has got any line so far."""
        return bool(self._newest_s or self._polled_s)

    def was_polled(self, line: LogLine) -> bool:
        """Whether this line of the store was already read from the pod, while the store was unavailable.

        With `tail` this includes lines of earlier attempts: they are before the last lines, which came from the pods.
        """
        if self.wanted.tail is not None and line.attempt < self._polled_attempt:
            return True
        polled_s = self._polled_s.get(_RankRun(line.attempt, line.rank, line.container))
        return polled_s is not None and bool(line.time) and parse_time(line.time) <= polled_s

    def take_polled(self, lines: Iterable[LogLineView]) -> list[LogLineView]:
        """Return the lines of pods, in their order, that have come neither from the pods nor from the store before."""
        known = {**self._newest_s, **{run: max(at, self._newest_s.get(run, at)) for run, at in self._polled_s.items()}}
        fresh: list[LogLineView] = []
        for line in lines:
            run, at = _RankRun(line.attempt, line.rank, line.container), parse_time(line.time) if line.time else None
            if at is not None:
                if at <= known.get(run, 0.0):
                    continue
                self._polled_s[run] = max(self._polled_s.get(run, 0.0), at)
                self._polled_attempt = max(self._polled_attempt, line.attempt)
            elif (run, line.text) in self._timeless:
                continue
            else:
                self._timeless.add((run, line.text))
            fresh.append(line)
        return fresh


def open_logs(allocation: Allocation, positions: Mapping[LogKey, LogPosition]) -> list[LogKey]:
    """Return the logs that are not stored to their end.

    It checks each log that the store has, and the log of each rank that ran in the last attempt.
    """
    status = allocation.status
    ran = {
        LogKey(attempt=status.attempt, rank=rank)
        for rank, each in enumerate(status.ranks or ())
        if each.exit_code is not None
    }
    logs = {source for source in positions if source.stream == STDOUT} | ran
    beginning = LogPosition()
    found = [source for source in logs if not positions.get(source, beginning).is_ended]
    return sorted(found, key=lambda source: (source.attempt, source.rank, source.container))


def _open_marks(allocation: Allocation, wanted: LogFilter, open_: Sequence[LogKey], *, now: float) -> list[LogLineView]:
    """Return one mark for each wanted log that is not stored to its end, with the rank of that log."""
    mine = [
        source
        for source in open_
        if (wanted.ranks is None or source.rank in wanted.ranks)
        and source.container == wanted.container
        and wanted.attempt in (None, source.attempt)
    ]
    ended_at = allocation.status.ended_at or ""
    whose = f"container {wanted.container}" if wanted.container else "this rank"
    if ended_at and now - parse_time(ended_at) < MAY_COME_S:
        text = f"the log of {whose} is not stored to its end yet: lines may be missing here; read it again later"
    else:
        text = f"the log of {whose} is not stored to its end: some of its lines are lost, or no longer stored"
    marks = [
        LogLineView(
            attempt=source.attempt, rank=source.rank, stream=EVENT, time=ended_at, text=text, container=source.container
        )
        for source in mine
    ]
    return _bounded(marks)


def _bounded(marks: Sequence[LogLineView]) -> list[LogLineView]:
    """Return the first `OPEN_SAID_MAX` marks; the last of them has the number of the others."""
    shown = list(marks[:OPEN_SAID_MAX])
    if len(marks) > OPEN_SAID_MAX:
        text = f"{shown[-1].text}; {len(marks) - OPEN_SAID_MAX} other logs are incomplete too"
        shown[-1] = msgspec.structs.replace(shown[-1], text=text)
    return shown


async def _chosen(
    stored: Sequence[StoredLine],
    wanted: LogFilter,
    gaps: GapFinder,
    *,
    is_told: Callable[[LogLine], bool] = lambda _: False,
) -> list[LogLineView]:
    """Return the wanted lines, with marks where lines are missing. Lines that the client already has are left out.

    It yields to the event loop regularly, because a search through many lines takes long.
    """
    found: list[LogLineView] = []
    looked_at = 0
    for each in stored:
        looked_at += len(each.line.text)
        if looked_at > CHARS_AT_ONCE:
            looked_at = 0
            await asyncio.sleep(0)
        if gaps.is_known(each.line):
            # A store that lost the position of a log is filled again with lines of the same numbers.
            continue
        mark = gaps.before(each.line)
        if is_told(each.line):
            continue
        if mark is not None:
            view = _view(StoredLine(cursor="", line=mark))
            if wanted.has(view):
                found.append(view)
        view = _view(each)
        if wanted.has(view):
            found.append(view)
    return found


def _count(lines: Iterable[LogLineView]) -> int:
    """Return the number of lines without marks of gaps."""
    return sum(1 for line in lines if not _is_mark(line))


def _first(lines: Iterable[LogLineView], limit: int) -> list[LogLineView]:
    """Return the first `limit` lines, with the marks before them."""
    found: list[LogLineView] = []
    for line in lines:
        if limit <= 0:
            break
        found.append(line)
        limit -= not _is_mark(line)
    return found


def _last(lines: Iterable[LogLineView], limit: int) -> list[LogLineView]:
    """Return the last `limit` lines with the marks between them, and with the mark that belongs to the oldest of them.

    Any other mark before the oldest line belongs to a line that is not wanted, which is on the next older page.
    """
    found = list(lines)
    at, left = len(found), limit
    while at and left > 0:
        at -= 1
        left -= not _is_mark(found[at])
    if left > 0:
        return found
    if at and _is_mark_of(found[at - 1], found[at]):
        at -= 1
    return found[at:]


def _is_mark_of(mark: LogLineView, line: LogLineView) -> bool:
    """Whether the mark says that lines are missing directly before this line."""
    is_same_log = (mark.attempt, mark.rank, mark.container) == (line.attempt, line.rank, line.container)
    return bool(mark.missing) and is_same_log and mark.number + mark.missing == line.number


def _older(stored: Sequence[StoredLine], before: str) -> Sequence[StoredLine]:
    """Return the lines before a cursor."""
    end = cursor_parts(before)
    return [each for each in stored if cursor_parts(each.cursor) < end]


def next_cursor(lines: Sequence[LogLineView], wanted: LogFilter) -> str:
    """Return the cursor for the next page: of newer lines, or of older lines when the newest line is first.

    Empty when no older line is left. A mark has no cursor.
    """
    if wanted.is_reversed and wanted.head is None:
        is_beginning = _count(lines) < (LINES_MAX if wanted.tail is None else wanted.tail)
        return "" if is_beginning else next((line.cursor for line in reversed(lines) if line.cursor), "")
    oldest_first = lines[::-1] if wanted.is_reversed else lines
    return next((line.cursor for line in reversed(oldest_first) if line.cursor), wanted.after or "")


def _is_mark(line: LogLineView) -> bool:
    """Whether the line is a mark of missing lines and no line of the log."""
    return bool(line.missing) or (line.stream == EVENT and not line.cursor)


def _is_of_unread(line: LogLineView) -> bool:
    """Whether the line is the mark of a log that cannot be read: the only mark from the pods without a time."""
    return _is_mark(line) and not line.missing and not line.time


def _newest(lines: Sequence[LogLineView], limit: int) -> list[LogLineView]:
    """Return the last `limit` lines, and the marks of logs that cannot be read, which do not count."""
    read = [line for line in lines if not _is_of_unread(line)]
    return [*(read[-limit:] if limit else []), *filter(_is_of_unread, lines)]


def _is_found(search: str | Pattern, text: str) -> bool:
    return search.casefold() in text.casefold() if isinstance(search, str) else search.is_in(text)


def _view(stored: StoredLine) -> LogLineView:
    line = stored.line
    return LogLineView(
        cursor=stored.cursor,
        attempt=line.attempt,
        rank=line.rank,
        stream=line.stream,
        time=line.time,
        text=line.text,
        container=line.container,
        number=line.number,
        missing=line.missing,
    )
