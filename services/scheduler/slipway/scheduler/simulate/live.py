"""What if: a pool as it stands, run on in virtual time twice, without and with changes; the answer is the difference.

What runs ends when its run limit says so, and not before: nobody knows more. What is being stopped counts as gone. The
planner, its policy and the virtual world are those of `slipway simulate`; only what the world begins with is real.
Times in the answer are seconds from now. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slipway.errors import InvalidError
from slipway.kube.facts import FEED_KINDS, Fact, decode_fact
from slipway.model.facts import VOLUMES, AllocationFact, PoolFact, QuotaFact, VolumeFact
from slipway.model.ids import allocation_id
from slipway.model.lifecycle import Phase
from slipway.model.podquota import is_counted, usage_of
from slipway.model.times import format_time
from slipway.scheduler.plan.placement.explain import spelled
from slipway.scheduler.plan.preemption.eviction_budget import remembered
from slipway.scheduler.plan.state.plan_types import as_data
from slipway.scheduler.plan.state.snapshot import nodes_of_pool
from slipway.scheduler.simulate import changes as wishes
from slipway.scheduler.simulate import lower
from slipway.scheduler.simulate.changes import PoolStanding
from slipway.scheduler.simulate.futures import HORIZON_S
from slipway.scheduler.simulate.parts import AllocationPart, PlacedPart, RankPart, Scenario
from slipway.scheduler.simulate.run import SimulationOutcome, simulate
from slipway.scheduler.simulate.world import Life

Json = dict[str, Any]
SHOWN_MAX = 1000
"""Allocations that differ and are shown; the rest is counted."""
SUPPOSED = "supposed"
"""What stands in place of an id for an allocation that is only supposed."""
ASSUMPTIONS = (
    "what runs ends when its run limit says so; what has none runs on",
    "what is being stopped is gone; nothing else is launched, ended or fails",
    "volume claims stay as they are; those of work that is only supposed are not looked at",
    "budgets and fair shares count what is used from now on; extenders are not asked",
)


def answer(facts: Mapping[str, Mapping[str, msgspec.Raw]], body: Json, now: float) -> Json:
    """The answer to a request over the facts of a cluster: {kind of the feed: {key: fact}}.

    Raises:
        InvalidError: the request is not valid; the message starts with the path of the field.
    """
    changes = wishes.decode(body)
    standing = standing_of(facts, changes.pool)
    changed = wishes.apply(standing, changes)
    before, after = _run(standing, now, changes.until), _run(changed, now, changes.until)
    one, two = _views(before, now), _views(after, now)
    keys = sorted(one.keys() | two.keys())
    different = [key for key in keys if _fate(one.get(key)) != _fate(two.get(key))]
    retold = sum(one.get(key) != two.get(key) for key in keys) - len(different)
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
        "explainedOtherwise": retold,
        "assumptions": list(ASSUMPTIONS),
    }


def foreseen(facts: Mapping[str, Mapping[str, msgspec.Raw]], pool: str, key: str, now: float) -> Json:
    """What the planner says now of one allocation that waits: its explanation with what would help, and when it starts
    (epoch seconds; null: nobody knows).

    Raises:
        InvalidError: it does not wait in that pool.
    """
    standing = standing_of(facts, pool)
    fact = standing.allocations.get(key)
    if fact is None or fact.phase is not Phase.PENDING:
        raise InvalidError(f"allocation: {key} does not wait in pool {pool}")
    why = _run(standing, now, 0.0).explanations.get(key)
    latest = _run(standing, now, HORIZON_S).world.lives[fact.uid].first_start
    is_never = latest is None and (fact.hold or bool(fact.waits_for) or (why is not None and why.is_never))
    answer: Json = {} if why is None else as_data(why)
    return answer | {
        "helps": [spelled(change) for change in why.change or ()] if why is not None else [],
        "estimatedStart": {"earliest": None if is_never else max(now, fact.not_before), "latest": latest},
    }


def standing_of(facts: Mapping[str, Mapping[str, msgspec.Raw]], pool: str) -> PoolStanding:
    """The pool as the facts have it.

    Raises:
        InvalidError: there is no such pool.
    """
    every = {kind: [decode_fact(kind, bytes(raw)) for raw in facts.get(kind, {}).values()] for kind in FEED_KINDS}
    pools = _of(every, "resourcepools")
    own = next((each for each in pools if each.name == pool), None)
    if own is None:
        raise InvalidError(f"pool: there is no pool {pool[:80]}")
    own_work = [fact for fact in _of(every, "allocations") if fact.pool == pool]
    allocations = [fact for fact in own_work if _stays(fact)]
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
    """The quota as others than the pool's own work use it: what that uses is counted while it runs here."""
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


def _stays(fact: AllocationFact) -> bool:
    is_ending = fact.phase in (Phase.TERMINATED, Phase.TERMINATING) or fact.stopping
    return not (is_ending or fact.deleting or fact.desired == "Stopped")


def _run(standing: PoolStanding, now: float, horizon: float) -> SimulationOutcome:
    parts = [_part(fact, standing, now) for fact in standing.allocations.values()]
    supposed = [msgspec.structs.replace(part, submit=now + max(0.0, part.submit)) for part in standing.added]
    given = lower.Given(
        pool=standing.pool,
        nodes=list(standing.nodes.values()),
        queues=list(standing.queues.values()),
        jobs=standing.jobs,
        workspaces=frozenset(space.name for space in standing.spaces if space.is_workspace and not space.terminating),
        allocations={fact.uid: _at_first(fact) for fact in standing.allocations.values()}
        | {part.name: _supposed(part, standing.pool) for part in supposed},
        pods=standing.pods,
        quotas=standing.quotas,
        volumes=standing.volumes,
        namespaces={space.name: space.labels for space in standing.spaces},
        # The ledger is not among the facts: what the allocations tell of their evictions stands for it.
        evicted=remembered(standing.pool, standing.queues.values(), standing.allocations.values()),
    )
    scenario = Scenario(nodes=[], allocations=[*parts, *supposed], until=now + horizon)
    return simulate(scenario, given=given, start=now)


def _part(fact: AllocationFact, standing: PoolStanding, now: float) -> AllocationPart:
    """When it comes, and where it runs already; everything else is in its fact."""
    since = fact.started or fact.phase_since or now
    is_whole = all(node in standing.nodes for node in fact.placements.values())
    placed = [
        PlacedPart(rank=rank, node=node, since=min(since, now), device=list(fact.devices.get(rank, ())) or None)
        for rank, node in sorted(fact.placements.items())
        if is_whole
    ]
    return AllocationPart(name=fact.uid, submit=max(now, fact.not_before), ranks=[RankPart()], placed=placed)


def _at_first(fact: AllocationFact) -> AllocationFact:
    """As it is before the world has done anything with it. Its name there is its uid."""
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


def _supposed(part: AllocationPart, pool: PoolFact) -> AllocationFact:
    return msgspec.structs.replace(lower.allocation(part), pool=pool.name, kind=SUPPOSED)


def _views(outcome: SimulationOutcome, now: float) -> dict[str, Json]:
    """{allocation key: what becomes of it}"""
    return {life.fact.key: _view(outcome, life, now) for life in outcome.world.lives.values()}


def _view(outcome: SimulationOutcome, life: Life, now: float) -> Json:
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


def _fate(view: Json | None) -> Json | None:
    """What counts as a difference: a wait for the same reason is the same in other numbers."""
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
    """Seconds from now, to the millisecond: what is left of an epoch time after the comma is noise."""
    return None if at is None else round(at - now, 3)
