"""Copies the logs of pods to `slipway:logs:{AllocationID}`: follows them while they run, and reads them to the end.

Owns which logs are followed, when their reading has to hurry, and when a pod's object may be deleted. `loglines.py`
decides what a line is. The store decides which lines are retained, and makes sure that no line is stored twice.

Promises
- The process with the lease follows the logs of running pods. Any process reads the log of an ended pod to its end
  before it removes the pod's finalizer. So it does not matter which process led while the log was written.
- A log is read no faster than its lines are stored: unread lines wait on their node. If a log is written faster than it
  can be stored, for so long that its node would remove lines unread, lines are left out and counted: a reader finds the
  number of missing lines in their place. The last lines are always stored.
- Following a log never delays other work, a bug in it stops no other part, and one rank's log never displaces lines of
  another rank.
- The object of an ended pod is kept while its log is being read, for a bounded time.

Lossy by declaration: lines that are written while Redis is unreachable for longer than an ended pod is kept, and lines
that a node has removed before they were read. The log reports that such lines are missing, or may be.
"""

import asyncio
import math
from collections.abc import Callable

import msgspec

from slipway.crd.members import rank_count
from slipway.crd.meta import ANNOTATION_ADDED, LABEL_ALLOCATION, LABEL_ALLOCATION_UID, LABEL_RANK
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.objects import ContainerStatus, Pod
from slipway.model.ids import AllocationId
from slipway.model.times import format_time, parse_time
from slipway.pods.ended import attempt_of
from slipway.runtime import liveness, log, service
from slipway.runtime.clock import Clock
from slipway.runtime.tasks import TaskGroup
from slipway.streams.logpacks import STDOUT, LogKey, LogPack, LogPosition, share_of
from slipway.watcher import exits
from slipway.watcher.informers import Informers
from slipway.watcher.logarchiver import LogArchiver
from slipway.watcher.logfollower import (
    NODE_FILE_BYTES,
    OTHERS_S,
    RETRY_S,
    FollowerDeps,
    LogFollower,
    LogPackWriter,
    ended_at,
    event_pack,
    has_ended,
    status_of,
    unread_text,
)
from slipway.watcher.ports import LogReader, LogStore

FAULTS_MAX = 3
DRAIN_PARTS = 3
"""A pod is kept for at most so many times the drain time
while its log makes progress; after half of that, lines are left out."""
AGAIN_S = 5.0
"""If a node sends nothing of a log that has ended, the log is requested again after this time."""
SAY_S = 2.0
"""The time for a line that reports that a log is given up, before its pod is deleted."""
STORE_AWAY_S = 30.0
"""An ended pod is kept for so long while the store does not answer, so that no launch waits longer without Redis."""
CLOSE_WITHIN_S = 600.0
"""`close` marks the logs of an allocation as ended only up to this time after the end of the allocation."""
SHOWN_S = 5.0
"""Without a store, an ended pod is kept for so long, because readers get its log from its node."""
HAND_OVER_S = 2.0
"""A process that stops still reads the logs of ending pods for so long."""
EXTRA_PART = 4
"""The log of an init container or a sidecar gets 1/EXTRA_PART of a rank's share."""

_log = log.get_logger(__name__)

Key = tuple[str, str]
"""(uid of the pod, name of the container in the store: empty for the main one)"""


class LogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of log copying.

    `enabled` is False without Redis, because there is no store for lines. `bytes_max` is the space in the store for the
    logs of one allocation; `node_file_bytes` is the size at which a node begins a new log file.
    """

    followers_max: int = 1000
    drain_s: float = 60.0
    bytes_max: int = 64 * 1024 * 1024
    node_file_bytes: int = NODE_FILE_BYTES
    enabled: bool = True


class _Wait(msgspec.Struct):
    """How long this process has waited for the logs of an ended pod (monotonic seconds)."""

    began_at: float
    asked_at: float = 0.0
    """when its drain time began"""
    looked_at: float = 0.0
    away_since: float = math.inf
    """since when the store has not answered; infinite while it answers"""

    def __post_init__(self) -> None:
        self.asked_at = self.looked_at = self.began_at


class PodLogs:
    """Follows the logs of our pods while `serve` runs. `woken(uid, delay)` queues an allocation for a reconcile."""

    def __init__(
        self,
        reader: LogReader,
        store: LogStore,
        informers: Informers,
        clock: Clock,
        *,
        limits: LogLimits,
        woken: Callable[[str, float], None],
    ) -> None:
        self.writer = LogPackWriter(store)
        self._archiver: LogArchiver | None = None
        self._deps = FollowerDeps(
            reader=reader,
            store=store,
            writer=self.writer,
            informers=informers,
            clock=clock,
            leads=lambda: self._leads,
            room=self._room,
            node_file_bytes=limits.node_file_bytes,
        )
        self._informers = informers
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
        """uids of pods that were seen in this term before they had a log, so none of their lines is stored yet"""
        self._ended: dict[str, set[str]] = {}
        """{uid of an allocation: its pods whose log was stored to its end in this term}"""
        self._closed: set[str] = set()
        """uids of allocations whose logs are known to have ends, as long as `close` would check them"""
        self._faults: dict[Key, int] = {}
        """{log of a pod that exists: how often reading it has failed, until it is read}"""
        self._waits: dict[str, _Wait] = {}
        """{uid of a pod: the wait for its logs}"""

    def archive_with(self, archiver: LogArchiver) -> None:
        """Also archive the lines that are stored; the end of a pod then waits for the archive."""
        self._archiver = archiver
        self.writer.stored = archiver.note_stored

    async def _room(self, pack: LogPack) -> None:
        if self._archiver is not None:
            await self._archiver.wait_for_room(pack)

    async def serve(self) -> None:
        """Store the lines of all followers, until cancelled; followers run only while this does."""
        async with TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self.writer.run()
            finally:
                self._tasks = None
                for task in self._running.values():
                    task.cancel()

    async def lead(self) -> None:
        """Follow the logs of all running pods, until cancelled."""
        self._leads = True
        try:
            for pod in self._informers.pods.items():
                self.observe(pod)
            with liveness.rest():
                await asyncio.Event().wait()
        finally:
            self._leads = False
            self._fresh.clear()
            self._ended.clear()
            for (uid, _), task in list(self._running.items()):
                pod = self._informers.pods.by_uid(uid)
                if pod is None or not _is_ending(pod):
                    task.cancel()

    def observe(self, pod: Pod) -> None:
        """Note a new or changed pod: follow its logs if it has any, and this process leads."""
        for container in ("", *_others(pod)):
            follower = self._followers.get((pod.metadata.uid, container))
            if follower is not None:
                follower.news.set()
        if self._leads:
            # A rank that was added to a running gang, or restarted, may continue a log that the store has.
            if not _logs_of(pod) and ANNOTATION_ADDED not in pod.metadata.annotations:
                self._fresh.add(pod.metadata.uid)
            self._start(pod)

    def forget(self, pod: Pod) -> None:
        """Note that the pod's object is gone, and its logs with it.

        Lines that were read are still stored. A log that was not read to its end gets a line that reports that.
        """
        uid = pod.metadata.uid
        self._start(pod)
        self._drained.pop(uid, None)
        self._waits.pop(uid, None)
        self._fresh.discard(uid)
        for key, follower in self._followers.items():
            if key[0] == uid:
                follower.gone_at = self._clock.monotonic()
                follower.news.set()
        for key in [key for key in self._faults if key[0] == uid and key not in self._followers]:
            del self._faults[key]

    def is_open(self, pod: Pod) -> bool:
        """Whether the logs of the pod's running containers are being read, or cannot or need not be.

        When the pod is deleted, its node removes the logs, and only those that are open then are read to their end.
        """
        if not self._limits.enabled or not self._leads:
            return True
        uid = pod.metadata.uid
        mine = (
            self._followers.get((uid, source)) for source, container in _logs_of(pod) if not has_ended(pod, container)
        )
        return all(each is None or each.is_open or each.is_store_away for each in mine)

    def is_drained(self, pod: Pod) -> bool:
        """Whether the logs of the pod's ended containers are read, or need not be, or the wait for them was long
        enough.

        When nothing arrives, the log is requested again. Later, lines are left out. At last it is given up, and the log
        reports that.
        """
        uid, drain_s = pod.metadata.uid, self._limits.drain_s
        if not self._limits.enabled:
            return self._was_shown(pod)
        sources = self._unread(pod)
        if not sources:
            self._waits.pop(uid, None)
            return self._is_archived(pod)
        self._start(pod)
        mine = [follower for source in sources if (follower := self._followers.get((uid, source))) is not None]
        now = self._clock.monotonic()
        wait = self._waits.setdefault(uid, _Wait(now))
        # This is called at least twice in that time. If it was not, this process stood still and read nothing.
        stood_still = now - wait.looked_at > drain_s
        is_store_away = any(follower.is_store_away for follower in mine)
        if stood_still or is_store_away:
            wait.asked_at = now
        wait.away_since = min(wait.away_since, now) if is_store_away and not stood_still else math.inf
        wait.looked_at, asked_at = now, wait.asked_at
        moved_at = max((follower.moved_at for follower in mine), default=asked_at)
        until = max(asked_at, min(moved_at, asked_at + drain_s * (DRAIN_PARTS - 1))) + drain_s
        if wait.away_since < math.inf:
            until = wait.away_since + STORE_AWAY_S
        if now >= until:
            for follower in mine:
                follower.give_up(f"it did not arrive within {now - wait.began_at:.0f} s")
            if not mine or now >= until + SAY_S:
                return True
            self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), until + SAY_S - now)
            return False
        look_at, again_s = until, min(AGAIN_S, drain_s / 2)
        for follower in mine:
            follower.is_hurried = now - asked_at >= drain_s * DRAIN_PARTS / 2
            # Lines that were read and wait for the store are no stall:
            # after a new request the node may have removed them.
            stalls_at = max(asked_at, follower.waits_since, follower.cut_at) + again_s
            if now >= stalls_at:
                follower.end_read()
            look_at = min(look_at, max(stalls_at, now + again_s))
        self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), look_at - now)
        return False

    def _is_archived(self, pod: Pod) -> bool:
        labels = pod.metadata.labels
        allocation, uid = AllocationId(labels.get(LABEL_ALLOCATION, "")), labels.get(LABEL_ALLOCATION_UID, "")
        return self._archiver is None or self._archiver.is_archived(allocation, uid)

    def _was_shown(self, pod: Pod) -> bool:
        """Whether readers of the log have had time to read it
        from the node, because without a store it is only there."""
        age_s = self._clock.now() - ended_at(pod, exits.main_name(pod))
        if pod.metadata.deletion_timestamp is not None or not 0.0 <= age_s < SHOWN_S:
            return True
        self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), SHOWN_S - age_s)
        return False

    async def close(self) -> None:
        """Mark logs as ended that have no end although their pods are gone, and report in them that lines are missing.

        The watcher that read them was killed, and the rest of their lines is lost. Raises what the store raises.
        """
        now, looked_at = self._clock.now(), set[str]()
        for allocation in self._informers.allocations.items() if self._limits.enabled else ():
            uid, status = allocation.metadata.uid, allocation.status
            age_s = now - parse_time(status.ended_at) if status.ended_at else 0.0
            if not OTHERS_S <= age_s < CLOSE_WITHIN_S or self._informers.pods_of(uid):
                continue
            looked_at.add(uid)
            pods = {rank.pod_uid for rank in status.ranks or ()}
            is_known = uid in self._closed or (bool(pods) and pods <= self._ended.get(uid, set()))
            self._ended.pop(uid, None)
            if not is_known:
                await self._close(allocation)
                liveness.beat()
            self._closed.add(uid)
        self._closed &= looked_at
        for uid in [uid for uid in self._ended if self._informers.allocations.by_uid(uid) is None]:
            del self._ended[uid]

    async def _close(self, allocation: Allocation) -> None:
        id_, status, now = id_of(allocation), allocation.status, format_time(self._clock.now(), "microseconds")
        positions = await self._deps.store.positions(id_)
        open_ = {source: position for source, position in positions.items() if source.stream == STDOUT}
        for rank, each in enumerate(status.ranks or ()):
            if each.exit_code is not None:
                open_.setdefault(LogKey(attempt=status.attempt, rank=rank), LogPosition())
        for source, position in open_.items():
            if position.is_ended:
                continue
            text = f"{now} {unread_text(source, 'its pod was deleted before its log was stored to its end')}"
            last = LogPack(
                allocation=id_,
                source=source,
                after=position,
                first=position.number + 1,
                lines=[],
                position=msgspec.structs.replace(position, is_ended=True),
                share_bytes=self._limits.bytes_max,
            )
            await self.writer.write(event_pack(id_, source, text, f"unread {allocation.metadata.uid} {source.name}", 1))
            await self.writer.write(last)

    async def settle(self) -> None:
        """Wait at most the drain time for the logs of ended pods; then give up the rest."""
        drain_s = self._limits.drain_s
        for uid, source in await self._wait_for(lambda pod: exits.exit_of(pod) is not None, drain_s):
            self._followers[uid, source].give_up(f"it did not arrive within {drain_s:.0f} s")
        await self._wait_for(lambda pod: exits.exit_of(pod) is not None, SAY_S)

    async def hand_over(self) -> None:
        """Wait a moment for the logs of ending pods, because the next process may find them removed."""
        await self._wait_for(_is_ending, min(HAND_OVER_S, self._limits.drain_s))

    async def _wait_for(self, wanted: Callable[[Pod], bool], timeout_s: float) -> list[Key]:
        """Wait for the followers of these pods; return the keys of those that still read."""
        reading = {
            task: key
            for key, task in self._running.items()
            if (pod := self._informers.pods.by_uid(key[0])) is not None and wanted(pod)
        }
        if not reading:
            return []
        _, still = await asyncio.wait(reading, timeout=timeout_s)
        return [reading[task] for task in still]

    def _unread(self, pod: Pod) -> list[str]:
        """Return the names in the store of logs that have ended and are not read."""
        done = self._drained.get(pod.metadata.uid, set())
        return [source for source, container in _logs_of(pod) if source not in done and has_ended(pod, container)]

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
                self._deps,
                pod=pod,
                source=LogKey(attempt=attempt_of(pod.metadata), rank=_rank_of(pod), container=source),
                container=container,
                is_fresh=uid in self._fresh,
                share_bytes=self._share(pod) // (EXTRA_PART if source else 1),
            )
            self._running[key] = self._tasks.create_task(self._run(key, follower), name=f"log:{pod.metadata.name}")

    def _share(self, pod: Pod) -> int:
        allocation = self._informers.allocations.by_uid(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""))
        return share_of(self._limits.bytes_max, rank_count(allocation) if allocation is not None else 1)

    async def _run(self, key: Key, follower: "LogFollower") -> None:
        uid, source = key
        pod, is_done = follower.pod, False
        try:
            # A log may be silent for ever. `is_drained` waits for its end for `drain_s`, and then gives up.
            liveness.leave()
            is_done = await service.guarded("log", follower.run())
        finally:
            self._followers.pop(key, None)
            self._running.pop(key, None)
        if not is_done:
            faults = self._faults[key] = self._faults.get(key, 0) + 1
            # The log of a pod that is gone is not read again.
            is_done = faults >= FAULTS_MAX or self._informers.pods.by_uid(uid) is None
            if is_done:
                await service.guarded("log", follower.abandon(f"reading it has failed, tries: {faults}"))
        if is_done:
            self._faults.pop(key, None)
            if self._leads and not source and follower.has_end:
                self._ended.setdefault(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), set()).add(uid)
            if self._informers.pods.by_uid(uid) is not None:
                self._drained.setdefault(uid, set()).add(source)
        self._woken(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""), 0.0 if is_done else RETRY_S)


def _is_ending(pod: Pod) -> bool:
    """Whether the pod has ended, or is being deleted, so that its node removes its log soon."""
    return exits.is_over(pod) or pod.metadata.deletion_timestamp is not None


def _logs_of(pod: Pod) -> list[tuple[str, str]]:
    """Return (name in the store, container) of each log that the pod has."""
    main = _container_to_read(pod)
    found = [("", main)] if main is not None else []
    return [*found, *((name, name) for name in _others(pod) if _has_log(status_of(pod, name)))]


def _others(pod: Pod) -> list[str]:
    """Return the names of the init containers and sidecars."""
    main = exits.main_name(pod)
    return [each.name for each in (*pod.spec.init_containers, *pod.spec.containers) if each.name != main]


def _has_log(status: ContainerStatus | None) -> bool:
    if status is None:
        return False
    ended = status.state.terminated
    return status.state.running is not None or (ended is not None and ended.started_at is not None)


def _container_to_read(pod: Pod) -> str | None:
    """Return the container of the most useful log:
    the main container once it has started, else a failed init container."""
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
