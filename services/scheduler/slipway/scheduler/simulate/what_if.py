"""What-if runs: a real pool is simulated twice from now, without and with changes; the answer is the difference.

A running allocation ends exactly at its run limit, because nothing else is known. An allocation that is being stopped
is treated as gone. The planner, its policy and the virtual world are those of `slipway simulate`; only the initial
state is real. Times in the answer are seconds from now. Pure.

For one waiting allocation it also estimates when it is likely to start (`forecast.py`), from the past of the pool in
the request.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway.errors import InvalidError
from slipway.facts.core_objects import FEED_KINDS, Fact, decode_fact
from slipway.model.facts import VOLUMES, AllocationFact, QuotaFact, VolumeFact
from slipway.model.ids import allocation_id
from slipway.model.lifecycle import Phase
from slipway.model.namespace_limits import is_counted, usage_of
from slipway.model.times import format_time
from slipway.scheduler.plan.placement.explain import instruction_of
from slipway.scheduler.plan.preemption.eviction_budget import remembered
from slipway.scheduler.plan.state.plan_types import as_data
from slipway.scheduler.plan.state.snapshot import nodes_of_pool
from slipway.scheduler.simulate import scenario_facts
from slipway.scheduler.simulate.changes import PoolStanding, apply, decode
from slipway.scheduler.simulate.forecast import (
    HORIZON_S,
    SAMPLES_MIN,
    KnownPast,
    LiveWork,
    PastArrival,
    PastRun,
    PresentState,
    as_run,
    likely_starts,
)
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.scenario_format import AllocationPart, PlacedPart, RankPart, Scenario
from slipway.scheduler.simulate.world import AllocationHistory

Json = dict[str, Any]
SHOWN_MAX = 1000
"""The largest number of differing allocations that are shown; the others are counted."""
SUPPOSED = "supposed"
"""The text in place of an id for a hypothetical allocation."""
ASSUMPTIONS = (
    "a running allocation ends at its run limit; without a limit it runs on",
    "an allocation that is being stopped has ended; nothing else is launched, ended or fails",
    "volume claims stay as they are; those of supposed allocations are ignored",
    "budgets and fair shares count the use from now on; extenders are not called",
)
WORK_MAX = 500
NODES_MAX = 2_000
TOO_LONG = "the computation takes too long"
"""The reason why the likely start is missing in the first answer of a forecast. With more allocations than `WORK_MAX`,
or more nodes than `NODES_MAX`, the likely start is never computed, because a page would wait for it too long."""


class PastPiece(msgspec.Struct, frozen=True, kw_only=True):
    """An ended allocation of the pool, as the api sends it."""

    fact: AllocationFact
    ran_s: float


class PoolPast(msgspec.Struct, frozen=True, kw_only=True):
    """The past of the pool that the api knows. Times are epoch seconds."""

    runs: list[PastRun] = []
    """runs that have ended"""
    since: float = 0.0
    arrivals: list[float] = []
    pieces: list[PastPiece] = []
    """the last allocations that have ended"""


def answer(facts: Mapping[str, Mapping[str, msgspec.Raw]], body: Json, now: float) -> Json:
    """Return the answer to a request, on the facts of a cluster: {kind of the feed: {key: fact}}.

    Raises:
        InvalidError: the request is not valid; the message starts with the path of the field.
    """
    changes = decode(body)
    standing = standing_of(facts, changes.pool)
    changed = apply(standing, changes)
    before, after = _run(standing, now, changes.until), _run(changed, now, changes.until)
    one, two = _views(before, now), _views(after, now)
    keys = sorted(one.keys() | two.keys())
    different = [key for key in keys if _compared_part(one.get(key)) != _compared_part(two.get(key))]
    explained_otherwise = sum(one.get(key) != two.get(key) for key in keys) - len(different)
    return {
        "pool": changes.pool,
        "at": format_time(now),
        "until": changes.until,
        "before": _summary(before, one),
        "after": _summary(after, two),
        "differences": [
            {"allocation": key, "before": one.get(key), "after": two.get(key)} for key in different[:SHOWN_MAX]
        ],
        "notShown": max(0, len(different) - SHOWN_MAX),
        "same": len(keys) - len(different),
        "explainedOtherwise": explained_otherwise,
        "assumptions": list(ASSUMPTIONS),
    }


def forecast_of(standing: PoolStanding, key: str, now: float) -> Json:
    """Return the explanation of one waiting allocation, the changes that would help, and its start.

    Times are epoch seconds; null: unknown.

    Raises:
        InvalidError: the allocation does not wait in that pool.
    """
    fact = standing.allocations.get(key)
    if fact is None or fact.phase is not Phase.PENDING:
        raise InvalidError(f"allocation: {key} does not wait in pool {standing.pool.name}")
    why = _run(standing, now, 0.0).explanations.get(key)
    latest = _run(standing, now, HORIZON_S).world.lives[fact.uid].first_start
    is_never = latest is None and (fact.hold or bool(fact.waits_for) or (why is not None and why.is_never))
    answer: Json = {} if why is None else as_data(why)
    return answer | {
        "helps": [instruction_of(change) for change in why.change or ()] if why is not None else [],
        "estimatedStart": {
            "earliest": None if is_never else max(now, fact.not_before),
            "latest": latest,
            **({} if is_never else {"likelyUnknown": TOO_LONG}),
        },
    }


def with_likely(answer: Json, standing: PoolStanding, key: str, now: float, past: PoolPast) -> Json:
    """Return the answer of `forecast_of` with the likely bounds by the pool's `past`,
    or with the reason why there are none."""
    start: Json = {name: at for name, at in answer["estimatedStart"].items() if name != "likelyUnknown"}
    if start["earliest"] is None:
        return answer
    return answer | {"estimatedStart": start | _likely(standing, standing.allocations[key], start["latest"], now, past)}


def _likely(standing: PoolStanding, fact: AllocationFact, latest: float | None, now: float, past: PoolPast) -> Json:
    if len(standing.allocations) > WORK_MAX or len(standing.nodes) > NODES_MAX:
        return {"likelyUnknown": f"the pool has more than {WORK_MAX} allocations or {NODES_MAX} nodes"}
    history = _history(standing, past, now)
    if not history.is_enough:
        return {"likelyUnknown": f"fewer than {SAMPLES_MIN} allocations of the pool are known to have ended"}
    work = [
        LiveWork(part=_part(each, standing, now), fact=_before_run(each), ran_s=_ran_s(each, now))
        for each in standing.allocations.values()
    ]
    standing_now = PresentState(at=now, given=_given(standing, {}), work=work)
    bounds = likely_starts(standing_now, history, {fact.uid: latest}).get(fact.uid)
    if bounds is None:
        return {"likelyUnknown": "it does not start when other allocations end"}
    return {"likely": {"earliest": bounds[0], "latest": bounds[1]}}


def _history(standing: PoolStanding, past: PoolPast, now: float) -> KnownPast:
    """Return the past with the ended allocations, and with those that still run or wait."""
    live = standing.allocations.values()
    pieces = [_piece(each.fact, each.ran_s, has_ended=True) for each in past.pieces]
    return KnownPast(
        runs=[*past.runs, *(as_run(fact, _ran_s(fact, now), has_ended=False) for fact in live if fact.started)],
        since=past.since,
        arrivals=past.arrivals,
        pieces=[*pieces, *(_piece(fact, _ran_s(fact, now), has_ended=False) for fact in live)],
    )


def _piece(fact: AllocationFact, ran_s: float, *, has_ended: bool) -> PastArrival:
    """Return an allocation with the same requests and without history.
    Its volumes are assumed reachable from every node."""
    fresh = AllocationFact(
        namespace=fact.namespace,
        name=fact.name,
        uid=fact.uid,
        version=1,
        pool=fact.pool,
        queue=fact.queue,
        job=fact.job,
        kind=fact.kind,
        user=fact.user,
        priority=fact.priority,
        preemptible=fact.preemptible,
        roles=tuple(msgspec.structs.replace(role, claims=()) for role in fact.roles),
        minimum=fact.minimum,
        topology=fact.topology,
        flavors=fact.flavors,
        max_runtime=fact.max_runtime,
        finalized=True,
        invalid=fact.invalid,
    )
    return PastArrival(
        part=AllocationPart(name=fact.uid, ranks=[RankPart()]), fact=fresh, ran_s=ran_s, has_ended=has_ended
    )


def _ran_s(fact: AllocationFact, now: float) -> float:
    """Return how long its attempt has run so far, in seconds."""
    return max(0.0, now - fact.started) if fact.started else 0.0


def standing_of(facts: Mapping[str, Mapping[str, msgspec.Raw]], pool: str) -> PoolStanding:
    """Return the present state of the pool from the facts.

    Raises:
        InvalidError: the pool does not exist.
    """
    every = {kind: [decode_fact(kind, bytes(raw)) for raw in facts.get(kind, {}).values()] for kind in FEED_KINDS}
    pools = _of(every, "resourcepools")
    own = next((each for each in pools if each.name == pool), None)
    if own is None:
        raise InvalidError(f"pool: there is no pool {pool[:80]}")
    own_work = [fact for fact in _of(every, "allocations") if fact.pool == pool]
    allocations = [fact for fact in own_work if _continues(fact)]
    uids = {fact.uid for fact in _of(every, "allocations")}
    return PoolStanding(
        pool=own,
        nodes={node.name: node for node in nodes_of_pool(pools, _of(every, "nodes"))[pool]},
        queues={queue.name: queue for queue in _of(every, "queues") if queue.pool == pool},
        jobs=_of(every, "jobs"),
        spaces=_of(every, "namespaces"),
        allocations={fact.key: fact for fact in allocations},
        quotas=[_of_others(quota, own_work) for quota in _of(every, "resourcequotas")],
        volumes=[msgspec.json.decode(raw, type=VolumeFact) for raw in facts.get(VOLUMES, {}).values()],
        pods=[pod for pod in _of(every, "pods") if pod.live and pod.allocation_uid not in uids],
    )


def _of(every: Mapping[str, list[Fact]], kind: str) -> list[Any]:
    return every.get(kind, [])


def _of_others(quota: QuotaFact, work: Iterable[AllocationFact]) -> QuotaFact:
    """Return the quota without the usage of the pool's own allocations, which the simulation itself counts."""
    used = dict(quota.used)
    for fact in work:
        if fact.namespace != quota.namespace or not fact.released or fact.phase is Phase.TERMINATED:
            continue
        for rank in fact.placements.keys() - set(fact.ended_ranks):
            role = fact.role_of(rank)
            if role is not None and is_counted(role, quota):
                for name, amount in usage_of(role.requests, role.limits).items():
                    used[name] = max(0, used.get(name, 0) - amount)
    return msgspec.structs.replace(quota, used={name: amount for name, amount in used.items() if amount})


