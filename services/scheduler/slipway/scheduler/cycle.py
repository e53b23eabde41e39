"""The tick: observe, plan, check the plan, commit it to the ledger, apply it, explain what waits.

Owns only the order of these steps: `cluster.py` has the facts, `plan/` decides, `ledger_store.py` is the fence,
`apply.py` makes the writes. One `Cycle` belongs to one leadership of one pool.

Invariants: only decisions in the ledger are applied. Entries of an earlier leader are completed before new decisions
are made. A tick that decides nothing writes nothing.

The policy: a mistake in the scheduling policy of the led pool never stops a tick. An unknown score, all args of a
score with a wrong arg, and an invalid window are ignored. Each time the pool changes, every mistake is logged with its
path in the ResourcePool, and `slipway_policy_faults` has their number.

The shadow: a second policy plans on the leader's real snapshots, and the decisions that differ are counted. A shadow
plan is made at the end of a tick, after all its writes, and only so often that it uses a small part of the time. Ticks
that follow too soon are skipped and counted. The shadow plan is used only for metrics and the decision log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final

import msgspec

from slipway.crd.transitions import id_of, key_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import DeniedError, InvariantError, PermanentError, StaleError, TransientError
from slipway.facts.custom_resources import allocation_fact
from slipway.kube.tracing import traceparent_of
from slipway.model.facts import AllocationFact, PoolFact
from slipway.model.ledger import Decision, DecisionKind, Ledger
from slipway.model.reasons import Reason
from slipway.model.times import format_time
from slipway.runtime import liveness, log, telemetry
from slipway.runtime.clock import Clock
from slipway.scheduler import ledger
from slipway.scheduler.apply import AppliedEffect, Applier, EffectOutcome, allocation_of, is_same_spec
from slipway.scheduler.capacity import CapacityRequests
from slipway.scheduler.cluster import Cluster
from slipway.scheduler.deadlines import Deadlines, PassedDeadline
from slipway.scheduler.decisions.record import ShadowComparison, divergences, policy_hash
from slipway.scheduler.explainer import Explainer
from slipway.scheduler.extenders import PATIENCE_S, Extenders, NoExtenders
from slipway.scheduler.gauges import ForecastAccuracy, PoolGauges
from slipway.scheduler.idleness import Idleness
from slipway.scheduler.ledger import atomic_groups, decisions_of, without_replaced
from slipway.scheduler.ledger_store import LedgerStore
from slipway.scheduler.plan import planner
from slipway.scheduler.plan.explanation.explanations import Explanations
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import PlacementPolicy, faults_of, policy_of
from slipway.scheduler.plan.placement.tick_state import PlanTrace
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.preemption.eviction_budget import levels_after
from slipway.scheduler.plan.state.extender_results import Answers
from slipway.scheduler.plan.state.plan_cache import PlanCache
from slipway.scheduler.plan.state.plan_types import Explanation, Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from slipway.scheduler.pool_view import PlannerView
from slipway.scheduler.ports import LaunchHints
from slipway.scheduler.recorder import PlanInputs, RecordedTick, Recorder
from slipway.scheduler.volumes import ClaimReads
from slipway.streams.ports import WorkHint
from slipway.streams.producer import hint_traceparent

_log = log.get_logger(__name__)


class Policies:
    """The current scheduling policy of the led pool; it is computed again when the pool changes."""

    def __init__(self) -> None:
        self._pool: PoolFact | None = None
        self._policy = PlacementPolicy()

    def of(self, pool: PoolFact) -> PlacementPolicy:
        """Return the pool's policy; report the mistakes of a changed one."""
        if pool != self._pool:
            self._pool, self._policy = pool, policy_of(pool)
            faults = faults_of(pool)
            telemetry.POLICY_FAULTS.labels(pool=pool.name).set(len(faults))
            for fault in faults:
                _log.warning("wrong part of the pool's policy ignored", pool=pool.name, fault=fault)
        return self._policy


PART: Final = 10
"""Shadow plans use at most 1/PART of the time."""
KEPT_MAX: Final = 32
"""The largest number of differing decisions of one tick that the decision log contains."""


