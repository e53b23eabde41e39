"""Shares of a type of nodes, on random pools with GPUs of two types: the rules of reclaim, compared with a simple
computation."""

import random
from fractions import Fraction

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, NodeFact, PoolFact, QueueFact, Taint, Toleration
from slipway.model.resources import Resources
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.property.planner.test_preemption import TICKS_MAX, carried_out
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, planned, running

SETTINGS = settings(max_examples=150, deadline=None)
NOW = 5000.0
GPU = "nvidia.com/gpu"
SPOT = Taint(key="spot", value="true")
KINDS = ("h", "a")
CHOICES: tuple[dict[str, str], ...] = ({"gpu": "h"}, {"gpu": "h"}, {"gpu": "a"}, {})


class TypedPool(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes of two types and some without GPUs, running allocations, and waiting ones."""

    nodes: list[NodeFact]
    queues: list[QueueFact]
    running: list[AllocationFact]
    pending: list[AllocationFact]

    def snapshot(self, allocations: list[AllocationFact] | None = None) -> PoolSnapshot:
        """The snapshot."""
        facts = [*self.running, *self.pending] if allocations is None else allocations
        return a_snapshot(self.nodes, facts, queues=self.queues, pool=PoolFact(name="default"))

    def gpus(self, selector: dict[str, str]) -> int:
        """The GPUs of the nodes that match a selector."""
        return sum(node.allocatable.gpus() for node in self.nodes if selector.items() <= node.labels.items())

    def held(self, facts: list[AllocationFact], queue: str, selector: dict[str, str]) -> int:
        """How many of those GPUs `queue` holds."""
        inside = {node.name for node in self.nodes if selector.items() <= node.labels.items()}
        return sum(
            fact.roles[0].requests.gpus() * sum(node in inside for node in fact.placements.values())
            for fact in facts
            if fact.queue == queue
        )

    def part(self, queue: str, selector: dict[str, str]) -> Fraction:
        """The share of them that `queue` deserves."""
        nominal = next(each.nominal for each in self.queues if each.name == queue)
        return Fraction((nominal or Resources()).gpus() * self.gpus(selector), max(1, self.gpus({})))


def pools(waiting: int = 1) -> st.SearchStrategy[TypedPool]:
    """Two or three queues with a nominal number of GPUs each; allocations are placed where they fit, without the
    planner."""
    return st.integers(0, 2**32).map(lambda seed: a_pool(random.Random(seed), waiting))


def a_pool(chance: random.Random, waiting: int) -> TypedPool:
    """One random pool."""
    nodes: list[NodeFact] = []
    for index in range(chance.randint(2, 4)):
        kind = KINDS[index % 2] if index < 2 else chance.choice(KINDS)
        taints = (SPOT,) if chance.random() < 0.2 else ()
        nodes.append(a_node(f"n{index}", cpu=32, gpus=chance.choice([2, 4]), labels={"gpu": kind}, taints=taints))
    most = sum(node.allocatable.gpus() for node in nodes)
    queues = [
        QueueFact(
            name=name,
            nominal=Resources({GPU: chance.choice([most // 2, most // 2, most, chance.randint(0, most)])}),
            within_queue=chance.choice(["Never", "LowerPriority"]),
            reclaim=chance.choice(["Never", "LowerPriority", "Any", "Any", "Any", "Any"]),
            weight=chance.randint(1, 2),
        )
        for name in ("default", "other", "third")[: chance.randint(2, 3)]
    ]
    free = {node.name: node.allocatable.gpus() for node in nodes}
    there: list[AllocationFact] = []
    for index in range(chance.randint(3, 12)):
        # Each queue likes one type: so it holds more than its part of that within its nominal.
        mine = chance.choice(queues)
        fact = some_work(chance, f"r{index}", [mine], KINDS[queues.index(mine) % 2])
        placements = fitting(fact, nodes, free)
        if len(placements) >= fact.minimum:
            there.append(msgspec.structs.replace(running(fact, placements), started=float(chance.randint(0, 3))))
    pending: list[AllocationFact] = []
    for index in range(chance.randint(1, waiting)):
        # An allocation that waits for the other type.
        mine = chance.choice(queues)
        pending.append(some_work(chance, f"p{index}", [mine], KINDS[1 - queues.index(mine) % 2]))
    return TypedPool(nodes=nodes, queues=queues, running=there, pending=pending)


def some_work(chance: random.Random, name: str, queues: list[QueueFact], liked: str = "") -> AllocationFact:
    """One role with GPUs, often of one type, often elastic."""
    count = chance.choice([1, 1, 2, 4])
    tolerations = (Toleration(key="spot", operator="Exists"),) if chance.random() < 0.7 else ()
    role = a_role(count, chance.randint(1, count), cpu=1, gpus=chance.choice([1, 1, 2]), tolerations=tolerations)
    role = msgspec.structs.replace(role, node_selector=chance.choice(CHOICES))
    if liked and chance.random() < 0.7:
        role = msgspec.structs.replace(role, node_selector={"gpu": liked})
    return an_allocation(
        name,
        role,
        queue=chance.choice(queues).name,
        priority=chance.randint(0, 2),
        created=float(chance.randint(0, 3)),
        preemptible=chance.random() < 0.85,
    )


def fitting(fact: AllocationFact, nodes: list[NodeFact], free: dict[str, int]) -> dict[int, str]:
    """First fit, for as many ranks as fit."""
    role = fact.roles[0]
    found: dict[int, str] = {}
    for rank in range(role.count):
        for node in nodes:
            may_stand = role.node_selector.items() <= node.labels.items() and (role.tolerations or not node.taints)
            if may_stand and free[node.name] >= role.requests.gpus():
                found[rank] = node.name
                free[node.name] -= role.requests.gpus()
                break
    if len(found) < fact.minimum:
        for node_name in found.values():
            free[node_name] += role.requests.gpus()
    return dict(enumerate(found.values()))


def after(pool: TypedPool, decided: Plan) -> list[AllocationFact]:
    """The running allocations after the plan is carried out."""
    facts = carried_out([*pool.running, *pool.pending], decided, NOW)
    return [fact for fact in facts if fact.placements]


@given(pools(waiting=4))
@SETTINGS
def test_ticks_come_to_rest_and_nothing_is_taken_back(pool: TypedPool) -> None:
    """On an unchanged input evictions end, no plan breaks a rule, and no work displaces what displaced it."""
    facts = [*pool.running, *pool.pending]
    pairs: set[tuple[str, str]] = set()
    for tick in range(TICKS_MAX):
        snapshot = pool.snapshot(facts)
        decided = planned(snapshot, NOW + tick * 2)
        assert lint(snapshot, decided) == ()
        if decided.is_empty:
            return
        pairs |= {(evict.by, evict.allocation) for evict in decided.evictions}
        assert not any((victim, by) in pairs for by, victim in pairs)
        assert tick < TICKS_MAX - 1
        facts = carried_out(facts, decided, NOW + tick * 2)


@given(pools())
@SETTINGS
def test_no_queue_falls_below_its_part_of_a_type(pool: TypedPool) -> None:
    """A queue within its nominal that loses allocations to another queue keeps its share of the nodes to which the
    taker is limited; and the taker is no further above its share than the losing queue."""
    comer = pool.pending[0]
    decided = planned(pool.snapshot(), NOW)
    victims = {fact.key: fact for fact in pool.running}
    queues = {victims[evict.allocation].queue for evict in decided.evictions} - {comer.queue}
    selector = comer.roles[0].node_selector
    for name in queues:
        queue = next(each for each in pool.queues if each.name == name)
        if pool.held(pool.running, name, {}) > (queue.nominal or Resources()).gpus():
            continue  # the reclaim rule of the whole pool may evict its allocations
        if comer.roles[0].tolerations or not any(node.taints for node in pool.nodes):
            left = pool.held(after(pool, decided), name, selector) - pool.part(name, selector)
            assert left >= 0
            mine = next(each for each in pool.queues if each.name == comer.queue)
            minimum = [fact for fact in after(pool, decided) if fact.uid != comer.uid]
            held = pool.held(minimum, comer.queue, selector) + comer.roles[0].requests.gpus() * comer.minimum
            assert (held - pool.part(comer.queue, selector)) / mine.weight <= max(left, Fraction(0)) / queue.weight


@given(pools())
@SETTINGS
def test_a_queue_below_its_part_gets_one_of_a_type(pool: TypedPool) -> None:
    """One rank with one GPU starts wherever another queue has a preemptible single rank of the type to spare."""
    role = msgspec.structs.replace(pool.pending[0].roles[0], count=1, minimum=1, node_selector={"gpu": "h"})
    anywhere = (Toleration(operator="Exists"),)
    role = msgspec.structs.replace(role, requests=a_role(cpu=1, gpus=1).requests, tolerations=anywhere)
    comer = msgspec.structs.replace(pool.pending[0], roles=(role,), minimum=1, preemptible=True)
    queues = [msgspec.structs.replace(each, reclaim="Any") for each in pool.queues]
    for own in queues:
        fact = msgspec.structs.replace(comer, queue=own.name)
        one = msgspec.structs.replace(pool, pending=[fact], queues=queues)
        if has_room_for_one(one, own) and any(can_be_spared(one, own, each) for each in one.running):
            assert fact.key in {admit.allocation for admit in planned(one.snapshot(), NOW).admits}


def has_room_for_one(pool: TypedPool, queue: QueueFact) -> bool:
    """Whether one more H100 keeps `queue` within its nominal and within its share of them."""
    is_within = pool.held(pool.running, queue.name, {}) + 1 <= (queue.nominal or Resources()).gpus()
    return is_within and pool.held(pool.running, queue.name, {"gpu": "h"}) + 1 <= pool.part(queue.name, {"gpu": "h"})


def can_be_spared(pool: TypedPool, own: QueueFact, fact: AllocationFact) -> bool:
    """Whether `fact` is a single rank on H100s that another queue uses beyond its share, and may use all of them.

    A rank that may use only some of them is left to a queue that uses no more than its share of these.
    """
    role = fact.roles[0]
    selector = role.node_selector
    is_lone = fact.preemptible and fact.rank_count == len(fact.placements) == 1
    if fact.queue == own.name or not is_lone or selector != {"gpu": "h"}:
        return False
    if any(node.taints and selector.items() <= node.labels.items() for node in pool.nodes) and not role.tolerations:
        return False
    left = pool.held(pool.running, fact.queue, selector) - fact.roles[0].requests.gpus()
    return left >= pool.part(fact.queue, selector)


@given(pools(waiting=3))
@SETTINGS
def test_the_order_of_the_input_does_not_matter(pool: TypedPool) -> None:
    """Nodes, queues and allocations in another order give the same plan."""
    shuffled = msgspec.structs.replace(
        pool,
        nodes=pool.nodes[::-1],
        queues=pool.queues[::-1],
        running=pool.running[::-1],
        pending=pool.pending[::-1],
    )
    assert planned(pool.snapshot(), NOW) == planned(shuffled.snapshot(), NOW)
