"""Logs of pods -> `slipway:logs:{AllocationID}`: followed while they run, and read to the end.

Owns which pods are followed, and how far each log has been read. Lossy by declaration: beyond the stream's cap, while
Redis is away, of lines with the same nanosecond as the last one before a restart, and of a container's last second
when the server broke off its log in that very second as if it had ended.

Promises: one process at a time does this (the one with the lease); a restart goes on after the last line that was
stored, without repeating one; the object of an ended pod is kept until its log has been read to the end, for a while
at most; following never delays anything else.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION, LABEL_ALLOCATION_UID, LABEL_RANK
from slipway.errors import ControlPlaneError, InvariantError, PermanentError, TransientError
from slipway.kube.objects import ContainerStatus, Pod
from slipway.model.ids import AllocationId
from slipway.model.times import parse_time
from slipway.runtime import log
from slipway.runtime.clock import Clock
from slipway.streams.ports import LogLine
from slipway.watcher import exits
from slipway.watcher.gang import attempt_of
from slipway.watcher.ports import LineSink, LogReader, LogTail
from slipway.watcher.world import World

STREAM = "stdout"
"""The API of Kubernetes gives both streams as one."""
TAIL_LINES = 200
"""Stored lines that are looked through for the place to go on from."""
RETRY_S = 0.5
RETRIES_MAX = 5
STANDBY_DRAIN_S = 3.0
SETTLE_S = 1.0
"""Between the end of a log and the news that its container has ended: without any, the log is followed again."""
_FRACTION_DIGITS = 9

_log = log.get_logger(__name__)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`enabled` is False without Redis: there is nowhere to put a line."""

    followers_max: int = 1000
    drain_s: float = 10.0
    enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class LogStore:
    """Where lines go, and what is there already."""

    sink: LineSink
    tail: LogTail


class PodLogs:
    """Follows the logs of our pods while `run` runs. `woken(uid, delay)` asks for another look at an allocation."""

    def __init__(
        self,
        reader: LogReader,
        store: LogStore,
        world: World,
        clock: Clock,
        *,
        limits: Limits,
        woken: Callable[[str, float], None],
    ) -> None:
        self._reader = reader
        self._sink = store.sink
        self._tail = store.tail
        self._world = world
        self._clock = clock
        self._limits = limits
        self._woken = woken
        self._tasks: asyncio.TaskGroup | None = None
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._drained: set[str] = set()
        self._asked_at: dict[str, float] = {}
        self._news: dict[str, asyncio.Event] = {}
        """{uid of a pod whose log has been followed to its end: set when the pod changes}"""
        self._fresh: set[str] = set()
        """pods seen in this term before they had a log: nobody can have stored a line of theirs"""

    async def run(self) -> None:
        """Until cancelled. Raises InvariantError only."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                for pod in self._world.pods.items():
                    self.observe(pod)
                await asyncio.Event().wait()
            finally:
                self._tasks = None
                for follower in self._followers.values():
                    follower.cancel()
                self._followers.clear()
                self._fresh.clear()

    def observe(self, pod: Pod) -> None:
        """The pod is there: follow its log if it has one to follow."""
        uid = pod.metadata.uid
        if uid in self._news:
            self._news[uid].set()
        if self._tasks is None or not self._limits.enabled or uid in self._followers or uid in self._drained:
            return
        if LABEL_ALLOCATION_UID not in pod.metadata.labels:
            return
        if _container_to_read(pod) is None:
            self._fresh.add(uid)
            return
        if len(self._followers) >= self._limits.followers_max and not exits.is_over(pod):
            return
        self._followers[uid] = self._tasks.create_task(self._follow(pod), name=f"log:{pod.metadata.name}")

    def gone(self, pod: Pod) -> None:
        """The pod's object is gone."""
        uid = pod.metadata.uid
        self._drained.discard(uid)
        self._asked_at.pop(uid, None)
        self._fresh.discard(uid)
        follower = self._followers.pop(uid, None)
        if follower is not None:
            follower.cancel()

    def is_drained(self, pod: Pod) -> bool:
        """Whether an ended pod's log has been read, or need not be, or has been waited for long enough."""
        uid = pod.metadata.uid
        if not self._limits.enabled or uid in self._drained or _container_to_read(pod) is None:
            return True
        asked_at = self._asked_at.setdefault(uid, self._clock.monotonic())
        # A replica that does not follow logs leaves the one that does some time, and no more.
        patience_s = self._limits.drain_s if self._tasks is not None else min(self._limits.drain_s, STANDBY_DRAIN_S)
        left_s = asked_at + patience_s - self._clock.monotonic()
        if left_s <= 0:
            return True
        self.observe(pod)
        self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), left_s)
        return False

    async def settle(self) -> None:
        """Wait, not for long, for the logs of what has ended."""
        ended = [
            follower
            for uid, follower in self._followers.items()
            if (pod := self._world.pods.by_uid(uid)) is not None and exits.exit_of(pod) is not None
        ]
        if ended:
            await asyncio.wait(ended, timeout=self._limits.drain_s)

    async def _follow(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        try:
            await self._read_to_end(pod)
            self._drained.add(uid)
        except InvariantError:
            raise
        except ControlPlaneError as error:
            _log.warning("log given up", pod=pod.metadata.name, error=str(error))
            self._drained.add(uid)
        finally:
            self._followers.pop(uid, None)
        self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), 0.0)

    async def _read_to_end(self, pod: Pod) -> None:
        """Follow, and once the container has ended read what is left, unless it ended before the log did."""
        is_fresh = pod.metadata.uid in self._fresh
        self._fresh.discard(pod.metadata.uid)
        cursor = _Cursor(pod, [] if is_fresh else await self._times(pod))
        failures, read_until = 0, 0.0
        while True:
            pod = self._world.pods.by_uid(pod.metadata.uid) or pod
            container = _container_to_read(pod)
            if container is None:
                return
            try:
                if _has_ended(pod, container):
                    if not 0.0 < _ended_at(pod, container) <= read_until:
                        await self._read(pod, container, cursor)
                    await self._sink.flush()
                    return
                await self._stream(pod, container, cursor)
                failures, read_until = 0, self._clock.now()
            except (TransientError, PermanentError) as error:
                # What was followed before says nothing of what came meanwhile: the node's clock may be behind ours.
                failures, read_until = failures + 1, 0.0
                if failures > RETRIES_MAX or (isinstance(error, PermanentError) and _has_ended(pod, container)):
                    raise
                await self._clock.sleep(RETRY_S * failures)
            else:
                await self._hear_of(pod, container)

    async def _hear_of(self, pod: Pod, container: str) -> None:
        """Wait for news of a pod whose log has ended, unless it is known why it has."""
        uid = pod.metadata.uid
        if _has_ended(self._world.pods.by_uid(uid) or pod, container):
            return
        news = self._news[uid] = asyncio.Event()
        try:
            async with asyncio.timeout(SETTLE_S):
                await news.wait()
        except TimeoutError:
            return
        finally:
            del self._news[uid]

    async def _read(self, pod: Pod, container: str, cursor: "_Cursor") -> None:
        meta = pod.metadata
        data = await self._reader.read_log(meta.namespace, meta.name, container=container, since_time=cursor.since)
        cursor.rewind()
        for raw in data.splitlines():
            self._take(raw, cursor)

    async def _stream(self, pod: Pod, container: str, cursor: "_Cursor") -> None:
        meta = pod.metadata
        lines = self._reader.follow_log(meta.namespace, meta.name, container=container, since_time=cursor.since)
        cursor.rewind()
        async for raw in lines:
            self._take(raw, cursor)

    def _take(self, raw: bytes, cursor: "_Cursor") -> None:
        line = cursor.line(raw)
        if line is not None:
            self._sink.offer_line(cursor.allocation, line)

    async def _times(self, pod: Pod) -> list[str]:
        """The times of the last stored lines of this rank and attempt."""
        try:
            stored = await self._tail.tail(_allocation_of(pod), limit=TAIL_LINES)
        except TransientError:
            return []
        mine = (attempt_of(pod), _rank_of(pod))
        return [
            _comparable(item.line.time)
            for item in stored
            if (item.line.attempt, item.line.rank) == mine and item.line.stream == STREAM
        ]


