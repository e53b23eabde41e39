"""One watcher: its stores, its queue and its loops, put together.

Owns who is told of which change, and which work only the holder of the lease does. Used by a process (`main.py`) with
real clients and by the simulation with models.

The holder of the lease `slipway-feed` is the primary: it acts at once, publishes the feed, follows logs, sweeps and
forgets. The others observe the same and act on what is still to be done a little later, so that nothing waits for an
election and nothing is written twice; one that finds something undone acts at once for a while. The compare-and-swap
makes any overlap harmless.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from slipway.crd.meta import LABEL_ALLOCATION_UID, TEARDOWN_FINALIZER
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import PermanentError, StaleError, TransientError
from slipway.kube.lease import Leadership, LeaseElector, LeaseTiming
from slipway.kube.objects import Namespace, Node, Pod
from slipway.kube.ports import KubeApi
from slipway.kube.reflector import Reflector
from slipway.kube.scope import StopSignal, run_until
from slipway.kube.workqueue import WorkQueue
from slipway.model.lifecycle import Phase
from slipway.runtime import log, service
from slipway.runtime.clock import Clock, Random
from slipway.runtime.health import Health
from slipway.streams.ports import Streams
from slipway.streams.producer import BestEffort
from slipway.watcher import exits
from slipway.watcher.evidence import Evidence
from slipway.watcher.feed import ClusterFeed
from slipway.watcher.hints import HintSender, Ringer
from slipway.watcher.podevents import PodEvents
from slipway.watcher.podlogs import Limits, LogStore, PodLogs
from slipway.watcher.reconcile import Hands, Reconciler
from slipway.watcher.relay import Relay
from slipway.watcher.retention import Retention
from slipway.watcher.settings import Settings
from slipway.watcher.sweep import Sweeper
from slipway.watcher.world import BY_NAMESPACE, BY_NODE, World, fill, is_out_of_service

LEASE = "slipway-feed"
STALE_VIEW_S = 120.0
"""A watch that said nothing for so long is not to be trusted; bookmarks come each minute."""
UNSYNCED_PAUSE_S = 0.02
RETENTION_S = 60.0
SOON_SWEEP_S = 2.0
FULL_ROUND = 3
"""Every so many resyncs also look at what waits or runs in peace: watches tell of every change there."""
STAND_IN_S = 5.0
"""How long a standby acts at once after a write that the primary had left undone."""
ONCE_ROUNDS_MAX = 1000
FOREVER_S = float("inf")

_log = log.get_logger(__name__)

Step = Callable[[], Coroutine[Any, Any, float | None]]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a watcher is built from: real clients in a process, models in the simulation."""

    kube: KubeApi
    streams: Streams
    behind: BestEffort
    clock: Clock
    random: Random
    health: Health
    settings: Settings
    identity: str


