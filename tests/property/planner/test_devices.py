"""Devices, gangs and topology on random instances, recounted without the planner's help."""

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway.model.facts import SHARING_LABEL, AllocationFact, NodeFact, PodFact, RoleFact, TopologyFact
from slipway.model.resources import GPU, MILLI, Resources
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.state.plan_types import Plan
from tests.property.planner.instances import Instance, instances
from tests.support.planner import a_role, admitted, an_allocation, planned, running

SETTINGS = settings(max_examples=80, deadline=None)
Taken = dict[tuple[str, int], int]
"""{(node, device): thousandths}"""
MODES = [None, None, TopologyFact("rack"), TopologyFact("block"), TopologyFact("rack", "preferred")]


@st.composite
def shared_instances(draw: st.DrawFn) -> Instance:
    """Some nodes share their GPUs, some ranks request parts of them, and some of these already run."""
    instance = draw(instances())
    nodes = [_labelled(draw, node) for node in instance.nodes]
    work = [
        msgspec.structs.replace(fact, roles=tuple(_shared(draw, role) for role in fact.roles))
        for fact in instance.allocations
    ]
    held = [fact for node in nodes for fact in _running(draw, node)]
    pods = [pod for pod in instance.pods if GPU not in pod.requests.amounts or draw(st.integers(0, 3)) == 0]
    pool = msgspec.structs.replace(instance.pool, topology=draw(st.sampled_from([(), ("block", "rack")])))
    return msgspec.structs.replace(instance, nodes=nodes, allocations=[*work, *held], pods=pods, pool=pool)


def _labelled(draw: st.DrawFn, node: NodeFact) -> NodeFact:
    labels = dict(node.labels)
    if draw(st.integers(0, 3)):
        labels[SHARING_LABEL] = "true"
    if draw(st.booleans()):
        labels["block"] = draw(st.sampled_from(["b1", "b2"]))
    return msgspec.structs.replace(node, labels=labels)


def _shared(draw: st.DrawFn, role: RoleFact) -> RoleFact:
    role = msgspec.structs.replace(role, topology=draw(st.sampled_from(MODES)))
    if role.requests.get(GPU) or draw(st.booleans()):
        return role
    return msgspec.structs.replace(role, gpu_milli=draw(st.sampled_from([1, 200, 300, 500, 700, 1000])))


def _running(draw: st.DrawFn, node: NodeFact) -> list[AllocationFact]:
    """Running ranks with at most one share on each device of a node."""
    found: list[AllocationFact] = []
    if SHARING_LABEL not in node.labels:
        return found
    for device in range(node.allocatable.get(GPU)):
        milli = draw(st.sampled_from([0, 0, 100, 600, 1000]))
        if milli:
            fact = an_allocation(f"held-{node.name}-{device}", a_role(cpu=0, gpu_milli=milli))
            found.append(msgspec.structs.replace(running(fact, {0: node.name}), devices={0: (device,)}))
    return found


def counted(allocations: list[AllocationFact]) -> Taken:
    """The used parts of each device that the planner assigns."""
    taken: Taken = {}
    for fact in allocations:
        for rank, numbers in fact.devices.items():
            role = fact.role_of(rank)
            assert role is not None
            assert len(numbers) == (1 if role.gpu_milli else role.requests.get(GPU))
            for number in numbers:
                key = (fact.placements[rank], number)
                taken[key] = taken.get(key, 0) + (role.gpu_milli or MILLI)
    return taken


def after(instance: Instance, decided: Plan) -> list[AllocationFact]:
    """The allocations after `decided` was carried out, with their devices."""
    given_out = {admit.uid: admit.devices for admit in decided.admits}
    return [
        msgspec.structs.replace(fact, devices=given_out[fact.uid]) if fact.uid in given_out else fact
        for fact in admitted(instance.allocations, decided)
    ]


@given(shared_instances())
@SETTINGS
def test_no_device_is_booked_twice(instance: Instance) -> None:
    """A device is never used beyond a thousand parts, and whole GPUs are exclusive; every rank on a sharing node has
    its devices."""
    snapshot = instance.snapshot()
    decided = planned(snapshot)
    assert lint(snapshot, decided) == ()
    allocations = after(instance, decided)
    taken = counted(allocations)
    assert all(amount <= MILLI for amount in taken.values())
    sizes = {node.name: node.allocatable.get(GPU) for node in instance.nodes if SHARING_LABEL in node.labels}
    assert all(0 <= number < sizes[node] for node, number in taken)
    for admit in decided.admits:
        fact = next(item for item in allocations if item.uid == admit.uid)
        for rank, node in admit.placements.items():
            role = fact.role_of(rank)
            assert role is not None
            asks = bool(role.gpu_milli or role.requests.get(GPU))
            assert (rank in admit.devices) == (asks and node in sizes)


