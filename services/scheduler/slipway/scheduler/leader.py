"""One candidate for one pool: competes for its Lease, ticks while it leads, and stands by while another one leads.

Owns when to tick, when to wake other candidates, and that all work ends at once when the lease or the epoch is lost.
Must not know how anything is decided or written.

Promises: a leader that has to stop finishes its tick and releases the lease. Only then it writes the rest of its
decision log and wakes the waiting candidates.

`Scheduler` is the service as a whole: it has one candidate for each existing pool, and finds pools that are created and
deleted. `main.py` builds it from real parts, the simulation from models.
"""

import asyncio
import math
from contextlib import suppress

from slipway.errors import ControlPlaneError, InvariantError, TransientError
from slipway.kube.lease import Leadership, LeaseElector, LeaseTiming
from slipway.kube.resources import RESOURCE_POOLS
from slipway.kube.scope import StopSignal, raise_only, run_until
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.liveness import Pulse
from slipway.runtime.service import ServiceStop
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.cluster_sync import ClusterSync
from slipway.scheduler.cycle import Cycle, Tick
from slipway.scheduler.ledger_store import DeposedError
from slipway.scheduler.loops import CANDIDACY, TICK, WAKE_UPS
from slipway.scheduler.standby import SchedulerDeps, Standby
from slipway.streams import keys

BACKOFF_MAX_S = 5.0
ONCE_TICKS_MAX = 1000
RING_S = 0.5
LISTEN_S = 30.0
"""The longest wait for a wake-up; a wake-up ends it at once."""
RELEASED = "lease released"
"""The reason of a wake-up after a release: candidates check the lease at once."""

_log = log.get_logger(__name__)