class ShadowPlanner:
    """The shadow policy of one pool, during one leadership."""

    def __init__(self, pool: str, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._not_before_s = 0.0
        self._cache = PlanCache()
        self._cache_of: PlanCache | None = None

    def compare(
        self, snapshot: PoolSnapshot, live: Plan, seed: int, answers: Answers | None = None
    ) -> ShadowComparison | None:
        """Return the shadow plan's differences from `live`, on the same snapshot;
        None without a shadow policy, or when skipped."""
        if snapshot.pool.shadow is None:
            return None
        begun_s = self._clock.monotonic()
        if begun_s < self._not_before_s:
            telemetry.SHADOW_TICKS.labels(pool=self._pool, outcome="skipped").inc()
            return None
        shadowed = self._plan(snapshot, live, seed, answers)
        ended_s = self._clock.monotonic()
        self._not_before_s = ended_s + (PART - 1) * (ended_s - begun_s)
        telemetry.SHADOW_TICKS.labels(pool=self._pool, outcome="planned").inc()
        telemetry.SHADOW_DECISIONS.labels(pool=self._pool, outcome="same").inc(shadowed.same)
        telemetry.SHADOW_DECISIONS.labels(pool=self._pool, outcome="different").inc(shadowed.different)
        return shadowed

    def _plan(self, snapshot: PoolSnapshot, live: Plan, seed: int, answers: Answers | None) -> ShadowComparison:
        pool = snapshot.pool.shadow or snapshot.pool
        policy = policy_of(pool)
        if snapshot.cache is not self._cache_of:
            # The cache of the live policy must be neither used nor changed, so the shadow has its own.
            self._cache_of, self._cache = snapshot.cache, PlanCache()
        seen = msgspec.structs.replace(snapshot, pool=pool, cache=self._cache)
        same, different = divergences(live, plan(seen, policy, snapshot.now, seed, answers=answers, grows=True))
        return ShadowComparison(
            policy_hash=policy_hash(policy),
            same=same,
            different=len(different),
            divergences=tuple(different[:KEPT_MAX]),
        )


HINT_DEADLINE_S = 2.0
LOOK_AHEAD_MAX = 8
"""The largest number of objects that are read while the ledger is written, which saves a round trip for a launch on an
idle system. With more decisions, the later objects would be outdated by the time of their write."""

FIRED_MAX = 256
"""The number of deadlines that are fired in one tick."""
FIRE_AGAIN_S = 2.0
"""The pause before a deadline is fired again, after the API server has refused the write."""

NO_GATE = "None"
"""The metric label for an allocation without any explanation yet."""

Seen = Mapping[str, Allocation | None]
"""{decision id: its object, built from its fact or read while the ledger was written}"""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one tick."""

    number: int
    planned: bool = False
    decided: int = 0
    applied: int = 0
    void: int = 0
    open: int = 0
    explained: int = 0
    stopped: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing was written and nothing is left to do."""
        return not (self.decided or self.applied or self.open or self.explained or self.stopped)


class Cycle:
    """The ticks of one leadership."""

    def __init__(  # noqa: PLR0913 - the composition of a tick, all by name
        self,
        *,
        pool: str,
        cluster: Cluster,
        store: LedgerStore,
        applier: Applier,
        hints: LaunchHints,
        idleness: Idleness,
        clock: Clock,
        width: int,
        extenders: Extenders | None = None,
        recorder: Recorder | None = None,
        volumes: ClaimReads,
        capacity: CapacityRequests,
    ) -> None:
        self._pool = pool
        self._cluster = cluster
        self._store = store
        self._applier = applier
        self._hints = hints
        self._clock = clock
        self._slots = asyncio.Semaphore(width)
        self._ledger = Ledger()
        self._planned_at: tuple[int, ...] = ()
        self.due: float | None = None
        """When the passing of time alone makes a tick necessary (epoch seconds); None when it does not."""
        self._view = PlannerView(pool, cluster)
        self._policies = Policies()
        self._explainer = Explainer(pool, applier, clock, cluster)
        self._deadlines = Deadlines(pool, cluster.allocations)
        self._idleness = idleness
        self._extenders = extenders or Extenders(NoExtenders(), clock)
        self._volumes = volumes
        self._capacity = capacity
        self._capacity_seen = 0
        self._news_seen = 0
        self._recorder = recorder or Recorder(pool, cluster, (), version="")
        self._shadow = ShadowPlanner(pool, clock)
        self._forecast_accuracy = ForecastAccuracy(pool)
        self.gauges = PoolGauges(pool, cluster, clock)
        self._watched: tuple[PlanTrace | None, Answers | None] = (None, None)
        """the trace and the extender answers of the last plan"""

    def warm(self) -> None:
        """Build the planner's columns and read the policy now, so that the first tick has less to do."""
        self._policies.of(self._view.snapshot(self._ledger, self._clock.now()).pool)

    async def promote(self, reach: Callable[[int], Awaitable[bool]]) -> None:
        """Take over the ledger: raise its epoch by compare-and-swap, so that every earlier leader is fenced off.

        `reach` updates the tables to a version of the allocations, and returns whether it had to LIST. The order is
        read, reach, write. So the tables show the effect of every decision that has left the ledger: if a decision had
        left the ledger since the read, the write would be refused.
        """
        begun_s, tries, lists = self._clock.monotonic(), 0, 0
        while True:
            tries += 1
            liveness.beat()
            stored = await self._store.load()
            # While no decision has left the ledger, `through` is 0, and the pool's own version is used instead.
            lists += await reach(stored.through or self._store.version)
            promoted = ledger.promote(stored, self._cluster.epoch_max())
            promoted = ledger.seen_through(promoted, self._cluster.allocations.newest)
            if await self._store.save(promoted):
                self._ledger = promoted
                break
        _log.info(
            "leading",
            pool=self._pool,
            epoch=self._ledger.epoch,
            open=len(self._ledger.decisions),
            took_s=round(self._clock.monotonic() - begun_s, 3),
            tries=tries,
            lists=lists,
        )

    async def tick(self) -> Tick:
        """One tick.

        Raises:
            DeposedError: another leader has taken over; stop at once.
            TransientError: the API server did not answer; the next tick continues from the stored state.
            InvariantError: the plan breaks one of its own rules; no part of it was committed.
        """
        # 1. Settle the decisions whose effect the tables show, and finish the open ones before deciding anything new.
        finished: list[AppliedEffect] = []
        if self._ledger.decisions:
            with _timed("finish"):
                self._settle()
                finished = await self._apply(self._ledger.decisions, self._ledger.nodes)
                self._settle()
        # 2. Fire the deadlines that have passed; they are stored in the objects.
        stopped = await self._fire_deadlines()
        # 3. Plan, unless the input of planning is unchanged.
        await self._volumes.read_due(is_planning=self._is_due(self._clock.now()))
        self._capacity.poll()
        now = self._clock.now()
        if not self._is_due(now):
            return self._report(finished, stopped=stopped)
        generation = self._cluster.generation
        # If this plan is not committed, for any reason, the next tick plans again.
        self._planned_at = ()
        snapshot, plan, recorded = await self._plan(now)
        liveness.beat()
        seed = self._ledger.tick
        # 4. Write the decisions to the ledger first (the fence), then to the allocations.
        placed = decisions_of(plan)
        before, standing = self._ledger, without_replaced(self._ledger, plan)
        applied: list[AppliedEffect] = []
        decided: tuple[Decision, ...] = ()
        if placed:
            together = atomic_groups(plan, placed)
            committed, decided = ledger.commit(standing, placed, at=format_time(now), together=together)
            committed = _charged(committed, decided, snapshot, plan)
            with _timed("commit"):
                seen = await self._commit(committed, decided)
            if seen is None:
                self._ledger = await self._store.load()
                return self._report(finished, stopped=stopped, planned=True, is_stale=True)
            self._ledger = committed
            self._extenders.forget()
            self._count(decided)
            with _timed("apply"):
                applied = await self._apply(decided, committed.nodes, seen)
        elif standing is not before:
            self._ledger = standing
        # 5. Request nodes if the pool has an autoscaler, and write why the other allocations wait.
        explanations = self._with_capacity(snapshot, plan)
        with _timed("explain"):
            explained = await self._explainer.write(explanations, self._observe, is_deciding=bool(placed))
        self.due = _earlier(self.due, explained.again_at)
        # A plan without decisions is valid until its input changes;
        # after one with decisions, the next tick plans again.
        self._planned_at = () if placed or plan.dropped else generation
        # 6. Last, what no decision depends on: gauges, the plan of the shadow policy, and the record of the tick.
        if isinstance(plan.explanations, Explanations):
            self.gauges.measure(plan.explanations)
        self._forecast_accuracy.note(plan.kept)
        self._forecast_accuracy.started(decided, now)
        shadowed = self._shadow.compare(snapshot, plan, seed, self._watched[1])
        if decided:
            self._recorder.offer(recorded, epoch=self._ledger.epoch, tick=self._ledger.tick, shadow=shadowed)
        results = [*finished, *applied]
        return self._report(results, stopped=stopped, planned=True, decided=len(decided), explained=explained.written)

    # --- the steps ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        if not self._ledger.decisions:
            return
        settled: dict[str, int] = {}
        allocations = self._cluster.allocations
        for decision in self._ledger.decisions:
            fact = allocations.get(decision.allocation)
            is_over = ledger.is_impossible(decision, fact) if fact is not None else ledger.is_held(decision)
            if is_over or ledger.is_applied(decision, fact):
                settled[decision.id] = allocations.version(decision.allocation)
        self._ledger = ledger.settle(self._ledger, settled, max(settled.values(), default=0))
        self._ledger = ledger.settle(self._ledger, ledger.obsolete_evictions(self._ledger))

    async def _commit(self, committed: Ledger, decided: Sequence[Decision]) -> Seen | None:
        """Write the ledger and, at the same time, read the objects of the first decisions.

        Return {decision id: its object}; None when another write came first.
        """
        known = {each.id: allocation_of(each, self._cluster.allocations.get(each.allocation)) for each in decided}
        first = [each for each in decided if known[each.id] is None and not ledger.is_held(each)][:LOOK_AHEAD_MAX]
        saved, found = await asyncio.gather(
            self._store.save(committed), asyncio.gather(*(self._applier.read(each) for each in first))
        )
        if not saved:
            return None
        return known | {decision.id: allocation for decision, allocation in zip(first, found, strict=True)}

    async def _apply(
        self, decisions: Sequence[Decision], nodes: Sequence[str], seen: Seen = MappingProxyType({})
    ) -> list[AppliedEffect]:
        decisions = [each for each in decisions if not ledger.is_held(each)]
        if not decisions:
            return []
        results = await asyncio.gather(*(self._apply_one(each, nodes, seen.get(each.id)) for each in decisions))
        done = [result for result in results if result is not None]
        hints = [_hint(result) for result in done if _needs_work(result)]
        if hints:
            await self._send(hints)
        return done

    async def _apply_one(
        self, decision: Decision, nodes: Sequence[str], seen: Allocation | None
    ) -> AppliedEffect | None:
        fact = self._cluster.allocations.get(decision.allocation)
        async with self._slots:
            try:
                result = await self._applier.decision(decision, nodes, seen)
            except (StaleError, TransientError, DeniedError) as exc:
                # The decision stays in the ledger, and the next tick or the next leader finishes it. If our service
                # account lacks a permission for this object, the other decisions must still be applied.
                _log.warning("decision not applied yet", decision=decision.id, error=str(exc))
                return None
            finally:
                liveness.beat()
        self._observe(decision.allocation, result.allocation, fact)
        if result.outcome is EffectOutcome.VOID:
            telemetry.DECISIONS.labels(pool=self._pool, kind="void").inc()
            self._ledger = ledger.settle(self._ledger, (decision.id,))
        elif result.outcome is EffectOutcome.APPLIED and fact is not None and decision.kind is DecisionKind.ADMIT:
            waited_s = max(0.0, self._clock.now() - fact.phase_since)
            wait = telemetry.QUEUE_WAIT.labels(pool=self._pool, reason=fact.gate or NO_GATE)
            wait.observe(waited_s, of=traceparent_of(result.allocation.metadata) if result.allocation else None)
        return result

    async def _fire_deadlines(self) -> int:
        """Fire passed deadlines, at most `FIRED_MAX`; the next tick fires the rest, so that planning is not delayed."""
        fired = self._deadlines.passed(self._clock.now())[:FIRED_MAX]
        if not fired:
            return 0
        with _timed("deadlines"):
            due = await self._without_use(fired)
            return sum(await asyncio.gather(*(self._fire(item) for item in due))) if due else 0

    async def _fire(self, item: PassedDeadline) -> bool:
        fact = item.allocation
        async with self._slots:
            try:
                applied = await self._applier.stop(fact.namespace, fact.name, fact.uid, fact.attempt, item.reason)
            except (StaleError, TransientError, PermanentError) as exc:
                # The deadline is stored in the object, so a later tick or the next leader fires it.
                _log.warning("deadline not fired yet", allocation=fact.key, error=str(exc))
                self._deadlines.retry(fact, self._clock.now() + FIRE_AGAIN_S)
                return False
            finally:
                liveness.beat()
        self._observe(fact.key, applied.allocation)
        _log.info("deadline passed", allocation=fact.key, reason=item.reason.value)
        return True

    async def _without_use(self, due: Sequence[PassedDeadline]) -> list[PassedDeadline]:
        """Return `due` without the idle deadlines of allocations that are in use; these deadlines are postponed."""
        idle = [item.allocation for item in due if item.reason is Reason.IDLE]
        now, used = self._clock.now(), set[str]()
        for fact, until in zip(idle, await self._idleness.idle_at(idle), strict=True):
            if until > now:
                self._deadlines.postpone(fact, until)
                used.add(fact.key)
        return [item for item in due if item.allocation.key not in used]

    def _is_due(self, now: float) -> bool:
        if self._planned_at != self._cluster.generation or self._extenders.news != self._news_seen:
            return True
        if self._capacity.news != self._capacity_seen:
            return True
        return self.due is not None and now >= self.due

    async def _plan(self, now: float) -> tuple[PoolSnapshot, Plan, RecordedTick | None]:
        """Return the snapshot, the plan, and what may be recorded of it."""
        with _timed("snapshot"):
            snapshot = self._view.snapshot(self._ledger, now)
            self._recorder.observe()
        with _timed("plan"):
            policy = self._policies.of(snapshot.pool)
            plan = await self._consulted(snapshot, policy, now) if policy.extenders else None
            plan = plan or self._planned(snapshot, policy, now, None)
        violations = lint(snapshot, plan)
        if violations:
            raise InvariantError(f"the plan breaks its own rules: {violations[0]}")
        self.due = _earlier(self._deadlines.next_due(now), plan.look_again or None)
        if policy.extenders and (again_s := self._extenders.due_s) is not None:
            self.due = _earlier(self.due, now + again_s)
        trace, answers = self._watched
        inputs = PlanInputs(ledger=self._ledger, at=now, seed=self._ledger.tick, policy=policy, answers=answers)
        return snapshot, plan, self._recorder.record_of(plan, trace, inputs)

    def _planned(self, snapshot: PoolSnapshot, policy: PlacementPolicy, now: float, answers: Answers | None) -> Plan:
        self._watched = trace, _ = self._recorder.new_trace(), answers
        return planner.plan(snapshot, policy, now, self._ledger.tick, answers=answers, watch=trace, grows=True)

    async def _consulted(self, snapshot: PoolSnapshot, policy: PlacementPolicy, now: float) -> Plan:
        """Return the plan with the extenders' answers, as far as they arrive in time;
        the next tick uses the other answers."""
        extenders, clock = self._extenders, self._clock
        until_s = clock.monotonic() + PATIENCE_S
        self._news_seen = extenders.news
        for _ in range(3 * len(policy.extenders)):
            plan = self._planned(snapshot, policy, now, extenders.answers(snapshot.table))
            left_s = until_s - clock.monotonic()
            if not plan.questions or not await extenders.ask(plan.questions, snapshot.table, left_s):
                return plan
            self._news_seen = extenders.news
        return self._planned(snapshot, policy, now, extenders.answers(snapshot.table))

    def _with_capacity(self, snapshot: PoolSnapshot, plan: Plan) -> Mapping[str, Explanation]:
        """Return the explanations of a plan, with the requests to an autoscaler."""
        self._capacity_seen = self._capacity.news
        decided = self._capacity.decide(snapshot, plan)
        if decided is None or not isinstance(plan.explanations, Explanations):
            return plan.explanations
        self.due = _earlier(self.due, decided.look_again or None)
        return plan.explanations.with_own(decided.notes)

    # --- details ----------------------------------------------------------------------------------------------

    def _count(self, decided: Sequence[Decision]) -> None:
        for decision in decided:
            telemetry.DECISIONS.labels(pool=self._pool, kind=decision.kind.value).inc()
            if decision.kind is DecisionKind.EVICT and decision.by:
                telemetry.PREEMPTIONS.labels(pool=self._pool, what="ranks" if decision.ranks else "whole").inc()
                _log.info("preempted", allocation=decision.allocation, by=decision.by, ranks=len(decision.ranks))

    def _observe(self, key: str, allocation: Allocation | None, fact: AllocationFact | None = None) -> None:
        """Store our own write in the tables at once; the feed's later delta of it changes nothing.

        `fact` is the allocation's fact before the write.
        """
        table = self._cluster.allocations
        if allocation is None:
            table.drop(key, table.version(key))
        else:
            known = fact if fact is not None and is_same_spec(fact, allocation) else None
            ranges = self._cluster.ranges_of(allocation.metadata.namespace) if known is None else ()
            written = allocation_fact(allocation, self._store.pool, ranges=ranges, known=known)
            table.put(key_of(allocation), written, allocation.metadata.version)

    async def _send(self, hints: Sequence[WorkHint]) -> None:
        try:
            async with asyncio.timeout(HINT_DEADLINE_S):
                await self._hints.send(hints)
        except (TransientError, TimeoutError) as exc:
            # No error: the watcher sends a hint again for every allocation whose phase needs work.
            _log.warning("hints not sent", count=len(hints), error=str(exc))

    def _report(
        self,
        results: Sequence[AppliedEffect],
        *,
        stopped: int,
        planned: bool = False,
        decided: int = 0,
        explained: int = 0,
        is_stale: bool = False,
    ) -> Tick:
        applied = sum(result.outcome is EffectOutcome.APPLIED for result in results)
        self._settle()
        outcome = "stale" if is_stale else "decided" if decided else "idle"
        telemetry.TICKS.labels(pool=self._pool, outcome=outcome).inc()
        tick = Tick(
            number=self._ledger.tick,
            planned=planned,
            decided=decided,
            applied=applied,
            void=sum(result.outcome is EffectOutcome.VOID for result in results),
            open=sum(not ledger.is_held(decision) for decision in self._ledger.decisions),
            explained=explained,
            stopped=stopped,
        )
        if not tick.is_idle:
            # With a long queue, ticks may write a few explanations fifty times a second:
            # those are not worth a log line.
            is_news = tick.decided or tick.applied or tick.void or tick.open or tick.stopped
            say = _log.info if is_news else _log.debug
            say("tick", pool=self._pool, **msgspec.structs.asdict(tick))
        return tick


def _charged(committed: Ledger, decided: Sequence[Decision], snapshot: PoolSnapshot, plan: Plan) -> Ledger:
    """Return the ledger with its new evictions charged to the eviction limits.

    The evictions and the charges are in one write, so neither is stored without the other.
    """
    kept = {each.uid for each in decided if each.kind is DecisionKind.EVICT}
    evictions = [each for each in plan.evictions if each.uid in kept]
    return msgspec.structs.replace(committed, evicted=levels_after(snapshot, evictions, snapshot.now))


def _timed(phase: str) -> AbstractContextManager[object]:
    return telemetry.TICK_DURATION.labels(phase=phase).time()


def _needs_work(result: AppliedEffect) -> bool:
    return result.outcome is not EffectOutcome.VOID and result.allocation is not None


def _hint(result: AppliedEffect) -> WorkHint:
    """Return the hint for an applied decision, with the span of its write, to which the pod worker links."""
    if result.allocation is None:
        raise InvariantError("a hint needs an object")
    meta, id_ = result.allocation.metadata, id_of(result.allocation)
    cause = result.traceparent or traceparent_of(meta)
    return WorkHint(namespace=meta.namespace, allocation=id_, traceparent=hint_traceparent(cause, id_))


def _earlier(first: float | None, second: float | None) -> float | None:
    return min((at for at in (first, second) if at is not None), default=None)
