"""Composes one watcher from its stores, its queue and its loops.

Owns the wiring and the intervals. A process (`main.py`) uses it with real clients, the simulation with models.

The holder of the lease `slipway-feed` is the primary: it acts at once, and only it runs the tasks that one replica does
for all (`leader_tasks.py`). The standbys observe the same objects. After a short delay they do the work that is still
undone, so that no work waits for an election and nothing is written twice. A standby that finds undone work acts at
once for a while. The compare-and-swap makes any overlap harmless.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from slipway.accounting.daily_totals import is_booked, token_of
from slipway.crd.meta import TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import PermanentError, StaleError, TransientError
from slipway.kube.lease import LeaseElector, LeaseTiming
from slipway.kube.ports import KubeApi
from slipway.kube.reflector import CAUSE_REWOUND, Reflector
from slipway.kube.scope import StopSignal, run_until
from slipway.kube.workqueue import WorkQueue
from slipway.logarchive.archive import LogArchive
from slipway.model.lifecycle import Phase
from slipway.runtime import liveness, log, service, telemetry
from slipway.runtime.clock import Clock, Random
from slipway.runtime.health import ProcessHealth
from slipway.runtime.liveness import Loop
from slipway.runtime.tasks import TaskGroup
from slipway.streams.ports import Streams
from slipway.streams.producer import BestEffortWriter
from slipway.watcher import ends, loops
from slipway.watcher.consistent_reads import ConsistentReads
from slipway.watcher.event_dispatch import ChangeReceivers, EventDispatcher, ReplicaRole
from slipway.watcher.event_recorder import EventRecorder
from slipway.watcher.feed import ClusterFeed
from slipway.watcher.hints import HintSender, SchedulerWaker
from slipway.watcher.informers import Informers, fill
from slipway.watcher.leader_tasks import LeaderParts, LeaderTasks
from slipway.watcher.logarchiver import LogArchiver
from slipway.watcher.podevents import PodEvents
from slipway.watcher.podlogs import LogLimits, PodLogs
from slipway.watcher.reconcile import Reconciler, ReconcilerDeps
from slipway.watcher.relay import Relay
from slipway.watcher.settings import Settings
from slipway.watcher.sweep import ArchiveSweeper, ClaimSweeper, Retention, Sweeper
from slipway.watcher.usage_accounting import UsageAccounts

LEASE = "slipway-feed"
STALE_VIEW_S = loops.STILL_S
"""A watch is stale if no message, not even its end, has arrived for this long; a watch lasts at most a minute."""
UNSYNCED_PAUSE_S = 0.02
FULL_ROUND = 3
"""One in this many resyncs also queues Pending and Running allocations, whose changes the watches report anyway."""
RENEW_S, RENEW_PART = 4.0, 0.4
"""The longest time between two renewals: in seconds, and as a part of the renew deadline, so that a failed renewal has
two more tries. How soon another replica becomes the primary depends only on the lease's duration."""
ONCE_KEYS_MAX = 1000
"""The most keys that one pass (`--once`) handles, for each allocation."""

_log = log.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class WatcherDeps:
    """The dependencies of a watcher: real clients in a process, models in the simulation."""

    kube: KubeApi
    streams: Streams
    behind: BestEffortWriter
    clock: Clock
    random: Random
    health: ProcessHealth
    settings: Settings
    identity: str
    log_archive: LogArchive | None = None


