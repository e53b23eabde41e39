"""Logs of pods -> `slipway:logs:{AllocationID}`: followed while they run, and read to the end.

Owns which logs are followed, how fast they are read, and when a pod's object may go. What a line is belongs to
`loglines.py`; what is kept of a log, and that no line is stored twice, to the store.

Promises
- The process with the lease follows the logs of what runs. Any process reads the log of an ended pod to its end before
  it gives up the pod's finalizer, so a log does not depend on who led while it was written.
- A log is read no faster than its lines are stored: what waits, waits on its node. Of a log that is written faster than
  it can be stored for so long that its node would remove lines unread, lines are left out and counted: a reader finds
  the number of missing lines in their place. The last lines are kept in any case.
- Following never delays anything else, a fault in it ends nothing else, and the log of one rank costs no other a line.
- The object of an ended pod is kept while its log is being read, for a while at most.

Lossy by declaration: what is written while Redis is away for longer than an ended pod is kept, and what a node has
removed before it could be read.
"""

import asyncio
from collections.abc import Callable

import msgspec

from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_RANK
from slipway.kube.objects import ContainerStatus, Pod
from slipway.runtime import liveness, log, service
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams.logpacks import LogSource, share_of
from slipway.watcher import exits
from slipway.watcher.gang import attempt_of
from slipway.watcher.logfollower import RETRY_S, LogFollower, LogMeans, LogWriter, status_of
from slipway.watcher.ports import LogReader, LogStore
from slipway.watcher.world import World

FAULTS_MAX = 3
DRAIN_PARTS = 6
"""A pod is kept for so many times the drain time as long as its log moves on; half of it at full length."""
EXTRA_PART = 4
"""The log of an init container or a sidecar has this part of a rank's share."""

_log = log.get_logger(__name__)

Key = tuple[str, str]
"""(uid of the pod, name of the container in the store: empty for the main one)"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`enabled` is False without Redis: there is nowhere to put a line. `bytes_max` is what the logs of one allocation
    may take of the store."""

    followers_max: int = 1000
    drain_s: float = 10.0
    bytes_max: int = 64 * 1024 * 1024
    enabled: bool = True


