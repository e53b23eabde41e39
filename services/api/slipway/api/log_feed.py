"""The log lines of one allocation: from its stream, or straight from its pods where there is no stream.

Owns which lines a client asked for (rank, attempt, since), and when following ends. Lines of the pods themselves have
no cursor: they can not be resumed by id.

Not promised: lines beyond the stream's cap, and lines of a pod that is gone while Redis is away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from slipway.api.lookup import Lookup
from slipway.api.pattern import Pattern
from slipway.api.ports import Kube
from slipway.api.schemas import LogLineView
from slipway.api.view import number_label
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import ControlPlaneError, DeniedError, NotFoundError, TransientError
from slipway.kube.objects import Pod
from slipway.kube.resources import PODS
from slipway.model.lifecycle import Phase
from slipway.model.times import parse_time
from slipway.runtime.clock import Clock
from slipway.streams.ports import LogLines, StoredLine

LINES_MAX = 10_000
LINES_DEFAULT = 1000
CHARS_AT_ONCE = 65_536
"""How much is searched before others get their turn."""
LOOK_S = 0.5
"""How often following looks whether the allocation has ended."""
SETTLE_S = 1.0
"""How long after the end lines may still arrive."""

Emit = Callable[[LogLineView], Awaitable[None]]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines: None means all. `since` and `until` are epoch seconds; `search` is a text in any case, or a pattern.

    `is_reversed` puts the newest first, and with `tail` it is still the newest that are meant.
    """

    ranks: frozenset[int] | None = None
    attempt: int | None = None
    streams: frozenset[str] | None = None
    search: str | Pattern | None = None
    is_reversed: bool = False
    since: float | None = None
    until: float | None = None
    tail: int | None = None
    head: int | None = None
    after: str | None = None

    def has(self, line: LogLineView) -> bool:
        """Whether the line was asked for."""
        if self.ranks is not None and line.rank not in self.ranks:
            return False
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
        """Whether every line is wanted, so that the last lines are the last of those that were asked for."""
        asked = (self.ranks, self.attempt, self.streams, self.search, self.since, self.until)
        return all(each is None for each in asked)


