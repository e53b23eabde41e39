"""One candidate for one pool: competes for its Lease, and while it leads keeps the tables current and ticks.

Owns the rhythm: when to LIST, when to follow the feed, when to tick, and that everything ends the moment the lease
or the epoch is lost. Must not know how anything is decided or written.
"""

import asyncio
from dataclasses import dataclass

from slipway.errors import ControlPlaneError, InvariantError, TransientError
from slipway.kube.lease import Leadership, LeaseElector
from slipway.kube.ports import KubeApi
from slipway.kube.scope import StopSignal
from slipway.runtime import log
from slipway.runtime.clock import Clock, Random
from slipway.runtime.health import Health
from slipway.scheduler.apply import Applier
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.cycle import Cycle, Tick
from slipway.scheduler.follow import Follower
from slipway.scheduler.idleness import Idleness
from slipway.scheduler.ledger_store import DeposedError, LedgerStore
from slipway.scheduler.settings import Settings
from slipway.streams import keys
from slipway.streams.ports import Streams

BACKOFF_MAX_S = 5.0
ONCE_TICKS_MAX = 1000
TICK_SILENCE_S = 60.0

_log = log.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a scheduler is built from: real clients in a process, models in the simulation."""

    kube: KubeApi
    streams: Streams
    clock: Clock
    random: Random
    health: Health
    settings: Settings
    identity: str


class PoolScheduler:
    """Competes for one pool and schedules it while it leads."""

    def __init__(self, pool: str, elector: LeaseElector, parts: Parts) -> None:
        self.pool = pool
        self._elector = elector
        self._parts = parts
        self._clock = parts.clock
        self._random = parts.random
        self._health = parts.health
        self._settings = parts.settings

    async def compete(self, stop: StopSignal) -> None:
        """Lead whenever the lease can be had, until `stop`."""
        await self._elector.run(lambda leadership: self._lead(leadership, stop), stop)

    async def run_once(self) -> bool:
        """Tick until nothing changes, then give the lease back; False when a live holder leads."""
        return await self._elector.lead_once(self._lead_once)

    # --- one leadership ---------------------------------------------------------------------------------------------

    async def _lead(self, leadership: Leadership, stop: StopSignal) -> None:
        cluster = Cluster()
        follower = self._follower(cluster, self._settings.list_interval_ms / 1000)
        cycle = self._cycle(cluster)
        await follower.catch_up()
        await cycle.promote()
        try:
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(follower.follow()),
                    tasks.create_task(self._listen(follower)),
                ]
                await self._tick_until_stopped(leadership, cycle, follower, stop)
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as group:
            if group.subgroup(DeposedError) is None:
                raise
            _log.warning("deposed", pool=self.pool, error=str(group.exceptions[0]))

    async def _lead_once(self, leadership: Leadership) -> None:
        cluster = Cluster()
        follower = self._follower(cluster, 0.0)
        cycle = self._cycle(cluster)
        await follower.catch_up()
        await cycle.promote()
        for _ in range(ONCE_TICKS_MAX):
            leadership.check()
            tick = await cycle.tick()
            # One pass does not wait for backoff: what could not be written now is the next run's.
            if tick.is_idle or not (tick.decided or tick.applied or tick.void or tick.explained):
                return

    async def _tick_until_stopped(
        self, leadership: Leadership, cycle: Cycle, follower: Follower, stop: StopSignal
    ) -> None:
        name = f"tick:{self.pool}"
        self._health.register_loop(name, deadline_s=TICK_SILENCE_S)
        failures = 0
        try:
            while not stop.is_set():
                leadership.check()
                try:
                    tick = await cycle.tick()
                except (DeposedError, InvariantError):
                    raise
                except ControlPlaneError as exc:
                    failures += 1
                    _log.warning("tick failed", pool=self.pool, failures=failures, error=str(exc))
                    self._health.failed(name, str(exc))
                    await self._clock.sleep(self._backoff_s(failures))
                    continue
                failures = 0
                self._health.progress(name)
                await self._clock.sleep(self._settings.tick_min_ms / 1000)
                await self._wait(cycle, follower, tick)
        finally:
            self._health.remove_loop(name)

    async def _wait(self, cycle: Cycle, follower: Follower, tick: Tick) -> None:
        """Until something changed, a time that matters has come, or the longest pause is over."""
        pause_s = self._settings.tick_max_ms / 1000
        due = cycle.due
        if due is not None:
            pause_s = min(pause_s, max(0.0, due - self._clock.now()))
        if tick.decided or tick.open:
            pause_s = 0.0 if tick.applied else min(pause_s, self._settings.tick_min_ms / 1000)
        try:
            async with asyncio.timeout(pause_s):
                await follower.changed()
        except TimeoutError:
            return

    async def _listen(self, follower: Follower) -> None:
        """Wake-ups: when the feed can not be used they ask for a LIST, otherwise the change comes by the feed."""
        cursor: str | None = None
        while True:
            try:
                woken = await self._parts.streams.wake.wait(cursor, timeout_s=self._settings.tick_max_ms / 1000 * 10)
            except TransientError:
                await self._clock.sleep(self._backoff_s(3))
                continue
            cursor = woken.cursor
            if woken.reasons:
                follower.poke()
                await self._clock.sleep(keys.BELL_S)

    def _follower(self, cluster: Cluster, list_interval_s: float) -> Follower:
        parts = self._parts
        return Follower(
            parts.kube,
            cluster,
            parts.streams.feed,
            clock=parts.clock,
            random=parts.random,
            list_interval_s=list_interval_s,
        )

    def _cycle(self, cluster: Cluster) -> Cycle:
        parts = self._parts
        return Cycle(
            pool=self.pool,
            cluster=cluster,
            store=LedgerStore(parts.kube, self.pool),
            applier=Applier(parts.kube, parts.clock),
            hints=parts.streams.hints,
            idleness=Idleness(parts.streams.activity, parts.clock),
            clock=parts.clock,
            width=self._settings.apply_concurrency,
        )

    def _backoff_s(self, failures: int) -> float:
        return self._random.uniform(0.5, 1.0) * min(BACKOFF_MAX_S, 0.1 * 2.0 ** min(failures, 10))
