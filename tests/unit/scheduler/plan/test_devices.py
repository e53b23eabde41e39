"""Devices: which GPU a rank gets, what is left of each, and pods on unknown devices."""

import msgspec
import numpy as np
import pytest

from slipway.model.facts import SHARING_LABEL, AllocationFact, NodeFact, PodFact, QueueFact, RoleFact
from slipway.model.ledger import Decision
from slipway.model.resources import GPU, GPU_MILLI, Resources
from slipway.scheduler.plan.lint import PlanRule, lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.state import rank_request
from slipway.scheduler.plan.state.plan_types import Plan, Remedy
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_node, a_role, a_snapshot, amounts, an_allocation, gates, planned, running

SHARED = {SHARING_LABEL: "true"}


def a_gpu_node(name: str, gpus: int, **labels: str) -> NodeFact:
    return a_node(name, cpu=64, gpus=gpus, labels={**SHARED, **labels})


def a_share(milli: int, count: int = 1) -> RoleFact:
    return a_role(count, cpu=1, gpu_milli=milli)


def devices(decided: Plan) -> dict[str, dict[int, tuple[int, ...]]]:
    """{allocation name: {rank: devices}} of what is admitted."""
    return {admit.allocation.partition("/")[2]: admit.devices for admit in decided.admits}


def on(fact: AllocationFact, node: str, *numbers: int) -> AllocationFact:
    """`fact` with rank 0 running on these devices of `node`; on unknown devices when no number is given."""
    return msgspec.structs.replace(running(fact, {0: node}), devices={0: numbers} if numbers else {})


def test_a_share_goes_where_the_least_is_left() -> None:
    """Partly used devices before untouched ones, the tightest first, the lowest number among equals."""
    held = [
        on(an_allocation("a", a_share(300)), "n", 0),
        on(an_allocation("b", a_share(600)), "n", 1),
        on(an_allocation("c", a_share(600)), "n", 3),
    ]
    work = [an_allocation(f"w{number}", a_share(400), created=number) for number in range(4)]
    decided = planned(a_snapshot([a_gpu_node("n", 4)], [*held, *work]))
    assert devices(decided) == {"w0": {0: (1,)}, "w1": {0: (3,)}, "w2": {0: (0,)}, "w3": {0: (2,)}}


def test_whole_gpus_are_untouched_ones() -> None:
    """Device 1 of 3 is partly used: a rank of two whole GPUs fits, and one of three does not."""
    held = on(an_allocation("a", a_share(1)), "n", 1)
    two, three = an_allocation("two", a_role(cpu=1, gpus=2)), an_allocation("three", a_role(cpu=1, gpus=3))
    assert devices(planned(a_snapshot([a_gpu_node("n", 3)], [held, two]))) == {"two": {0: (0, 2)}}
    decided = planned(a_snapshot([a_gpu_node("n", 3)], [held, three]))
    assert gates(decided) == {"three": "NoFit"}
    assert decided.explanations["default/three"].reasons == {f"Insufficient {GPU}": 1}


def test_the_parts_of_a_device_are_not_added_up_over_devices() -> None:
    """Two devices with 200 left each have no room for 300; the message states that."""
    held = [on(an_allocation(name, a_share(800)), "n", number) for number, name in enumerate("ab")]
    decided = planned(a_snapshot([a_gpu_node("n", 2)], [*held, an_allocation("w", a_share(300))]))
    why = decided.explanations["default/w"]
    assert "1 has no device with 300 thousandths free" in why.message
    assert why.reasons == {f"Insufficient {GPU_MILLI}": 1}


def test_the_smallest_change_is_of_one_device() -> None:
    """200 are left of one device and 250 of another: with 50 more on the latter's node a 300 fits."""
    held = [on(an_allocation("a", a_share(800)), "n0", 0), on(an_allocation("b", a_share(750)), "n1", 0)]
    nodes = [a_gpu_node("n0", 1), a_gpu_node("n1", 1)]
    why = planned(a_snapshot(nodes, [*held, an_allocation("w", a_share(300))])).explanations["default/w"]
    assert why.change == (Remedy(kind="free", node="n1", amounts={GPU_MILLI: 50}),)
    assert f"needs 50 more {GPU_MILLI} on one node" in why.message


