"""Scores for GPUs: fragmentation over a mix, the best filled device, the least that is left; device by device."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.model.facts import SHARING_LABEL, AllocationFact, NodeFact, PoolFact, RoleFact
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.placement.scores.args import faults
from slipway.scheduler.plan.placement.scores.gpu_fragmentation import after_ranks, devices_left, fragmentation
from slipway.scheduler.plan.placement.tick_state import TickState
from slipway.scheduler.plan.placement.whatif import WhatIf
from slipway.scheduler.plan.planner import queue_tree
from slipway.scheduler.plan.state.nodes import EVERY
from slipway.scheduler.plan.state.workload_mix import WorkloadMix, mix_of
from tests.support.planner import a_node, a_role, a_snapshot, an_allocation, places, planned, running

FRAGMENTATION = PoolFact(name="default", scores={"GpuFragmentation": 1})


def a_gpu_node(name: str, gpus: int, cpu: int = 64) -> NodeFact:
    return a_node(name, cpu=cpu, gpus=gpus, labels={SHARING_LABEL: "true"})


def held(name: str, milli: int, node: str, device: int) -> AllocationFact:
    """A share that runs."""
    fact = running(an_allocation(name, a_role(cpu=1, gpu_milli=milli)), {0: node})
    return msgspec.structs.replace(fact, devices={0: (device,)})


def a_mix(*sorts: tuple[RoleFact, int]) -> WorkloadMix:
    found = mix_of(((role,), times) for role, times in sorts)
    assert found is not None
    return found


def test_fragmentation_is_what_the_mix_can_not_use() -> None:
    """By hand: devices with 1000, 300 and 200 left, 4 cpus; half of the ranks ask for 300, half for two GPUs."""
    mix = a_mix((a_role(cpu=2, gpu_milli=300), 5), (a_role(cpu=2, gpus=2), 5))
    left = np.array([[1000], [300], [200]])
    # 300: only the 200 are of no use. Two whole GPUs: there is one, so all 1500 are of none.
    assert fragmentation(mix, left, np.array([4000])).tolist() == [5 * 200 + 5 * 1500]
    # no cpu, no use
    assert fragmentation(mix, left, np.array([1000])).tolist() == [10 * 1500]


def test_the_mix_is_the_commonest_sorts_that_make_up_most() -> None:
    """The mix has the commonest sorts up to 95 %, in an order that depends only on counts and amounts. Work without
    GPUs counts as well."""
    mix = a_mix((a_role(cpu=1), 60), (a_role(cpu=2, gpus=1), 36), (a_role(cpu=3, gpus=4), 4))
    assert (mix.total, mix.needs, mix.need.tolist(), mix.cpus.tolist()) == (96, (1000,), [-1, 0], [1000, 2000])
    assert mix_of(()) is None


def test_a_share_goes_where_it_strands_least() -> None:
    """The mix wants 500s: 400 on the device with 900 left keeps a 500; on the one with 700 it would strand 300."""
    work = [held("a", 100, "n0", 0), held("b", 300, "n1", 0), an_allocation("w", a_role(cpu=1, gpu_milli=400))]
    said = {"GpuFragmentation": {"mix": [{"cpu": 1, "gpuMilli": 500, "weight": 1}]}}
    pool = PoolFact(name="default", scores={"GpuFragmentation": 1}, args=said)
    decided = planned(a_snapshot([a_gpu_node("n1", 1), a_gpu_node("n0", 1)], work, pool=pool))
    assert places(decided) == {"w": ["n0"]}


def test_without_a_mix_that_is_said_it_is_what_waits_and_runs() -> None:
    work = [held("a", 500, "n0", 0), an_allocation("w", a_role(3, gpus=1))]
    snapshot = a_snapshot([a_gpu_node("n0", 4)], work, pool=FRAGMENTATION)
    mix = TickState(snapshot, policy_of(FRAGMENTATION), 0.0, queue_tree(snapshot)).whatif.usage.mix
    assert mix is not None
    assert sorted(zip(mix.counts.tolist(), mix.weights.tolist(), strict=True)) == [(1, 1), (1, 3)]
    other = PoolFact(name="default")
    assert TickState(snapshot, policy_of(other), 0.0, queue_tree(snapshot)).whatif.usage.mix is None


def test_a_share_fills_a_device_best() -> None:
    """By default: 400 left on a fuller device before 700, wherever they are, and both before an untouched GPU."""
    work = [held("a", 300, "n0", 0), held("b", 600, "n1", 0)]
    nodes = [a_gpu_node(f"n{index}", 4) for index in range(3)]
    share = an_allocation("w", a_role(cpu=1, gpu_milli=350))
    assert places(planned(a_snapshot(nodes, [*work, share]))) == {"w": ["n1"]}
    share = an_allocation("w", a_role(cpu=1, gpu_milli=500))
    assert places(planned(a_snapshot(nodes, [*work, share]))) == {"w": ["n0"]}


def test_best_fit_compares_amounts() -> None:
    """Half of a small node is less than a third of a large one."""
    pool = PoolFact(name="default", scores={"BestFit": 1})
    nodes = [a_node("large", cpu=12), a_node("small", cpu=4)]
    work = [running(an_allocation("a", a_role(8)), dict.fromkeys(range(8), "large"))]
    assert places(planned(a_snapshot(nodes, [*work, an_allocation("w")], pool=pool))) == {"w": ["large"]}
    assert places(planned(a_snapshot(nodes, [an_allocation("w")], pool=pool))) == {"w": ["small"]}


@given(st.data())
def test_what_is_foreseen_is_what_is_taken(data: st.DataObject) -> None:
    """Devices after k ranks as scores see them are those after taking k ranks, one by one."""
    gpus = data.draw(st.integers(1, 4))
    shares = data.draw(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, gpus - 1)), max_size=3))
    nodes = [a_gpu_node("n", gpus), a_node("plain", cpu=64, gpus=gpus)]
    work = [held(f"h{at}", milli, "n", device) for at, (milli, device) in enumerate(shares)]
    whatif = WhatIf(a_snapshot(nodes, work).usage, policy_of(PoolFact(name="default")))
    asked: dict[str, Any] = data.draw(
        st.sampled_from([{"gpus": 1}, {"gpus": 2}, {"gpu_milli": 300}, {"gpu_milli": 1000}, {}])
    )
    row = whatif.row(a_role(cpu=0, **asked))
    node = data.draw(st.integers(0, 1))
    ranks = data.draw(st.integers(0, int(min(whatif.usage.room(row.request, EVERY, 12)[node], 12))))
    foreseen = after_ranks(devices_left(whatif.usage, EVERY), row.request, ranks)[:, node]
    whatif.take(row, [node] * ranks)
    assert sorted(devices_left(whatif.usage, EVERY)[:, node].tolist()) == sorted(foreseen.tolist())


@pytest.mark.parametrize(
    ("mix", "path"),
    [
        ([], "GpuFragmentation.mix"),
        ([{"gpu": 1}], "GpuFragmentation.mix[0]"),
        ([{"gpus": -1}], "GpuFragmentation.mix[0].gpus"),
        ([{"gpus": 1, "gpuMilli": 1}], "GpuFragmentation.mix[0].gpuMilli"),
        ([{"gpuMilli": 1001}], "GpuFragmentation.mix[0].gpuMilli"),
        ([{"cpu": "x"}], "GpuFragmentation.mix[0].cpu"),
    ],
)
def test_a_mix_is_checked(mix: list[Any], path: str) -> None:
    assert [at for at, _ in faults({"GpuFragmentation": {"mix": mix}})] == [path]