class Watcher:
    """See the module's docstring. `run` once per instance."""

    def __init__(self, parts: Parts) -> None:
        settings, clock = parts.settings, parts.clock
        has_redis = bool(settings.redis_url)
        self._parts = parts
        self._clock = clock
        self._settings = settings
        self.world = World()
        self.queue: WorkQueue[str] = WorkQueue(parts.random)
        self.reflectors = [
            Reflector(parts.kube, resource, store, clock=clock, random=parts.random)
            for resource, store in self.world.stores()
        ]
        self.relay = Relay(parts.streams.events, clock, enabled=has_redis)
        self._hints = HintSender(parts.streams.hints, clock)
        self._ringer = Ringer(parts.streams.wake)
        self._logs = PodLogs(
            parts.kube,
            LogStore(sink=parts.behind, tail=parts.streams.logs),
            self.world,
            clock,
            limits=Limits(followers_max=settings.log_followers_max, drain_s=settings.log_drain_s, enabled=has_redis),
            woken=self.queue.add_after,
        )
        self._evidence = Evidence(parts.kube, self.world)
        self._reconciler = Reconciler(
            Hands(
                kube=parts.kube,
                world=self.world,
                evidence=self._evidence,
                queue=self.queue,
                outbox=self.relay,
                hints=self._hints,
                tails=self._logs,
                clock=clock,
            ),
            policy=settings.policy(),
            relay_wait_s=settings.relay_wait_s,
            orphaned=self._sweep_soon,
            wrote=self._stand_in,
        )
        self._sweeper = Sweeper(parts.kube, clock)
        self._retention = Retention(
            parts.kube,
            self.world,
            clock,
            age_s=settings.retention_s,
            count_max=settings.retention_count_max,
        )
        self._feed = ClusterFeed(parts.streams.feed, self.world, clock, gaps=self._gaps, is_stale=self._is_stale)
        self._events = PodEvents(parts.kube, parts.behind, self.world, clock)
        self._elector = LeaseElector(
            parts.kube,
            LEASE,
            parts.identity,
            namespace=settings.namespace,
            clock=clock,
            random=parts.random,
            timing=LeaseTiming(
                duration_s=settings.lease_duration_s,
                renew_deadline_s=settings.lease_renew_deadline_s,
                retry_s=settings.lease_retry_s,
            ),
        )
        self._leadership: Leadership | None = None
        self._alone = False
        self._round = 0
        self._stands_in_until = 0.0
        self._orphans = asyncio.Event()
        self._listen()

    @property
    def is_primary(self) -> bool:
        """Whether this replica holds the lease (or is alone, for one pass)."""
        return self._alone or (self._leadership is not None and self._leadership.is_valid())

    @property
    def acts_at_once(self) -> bool:
        """The primary does; so does a standby that has just had to do the primary's work."""
        return self.is_primary or self._clock.monotonic() < self._stands_in_until

    def why_not_ready(self) -> str | None:
        """None when the view is complete and fresh."""
        if not self.world.is_synced:
            return "the first LISTs are not complete"
        return "a watch has gone silent" if self._is_stale() else None

    async def run(self, stop: StopSignal) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run(stop))
            for index in range(self._settings.reconcile_workers):
                tasks.create_task(self._loop(f"reconcile-{index}", self._work, stop, max_backoff_s=1.0))
            for name, step in (
                ("relay", self.relay.step),
                ("hints", self._hints.step),
                ("bell", self._ringer.step),
            ):
                tasks.create_task(self._loop(name, _until(stop, step), stop, max_backoff_s=2.0))
            tasks.create_task(self._loop("resync", self._resync, stop, max_backoff_s=5.0))
            tasks.create_task(
                self._loop("lease", lambda: self._elector.run(lambda held: self._lead(held, stop), stop), stop)
            )
            await stop.wait()
            self.queue.shut_down()

    async def run_once(self) -> None:
        """One consistent LIST of everything, and one pass over it; nothing is waited for.

        Raises:
            TransientError: the API server, or the object of a write, can not be reached.
        """
        self._alone = True
        await fill(self.world, self._parts.kube)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._logs.run())
            await self._work_off()
            await self._logs.settle()
            # What is told, and read to its end, can now be let go.
            await self._tell()
            await self._work_off()
            reading.cancel()
        await self._sweeper.sweep()
        await self._retention.step()
        await self._tell()
        self.queue.shut_down()

    # --- the loops --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """One key."""
        if not self.world.is_synced:
            await self._clock.sleep(UNSYNCED_PAUSE_S)
            return
        uid = await self.queue.get()
        if uid is None:
            return
        try:
            await self._reconciler.reconcile(uid)
        except StaleError:
            self.queue.retry(uid)
        except TransientError as error:
            delay_s = self.queue.retry(uid, at_least_s=error.retry_after_s or 0.0)
            _log.warning("allocation not brought up to date", uid=uid, error=str(error), retry_in_s=delay_s)
        except PermanentError as error:
            delay_s = self.queue.retry(uid)
            _log.error("allocation refused", uid=uid, error=str(error), retry_in_s=delay_s)
        else:
            self.queue.forget(uid)
        finally:
            self.queue.done(uid)

    async def _work_off(self) -> None:
        """Everything that is not at rest, and what follows from it at once."""
        for allocation in self.world.allocations.items():
            if not self._is_at_rest(allocation):
                self.queue.add(allocation.metadata.uid)
        for _ in range(ONCE_ROUNDS_MAX * max(1, len(self.world.allocations))):
            await asyncio.sleep(0)
            if not len(self.queue):
                return
            await self._work()

    async def _tell(self) -> None:
        """Streams and hints, if there is a Redis."""
        await self._check_streams()
        try:
            await self.relay.flush()
            await self._hints.flush()
        except TransientError as error:
            _log.warning("streams not brought up to date", error=str(error))

    async def _resync(self) -> float:
        """Look at everything that is not at rest, and at every stream."""
        if not self.world.is_synced:
            return UNSYNCED_PAUSE_S
        self._round += 1
        is_full = self._round % FULL_ROUND == 0
        for allocation in self.world.allocations.items():
            is_calm = allocation.status.phase in (Phase.PENDING, Phase.RUNNING) and not is_full
            if not is_calm and not self._is_at_rest(allocation):
                self._enqueue(allocation.metadata.uid)
        if self.is_primary:
            await self._check_streams()
        return self._settings.resync_interval_s

    async def _check_streams(self) -> None:
        """Find what streams lack; what can not be told now is told by the next look."""
        try:
            await self.relay.check(self.world.allocations.items())
        except TransientError as error:
            _log.debug("streams not checked", error=str(error))

    async def _lead(self, leadership: Leadership, stop: StopSignal) -> None:
        """What one replica does for all."""
        self._leadership = leadership
        for allocation in self.world.allocations.items():
            self._enqueue(allocation.metadata.uid)
        try:
            async with asyncio.TaskGroup() as tasks:
                alongside = [
                    tasks.create_task(work)
                    for work in (
                        self._logs.run(),
                        self._events.run(),
                        self._loop("sweep", self._sweep, stop, max_backoff_s=10.0),
                        self._loop("retention", self._forget, stop, max_backoff_s=60.0),
                        self._loop("feed", lambda: self._feed.publish(leadership), stop),
                        self._check_streams(),
                    )
                ]
                await stop.wait()
                for task in alongside:
                    task.cancel()
        finally:
            self._leadership = None

    async def _sweep(self) -> float:
        """A sweep, now and then; sooner when pods without an allocation were seen."""
        if not self.world.is_synced:
            return UNSYNCED_PAUSE_S
        self._orphans.clear()
        await self._sweeper.sweep()
        await self._clock.sleep(SOON_SWEEP_S)
        try:
            async with asyncio.timeout(max(0.0, self._settings.sweep_interval_s - SOON_SWEEP_S)):
                await self._orphans.wait()
        except TimeoutError:
            pass
        return 0.0

    async def _forget(self) -> float:
        if not self.world.is_synced:
            return UNSYNCED_PAUSE_S
        await self._retention.step()
        return RETENTION_S

    def _loop(
        self, name: str, step: Callable[[], Any], stop: StopSignal, *, max_backoff_s: float = 5.0
    ) -> Coroutine[Any, Any, None]:
        return service.loop(
            name,
            step,
            clock=self._clock,
            random=self._parts.random,
            health=self._parts.health,
            stop=stop,  # pyright: ignore[reportArgumentType]
            min_interval_s=0.0,
            max_backoff_s=max_backoff_s,
            deadline_s=FOREVER_S,
        )

    # --- who is told of what ----------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self.world.allocations.on_change(self._allocation_changed)
        self.world.pods.on_change(self._pod_changed)
        self.world.nodes.on_change(self._node_changed)
        self.world.namespaces.on_change(self._namespace_changed)
        for store in (self.world.pools, self.world.queues, self.world.jobs):
            store.on_change(lambda _old, _new: self._ring("policy"))

    def _allocation_changed(self, old: Allocation | None, new: Allocation | None) -> None:
        if new is None:
            if old is not None:
                self.relay.forget(old)
                self._hints.forget(old.metadata.uid)
                self._evidence.forget(old.metadata.uid)
                self._enqueue(old.metadata.uid)
                self._ring("allocation gone")
            return
        if self.acts_at_once:
            self.relay.offer(new)
        if self._is_at_rest(new):
            self._evidence.forget(new.metadata.uid)
        else:
            self._enqueue(new.metadata.uid)
        if new.status.phase in (Phase.PENDING, Phase.TERMINATED) and (
            old is None or old.status != new.status or old.spec != new.spec
        ):
            self._ring(new.status.phase.value)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        if new is None:
            self._logs.gone(pod)
            self._evidence.departed(pod)
        uid = pod.metadata.labels.get(LABEL_ALLOCATION_UID)
        if uid is not None:
            if new is not None:
                self._logs.observe(new)
            self._enqueue(uid)
        was_live = old is not None and not exits.is_over(old)
        if was_live and (new is None or exits.is_over(new)):
            self._ring("pod ended")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None or is_out_of_service(new):
            node = new or old
            for pod in self.world.pods.indexed(BY_NODE, node.metadata.name) if node is not None else ():
                self._enqueue(pod.metadata.labels.get(LABEL_ALLOCATION_UID, ""))
        if old is None or new is None or (old.spec, old.status.allocatable) != (new.spec, new.status.allocatable):
            self._ring("node")

    def _namespace_changed(self, _old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and self.world.is_terminating(new.metadata.name):
            for allocation in self.world.allocations.indexed(BY_NAMESPACE, new.metadata.name):
                self._enqueue(allocation.metadata.uid)

    def _enqueue(self, uid: str) -> None:
        if not uid:
            return
        if self.acts_at_once:
            self.queue.add(uid)
        else:
            self.queue.add_after(uid, self._settings.standby_delay_s)

    def _ring(self, reason: str) -> None:
        if self.is_primary and self.world.is_synced:
            self._ringer.ring(reason)

    def _stand_in(self) -> None:
        self._stands_in_until = self._clock.monotonic() + STAND_IN_S

    def _sweep_soon(self) -> None:
        self._orphans.set()

    # --- the view ---------------------------------------------------------------------------------------------------

    def _is_at_rest(self, allocation: Allocation) -> bool:
        """Ended, torn down and let go: nothing will ever be done for it again."""
        is_held = TEARDOWN_FINALIZER in allocation.metadata.finalizers
        is_over = allocation.status.phase is Phase.TERMINATED and not is_held
        return is_over and not self.world.pods_of(allocation.metadata.uid)

    def _is_stale(self) -> bool:
        return any(reflector.silent_s > STALE_VIEW_S for reflector in self.reflectors)

    def _gaps(self) -> int:
        """How often a view of ours has had to begin again with a LIST."""
        return sum(reflector.restarts["expired"] for reflector in self.reflectors)


def _until(stop: StopSignal, step: Callable[[], Coroutine[Any, Any, None]]) -> Step:
    """A step that waits for something, ended by `stop`."""

    async def ended() -> None:
        await run_until(stop, step())

    return ended