def _continues(fact: AllocationFact) -> bool:
    is_ending = fact.phase in (Phase.TERMINATED, Phase.TERMINATING) or fact.stopping
    return not (is_ending or fact.deleting or fact.desired == "Stopped")


def _run(standing: PoolStanding, now: float, horizon: float) -> SimulationOutcome:
    parts = [_part(fact, standing, now) for fact in standing.allocations.values()]
    supposed = [msgspec.structs.replace(part, submit=now + max(0.0, part.submit)) for part in standing.added]
    scenario = Scenario(nodes=[], allocations=[*parts, *supposed], until=now + horizon)
    facts = {fact.uid: _before_run(fact) for fact in standing.allocations.values()}
    facts |= {part.name: _added_fact(part, standing) for part in supposed}
    return simulate(scenario, given=_given(standing, facts), start=now)


def _given(standing: PoolStanding, allocations: dict[str, AllocationFact]) -> scenario_facts.ScenarioFacts:
    return scenario_facts.ScenarioFacts(
        pool=standing.pool,
        nodes=list(standing.nodes.values()),
        queues=list(standing.queues.values()),
        jobs=standing.jobs,
        workspaces=frozenset(space.name for space in standing.spaces if space.is_workspace and not space.terminating),
        allocations=allocations,
        pods=standing.pods,
        quotas=standing.quotas,
        volumes=standing.volumes,
        namespaces={space.name: space.labels for space in standing.spaces},
        # The ledger is not among the facts, so its eviction levels are rebuilt from the evictions in the allocations.
        evicted=remembered(standing.pool, standing.queues.values(), standing.allocations.values()),
    )