class _Cursor:
    """How far one log has been read: up to so many lines of one time, as several lines may have the same."""

    def __init__(self, pod: Pod, times: Sequence[str]) -> None:
        self.allocation = _allocation_of(pod)
        self._attempt = attempt_of(pod)
        self._rank = _rank_of(pod)
        self._last = max(times, default="")
        self._known = times.count(self._last)
        self._met = 0

    @property
    def since(self) -> str:
        """Where to ask from: Kubernetes takes whole seconds, so lines that are known come again."""
        return f"{self._last[:19]}Z" if self._last else ""

    def rewind(self) -> None:
        """What is read from here on begins at `since`."""
        self._met = 0

    def line(self, raw: bytes) -> LogLine | None:
        """The line, unless it is known already or is none."""
        stamp, _, text = raw.decode("utf-8", "replace").partition(" ")
        at = _comparable(stamp)
        if not at or at < self._last:
            return None
        if at > self._last:
            self._last, self._known, self._met = at, 0, 0
        self._met += 1
        if self._met <= self._known:
            return None
        self._known = self._met
        return LogLine(attempt=self._attempt, rank=self._rank, stream=STREAM, time=at, text=text.rstrip("\r"))


def _container_to_read(pod: Pod) -> str | None:
    """The container whose log tells most: the main one once it has started, else an init container that failed."""
    if exits.has_started(pod):
        return exits.main_name(pod)
    for status in pod.status.init_container_statuses:
        ended = status.state.terminated
        if ended is not None and ended.exit_code != 0:
            return status.name
    return None


def _has_ended(pod: Pod, container: str) -> bool:
    found = _status_of(pod, container)
    return exits.is_over(pod) or (found is not None and found.state.terminated is not None)


def _ended_at(pod: Pod, container: str) -> float:
    """When its node says that it ended (epoch seconds, cut to whole ones); 0 when it does not say."""
    found = _status_of(pod, container)
    ended = found.state.terminated if found is not None else None
    return parse_time(ended.finished_at) if ended is not None and ended.finished_at else 0.0


def _status_of(pod: Pod, container: str) -> ContainerStatus | None:
    statuses: list[ContainerStatus] = [*pod.status.init_container_statuses, *pod.status.container_statuses]
    return next((status for status in statuses if status.name == container), None)


def _allocation_of(pod: Pod) -> AllocationId:
    return AllocationId(pod.metadata.labels.get(LABEL_ALLOCATION, ""))


def _rank_of(pod: Pod) -> int:
    text = pod.metadata.labels.get(LABEL_RANK, "")
    return int(text) if text.isdigit() else -1


def _comparable(stamp: str) -> str:
    """An RFC 3339 time as UTC with nine digits, so that times compare as text; empty when it is none."""
    if len(stamp) < 20 or stamp[10] != "T":
        return ""
    if not stamp.endswith("Z"):
        try:
            moment = datetime.fromisoformat(stamp).astimezone(UTC)
        except ValueError:
            return ""
        stamp = moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
    whole, _, fraction = stamp[:-1].partition(".")
    return f"{whole}.{fraction[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, '0')}Z"
