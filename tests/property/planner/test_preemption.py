"""The rules of preemption, reclaim and consolidation, on random pools full of preemptible allocations."""

import itertools
import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, NodeFact, PoolFact, QueueFact, RoleFact
from slipway.model.resources import Resources
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.state.plan_types import Evict, Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, planned, running

SETTINGS = settings(max_examples=150, deadline=None)
TICKS_MAX = 40


class CrowdedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool with many running allocations, and the waiting ones."""

    nodes: list[NodeFact]
    queues: list[QueueFact]
    running: list[AllocationFact]
    pending: list[AllocationFact]

    def plan(self, now: float = 1000.0) -> Plan:
        """One tick."""
        return planned(self.snapshot(), now)

    def snapshot(self, allocations: list[AllocationFact] | None = None) -> PoolSnapshot:
        """The snapshot."""
        return a_snapshot(
            self.nodes,
            [*self.running, *self.pending] if allocations is None else allocations,
            queues=self.queues,
            pool=PoolFact(name="default", scores={"LeastAllocated": 1}),
        )


def carried_out(facts: list[AllocationFact], decided: Plan, now: float) -> list[AllocationFact]:
    """The allocations after `decided`: evictions at once, then admissions."""
    told = {evict.uid: evict for evict in decided.evictions}
    admits = {admit.uid: admit for admit in decided.admits}
    result: list[AllocationFact] = []
    for fact in facts:
        evict, admit = told.get(fact.uid), admits.get(fact.uid)
        if evict is not None:
            fact = after_eviction(fact, evict, now)
        if admit is not None:
            assert admit.attempt == fact.attempt
            fact = msgspec.structs.replace(running(fact, admit.placements), started=now)
        result.append(fact)
    return result


def after_eviction(fact: AllocationFact, evict: Evict, now: float) -> AllocationFact:
    """The allocation as its next attempt, or shrunk."""
    assert evict.attempt == fact.attempt
    history = (*fact.evictions, (now, evict.by)) if evict.by else fact.evictions
    if evict.ranks:
        placements = {rank: node for rank, node in fact.placements.items() if rank not in evict.ranks}
        return msgspec.structs.replace(fact, placements=placements, evictions=history)
    fresh = msgspec.structs.replace(fact, attempt=fact.attempt + 1, placements={}, evictions=history, started=0.0)
    return msgspec.structs.replace(fresh, phase=an_allocation("x").phase)


def crowds(waiting: int = 3, *, single: bool = False, reclaim: bool = True) -> st.SearchStrategy[CrowdedPool]:
    """Up to three nodes; allocations are placed where they fit, without the planner."""
    return st.integers(0, 2**32).map(lambda seed: a_crowd(random.Random(seed), waiting, single=single, reclaim=reclaim))


def a_crowd(chance: random.Random, waiting: int, *, single: bool, reclaim: bool) -> CrowdedPool:
    """One random crowd."""
    nodes = [a_node(f"n{index}", cpu=4, gpus=chance.choice([0, 2])) for index in range(chance.randint(1, 3))]
    queues = some_queues(chance, reclaim=reclaim)
    free = {node.name: [4, node.allocatable.gpus()] for node in nodes}
    there: list[AllocationFact] = []
    for index in range(chance.randint(2, 12)):
        fact = some_work(chance, f"r{index}", queues, single=False, elastic=True)
        placements = fitting(fact, free)
        if placements:
            there.append(msgspec.structs.replace(running(fact, placements), started=float(chance.randint(0, 3))))
    pending = [
        some_work(chance, f"p{index}", queues, single=single, elastic=not single)
        for index in range(chance.randint(1, waiting))
    ]
    return CrowdedPool(nodes=nodes, queues=queues, running=there, pending=pending)


def fitting(fact: AllocationFact, free: dict[str, list[int]]) -> dict[int, str]:
    """First fit for all ranks; empty when not all fit."""
    trial = {name: list(left) for name, left in free.items()}
    placements: dict[int, str] = {}
    rank = 0
    for role in fact.roles:
        asked = [role.requests.get("cpu") // 1000, role.requests.gpus()]
        for _ in range(role.count):
            for name, left in trial.items():
                if all(have >= want for have, want in zip(left, asked, strict=True)):
                    placements[rank] = name
                    trial[name] = [have - want for have, want in zip(left, asked, strict=True)]
                    break
            else:
                return {}
            rank += 1
    free.update(trial)
    return placements


def some_work(
    chance: random.Random, name: str, queues: list[QueueFact], *, single: bool, elastic: bool
) -> AllocationFact:
    roles: list[RoleFact] = []
    for number in range(1 if single else chance.choice([1, 1, 2])):
        count = 1 if single else chance.choice([1, 1, 1, 2, 3])
        minimum = chance.randint(1, count) if elastic else count
        cpu, gpus = chance.choice([(1, 0), (1, 0), (2, 0), (3, 0), (4, 0), (1, 1), (1, 2)])
        roles.append(a_role(count, minimum, cpu=cpu, gpus=gpus, name=f"role{number}"))
    return an_allocation(
        name,
        *roles,
        queue=chance.choice(queues).name,
        priority=chance.randint(0, 3),
        created=float(chance.randint(0, 3)),
        preemptible=chance.random() < 0.8,
    )


def some_queues(chance: random.Random, *, reclaim: bool) -> list[QueueFact]:
    def bound() -> Resources | None:
        return Resources({"cpu": chance.randint(0, 8) * 1000}) if chance.random() < 0.3 else None

    return [
        QueueFact(
            name=name,
            nominal=bound(),
            limit=bound(),
            weight=chance.randint(1, 2),
            priority=chance.randint(0, 1),
            within_queue=chance.choice(["Never", "LowerPriority", "LowerOrNewerEqual"]),
            reclaim=chance.choice(["Never", "LowerPriority", "Any"]) if reclaim else "Never",
            ordering=chance.choice(["BestEffortFIFO", "StrictFIFO", "Backfill"]),
        )
        for name in ("default", "other", "third")[: chance.randint(1, 3) if reclaim else 1]
    ]


@given(crowds())
@SETTINGS
def test_no_eviction_is_without_effect(crowd: CrowdedPool) -> None:
    """A victim is preemptible, is evicted for an allocation that starts in the same plan, and keeps its minimum or
    is evicted whole; and the plan breaks no rule."""
    snapshot = crowd.snapshot()
    decided = planned(snapshot, 1000.0)
    assert lint(snapshot, decided) == ()
    facts = {fact.uid: fact for fact in crowd.running}
    coming = {admit.allocation for admit in decided.admits}
    for evict in decided.evictions:
        victim = facts[evict.uid]
        assert victim.preemptible
        assert evict.by in coming
        if evict.ranks:
            assert len(victim.placements) - len(evict.ranks) >= victim.minimum


@given(crowds(waiting=1))
@SETTINGS
def test_sets_of_victims_are_minimal(crowd: CrowdedPool) -> None:
    """If any of the victims stays, the new allocation does not fit."""
    decided = crowd.plan()
    if not decided.evictions:
        return
    comer = crowd.pending[0]
    moved = {admit.uid for admit in decided.admits} - {comer.uid}
    told = {evict.uid: evict for evict in decided.evictions}
    parts = [(uid, rank) for uid, evict in told.items() for rank in (evict.ranks or (-1,))]
    for size in range(len(parts)):
        for kept in itertools.combinations(parts, size):
            gone = [part for part in parts if part in kept]
            facts = [without(fact, gone) for fact in crowd.running if (fact.uid, -1) not in gone]
            fixed = [msgspec.structs.replace(fact, preemptible=False) for fact in facts]
            again = planned(crowd.snapshot([*fixed, comer]), 1000.0)
            if not moved and all(queue.nominal is None for queue in crowd.queues):
                assert comer.key not in {admit.allocation for admit in again.admits}, (gone, parts)


def without(fact: AllocationFact, gone: list[tuple[str, int]]) -> AllocationFact:
    """The allocation without its evicted ranks."""
    placements = {rank: node for rank, node in fact.placements.items() if (fact.uid, rank) not in gone}
    return msgspec.structs.replace(fact, placements=placements)


@given(crowds(waiting=1, reclaim=False))
@SETTINGS
def test_a_preemptor_finds_a_place_if_one_exists(crowd: CrowdedPool) -> None:
    """In one queue an allocation starts if it would start without all allocations of lower priority."""
    queue, comer = crowd.queues[0], crowd.pending[0]
    if queue.within_queue == "Never":
        return
    staying = [
        msgspec.structs.replace(fact, preemptible=False)
        for fact in crowd.running
        if not (
            fact.preemptible
            and (
                fact.priority < comer.priority
                or (
                    queue.within_queue == "LowerOrNewerEqual"
                    and fact.priority == comer.priority
                    and fact.created > comer.created
                )
            )
        )
    ]
    if queue.nominal is None and planned(crowd.snapshot([*staying, comer]), 1000.0).admits:
        assert comer.key in {admit.allocation for admit in crowd.plan().admits}


@given(crowds(waiting=5))
@SETTINGS
def test_ticks_converge_and_nothing_is_preempted_back(crowd: CrowdedPool) -> None:
    """On an unchanged input evictions end; no allocation evicts the one that evicted it; and no plan evicts what
    another plan admitted."""
    facts = [*crowd.running, *crowd.pending]
    pairs: set[tuple[str, str]] = set()
    started: set[str] = set()
    for tick in range(TICKS_MAX):
        snapshot = crowd.snapshot(facts)
        decided = planned(snapshot, 1000.0)
        assert lint(snapshot, decided) == ()
        if decided.is_empty:
            return
        pairs |= {(evict.by, evict.allocation) for evict in decided.evictions}
        assert not any((victim, by) in pairs for by, victim in pairs)
        assert tick < TICKS_MAX - 1
        started |= {admit.allocation for admit in decided.admits}
        facts = carried_out(facts, decided, 1000.0)


@given(crowds(waiting=4))
@SETTINGS
def test_the_order_of_the_input_does_not_matter(crowd: CrowdedPool) -> None:
    """Nodes, queues and allocations in another order give the same plan."""
    shuffled = msgspec.structs.replace(
        crowd,
        nodes=crowd.nodes[::-1],
        queues=crowd.queues[::-1],
        running=crowd.running[::-1],
        pending=crowd.pending[::-1],
    )
    assert crowd.plan() == shuffled.plan()


@given(crowds(waiting=1, single=True, reclaim=False))
@SETTINGS
def test_a_single_rank_goes_where_kube_scheduler_would_make_room(crowd: CrowdedPool) -> None:
    """Victims per node: all lower ones are removed, and the most important put back first. Between nodes: the lowest
    highest victim, the lowest sum of priorities, the fewest, the latest start, then the name. Compared with a simple
    computation, for single ranks."""
    comer, queue = (
        crowd.pending[0],
        msgspec.structs.replace(crowd.queues[0], nominal=None, limit=None, within_queue="LowerPriority"),
    )
    lone = [fact for fact in crowd.running if fact.rank_count == 1]
    there = msgspec.structs.replace(crowd, running=lone, queues=[queue])
    decided = there.plan()
    if comer.key not in {admit.allocation for admit in decided.admits} or len(decided.admits) > 1:
        return
    expected = reckoned(there.nodes, lone, comer)
    assert {evict.allocation for evict in decided.evictions} == {fact.key for fact in expected}


def reckoned(nodes: list[NodeFact], lone: list[AllocationFact], comer: AllocationFact) -> list[AllocationFact]:
    """The victims on the best node, by the simple computation."""
    best: tuple[tuple[int, int, int, float, str], list[AllocationFact]] | None = None
    asked = comer.roles[0].requests
    for node in nodes:
        here = [fact for fact in lone if fact.placements == {0: node.name}]
        free = node.allocatable
        for fact in here:
            free = free - fact.roles[0].requests
        if asked.fits(free):
            return []
        may_go = [fact for fact in here if fact.preemptible and fact.priority < comer.priority]
        may_go.sort(key=lambda fact: (fact.priority, -fact.started, fact.key), reverse=True)
        for fact in may_go:
            free = free + fact.roles[0].requests
        if not asked.fits(free):
            continue
        gone: list[AllocationFact] = []
        for fact in may_go:
            if asked.fits(free - fact.roles[0].requests):
                free = free - fact.roles[0].requests
            else:
                gone.append(fact)
        top = max(fact.priority for fact in gone)
        key = (
            top,
            sum(fact.priority + 2**31 for fact in gone),
            len(gone),
            -min(fact.started for fact in gone if fact.priority == top),
            max((-fact.started, fact.key) for fact in gone if fact.priority == top)[1],
        )
        if best is None or key < best[0]:
            best = (key, gone)
    return best[1] if best else []


@given(crowds())
@SETTINGS
def test_no_work_is_preempted_before_the_min_runtime_of_its_queue(crowd: CrowdedPool) -> None:
    """Exceptions are queues above a limit that was reduced; and what waits for such allocations is planned again."""
    now, least = 2.5, 2.0
    spared = msgspec.structs.replace(
        crowd, queues=[msgspec.structs.replace(queue, min_runtime=least) for queue in crowd.queues]
    )
    decided = spared.plan(now)
    limits = {queue.name: queue.limit for queue in crowd.queues}
    used: dict[str, int] = {}
    for fact in crowd.running:
        amounts = [role.requests.get("cpu") for rank in fact.placements if (role := fact.role_of(rank)) is not None]
        used[fact.queue] = used.get(fact.queue, 0) + sum(amounts)
    by_uid = {fact.uid: fact for fact in crowd.running}
    for evict in decided.evictions:
        victim = by_uid[evict.uid]
        limit = limits[victim.queue]
        is_above = limit is not None and used[victim.queue] > limit.get("cpu")
        assert not evict.by or is_above or victim.started + least <= now, victim.key
    if crowd.plan(now).evictions and not decided.evictions and not decided.admits:
        later = {fact.started + least for fact in crowd.running if fact.preemptible}
        assert decided.look_again in {at for at in later if at > now}