def _part(fact: AllocationFact, standing: PoolStanding, now: float) -> AllocationPart:
    """Return when `fact` arrives, and where it runs already; the simulation reads everything else from `fact`."""
    since = fact.started or fact.phase_since or now
    is_whole = all(node in standing.nodes for node in fact.placements.values())
    placed = [
        PlacedPart(rank=rank, node=node, since=min(since, now), device=list(fact.devices.get(rank, ())) or None)
        for rank, node in sorted(fact.placements.items())
        if is_whole
    ]
    return AllocationPart(name=fact.uid, submit=max(now, fact.not_before), ranks=[RankPart()], placed=placed)


def _before_run(fact: AllocationFact) -> AllocationFact:
    """Return the fact before the simulation. In the simulation, its name is its uid."""
    return msgspec.structs.replace(
        fact,
        phase=Phase.PENDING,
        placements={},
        devices={},
        decision="",
        deadlines={},
        not_before=0.0,
        leaving_ranks=(),
        released=False,
    )


def _added_fact(part: AllocationPart, standing: PoolStanding) -> AllocationFact:
    return msgspec.structs.replace(
        scenario_facts.allocation(part), namespace=standing.workspace, pool=standing.pool.name, kind=SUPPOSED
    )


def _views(outcome: SimulationOutcome, now: float) -> dict[str, Json]:
    """Return {allocation key: its state at the end of the run}."""
    return {life.fact.key: _view(outcome, life, now) for life in outcome.world.lives.values()}