def test_parts_are_had_only_where_gpus_are_shared() -> None:
    """Only nodes with the label share GPUs: without it the device plugin chooses, and a node without GPUs has none to
    share."""
    nodes = [a_node("plain", gpus=8), a_node("cpu"), a_gpu_node("shared", 1)]
    assert devices(planned(a_snapshot(nodes, [an_allocation("w", a_share(10))]))) == {"w": {0: (0,)}}
    why = planned(a_snapshot(nodes[:2], [an_allocation("w", a_share(10))])).explanations["default/w"]
    assert why.reasons == {"GpusNotShared": 1, f"NodeTooSmall {GPU}": 1}
    assert why.is_never


def test_no_numbers_are_told_where_the_device_plugin_chooses() -> None:
    snapshot = a_snapshot([a_node("plain", gpus=8), a_gpu_node("shared", 1)], [an_allocation("w", a_role(gpus=2))])
    assert devices(planned(snapshot)) == {"w": {}}


@pytest.mark.parametrize("asked", [a_share(100), a_role(gpus=1)])
def test_no_device_is_opened_beside_work_on_unknown_ones(asked: RoleFact) -> None:
    """The device plugin gave a GPU to a foreign pod, and its number is unknown. A device of our own work may still be
    shared."""
    stranger = PodFact(namespace="x", name="p", uid="p", node="n", requests=amounts(1, 0, 1))
    held = on(an_allocation("a", a_share(300)), "n", 2)
    snapshot = a_snapshot([a_gpu_node("n", 4)], [an_allocation("w", asked)], pods=[stranger])
    why = planned(snapshot).explanations["default/w"]
    assert why.reasons == {"UnknownDevices": 1}
    decided = planned(a_snapshot([a_gpu_node("n", 4)], [held, an_allocation("w", asked)], pods=[stranger]))
    assert devices(decided) == ({"w": {0: (2,)}} if asked.gpu_milli else {})


@pytest.mark.parametrize("numbers", [range(8), range(20), (-1, 2, 3, 4, 5, 6, 7, 8), (0,) * 8, (10**30,) * 8])
def test_a_rank_with_numbers_that_its_node_does_not_have_stops_no_plan(numbers: tuple[int, ...]) -> None:
    """A node of 8 GPUs now has 7, or the numbers are wrong: the rank uses unknown devices, also for a reservation."""
    held = on(an_allocation("held", a_role(gpus=8), max_runtime=100.0), "n", *numbers)
    queue = QueueFact(name="default", ordering="Backfill")
    for asked in (a_share(100), a_role(gpus=2)):
        decided = planned(a_snapshot([a_gpu_node("n", 7)], [held, an_allocation("w", asked)], queues=[queue]))
        assert decided.explanations["default/w"].reasons == {"UnknownDevices": 1}
        assert [kept.start for kept in decided.kept] == [100.0]


def test_devices_are_counted_from_pods_and_from_open_decisions() -> None:
    """The devices of a rank are those of its bound pod, else of its admission, else of the open decision."""
    fact = an_allocation("a", a_share(700))
    decision = Decision(
        id="1-1-0", epoch=1, allocation=fact.key, uid=fact.uid, attempt=1, placements=(0,), devices={"0": (1,)}
    )
    pod = PodFact(
        namespace="default",
        name="a-1-0",
        uid="p",
        node="n",
        requests=Resources({"cpu": 1000, GPU_MILLI: 700}),
        allocation_uid=fact.uid,
        attempt=1,
        rank=0,
        devices=(1,),
    )
    nodes = [a_gpu_node("n", 2)]
    for snapshot in (
        a_snapshot(nodes, [fact], decisions=[(decision, ("n",))]),
        a_snapshot(nodes, [on(fact, "n", 1)]),
        a_snapshot(nodes, [on(fact, "n", 1)], pods=[pod]),
    ):
        assert left(snapshot) == [[1000], [300]]
        assert used(snapshot) == (1, 700)
        assert snapshot.use["default"].fixed[GPU_MILLI] == 700