class PodLogs:
    """Follows the logs of our pods while `serve` runs. `woken(uid, delay)` asks for another look at an allocation."""

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
        self.writer = LogWriter(store)
        self._means = LogMeans(reader=reader, store=store, writer=self.writer, world=world, clock=clock)
        self._world = world
        self._clock = clock
        self._limits = limits
        self._woken = woken
        self._tasks: TaskGroup | None = None
        self._leads = False
        self._followers: dict[Key, LogFollower] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._drained: dict[str, set[str]] = {}
        """{uid of a pod: its containers whose log is stored to the end, or given up}"""
        self._fresh: set[str] = set()
        """pods seen in this term before they had a log: none of their lines is stored"""
        self._faults: dict[Key, int] = {}
        self._asked_at: dict[str, float] = {}

    async def serve(self) -> None:
        """Until cancelled: store what is read, and read what is asked for."""
        async with TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self.writer.run()
            finally:
                self._tasks = None
                for task in self._running.values():
                    task.cancel()

    async def lead(self) -> None:
        """Until cancelled: follow the logs of everything that runs."""
        self._leads = True
        try:
            for pod in self._world.pods.items():
                self.observe(pod)
            with liveness.rest():
                await asyncio.Event().wait()
        finally:
            self._leads = False
            self._fresh.clear()
            for (uid, _), task in list(self._running.items()):
                pod = self._world.pods.by_uid(uid)
                if pod is None or not exits.is_over(pod):
                    task.cancel()

    def observe(self, pod: Pod) -> None:
        """The pod is there: follow its logs if there are any to follow, and this process leads."""
        for container in ("", *_others(pod)):
            follower = self._followers.get((pod.metadata.uid, container))
            if follower is not None:
                follower.news.set()
        if self._leads:
            if not _logs_of(pod):
                self._fresh.add(pod.metadata.uid)
            self._start(pod)

    def gone(self, pod: Pod) -> None:
        """The pod's object is gone: its logs cannot be read any more; what was read is still stored."""
        uid = pod.metadata.uid
        self._drained.pop(uid, None)
        self._asked_at.pop(uid, None)
        self._fresh.discard(uid)
        for key, follower in self._followers.items():
            if key[0] == uid:
                follower.is_gone = True
                follower.news.set()

    def is_drained(self, pod: Pod) -> bool:
        """Whether an ended pod's logs have been read, or need not be, or have been waited for long enough."""
        uid = pod.metadata.uid
        if not self._limits.enabled or self._is_read(pod):
            return True
        now = self._clock.monotonic()
        asked_at = self._asked_at.setdefault(uid, now)
        self._start(pod)
        mine = [follower for key, follower in self._followers.items() if key[0] == uid]
        moved_at = max((follower.moved_at for follower in mine), default=asked_at)
        if now - asked_at >= self._limits.drain_s * DRAIN_PARTS / 2:
            for follower in mine:
                follower.is_hurried = True
        until = max(asked_at, min(moved_at, asked_at + self._limits.drain_s * (DRAIN_PARTS - 1))) + self._limits.drain_s
        if now >= until:
            _log.warning(
                "logs of a pod not read to their end", pod=pod.metadata.name, waited_s=round(now - asked_at, 1)
            )
            return True
        self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), until - now)
        return False

    async def settle(self) -> None:
        """Wait, not for long, for the logs of what has ended."""
        ended = [
            task
            for (uid, _), task in self._running.items()
            if (pod := self._world.pods.by_uid(uid)) is not None and exits.exit_of(pod) is not None
        ]
        if ended:
            await asyncio.wait(ended, timeout=self._limits.drain_s)

    def _is_read(self, pod: Pod) -> bool:
        done = self._drained.get(pod.metadata.uid, set())
        return all(source in done for source, _ in _logs_of(pod))

    def _start(self, pod: Pod) -> None:
        if self._tasks is None or not self._limits.enabled or LABEL_ALLOCATION_UID not in pod.metadata.labels:
            return
        uid, done = pod.metadata.uid, self._drained.get(pod.metadata.uid, set())
        for source, container in _logs_of(pod):
            key = (uid, source)
            if key in self._followers or source in done:
                continue
            if len(self._followers) >= self._limits.followers_max and not exits.is_over(pod):
                continue
            self._followers[key] = follower = LogFollower(
                self._means,
                pod=pod,
                source=LogSource(attempt=attempt_of(pod), rank=_rank_of(pod), container=source),
                container=container,
                is_fresh=uid in self._fresh,
                share_bytes=self._share(pod) // (EXTRA_PART if source else 1),
            )
            self._running[key] = self._tasks.create_task(self._run(key, follower), name=f"log:{pod.metadata.name}")

    def _share(self, pod: Pod) -> int:
        allocation = self._world.allocations.by_uid(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""))
        ranks = sum(role.count for role in allocation.spec.ranks) if allocation is not None else 1
        return share_of(self._limits.bytes_max, ranks)

    async def _run(self, key: Key, follower: "LogFollower") -> None:
        uid, source = key
        pod, is_done = follower.pod, False
        try:
            # A log may be silent for ever. Who waits for its end has patience for `drain_s`, and gives up.
            liveness.leave()
            is_done = await service.guarded("log", follower.run())
        finally:
            self._followers.pop(key, None)
            self._running.pop(key, None)
        if not is_done:
            self._faults[key] = self._faults.get(key, 0) + 1
            is_done = self._faults[key] >= FAULTS_MAX
        if is_done:
            self._faults.pop(key, None)
            if self._world.pods.by_uid(uid) is not None:
                self._drained.setdefault(uid, set()).add(source)
        self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), 0.0 if is_done else RETRY_S)


def _logs_of(pod: Pod) -> list[tuple[str, str]]:
    """(its name in the store, its container) of each log that the pod has."""
    main = _container_to_read(pod)
    found = [("", main)] if main is not None else []
    return [*found, *((name, name) for name in _others(pod) if _has_log(status_of(pod, name)))]


def _others(pod: Pod) -> list[str]:
    """The init containers and sidecars."""
    main = exits.main_name(pod)
    return [each.name for each in (*pod.spec.init_containers, *pod.spec.containers) if each.name != main]


def _has_log(status: ContainerStatus | None) -> bool:
    if status is None:
        return False
    ended = status.state.terminated
    return status.state.running is not None or (ended is not None and ended.started_at is not None)


def _container_to_read(pod: Pod) -> str | None:
    """The container whose log tells most: the main one once it has started, else an init container that failed."""
    if exits.has_started(pod):
        return exits.main_name(pod)
    for status in pod.status.init_container_statuses:
        ended = status.state.terminated
        if ended is not None and ended.exit_code != 0:
            return status.name
    return None


def _rank_of(pod: Pod) -> int:
    text = pod.metadata.labels.get(LABEL_RANK, "")
    return int(text) if text.isdigit() else -1
