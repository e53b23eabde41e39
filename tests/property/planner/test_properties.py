"""The rules that every plan keeps, on random instances."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import AllocationFact, Toleration
from slipway.model.reasons import Gate
from slipway.model.resources import Resources, total
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.state.plan_types import Plan, Remedy
from slipway.scheduler.plan.state.rank_request import requests_of
from tests.property.planner.instances import Instance, instances
from tests.support.planner import admitted, planned

SETTINGS = settings(max_examples=100, deadline=None)


def demand_of(fact: AllocationFact, placements: dict[int, str]) -> dict[str, Resources]:
    """{node: requests of the ranks placed there}, counted without the planner's code."""
    result: dict[str, Resources] = {}
    base = 0
    for role in fact.roles:
        for rank in range(base, base + role.count):
            if rank in placements:
                node = placements[rank]
                result[node] = result.get(node, Resources()) + requests_of(role)
        base += role.count
    return result


@given(instances())
@SETTINGS
def test_a_gang_is_placed_with_its_minimum_or_not_at_all(instance: Instance) -> None:
    """A plan never has 0 < placed < minimum, per role and in total."""
    by_uid = {fact.uid: fact for fact in instance.allocations}
    for admit in planned(instance.snapshot()).admits:
        fact = by_uid[admit.uid]
        assert len(admit.placements) >= fact.minimum
        base = 0
        for role in fact.roles:
            assert sum(base <= rank < base + role.count for rank in admit.placements) >= role.minimum
            base += role.count


@given(instances())
@SETTINGS
def test_no_node_is_over_allocatable(instance: Instance) -> None:
    """The additions of a plan fit on each node beside what was there."""
    decided = planned(instance.snapshot())
    by_uid = {fact.uid: fact for fact in instance.allocations}
    added: dict[str, Resources] = {}
    for admit in decided.admits:
        for node, demand in demand_of(by_uid[admit.uid], admit.placements).items():
            added[node] = added.get(node, Resources()) + demand
    for node in instance.nodes:
        there = [pod.requests + Resources.of({"pods": 1}) for pod in instance.pods if pod.node == node.name]
        free = node.allocatable - total(there)
        assert all(amount <= free.get(name) for name, amount in added.get(node.name, Resources()).amounts.items())


@given(instances())
@SETTINGS
def test_no_limit_is_exceeded(instance: Instance) -> None:
    """The use of a queue with all queues below it is within its `limit`, and a job is within its slots."""
    decided = planned(instance.snapshot())
    by_uid = {fact.uid: fact for fact in instance.allocations}
    used: dict[str, Resources] = {}
    slots = 0
    parents = {queue.name: queue.parent for queue in instance.queues}
    for admit in decided.admits:
        fact = by_uid[admit.uid]
        demand = total(demand_of(fact, admit.placements).values())
        slots += demand.gpus() if fact.job else 0
        name = fact.queue
        while name:
            used[name] = used.get(name, Resources()) + demand
            name = parents.get(name, "")
    for queue in instance.queues:
        for resource, bound in queue.limit.amounts.items() if queue.limit else ():
            assert used.get(queue.name, Resources()).get(resource) <= bound
    assert all(slots <= job.max_slots for job in instance.jobs if job.max_slots is not None)


@given(instances())
@SETTINGS
def test_what_cannot_be_preempted_does_not_borrow(instance: Instance) -> None:
    """Non-preemptible allocations of a leaf queue with a nominal fit in that nominal."""
    decided = planned(instance.snapshot())
    by_uid = {fact.uid: fact for fact in instance.allocations}
    used: dict[str, Resources] = {}
    for admit in decided.admits:
        fact = by_uid[admit.uid]
        if not fact.preemptible:
            used[fact.queue] = used.get(fact.queue, Resources()) + total(demand_of(fact, admit.placements).values())
    for queue in instance.queues:
        for resource, bound in queue.nominal.amounts.items() if queue.nominal else ():
            assert used.get(queue.name, Resources()).get(resource) <= bound


@given(instances())
@SETTINGS
def test_lint_finds_nothing_in_a_plan(instance: Instance) -> None:
    """The planner's own recount agrees with the plan."""
    snapshot = instance.snapshot()
    assert lint(snapshot, planned(snapshot)) == ()


@given(instances(), st.integers(0, 2**32))
@SETTINGS
def test_the_order_of_the_input_does_not_matter(instance: Instance, seed: int) -> None:
    """Nodes, pods, allocations, queues and jobs in any order give the same plan."""
    shuffled = msgspec.structs.replace(
        instance,
        **{
            field: random.Random(seed).sample(getattr(instance, field), len(getattr(instance, field)))
            for field in ("nodes", "pods", "allocations", "queues", "jobs")
        },
    )
    assert planned(instance.snapshot()) == planned(shuffled.snapshot())


