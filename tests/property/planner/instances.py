"""Random planner instances: small enough to reason about, and full enough that most of them block an allocation."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from slipway.model.facts import (
    AllocationFact,
    JobFact,
    NodeFact,
    PodFact,
    PoolFact,
    QueueFact,
    QuotaFact,
    RoleFact,
    Taint,
    Toleration,
    TopologyFact,
)
from slipway.model.resources import Resources
from slipway.scheduler.plan.state.snapshot import PoolSnapshot
from tests.support.planner import a_node, a_snapshot, amounts, an_allocation

TAINT = Taint(key="dedicated", value="x")
SCORES = st.sampled_from(
    [
        {},
        {"LeastAllocated": 1},
        {"MostAllocated": 1},
        {"LeastAllocated": 1, "BalancedAllocation": 1},
        {"MostAllocated": 2, "NodeAffinity": 1, "TaintToleration": 1},
        {"MostAllocated": 1, "TopologyPacking": 2},
    ]
)


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of one snapshot."""

    nodes: list[NodeFact]
    pods: list[PodFact]
    allocations: list[AllocationFact]
    queues: list[QueueFact]
    jobs: list[JobFact]
    pool: PoolFact
    quotas: list[QuotaFact] = []

    def snapshot(self, **changes: Any) -> PoolSnapshot:
        """The snapshot, with some of the facts replaced."""
        facts = msgspec.structs.replace(self, **changes)
        return a_snapshot(
            facts.nodes,
            facts.allocations,
            pods=facts.pods,
            queues=facts.queues,
            jobs=facts.jobs,
            pool=facts.pool,
            quotas=facts.quotas,
        )


@st.composite
def some_nodes(draw: st.DrawFn) -> list[NodeFact]:
    count = draw(st.integers(1, 6))
    return [
        a_node(
            f"n{index}",
            cpu=draw(st.integers(1, 8)),
            memory=f"{draw(st.integers(1, 16))}Gi",
            gpus=draw(st.sampled_from([0, 0, 2, 4])),
            pods=draw(st.sampled_from([1, 3, 110])),
            labels={"rack": draw(st.sampled_from(["r1", "r2"]))} if draw(st.booleans()) else {},
            taints=(TAINT,) if draw(st.integers(0, 5)) == 0 else (),
            unschedulable=draw(st.integers(0, 7)) == 0,
            ready=draw(st.integers(0, 7)) != 0,
        )
        for index in range(count)
    ]


@st.composite
def a_random_role(draw: st.DrawFn, name: str) -> RoleFact:
    count = draw(st.integers(1, 4))
    return RoleFact(
        name=name,
        count=count,
        minimum=draw(st.integers(0, count)),
        requests=amounts(
            draw(st.sampled_from([0, "500m", 1, 2, 5])),
            draw(st.sampled_from([0, "1Gi", "3Gi"])),
            draw(st.sampled_from([0, 0, 1, 2])),
        ),
        node_selector={"rack": "r1"} if draw(st.integers(0, 6)) == 0 else {},
        tolerations=(Toleration(key="dedicated", operator="Exists"),) if draw(st.booleans()) else (),
        topology=draw(st.sampled_from([None, None, TopologyFact("rack"), TopologyFact("rack", "preferred")])),
        host_ports=(8080,) if draw(st.integers(0, 9)) == 0 else (),
    )


@st.composite
def some_allocations(draw: st.DrawFn, queues: list[QueueFact], jobs: list[JobFact]) -> list[AllocationFact]:
    found: list[AllocationFact] = []
    for index in range(draw(st.integers(0, 8))):
        roles = tuple(draw(a_random_role(f"role{number}")) for number in range(draw(st.integers(1, 2))))
        ranks, least = sum(role.count for role in roles), sum(role.minimum for role in roles)
        found.append(
            an_allocation(
                f"a{index}",
                *roles,
                minimum=draw(st.integers(max(1, least), max(1, ranks + draw(st.integers(0, 1))))),
                queue=draw(st.sampled_from([queue.name for queue in queues])),
                job=draw(st.sampled_from(["", *(job.name for job in jobs)])),
                priority=draw(st.integers(0, 2)),
                created=float(draw(st.integers(-3, 3))),
                preemptible=draw(st.booleans()),
                hold=draw(st.integers(0, 9)) == 0,
                avoid_nodes=("n0",) if draw(st.integers(0, 6)) == 0 else (),
            )
        )
    return found


@st.composite
def some_queues(draw: st.DrawFn) -> list[QueueFact]:
    bounds = st.none() | st.builds(_bound, st.integers(0, 10), st.integers(0, 4))
    found = [QueueFact(name="parent", nominal=draw(bounds), limit=draw(bounds))] if draw(st.booleans()) else []
    if found and draw(st.booleans()):
        found = [QueueFact(name="top", nominal=draw(bounds), borrowing_limit=draw(bounds), lending_limit=draw(bounds))]
        found.append(QueueFact(name="parent", parent="top", nominal=draw(bounds), limit=draw(bounds)))
    for name in ("default", "other")[: draw(st.integers(1, 2))]:
        found.append(
            QueueFact(
                name=name,
                parent="parent" if found and draw(st.booleans()) else "",
                nominal=draw(bounds),
                borrowing_limit=draw(bounds),
                lending_limit=draw(bounds),
                limit=draw(bounds),
                ordering=draw(st.sampled_from(["BestEffortFIFO", "StrictFIFO"])),
                weight=draw(st.integers(1, 3)),
                priority=draw(st.integers(0, 1)),
            )
        )
    return found


def _bound(cpu: int, gpus: int) -> Resources:
    return Resources({"cpu": cpu * 1000, "nvidia.com/gpu": gpus})


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """A whole instance."""
    nodes = draw(some_nodes())
    queues = draw(some_queues())
    jobs = [JobFact(namespace="default", name="j", max_slots=draw(st.integers(0, 4)))] if draw(st.booleans()) else []
    pods = [
        PodFact(
            namespace="kube-system",
            name=f"p{index}",
            uid=f"p{index}",
            node=draw(st.sampled_from([node.name for node in nodes])),
            requests=amounts(draw(st.sampled_from([0, 1, 2])), 0, draw(st.sampled_from([0, 0, 1]))),
        )
        for index in range(draw(st.integers(0, 3)))
    ]
    allocations = draw(some_allocations(queues, jobs))
    pool = PoolFact(name="default", scores=draw(SCORES), aging=draw(st.sampled_from([0.0, 0.0, 2.0])))
    return Instance(nodes=nodes, pods=pods, allocations=allocations, queues=queues, jobs=jobs, pool=pool)