class Watcher:
    """See the module's docstring. Call `run` or `run_once`, once per instance."""

    def __init__(self, parts: WatcherDeps) -> None:
        settings, clock = parts.settings, parts.clock
        has_redis = bool(settings.redis_url)
        self._parts = parts
        self._clock = clock
        self._settings = settings
        self._round = 0
        self.informers = Informers()
        self.queue: WorkQueue[str] = WorkQueue(parts.random)
        self.role = ReplicaRole(clock, standby_delay_s=settings.standby_delay_s, grace_s=settings.lease_duration_s)
        self.reflectors = [
            Reflector(parts.kube, resource, store, clock=clock, random=parts.random)
            for resource, store in self.informers.stores()
        ]
        self.relay = Relay(parts.streams.events, clock, enabled=has_redis)
        self._accounts = UsageAccounts(
            parts.kube,
            clock,
            namespace=settings.namespace,
            unmarked=self._unmarked,
            settled=self.queue.add,
        )
        self._hints = HintSender(parts.streams.hints, clock)
        self._waker = SchedulerWaker(parts.streams.wake, clock)
        self._logs = PodLogs(
            parts.kube,
            parts.streams.logs,
            self.informers,
            clock,
            limits=_log_limits(settings),
            woken=self.queue.add_after,
        )
        self._log_archiver = self._archiver()
        consistent_reads = ConsistentReads(parts.kube, self.informers)
        self._leader_tasks = LeaderTasks(self._leader_parts(), self.informers, parts.settings, loop=self._loop)
        self._reconciler = Reconciler(
            ReconcilerDeps(
                kube=parts.kube,
                informers=self.informers,
                consistent_reads=consistent_reads,
                queue=self.queue,
                outbox=self.relay,
                accounts=self._accounts,
                hints=self._hints,
                log_progress=self._logs,
                activity=parts.behind,
                clock=clock,
            ),
            policy=settings.policy(),
            relay_wait_s=settings.relay_wait_s,
            orphaned=self._leader_tasks.sweep_soon,
            wrote=self.role.stand_in,
            acts_first=lambda: self.role.delay_s == 0,
        )
        self._dispatch = EventDispatcher(
            self.informers,
            ChangeReceivers(
                queue=self.queue,
                relay=self.relay,
                hints=self._hints,
                waker=self._waker,
                logs=self._logs,
                consistent_reads=consistent_reads,
                reconciler=self._reconciler,
            ),
            self.role,
        )
        self._elector = _elector(parts)

    def why_not_ready(self) -> str | None:
        """Return why the view is not ready; None when it is complete and fresh."""
        if not self.informers.is_synced:
            return "the first LISTs are not complete"
        return "a watch has gone silent" if self._is_stale() else None

    async def run(self, stop: StopSignal) -> None:
        """Run all loops until `stop`."""
        async with TaskGroup() as tasks:
            for reflector in self.reflectors:
                # A watch without progress is no fault while the API server is unreachable, or just after it was.
                watch = loops.WATCH.of(reflector.plural)
                running = self._parts.health.supervise(
                    watch, partial(reflector.run, stop), since=lambda: self._elector.answered_since
                )
                tasks.create_task(running)
            for index in range(self._settings.reconcile_workers):
                tasks.create_task(self._loop(loops.RECONCILE.of(index), self._work, stop, max_backoff_s=1.0))
            steps = (
                (loops.RELAY, self.relay.step),
                (loops.HINTS, self._hints.step),
                (loops.BELL, self._waker.step),
                (loops.BOOKS, self._accounts.step),
            )
            for what, step in steps:
                tasks.create_task(self._loop(what, _until(stop, step), stop, max_backoff_s=2.0))
            handed_over = service.ServiceStop()
            logs = _until(handed_over, self._logs.serve)
            tasks.create_task(self._loop(loops.LOGS, logs, stop, max_backoff_s=1.0))
            tasks.create_task(self._loop(loops.RESYNC, self._resync, stop, max_backoff_s=5.0))
            tasks.create_task(self._loop(loops.LEASE, lambda: self._compete(stop), stop, max_backoff_s=5.0))
            await stop.wait()
            self.queue.shut_down()
            await self._logs.hand_over()
            handed_over.set()

    async def run_once(self) -> None:
        """Make one consistent LIST of each resource and one pass over all allocations; wait only for the end of logs.

        Raises:
            ControlPlaneError: a LIST failed.
        """
        self.role.alone = True
        await fill(self.informers, self._parts.kube)
        async with TaskGroup() as tasks:
            reading = tasks.create_task(self._logs.serve())
            following = tasks.create_task(self._logs.lead())
            await self._drain_queue()
            await self._logs.settle()
            # Allocations whose events are written and whose logs are read can lose their finalizer now.
            await self._flush()
            await self._drain_queue()
            following.cancel()
            reading.cancel()
        await self._leader_tasks.once()
        await self._flush()
        self.queue.shut_down()

    # --- the loops --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Handle one key of the queue."""
        if not self.informers.is_synced:
            await self._clock.sleep(UNSYNCED_PAUSE_S)
            return
        with liveness.rest(lambda: len(self.queue)):
            uid = await self.queue.get()
        if uid is None:
            return
        try:
            await self._reconciler.reconcile(uid)
        except StaleError:
            self.queue.retry(uid)
        except TransientError as error:
            delay_s = self.queue.retry(uid, at_least_s=error.retry_after_s or 0.0)
            _log.warning("allocation not reconciled", uid=uid, error=str(error), retry_in_s=delay_s)
        except PermanentError as error:
            delay_s = self.queue.retry(uid)
            _log.error("allocation refused", uid=uid, error=str(error), retry_in_s=delay_s)
        else:
            self.queue.forget(uid)
        finally:
            self.queue.done(uid)

    async def _resync(self) -> float:
        """Queue all allocations that are not at rest, and check every stream."""
        if not self.informers.is_synced:
            return UNSYNCED_PAUSE_S
        self._round += 1
        self._dispatch.enqueue_all(steady=self._round % FULL_ROUND == 0)
        if self._round == 1:
            # The first LISTs have queued every allocation. Those that have changed while no watcher ran come first.
            self.queue.put_first(self.informers.is_unsettled)
        allocations = self.informers.allocations.items()
        telemetry.STUCK.set(sum(map(self._is_stuck, allocations)) if self.role.is_primary else 0)
        if self.role.is_primary:
            await self.relay.check_quietly(allocations)
        return self._settings.resync_interval_s

    async def _compete(self, stop: StopSignal) -> None:
        async def lead(leadership: Any) -> None:
            self.role.leadership = leadership
            self._dispatch.enqueue_all()
            try:
                await self._leader_tasks.run(leadership, stop)
            finally:
                self.role.leadership = None

        await self._elector.run(lead, stop)

    async def _drain_queue(self) -> None:
        """Handle all allocations that are not at rest, and the keys that follow from that at once."""
        self._dispatch.enqueue_all()
        for _ in range(ONCE_KEYS_MAX * max(1, len(self.informers.allocations))):
            await asyncio.sleep(0)
            if not len(self.queue):
                return
            await self._work()

    async def _flush(self) -> None:
        """Write streams and hints, if there is a Redis, and add the usage of ended allocations to the totals."""
        await self.relay.check_quietly(self.informers.allocations.items())
        try:
            await self.relay.flush()
            await self._hints.flush()
        except TransientError as error:
            _log.warning("streams not updated", error=str(error))
        try:
            await self._accounts.flush()
        except TransientError as error:
            _log.warning("usage not added to the daily totals", error=str(error))

    # --- parts ------------------------------------------------------------------------------------------------------

    def _leader_parts(self) -> LeaderParts:
        parts, settings, clock = self._parts, self._settings, self._clock
        return LeaderParts(
            feed=ClusterFeed(
                parts.streams.feed,
                self.informers,
                clock,
                gaps=lambda: sum(
                    reflector.restarts["expired"] + reflector.restarts[CAUSE_REWOUND] for reflector in self.reflectors
                ),
                is_stale=self._is_stale,
                lost=self._streams_lost,
                snapshot_objects=settings.snapshot_objects,
            ),
            logs=self._logs,
            events=PodEvents(
                parts.kube,
                self._logs.writer,
                self.informers,
                clock,
                warned=lambda uid: self._dispatch.enqueue(uid),
                has_logs=bool(settings.redis_url),
            ),
            sweeper=Sweeper(parts.kube, self.informers, clock),
            archives=ArchiveSweeper(parts.kube, self.informers, clock, keep_s=settings.context_keep_s),
            claims=ClaimSweeper(parts.kube, self.informers, clock),
            retention=Retention(
                parts.kube,
                self.informers,
                self._accounts,
                clock,
                age_s=settings.retention_s,
                count_max=settings.retention_count_max,
            ),
            relay=self.relay,
            log_archiver=self._log_archiver,
            event_recorder=EventRecorder(parts.kube, self.informers, clock, instance=parts.identity)
            if settings.kubernetes_events
            else None,
        )

    def _archiver(self) -> LogArchiver | None:
        parts = self._parts
        if parts.log_archive is None or not parts.settings.redis_url:
            return None
        archiver = LogArchiver(
            parts.log_archive,
            parts.streams.logs,
            self._logs.writer,
            self.informers,
            parts.clock,
            days=parts.settings.log_archive_days,
            bytes_max=parts.settings.log_archive_bytes_max,
            woken=self.queue.add_after,
        )
        self._logs.archive_with(archiver)
        return archiver

    def _streams_lost(self) -> None:
        """Write everything to the streams again now; otherwise only the next resync would find it missing."""
        self._hints.forget_all()
        self._dispatch.enqueue_all(steady=False)
        self._leader_tasks.streams_lost()

    def _unmarked(self) -> frozenset[str] | None:
        """Return the tokens of ended allocations without the mark of the totals, which the totals have to keep.

        None while the allocations are not known.
        """
        if not self.informers.is_synced:
            return None
        ended = (each for each in self.informers.allocations.items() if each.status.phase is Phase.TERMINATED)
        return frozenset(token_of(each.metadata.uid) for each in ended if not is_booked(each))

    def _is_stuck(self, allocation: Allocation) -> bool:
        """Whether its launch is stuck, or its teardown: the finalizer stays until the teardown is complete."""
        is_held = TEARDOWN_FINALIZER in allocation.metadata.finalizers
        is_open = is_held or allocation.status.phase is not Phase.TERMINATED
        return is_open and ends.stuck_until(allocation, self._settings.policy()) is not None

    def _is_stale(self) -> bool:
        return any(reflector.silent_s > STALE_VIEW_S for reflector in self.reflectors)

    def _loop(
        self, what: Loop, step: Callable[[], Any], stop: StopSignal, *, max_backoff_s: float
    ) -> Coroutine[Any, Any, None]:
        return service.loop(
            what,
            step,
            clock=self._clock,
            random=self._parts.random,
            health=self._parts.health,
            stop=stop,  # pyright: ignore[reportArgumentType] - any stop signal will do
            min_interval_s=0.0,
            max_backoff_s=max_backoff_s,
        )


def _log_limits(settings: Settings) -> LogLimits:
    return LogLimits(
        followers_max=settings.log_followers_max,
        drain_s=settings.log_drain_s,
        bytes_max=settings.log_bytes_max,
        node_file_bytes=settings.node_log_bytes,
        enabled=bool(settings.redis_url),
    )


def _elector(parts: WatcherDeps) -> LeaseElector:
    """Return the elector of the primary."""
    settings = parts.settings
    return LeaseElector(
        parts.kube,
        LEASE,
        parts.identity,
        namespace=settings.namespace,
        clock=parts.clock,
        random=parts.random,
        health=parts.health,
        timing=LeaseTiming(
            duration_s=settings.lease_duration_s,
            renew_deadline_s=settings.lease_renew_deadline_s,
            retry_s=settings.lease_retry_s,
            renew_s=max(settings.lease_retry_s, min(RENEW_S, settings.lease_renew_deadline_s * RENEW_PART)),
        ),
    )


def _until(stop: StopSignal, step: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a step that `stop` ends, even while it waits."""

    async def ended() -> None:
        await run_until(stop, step())

    return ended