class LogFeed:
    """Reads and follows log lines."""

    def __init__(self, logs: LogLines, kube: Kube, lookup: Lookup, clock: Clock) -> None:
        self._logs = logs
        self._kube = kube
        self._lookup = lookup
        self._clock = clock

    async def page(self, allocation: Allocation, wanted: Wanted) -> list[LogLineView]:
        """The lines that there are now, in the order that was asked for."""
        try:
            lines = await self._stored(allocation, wanted)
        except TransientError:
            lines = None
        if lines is None or (not lines and wanted.after is None):
            lines = await self._of_pods(allocation, wanted)
        found = await _chosen(lines, wanted)
        if wanted.head is not None:
            found = found[: wanted.head]
        if wanted.tail is not None:
            found = found[-wanted.tail :] if wanted.tail else []
        return found[::-1] if wanted.is_reversed else found

    async def follow(self, allocation: Allocation, wanted: Wanted, emit: Emit) -> None:
        """Emit the lines that there are and those that come, until the allocation has ended and is quiet."""
        seen = await self.page(allocation, wanted)
        for line in seen:
            await emit(line)
        inbox = asyncio.Queue[LogLineView](LINES_MAX)
        cursor = seen[-1].cursor if seen and seen[-1].cursor else wanted.after
        since = max((parse_time(line.time) for line in seen if line.time), default=None)
        async with asyncio.TaskGroup() as tasks:
            source = tasks.create_task(self._source(allocation, cursor, since, bool(seen), inbox))
            try:
                await self._drain(allocation, wanted, inbox, emit)
            finally:
                source.cancel()

    async def _drain(
        self, allocation: Allocation, wanted: Wanted, inbox: asyncio.Queue[LogLineView], emit: Emit
    ) -> None:
        looked_at = quiet_since = self._clock.monotonic()
        is_over = allocation.status.phase is Phase.TERMINATED
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    line = await inbox.get()
                quiet_since = self._clock.monotonic()
                if wanted.has(line):
                    await emit(line)
            except TimeoutError:
                pass
            now = self._clock.monotonic()
            if not is_over and now - looked_at >= LOOK_S:
                is_over, looked_at = await self._has_ended(allocation), now
                quiet_since = now if is_over else quiet_since
            if is_over and now - quiet_since >= SETTLE_S and inbox.empty():
                return

    async def _has_ended(self, allocation: Allocation) -> bool:
        try:
            return (await self._lookup.again(allocation)).status.phase is Phase.TERMINATED
        except NotFoundError:
            return True
        except (TransientError, DeniedError):
            return False

    async def _source(
        self,
        allocation: Allocation,
        cursor: str | None,
        since: float | None,
        has_seen: bool,
        inbox: asyncio.Queue[LogLineView],
    ) -> None:
        """New lines into the inbox: from the stream, and while that is away from the pods."""
        is_of_pods = has_seen and cursor is None
        while True:
            try:
                async with aclosing(self._logs.follow(id_of(allocation), after=cursor)) as found:
                    async for stored in found:
                        cursor = stored.cursor
                        line = _view(stored)
                        is_old = is_of_pods and since is not None and line.time and parse_time(line.time) <= since
                        if not is_old:
                            await inbox.put(line)
            except TransientError:
                since = await self._poll_pods(allocation, since, inbox)
                await self._clock.sleep(LOOK_S)

    async def _poll_pods(
        self, allocation: Allocation, since: float | None, inbox: asyncio.Queue[LogLineView]
    ) -> float | None:
        """What the pods have said after `since`; answers the time of the last line."""
        lines = await self._of_pods(allocation, Wanted(since=since))
        newest = since
        for line in lines:
            at = parse_time(line.time) if line.time else None
            if since is not None and at is not None and at <= since:
                continue
            newest = max(newest or 0.0, at or 0.0)
            await inbox.put(line)
        return newest

    async def _stored(self, allocation: Allocation, wanted: Wanted) -> list[LogLineView]:
        allocation_id = id_of(allocation)
        if wanted.after is None and wanted.tail is not None and wanted.is_of_all:
            return [_view(stored) for stored in await self._logs.tail(allocation_id, limit=max(1, wanted.tail))]
        found: list[LogLineView] = []
        cursor = wanted.after
        while len(found) < LINES_MAX:
            page = await self._logs.read(allocation_id, after=cursor, limit=LINES_DEFAULT)
            found += [_view(stored) for stored in page]
            if len(page) < LINES_DEFAULT:
                break
            cursor = page[-1].cursor
        return found

    async def _of_pods(self, allocation: Allocation, wanted: Wanted) -> list[LogLineView]:
        """The lines of the pods that are there, all ranks merged by time."""
        selector = f"{LABEL_ALLOCATION_UID}={allocation.metadata.uid}"
        try:
            pods = await self._kube.list(PODS, namespace=allocation.metadata.namespace, label_selector=selector)
        except TransientError:
            return []
        found: list[LogLineView] = []
        for pod in pods.items:
            if wanted.ranks is None or number_label(pod.metadata.labels, LABEL_RANK) in wanted.ranks:
                found += await self._of_pod(pod, wanted)
        found.sort(key=lambda line: line.time)
        return found

    async def _of_pod(self, pod: Pod, wanted: Wanted) -> list[LogLineView]:
        try:
            text = await self._kube.read_log(
                pod.metadata.namespace,
                pod.metadata.name,
                tail_lines=wanted.tail if wanted.tail and wanted.is_of_all else LINES_MAX,
            )
        except ControlPlaneError:
            return []  # not started yet, or gone
        rank, attempt = number_label(pod.metadata.labels, LABEL_RANK), number_label(pod.metadata.labels, LABEL_ATTEMPT)
        return [_pod_line(line, rank, attempt) for line in text.decode("utf-8", "replace").splitlines()]


async def _chosen(lines: Sequence[LogLineView], wanted: Wanted) -> list[LogLineView]:
    """Those that were asked for; others get their turn now and then, as a search through many lines takes a while."""
    found: list[LogLineView] = []
    looked_at = 0
    for line in lines:
        looked_at += len(line.text)
        if looked_at > CHARS_AT_ONCE:
            looked_at = 0
            await asyncio.sleep(0)
        if wanted.has(line):
            found.append(line)
    return found


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
    )


def _pod_line(line: str, rank: int, attempt: int) -> LogLineView:
    """A line as the kubelet gives it: the time, a blank, the text."""
    time, _, text = line.partition(" ")
    try:
        parse_time(time)
    except ValueError:
        time, text = "", line
    return LogLineView(attempt=attempt, rank=rank, stream="stdout", time=time, text=text)
