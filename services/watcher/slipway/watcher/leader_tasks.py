"""The tasks of the replica with the lease, for all replicas: the feed, lost streams, logs, Events, sweeps, retention.

Owns the intervals of these tasks. No allocation needs any of them to make progress.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from slipway.kube.lease import Leadership
from slipway.kube.scope import StopSignal
from slipway.runtime import liveness
from slipway.runtime.liveness import Loop
from slipway.runtime.tasks import TaskGroup
from slipway.watcher import loops, sweep
from slipway.watcher.event_recorder import EventRecorder
from slipway.watcher.feed import ClusterFeed
from slipway.watcher.informers import Informers
from slipway.watcher.logarchiver import LogArchiver
from slipway.watcher.podevents import PodEvents
from slipway.watcher.podlogs import PodLogs
from slipway.watcher.relay import Relay
from slipway.watcher.settings import Settings
from slipway.watcher.sweep import ArchiveSweeper, ClaimSweeper, Retention, Sweeper

UNSYNCED_PAUSE_S = 0.05
RETENTION_S = 60.0
RETENTION_MORE_S = 5.0
"""The pause after a round that deleted some:
more will be due soon, and many deletes at once would slow down launches."""
RETENTION_BUSY_S = 1.0
"""The pause after a round that left due allocations:
otherwise they would pile up if they end faster than they are deleted."""
CLAIMS_S = 600.0
SWEEP_BUSY_S = 10.0
"""The pause after a sweep of archives or claims that reached its maximum of deletes."""
SWEEP_PAUSE_S = 2.0
"""The least time between two sweeps, whatever requests them."""


class RunsLoop(Protocol):
    """The shared loop runner, bound to this process."""

    def __call__(
        self, what: Loop, step: Callable[[], Any], stop: StopSignal, *, max_backoff_s: float
    ) -> Coroutine[Any, Any, None]: ...


@dataclass(frozen=True, kw_only=True)
class LeaderParts:
    """The parts that do these tasks."""

    feed: ClusterFeed
    logs: PodLogs
    events: PodEvents
    sweeper: Sweeper
    archives: ArchiveSweeper
    claims: ClaimSweeper
    retention: Retention
    relay: Relay
    log_archiver: LogArchiver | None = None
    event_recorder: EventRecorder | None = None


class LeaderTasks:
    """Runs these tasks in each term of this process as the primary."""

    def __init__(self, parts: LeaderParts, informers: Informers, settings: Settings, *, loop: RunsLoop) -> None:
        self._parts = parts
        self._informers = informers
        self._settings = settings
        self._loop = loop
        self._orphans = asyncio.Event()
        self._streams_lost = asyncio.Event()

    async def run(self, leadership: Leadership, stop: StopSignal) -> None:
        """Run the tasks until `stop`, or until the term ends and this is cancelled."""
        parts = self._parts
        # At the beginning of a term, entries may be missing in the streams, as after a loss of Redis.
        self._streams_lost.set()
        async with TaskGroup() as tasks:
            running = [
                tasks.create_task(work)
                for work in (
                    self._loop(loops.FOLLOW_LOGS, parts.logs.lead, stop, max_backoff_s=5.0),
                    self._loop(loops.POD_EVENTS, parts.events.run, stop, max_backoff_s=5.0),
                    self._loop(loops.FEED, lambda: parts.feed.publish(leadership), stop, max_backoff_s=5.0),
                    self._loop(loops.STREAMS, self._restore_streams, stop, max_backoff_s=5.0),
                    self._loop(loops.SWEEP, self._sweep, stop, max_backoff_s=10.0),
                    self._loop(loops.RETENTION, self._run_retention, stop, max_backoff_s=60.0),
                    self._loop(loops.ARCHIVES, self._sweep_archives, stop, max_backoff_s=60.0),
                    self._loop(loops.CLAIMS, self._sweep_claims, stop, max_backoff_s=60.0),
                )
            ]
            if parts.log_archiver is not None:
                archiver = parts.log_archiver
                running += [
                    tasks.create_task(self._loop(loops.LOG_ARCHIVE, self._archive_logs, stop, max_backoff_s=5.0)),
                    tasks.create_task(self._loop(loops.LOG_EXPIRY, archiver.expire, stop, max_backoff_s=60.0)),
                ]
                archiver.begin()
            if parts.event_recorder is not None:
                recording = self._loop(loops.STORY, parts.event_recorder.run, stop, max_backoff_s=5.0)
                running.append(tasks.create_task(recording))
            try:
                await stop.wait()
            finally:
                if parts.log_archiver is not None:
                    parts.log_archiver.end()
            for task in running:
                task.cancel()

    async def once(self) -> None:
        """Make one sweep of each kind, and one round of retention."""
        await self._parts.sweeper.sweep()
        await self._parts.retention.step()
        await self._parts.archives.sweep()
        await self._parts.claims.sweep()

    def sweep_soon(self) -> None:
        """Sweep soon, because pods without an allocation were seen."""
        self._orphans.set()

    def streams_lost(self) -> None:
        """Check all streams soon, because Redis has lost data."""
        self._streams_lost.set()

    async def _restore_streams(self) -> None:
        """Wait for a loss, then check every stream; the next resync checks those that cannot be read now."""
        with liveness.rest(self._streams_lost.is_set):
            await self._streams_lost.wait()
        self._streams_lost.clear()
        await self._parts.relay.check_quietly(self._informers.allocations.items())

    async def _sweep(self) -> float:
        if not self._informers.is_synced:
            return UNSYNCED_PAUSE_S
        self._orphans.clear()
        await self._parts.sweeper.sweep()
        await self._parts.logs.close()
        pause_s = max(0.0, self._settings.sweep_interval_s - SWEEP_PAUSE_S)
        liveness.beat(pause_s)
        try:
            async with asyncio.timeout(pause_s):
                await self._orphans.wait()
        except TimeoutError:
            pass
        return SWEEP_PAUSE_S

    async def _run_retention(self) -> float:
        if not self._informers.is_synced:
            return UNSYNCED_PAUSE_S
        deleted = await self._parts.retention.step()
        if self._parts.retention.is_behind:
            return RETENTION_BUSY_S
        return RETENTION_MORE_S if deleted else RETENTION_S

    async def _archive_logs(self) -> float:
        if not self._informers.is_synced or self._parts.log_archiver is None:
            return UNSYNCED_PAUSE_S
        await self._parts.log_archiver.step()
        return 0.0

    async def _sweep_archives(self) -> float:
        if not self._informers.is_synced:
            return UNSYNCED_PAUSE_S
        removed = await self._parts.archives.sweep()
        return SWEEP_BUSY_S if removed >= sweep.CONTEXT_DELETES_MAX else self._parts.archives.pause_s

    async def _sweep_claims(self) -> float:
        if not self._informers.is_synced:
            return UNSYNCED_PAUSE_S
        removed = await self._parts.claims.sweep()
        return SWEEP_BUSY_S if removed >= sweep.DELETES_MAX else CLAIMS_S