class PoolScheduler:
    """Competes for one pool and schedules it while it leads."""

    def __init__(self, pool: str, elector: LeaseElector, deps: SchedulerDeps) -> None:
        self.pool = pool
        self._elector = elector
        self._deps = deps
        self._clock = deps.clock
        self._random = deps.random
        self._health = deps.health
        self._settings = deps.settings
        self._standby = self._stand_by()
        self._has_led = False
        self._was_warm = False
        self._is_over = False

    @property
    def has_been_warm(self) -> bool:
        """Whether this process has read the cluster at least once, also in an earlier candidacy."""
        self._was_warm = self._was_warm or self._standby.is_warm
        return self._was_warm

    @property
    def pools(self) -> frozenset[str] | None:
        """The names of all pools, as this candidate knows them without a read; None while they may be out of date.

        A candidate that gets no news of its lease would not notice that the API server is unreachable.
        """
        return None if self._elector.is_overdue else self._standby.pools

    async def compete(self, stop: StopSignal) -> None:
        """Compete for the lease until `stop`; lead while this candidate holds it, and stand by otherwise."""
        self._is_over = False
        try:
            async with TaskGroup() as tasks:
                watched = self._health.supervise
                tasks.create_task(watched(CANDIDACY.of(self.pool), self._follow))
                listening = tasks.create_task(watched(WAKE_UPS.of(self.pool), self._listen))
                await self._elector.run(lambda leadership: self._lead(leadership, stop), stop)
                # The lease is released, so the remaining work may take a while.
                if self._has_led:
                    await self._wake_candidates()
                listening.cancel()
                self._is_over = True
                self._standby.ended.set()
        except BaseExceptionGroup as group:
            raise_only(group)

    async def run_once(self) -> bool:
        """Tick until nothing changes, then release the lease; return False when another live candidate leads."""
        return await self._elector.lead_once(self._lead_once)

    # --- standing by ------------------------------------------------------------------------------------------------

    def _stand_by(self) -> Standby:
        return Standby(self.pool, self._deps, is_overdue=lambda: self._elector.is_overdue)

    async def _follow(self) -> None:
        """Run one candidacy after the other; each one begins without any state of the previous one."""
        while not self._is_over:
            standby = self._standby
            async with TaskGroup() as tasks:
                following = [tasks.create_task(standby.follow()), tasks.create_task(standby.keep_warm())]
                with liveness.rest(standby.ended.is_set):
                    await standby.ended.wait()
                for task in following:
                    task.cancel()
            await standby.recorder.finish()

    async def _listen(self) -> None:
        """Follow wake-ups: a leader LISTs if the feed cannot be used; a waiting candidate checks a released lease."""
        cursor: str | None = None
        while True:
            liveness.beat()
            try:
                woken = await self._deps.streams.wake.wait(cursor, timeout_s=LISTEN_S)
            except TransientError:
                await self._clock.sleep(self._backoff_s(3))
                continue
            cursor = woken.cursor
            if RELEASED in woken.reasons:
                self._elector.nudge()
            if woken.reasons and self._standby.is_leading:
                self._standby.sync.request_list()
                await self._clock.sleep(keys.BELL_S)

    async def _wake_candidates(self) -> None:
        with suppress(TransientError, TimeoutError):
            async with asyncio.timeout(RING_S):
                await self._deps.streams.wake.ring(RELEASED)

    # --- one leadership ---------------------------------------------------------------------------------------------

    async def _lead(self, leadership: Leadership, stop: StopSignal) -> None:
        standby, self._has_led = self._standby, True
        with self._health.watch(TICK.of(self.pool)) as pulse:
            await self._lead_with(standby, leadership, stop, pulse)

    async def _lead_with(self, standby: Standby, leadership: Leadership, stop: StopSignal, pulse: Pulse) -> None:
        try:
            await standby.lead()
            async with TaskGroup() as tasks:
                waking = tasks.create_task(_wake_at(stop, standby.sync))
                standby.extenders.run_in(tasks)
                standby.volumes.run_in(tasks)
                standby.capacity.run_in(tasks, leadership.check)
                await self._tick_until_stopped(leadership, standby, stop, pulse)
                standby.extenders.stop()
                standby.volumes.stop()
                standby.capacity.stop()
                waking.cancel()
        except BaseExceptionGroup as group:
            if group.subgroup(DeposedError) is None:
                raise
            _log.warning("deposed", pool=self.pool, error=str(group.exceptions[0]))
        finally:
            standby.cycle.gauges.forget()
            self._standby = self._stand_by()
            standby.ended.set()

    async def _lead_once(self, leadership: Leadership) -> None:
        standby = self._standby
        await standby.lead()
        for _ in range(ONCE_TICKS_MAX):
            leadership.check()
            tick = await standby.cycle.tick()
            # One pass does not wait for a backoff: the next run makes the writes that have failed now.
            if tick.is_idle or not (tick.decided or tick.applied or tick.void or tick.explained):
                break
        await standby.recorder.finish()

    async def _tick_until_stopped(
        self, leadership: Leadership, standby: Standby, stop: StopSignal, pulse: Pulse
    ) -> None:
        failures, pause_s = 0, self._settings.tick_max_ms / 1000
        while not stop.is_set():
            leadership.check()
            try:
                tick = await standby.cycle.tick()
            except (DeposedError, InvariantError):
                raise
            except ControlPlaneError as exc:
                failures += 1
                telemetry.TICKS.labels(pool=self.pool, outcome="failed").inc()
                _log.warning("tick failed", pool=self.pool, failures=failures, error=str(exc))
                pulse.failed(str(exc), next_in_s=BACKOFF_MAX_S)
                await run_until(stop, self._clock.sleep(self._backoff_s(failures)))
                continue
            failures = 0
            pulse.progress(next_in_s=pause_s)
            await self._wait(standby.cycle, standby.sync, tick)

    async def _wait(self, cycle: Cycle, sync: ClusterSync, tick: Tick) -> None:
        """Wait until a table has changed, a due time has come, or the longest pause is over.

        Never wait less than the shortest pause, so that a burst of changes leads to one plan.
        """
        least_s, begun_s = self._settings.tick_min_ms / 1000, self._clock.monotonic()
        if tick.decided or tick.open:
            await self._clock.sleep(least_s)
            if tick.applied:
                sync.clear_changes()
            else:
                await sync.changed(within_s=least_s)
            return
        pause_s = self._settings.tick_max_ms / 1000
        if cycle.due is not None:
            pause_s = min(pause_s, max(0.0, cycle.due - self._clock.now()))
        await sync.changed(within_s=max(least_s, pause_s))
        left_s = begun_s + least_s - self._clock.monotonic()
        if left_s > 0:
            await self._clock.sleep(left_s)
            sync.clear_changes()

    def _backoff_s(self, failures: int) -> float:
        return self._random.uniform(0.5, 1.0) * min(BACKOFF_MAX_S, 0.1 * 2.0 ** min(failures, 10))