def _view(outcome: SimulationOutcome, life: AllocationHistory, now: float) -> Json:
    fact = life.fact
    why = outcome.explanations.get(fact.key) if life.phase is Phase.PENDING and life.is_submitted else None
    return {
        "id": SUPPOSED if fact.kind == SUPPOSED else allocation_id(fact.name, fact.uid),
        "phase": life.phase.value,
        "start": _from_now(life.first_start, now),
        "end": _from_now(life.end, now),
        "attempts": fact.attempt,
        "priority": fact.priority,
        "queue": fact.queue,
        "placements": [{"rank": place.rank, "node": place.node, "device": place.device} for place in life.places],
        "explain": None if why is None else as_data(why),
    }


def _compared_part(view: Json | None) -> Json | None:
    """Return the part of a view that is compared: waits for the same reason are equal, even with other numbers."""
    if view is None or view["explain"] is None:
        return view
    return {**view, "explain": view["explain"]["code"]}


def _summary(outcome: SimulationOutcome, views: Mapping[str, Json]) -> Json:
    starts = [view["start"] for view in views.values() if view["start"] is not None and view["start"] >= 0]
    return {
        "started": len(starts),
        "startedAtOnce": sum(1 for start in starts if start == 0),
        "running": sum(view["phase"] == Phase.RUNNING.value for view in views.values()),
        "pending": sum(view["phase"] == Phase.PENDING.value for view in views.values()),
        "ended": sum(view["phase"] == Phase.TERMINATED.value for view in views.values()),
        "evictions": outcome.world.evictions,
        "ticks": outcome.ticks,
    }


def _from_now(at: float | None, now: float) -> float | None:
    """Return seconds from now, rounded to the millisecond, because more digits of an epoch time are noise."""
    return None if at is None else round(at - now, 3)