def test_what_is_taken_and_given_back_leaves_nothing() -> None:
    """Devices that were taken and given back are free: also beyond their capacity, in another order, and for whole GPUs
    beside shares."""
    snapshot = a_snapshot([a_gpu_node("n0", 2), a_gpu_node("n1", 1), a_node("n2", gpus=4)])
    whatif = WhatIf(snapshot.usage, policy_of(snapshot.pool))
    before = (whatif.usage.used.copy(), whatif.usage.scored.copy())
    share, whole = whatif.row(a_share(400)), whatif.row(a_role(gpus=1))
    whatif.take(share, [0, 0, 0])
    whatif.take(whole, [0, 1, 2, 1])
    whatif.give(share, [0, 0, 0])
    whatif.give(whole, [1, 2, 1, 0])
    assert np.array_equal(whatif.usage.used, before[0])
    assert np.array_equal(whatif.usage.scored, before[1])
    assert whatif.usage.devices is not None
    assert whatif.usage.devices.left.tolist() == [[1000, 1000, 0], [1000, 0, 0]]


def test_devices_that_two_were_given_stay_taken_until_both_are_gone() -> None:
    """The planner never does that; if it happened, nothing else is placed there until both ranks have ended."""
    both = [on(an_allocation(name, a_share(800)), "n", 0) for name in "ab"]
    snapshot = a_snapshot([a_gpu_node("n", 1)], both)
    assert left(snapshot) == [[0]]
    one = a_snapshot([a_gpu_node("n", 1)], both[:1])
    assert left(one) == [[200]]


def test_ranks_of_a_gang_are_told_their_own_devices() -> None:
    """The numbers of each rank are those that were taken for it, over several roles and for surplus ranks."""
    fact = an_allocation("g", a_share(600, 2), a_role(2, 1, name="big", cpu=1, gpus=1), minimum=3)
    decided = planned(a_snapshot([a_gpu_node("n", 4)], [fact]))
    assert devices(decided)["g"].keys() == {0, 1, 2, 3}
    assert sorted(devices(decided)["g"].values()) == [(0,), (1,), (2,), (3,)]


def test_a_share_counts_as_one_slot_and_as_its_part_of_quota() -> None:
    demand = rank_request.smallest_demand(an_allocation("g", a_share(300, 3)))
    assert (demand.gpus(), demand.get(GPU_MILLI), demand.get(GPU)) == (3, 900, 0)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((0,), "device 0: 1400 thousandths used"), ((), "GPUs given without their numbers"), ((7,), "GPUs given without")],
)
def test_a_plan_that_books_a_device_twice_is_found_out(numbers: tuple[int, ...], message: str) -> None:
    """Lint also refuses an admission without device numbers on a node where the planner chooses them."""
    held = on(an_allocation("a", a_share(700)), "n", 0)
    snapshot = a_snapshot([a_gpu_node("n", 2)], [held, an_allocation("w", a_share(700))])
    sound = planned(snapshot)
    assert lint(snapshot, sound) == ()
    (admit,) = sound.admits
    wrong = msgspec.structs.replace(admit, devices={0: numbers} if numbers else {})
    (violation,) = lint(snapshot, Plan(admits=(wrong,)))
    assert violation.rule is PlanRule.DEVICE
    assert violation.message.startswith(message)


def left(snapshot: PoolSnapshot) -> list[list[int]]:
    """Thousandths left, per device and node."""
    assert snapshot.usage.devices is not None
    return snapshot.usage.devices.left.tolist()


def used(snapshot: PoolSnapshot) -> tuple[int, int]:
    """(GPUs touched, thousandths) in use on the first node."""
    rows = snapshot.table.row
    return int(snapshot.usage.used[rows[GPU], 0]), int(snapshot.usage.used[rows[GPU_MILLI], 0])
