"""The planner alone: a tick with nothing to do, many single ranks, one large gang, and kube-scheduler's workloads.

The figure is the CPU time of one call of `plan`, which is one thread without IO, so a busy machine does not change it.
The peers' figures are whole scheduling runs of kube-scheduler 1.36's scheduler_perf on a similar machine: our planning
is compared with its scheduling. Profile (10,000 single ranks): per rank about 10 us for order, request and quota, 10 us
for taking the node's resources, 4 us for the argmax over the nodes. Feasibility and scores are computed once per shape
and rung.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from bench.runner import Row, Target, row
from slipway.model.facts import AllocationFact, NodeFact, PodFact, PoolFact, QueueFact, RoleFact, TopologyFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import GPU, Resources
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.pool_state import PoolState, build
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

SMALL = {"cpu": "100m", "memory": "500Mi"}
ONE_GPU = {"cpu": 1, GPU: 1}
PEER = "kube-scheduler 1.36, whole scheduling"
P1 = Target(must=50, moonshot=200, better="higher")
Measure = Callable[[], float]


def nodes(count: int, *, cpu: int = 4, gpus: int = 0) -> list[NodeFact]:
    """Return `count` equal nodes, in racks of 64."""
    allocatable = Resources.parse({"cpu": cpu, "memory": "32Gi", "pods": 110, GPU: gpus})
    return [
        NodeFact(
            name=f"node-{index:05d}",
            labels={"kubernetes.io/hostname": f"node-{index:05d}", "rack": f"rack-{index // 64:04d}"},
            allocatable=allocatable,
        )
        for index in range(count)
    ]


def gangs(count: int, ranks: int, asked: dict[str, Any], **role: Any) -> list[AllocationFact]:
    """Return `count` equal gangs of `ranks` ranks."""
    return [gang(index, ranks, asked, **role) for index in range(count)]


def gang(number: int, ranks: int, asked: dict[str, Any], **role: Any) -> AllocationFact:
    """Return one gang."""
    worker = RoleFact(name="worker", count=ranks, minimum=ranks, requests=Resources.parse(asked), **role)
    name = f"a{number:06d}"
    return AllocationFact(
        namespace="bench", name=name, uid=name, version=1, created=float(number), roles=(worker,), minimum=ranks
    )


def snapshot(node_facts: list[NodeFact], allocations: Iterable[AllocationFact]) -> PoolSnapshot:
    """Return a snapshot with one queue and one pool."""
    return build(
        node_facts,
        (),
        allocations,
        queues=[QueueFact(name="default")],
        pool=PoolFact(name="default"),
        workspaces=frozenset({"bench"}),
    )


def one_plan(node_facts: list[NodeFact], allocations: list[AllocationFact]) -> Measure:
    """Return a function that measures the seconds of one plan that admits all of `allocations`."""
    made = snapshot(node_facts, allocations)
    policy = msgspec.structs.replace(policy_of(made.pool), decisions_max=len(allocations))

    def measure() -> float:
        start_s = time.process_time()
        decided = plan(made, policy, 0.0, 0)
        taken_s = time.process_time() - start_s
        if len(decided.admits) != len(allocations):
            raise SystemExit(f"{len(decided.admits)} of {len(allocations)} admitted")
        return taken_s

    return measure


def idle_tick() -> Measure:
    """Return a function that measures an idle snapshot and plan: 5,000 nodes, 10,000 pods, half of them ours."""
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(nodes(5000))
    columns.set_queues([QueueFact(name="default")])
    columns.set_workspaces(frozenset({"bench"}))
    for index, fact in enumerate(gangs(5000, 1, SMALL)):
        where = f"node-{index:05d}"
        columns.set_allocation(msgspec.structs.replace(fact, phase=Phase.RUNNING, placements={0: where}))
        columns.set_pod(_pod(f"own-{index}", where, fact.uid))
        columns.set_pod(_pod(f"foreign-{index}", where, ""))
    policy = policy_of(columns.snapshot().pool)

    def measure() -> float:
        start_s = time.process_time()
        for _ in range(100):
            plan(columns.snapshot(), policy, 0.0, 0)
        return (time.process_time() - start_s) / 100

    return measure


def _pod(name: str, node: str, owner: str) -> PodFact:
    asked = Resources.parse(SMALL)
    return PodFact(
        namespace="bench", name=name, uid=name, node=node, requests=asked, allocation_uid=owner, attempt=1, rank=0
    )


async def measure(runs: int) -> list[Row]:
    """Return all rows."""
    found = [
        _milliseconds("PLAN-idle", "tick with nothing to do, 5,000 nodes, 10,000 pods", idle_tick(), runs, 2),
        _milliseconds("PLAN-10k", "10,000 single ranks on 5,000 nodes, one plan", _w1(), runs, 1000),
        _milliseconds("PLAN-512", "gang of 512 whole nodes, 5,000 nodes", _w5c(), runs, 20),
    ]
    for name, work, timed, pods, peer in _compared():
        rates = [pods / timed() for _ in range(runs)]
        found.append(row(f"P1-{name}", work, rates, "pods/s", target=P1, peer=[peer], peer_name=PEER))
    return found


def _milliseconds(name: str, work: str, timed: Measure, runs: int, must: float) -> Row:
    return row(name, work, [timed() * 1000 for _ in range(runs)], "ms", target=Target(must=must))


def _w1() -> Measure:
    return one_plan(nodes(5000), gangs(10_000, 1, SMALL))


def _w5c() -> Measure:
    return one_plan(nodes(5000, gpus=8), gangs(1, 512, {"cpu": 1, GPU: 8}))


def _compared() -> list[tuple[str, str, Measure, int, float]]:
    """Return (id, work, measure, ranks, the peer's pods/s)."""
    exact = [
        gang(index, 1, SMALL, node_selector={"kubernetes.io/hostname": f"node-{index:05d}"}) for index in range(2000)
    ]
    in_rack = gangs(100, 64, ONE_GPU, topology=TopologyFact("rack", "required"))
    gpu_nodes = nodes(1000, cpu=64, gpus=8)
    return [
        ("W1", "5,000 nodes, 10,000 small ranks", _w1(), 10_000, 329),
        ("W2", "5,000 nodes, 2,000 ranks that each fit exactly one", one_plan(nodes(5000), exact), 2000, 57),
        (
            "W3",
            "500 nodes x 8 GPU, 4,000 one-GPU ranks",
            one_plan(nodes(500, cpu=64, gpus=8), gangs(4000, 1, ONE_GPU)),
            4000,
            410,
        ),
        ("W4", "5,000 nodes, 5,000 whole-node ranks", one_plan(nodes(5000), gangs(5000, 1, {"cpu": 4})), 5000, 134),
        ("W5a", "5,000 nodes, 1,000 gangs of 3", one_plan(nodes(5000), gangs(1000, 3, SMALL)), 3000, 232),
        ("W5b", "1,000 GPU nodes, 100 gangs of 64", one_plan(gpu_nodes, gangs(100, 64, ONE_GPU)), 6400, 285),
        ("W5c", "one gang of 512 whole nodes", _w5c(), 512, 512 / 3.58),
        ("W5d", "1,000 GPU nodes, 100 gangs of 64, each in one rack", one_plan(gpu_nodes, in_rack), 6400, 174),
    ]