@given(shared_instances())
@SETTINGS
def test_nothing_is_opened_beside_unknown_devices(instance: Instance) -> None:
    """When other pods use GPUs on a sharing node, only devices that already have parts of ours get more."""
    strange = {pod.node for pod in instance.pods if pod.requests.get(GPU)}
    known = counted([fact for fact in instance.allocations if fact.devices])
    for admit in planned(instance.snapshot()).admits:
        for rank, numbers in admit.devices.items():
            if admit.placements[rank] in strange:
                assert all((admit.placements[rank], number) in known for number in numbers)


@st.composite
def shrunk_instances(draw: st.DrawFn) -> Instance:
    """Some nodes have fewer GPUs than when their ranks started, or share them only now; some device numbers are
    wrong."""
    instance = draw(shared_instances())
    held = [fact for node in instance.nodes for fact in _whole(draw, node)]
    nodes = [_changed(draw, node) for node in instance.nodes]
    allocations = [
        msgspec.structs.replace(fact, max_runtime=draw(st.sampled_from([None, 10.0, 50.0])))
        for fact in [*instance.allocations, *held]
    ]
    ordering = draw(st.sampled_from(["Backfill", "StrictFIFO"]))
    queues = [msgspec.structs.replace(queue, ordering=ordering) for queue in instance.queues]
    return msgspec.structs.replace(instance, nodes=nodes, allocations=allocations, queues=queues)


def _changed(draw: st.DrawFn, node: NodeFact) -> NodeFact:
    left = max(0, node.allocatable.get(GPU) - draw(st.sampled_from([0, 0, 1, 2, 4])))
    labels = {**node.labels, SHARING_LABEL: "true"} if draw(st.integers(0, 3)) == 0 else node.labels
    amounts = {**node.allocatable.amounts, GPU: left}
    return msgspec.structs.replace(node, allocatable=Resources.of(amounts), labels=labels)


def _whole(draw: st.DrawFn, node: NodeFact) -> list[AllocationFact]:
    """At most one rank with all GPUs of the node, with the right numbers, none, or wrong ones."""
    gpus = node.allocatable.get(GPU)
    if not gpus or draw(st.booleans()):
        return []
    wrong = st.lists(st.integers(-2, 9) | st.just(2**70), max_size=9)
    numbers = tuple(draw(st.just(list(range(gpus))) | wrong))
    fact = running(an_allocation(f"whole-{node.name}", a_role(cpu=0, gpus=gpus)), {0: node.name})
    return [msgspec.structs.replace(fact, devices={0: numbers} if numbers else {}, started=1.0)]


@given(shrunk_instances())
@SETTINGS
def test_a_node_that_shrinks_beneath_its_ranks_stops_no_plan(instance: Instance) -> None:
    """The rest of the pool is planned, with reservations, and nothing new is placed on a node that is overused."""
    snapshot = instance.snapshot()
    decided = planned(snapshot, now=5.0)
    assert lint(snapshot, decided) == ()
    sizes = {node.name: node.allocatable.get(GPU) for node in instance.nodes}
    for admit in decided.admits:
        for rank, numbers in admit.devices.items():
            assert all(0 <= number < sizes[admit.placements[rank]] for number in numbers)


@given(shared_instances())
@SETTINGS
def test_gangs_keep_to_their_minima_and_domains(instance: Instance) -> None:
    """Minima are atomic per role and in total, ranks never exceed the count, and a required domain has all ranks of
    its role."""
    facts = {fact.uid: fact for fact in instance.allocations}
    labels = {node.name: node.labels for node in instance.nodes}
    for admit in planned(instance.snapshot()).admits:
        fact = facts[admit.uid]
        assert fact.minimum <= len(admit.placements) <= fact.rank_count
        base = 0
        for role in fact.roles:
            nodes = [admit.placements[rank] for rank in range(base, base + role.count) if rank in admit.placements]
            assert role.minimum <= len(nodes) <= role.count
            if role.topology is not None and role.topology.mode == "required" and nodes:
                domains = {labels[node].get(role.topology.key) for node in nodes}
                assert len(domains) == 1
                assert None not in domains
            base += role.count


@given(shared_instances())
@SETTINGS
def test_what_was_decided_is_what_is_counted_next(instance: Instance) -> None:
    """A second plan on the state after a plan changes nothing for admitted allocations, and breaks no rule."""
    decided = planned(instance.snapshot())
    snapshot = instance.snapshot(allocations=after(instance, decided))
    again = planned(snapshot)
    assert lint(snapshot, again) == ()
    assert {(admit.uid, admit.attempt) for admit in again.admits}.isdisjoint(
        {(admit.uid, admit.attempt) for admit in decided.admits}
    )


@given(shared_instances(), st.integers())
@SETTINGS
def test_devices_do_not_hang_on_the_order_of_the_input(instance: Instance, seed: int) -> None:
    def shuffled(items: list[NodeFact] | list[AllocationFact] | list[PodFact]) -> list[object]:
        copy: list[object] = list(items)
        random.Random(seed).shuffle(copy)
        return copy

    other = instance.snapshot(
        nodes=shuffled(instance.nodes), allocations=shuffled(instance.allocations), pods=shuffled(instance.pods)
    )
    assert planned(instance.snapshot()).admits == planned(other).admits