async def _wake_at(stop: StopSignal, sync: ClusterSync) -> None:
    """End the leader's wait when it has to stop."""
    await stop.wait()
    sync.wake()


LIST_S = 30.0
"""The pools are listed at least this often, whatever the feed shows."""
LEASE_PREFIX = "slipway-scheduler-"


class Scheduler:
    """Creates and stops the candidates."""

    def __init__(self, deps: SchedulerDeps) -> None:
        self._deps = deps
        self._stops: dict[str, ServiceStop] = {}
        self._candidates: dict[str, PoolScheduler] = {}
        self._there: frozenset[str] = frozenset()
        """the names of the pools in the last LIST"""
        self._listed_at = -math.inf

    async def discover(self) -> list[tuple[PoolScheduler, ServiceStop]]:
        """Return candidates for the pools that are new since the last call, and stop the candidates of deleted pools.

        The feed only shows when to LIST again; the LIST is the truth.

        Raises:
            TransientError: the API server cannot be reached.
        """
        if not self._is_listed():
            began_at = self._deps.clock.monotonic()
            listed = await self._deps.kube.list(RESOURCE_POOLS)
            self._there, self._listed_at = frozenset(pool.metadata.name for pool in listed.items), began_at
        wanted = {name.strip() for name in self._deps.settings.pools.split(",") if name.strip()}
        names = self._there & wanted if wanted else self._there
        for name in sorted(self._stops.keys() - names):
            _log.info("pool deleted", pool=name)
            self._stops.pop(name).set()
            del self._candidates[name]
        fresh = sorted(names - self._stops.keys())
        for name in fresh:
            self._stops[name] = ServiceStop()
            self._candidates[name] = self._candidate(name)
        return [(self._candidates[name], self._stops[name]) for name in fresh]

    def _is_listed(self) -> bool:
        """Whether the last LIST is still valid."""
        if self._deps.clock.monotonic() >= self._listed_at + LIST_S:
            return False
        return any(candidate.pools == self._there for candidate in self._candidates.values())

    def not_ready(self) -> str | None:
        """Return why this process could not take over soon, else None: a rolling update waits for that."""
        if self._listed_at == -math.inf:
            return "the pools are not listed yet"
        cold = sorted(name for name, candidate in self._candidates.items() if not candidate.has_been_warm)
        return f"the first LIST of the cluster has not ended, for {', '.join(cold)}" if cold else None

    def stop(self) -> None:
        """Stop every candidate, which then releases its lease."""
        for stop in self._stops.values():
            stop.set()

    def _candidate(self, pool: str) -> PoolScheduler:
        deps = self._deps
        settings = deps.settings
        timing = LeaseTiming(
            duration_s=settings.lease_duration_s,
            renew_deadline_s=settings.lease_renew_deadline_s,
            retry_s=settings.lease_retry_s,
            steady_s=min(settings.lease_steady_s, settings.lease_duration_s),
        )
        elector = LeaseElector(
            deps.kube,
            f"{LEASE_PREFIX}{pool}",
            deps.identity,
            namespace=settings.namespace,
            clock=deps.clock,
            random=deps.random,
            timing=timing,
            health=deps.health,
        )
        return PoolScheduler(pool, elector, deps)
