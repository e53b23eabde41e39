"""The tables and the planner of one candidate, kept current while another process leads.

Owns the parts of one candidacy, from its start to the end of its term, and how often they are updated. Does not know
leases, nor when to tick.

Promises: while the candidate waits, its tables follow the feed like a leader's, and the planner's columns follow the
tables. So a term begins with a read of the ledger and without a LIST, if the feed has reached the ledger's version.
Without a feed the candidate LISTs: rarely while the holder of the lease renews it, and as often as a leader when it
does not.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from slipway.kube.ports import KubeApi
from slipway.runtime import liveness, memory
from slipway.runtime.clock import Clock, Random
from slipway.runtime.health import ProcessHealth
from slipway.runtime.service import version
from slipway.runtime.tasks import TaskGroup
from slipway.scheduler.apply import Applier
from slipway.scheduler.capacity import CapacityRequests
from slipway.scheduler.capacity_objects import PlaceholderOptions
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.cluster_sync import ClusterSync
from slipway.scheduler.cycle import Cycle
from slipway.scheduler.extenders import ExtenderCalls, Extenders, NoExtenders
from slipway.scheduler.idleness import Idleness
from slipway.scheduler.ledger_store import LedgerStore
from slipway.scheduler.loops import FOLLOW, RECORDER, SPENDING, WARM
from slipway.scheduler.past_usage import LOOK_S, BudgetUsage, PastUsage
from slipway.scheduler.plan.queueing.queue_tree import run_limit_of
from slipway.scheduler.plan.state.flavors import NO_FLAVOR, flavor_of_gpus
from slipway.scheduler.ports import RecordSink
from slipway.scheduler.recorder import FILE_BYTES_MAX, DecisionLogWriter, FileSink, Recorder, StreamSink
from slipway.scheduler.settings import Settings
from slipway.scheduler.volumes import ClaimReads
from slipway.streams.ports import Streams

WARM_S = 1.0
"""The least time between two updates of the columns."""
HEAD_START_S = 0.1
"""The pause between the first LIST and the first columns."""
MANY = 2_000
"""From so many objects on, they are excluded from the garbage collector."""
SELDOM = 3
"""Without a feed, a waiting candidate LISTs so many times more rarely than a leader."""


@dataclass(frozen=True, kw_only=True)
class SchedulerDeps:
    """The dependencies of a scheduler: real clients in a process, models in the simulation."""

    kube: KubeApi
    streams: Streams
    clock: Clock
    random: Random
    health: ProcessHealth
    settings: Settings
    identity: str
    extenders: ExtenderCalls = field(default_factory=NoExtenders)


class Standby:
    """One candidacy for one pool. `is_overdue` returns whether a renewal by the lease's holder is overdue."""

    def __init__(self, pool: str, deps: SchedulerDeps, *, is_overdue: Callable[[], bool]) -> None:
        self.is_leading = False
        self.is_warm = False
        """Whether the cluster was read and the columns were made, so that it can take over at once."""
        self.ended = asyncio.Event()
        """Set when its term is over, after which its tables are not used any more."""
        self._pool = pool
        self._deps = deps
        self._is_overdue = is_overdue
        self._cluster = Cluster(deps.clock.now)
        self.sync = ClusterSync(
            deps.kube,
            self._cluster,
            deps.streams.feed,
            clock=deps.clock,
            random=deps.random,
            list_pause_s=self._list_pause_s,
        )
        self.extenders = Extenders(deps.extenders, deps.clock, self.sync.wake, self._cluster.pods.values)
        self.volumes = ClaimReads(deps.kube, self._cluster, pool, deps.clock, self.sync.wake)
        self.capacity = self._capacity(pool)
        self.recorder = self._recorder(pool)
        self.budget_usage = BudgetUsage(
            deps.kube, self._cluster, pool, namespace=deps.settings.namespace, clock=deps.clock
        )
        self.past_usage = PastUsage(deps.kube, self._cluster, pool, namespace=deps.settings.namespace, clock=deps.clock)
        self.cycle = self._cycle(pool)

    async def follow(self) -> None:
        """Keep the tables current and write the decision log, for ever."""
        watched = self._deps.health.supervise
        async with TaskGroup() as tasks:
            tasks.create_task(watched(FOLLOW.of(self._pool), self.sync.follow))
            tasks.create_task(watched(SPENDING.of(self._pool), self._follow_usage))
            for writer in self.recorder.writers:
                tasks.create_task(watched(RECORDER.of(self._pool), writer.run))

    async def _follow_usage(self) -> None:
        """Keep the usage current, for ever: for the budgets, and for the fair shares while this candidate leads."""
        while True:
            await self._deps.clock.sleep(LOOK_S)
            await self.budget_usage.refresh()
            if self.is_leading:
                await self.past_usage.refresh()
            liveness.beat()

    async def keep_warm(self) -> None:
        """Keep the planner's columns current, until this candidate leads."""
        with self._deps.health.watch(WARM.of(self._pool)):
            await self._keep_warm()

    async def _keep_warm(self) -> None:
        while True:
            with liveness.rest(self.sync.has_changed):
                await self.sync.changed()
            if not self.is_warm:
                # The first columns of a large cluster take a second. The read of the feed is started before that, so
                # that its connection does not time out.
                await self._deps.clock.sleep(HEAD_START_S)
            if self.is_leading:
                # The leader has to handle this change.
                self.sync.wake()
                return
            self.cycle.warm()
            self._mark_warm()
            liveness.beat()
            await self._deps.clock.sleep(WARM_S)

    @property
    def pools(self) -> frozenset[str] | None:
        """The names of all pools by the feed; None while the feed cannot be used."""
        if not self.sync.is_fresh:
            return None
        return frozenset(pool.name for pool in self._cluster.pools.values())

    async def lead(self) -> None:
        """Take over the ledger.

        Raises:
            TransientError: the API server cannot be reached.
        """
        self.is_leading = True
        await self.cycle.promote(self.sync.wait_for_version)
        self._mark_warm()
        await self.budget_usage.refresh()
        await self.past_usage.refresh()

    def _mark_warm(self) -> None:
        """Mark the candidate as warm. One run of the garbage collector over a large cluster would delay all timed
        work."""
        if not self.is_warm and len(self._cluster.allocations) + len(self._cluster.pods) >= MANY:
            memory.settle()
        self.is_warm = True

    def _list_pause_s(self) -> float:
        settings = self._deps.settings
        is_near = self.is_leading or self._is_overdue()
        return settings.list_interval_ms / 1000 * (1 if is_near else SELDOM)

    def _cycle(self, pool: str) -> Cycle:
        deps, cluster = self._deps, self._cluster
        return Cycle(
            pool=pool,
            cluster=cluster,
            store=LedgerStore(deps.kube, pool),
            applier=Applier(
                deps.kube,
                deps.clock,
                lambda queue: run_limit_of(cluster.queues.get, queue),
                partial(self._flavor, pool),
            ),
            hints=deps.streams.hints,
            idleness=Idleness(deps.streams.activity, deps.clock),
            clock=deps.clock,
            width=deps.settings.apply_concurrency,
            extenders=self.extenders,
            recorder=self.recorder,
            volumes=self.volumes,
            capacity=self.capacity,
        )

    def _capacity(self, pool: str) -> CapacityRequests:
        deps, settings = self._deps, self._deps.settings
        return CapacityRequests(
            deps.kube,
            pool,
            deps.clock,
            namespace=settings.namespace,
            is_enabled=settings.autoscaling,
            placeholders=PlaceholderOptions(
                image=settings.placeholder_image, priority_class=settings.placeholder_priority_class
            ),
            on_change=self.sync.wake,
        )

    def _flavor(self, pool: str, allocation: str, placements: Mapping[int, str]) -> str:
        known, fact = self._cluster.pools.get(pool), self._cluster.allocations.get(allocation)
        if known is None or fact is None:
            return NO_FLAVOR
        return flavor_of_gpus(fact, placements, self._cluster.nodes.get, known.flavors)

    def _recorder(self, pool: str) -> Recorder:
        deps, settings = self._deps, self._deps.settings
        sinks: list[RecordSink] = []
        if settings.redis_url and settings.decision_log_bytes:
            sinks.append(StreamSink(deps.streams.decisions, size_max=settings.decision_log_bytes))
        if settings.decision_log:
            sinks.append(FileSink(Path(settings.decision_log), size_max=FILE_BYTES_MAX))
        writers = [DecisionLogWriter(pool, sink, deps.clock) for sink in sinks]
        return Recorder(pool, self._cluster, writers, version=version())