@given(instances())
@SETTINGS
def test_planning_again_after_carrying_it_out_changes_nothing(instance: Instance) -> None:
    """After a plan nothing more could start, except what fits where an allocation of the plan moves away."""
    decided = planned(instance.snapshot())
    again = planned(instance.snapshot(allocations=admitted(instance.allocations, decided)))
    if not again.evictions:
        assert again.is_empty
        assert again.explanations.keys() == decided.explanations.keys()
        return
    moved = {evict.uid for evict in again.evictions}
    started = {admit.uid for admit in again.admits} - moved
    assert moved <= {admit.uid for admit in decided.admits} & {admit.uid for admit in again.admits}
    assert all(again_by.victims for again_by in again.admits if again_by.uid in started)


@given(instances(), st.integers(1, 3))
@SETTINGS
def test_few_decisions_a_tick_end_where_many_do(instance: Instance, most: int) -> None:
    """Ticks with few decisions each come to rest, and each step is valid."""
    allocations = instance.allocations
    for _ in range(len(allocations) + 1):
        snapshot = instance.snapshot(allocations=allocations)
        decided = planned(snapshot, decisions_max=most)
        assert len(decided.admits) <= most
        assert lint(snapshot, decided) == ()
        allocations = admitted(allocations, decided)
    assert planned(instance.snapshot(allocations=allocations)).is_empty


@given(instances())
@SETTINGS
def test_whatever_waits_is_explained(instance: Instance) -> None:
    """Each allocation is admitted or has an explanation, never both; each node has at most one reason."""
    decided = planned(instance.snapshot())
    names = {admit.allocation for admit in decided.admits}
    assert names.isdisjoint(decided.explanations)
    assert names | decided.explanations.keys() == {fact.key for fact in instance.allocations}
    for why in decided.explanations.values():
        assert sum(why.reasons.values()) <= len(instance.nodes)
        assert why.message


@given(instances())
@SETTINGS
def test_the_smallest_change_admits(instance: Instance) -> None:
    """Carry out the plan, make the change of an explanation, plan again: the allocation is admitted."""
    decided = planned(instance.snapshot())
    allocations = admitted(instance.allocations, decided)
    for key, why in decided.explanations.items():
        if why.change:
            changed = apply_changes(instance, allocations, key, why.change)
            assert key in {admit.allocation for admit in planned(changed.snapshot()).admits}, (key, why)


@given(instances())
@SETTINGS
def test_what_can_never_start_does_not_start_on_an_empty_pool(instance: Instance) -> None:
    """`is_never` about resources is true of the pool with all else removed and every node healthy."""
    decided = planned(instance.snapshot())
    well = [msgspec.structs.replace(node, ready=True, unschedulable=False) for node in instance.nodes]
    for fact in instance.allocations:
        why = decided.explanations.get(fact.key)
        if why is not None and why.is_never and why.gate in (Gate.NO_FIT, Gate.EXCEEDS_MAX_QUOTA):
            assert planned(instance.snapshot(nodes=well, pods=[], allocations=[fact])).is_empty


def apply_changes(
    instance: Instance, allocations: list[AllocationFact], key: str, changes: tuple[Remedy, ...]
) -> Instance:
    """The instance with `changes` made. To free resources the node is enlarged, which is the same for the
    allocation."""
    nodes = {node.name: node for node in instance.nodes}
    queues = {queue.name: queue for queue in instance.queues}
    jobs = {job.name: job for job in instance.jobs}
    facts = {fact.key: fact for fact in allocations}
    for change in changes:
        match change.kind:
            case "free":
                node = nodes[change.node]
                nodes[change.node] = msgspec.structs.replace(
                    node, allocatable=node.allocatable + Resources(change.amounts)
                )
            case "maxSlots":
                job = jobs[change.name]
                jobs[change.name] = msgspec.structs.replace(job, max_slots=(job.max_slots or 0) + change.slots)
            case "release":
                facts[key] = msgspec.structs.replace(facts[key], hold=False)
            case "maxRuntime":
                facts[key] = msgspec.structs.replace(facts[key], max_runtime=change.seconds)
            case "uncordon":
                nodes[change.node] = msgspec.structs.replace(nodes[change.node], unschedulable=False)
            case "tolerate":
                taint, _, effect = change.name.rpartition(":")
                name, _, value = taint.partition("=")
                more = Toleration(key=name, value=value, effect=effect)
                roles = tuple(
                    msgspec.structs.replace(role, tolerations=(*role.tolerations, more)) for role in facts[key].roles
                )
                facts[key] = msgspec.structs.replace(facts[key], roles=roles)
            case "limit" | "nominal" | "borrowing":
                field = {"limit": "limit", "nominal": "nominal", "borrowing": "borrowing_limit"}[change.kind]
                bound = dict((getattr(queues[change.name], field) or Resources()).amounts)
                for name, amount in change.amounts.items():
                    bound[name] = bound.get(name, 0) + amount
                queues[change.name] = msgspec.structs.replace(queues[change.name], **{field: Resources(bound)})
            case _:
                raise AssertionError(change.kind)
    return msgspec.structs.replace(
        instance,
        nodes=list(nodes.values()),
        queues=list(queues.values()),
        jobs=list(jobs.values()),
        allocations=list(facts.values()),
    )


def test_an_empty_plan_is_empty() -> None:
    """A plan without anything to do is a valid value."""
    assert Plan().is_empty
