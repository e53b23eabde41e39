"""Preemption alone.

The cases: single ranks that each need three of four victims on a full node, gangs that clear nodes, and a search that
finds nothing.

The figure is CPU time of `plan`, as in `planner.py`. The peer is kube-scheduler's scheduler_perf with the same nodes,
the same victims and the same preemptors (Preemption), on a similar machine.
"""

import time

import msgspec

from bench.planner import Measure, gang, nodes
from bench.runner import Row, Target, row
from slipway.model.facts import AllocationFact, PoolFact, QueueFact
from slipway.model.lifecycle import Phase
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.pool_state import build
from slipway.scheduler.plan.state.snapshot import PoolSnapshot

PEER = "kube-scheduler 1.36, scheduler_perf"
W6 = Target(must=20, moonshot=100, better="higher")
W6_PEER = 36.6
"""the peer's pods/s"""


def full(count: int, preemptors: list[AllocationFact], *, within: str = "LowerPriority") -> PoolSnapshot:
    """Return `count` nodes of 4 cpu, each with four victims of 1 cpu, and the waiting preemptors."""
    victims: list[AllocationFact] = []
    for number in range(count * 4):
        fact = gang(number, 1, {"cpu": 1, "memory": "500Mi"})
        where = f"node-{number // 4:05d}"
        victims.append(
            msgspec.structs.replace(
                fact, preemptible=True, phase=Phase.RUNNING, placements={0: where}, started=float(number)
            )
        )
    return build(
        nodes(count),
        (),
        [*victims, *preemptors],
        queues=[QueueFact(name="default", within_queue=within)],
        pool=PoolFact(name="default"),
        workspaces=frozenset({"bench"}),
    )


def preemptors(count: int, ranks: int = 1) -> list[AllocationFact]:
    """Return `count` gangs whose ranks each need the capacity of three victims."""
    asked = {"cpu": 3, "memory": "500Mi"}
    return [msgspec.structs.replace(gang(900_000 + number, ranks, asked), priority=10) for number in range(count)]


def one_plan(made: PoolSnapshot, admitted: int, evicted: int) -> Measure:
    """Return a function that measures the seconds of one plan."""
    policy = msgspec.structs.replace(policy_of(made.pool), decisions_max=100_000)

    def measure() -> float:
        start_s = time.process_time()
        decided = plan(made, policy, 0.0, 0)
        taken_s = time.process_time() - start_s
        if (len(decided.admits), len(decided.evictions)) != (admitted, evicted):
            raise SystemExit(f"{len(decided.admits)} admitted, {len(decided.evictions)} evicted")
        return taken_s

    return measure


async def measure(runs: int) -> list[Row]:
    """Return all rows."""
    w6 = one_plan(full(1000, preemptors(1000)), 1000, 3000)
    big = one_plan(full(5000, preemptors(1000)), 1000, 3000)
    clearing = one_plan(full(1000, preemptors(1, 64)), 1, 192)
    in_vain = one_plan(full(5000, [msgspec.structs.replace(each, priority=0) for each in preemptors(1)]), 0, 0)
    return [
        row(
            "P5-W6",
            "1,000 nodes full of 4,000 victims, 1,000 preemptors of 3 each",
            [1000 / w6() for _ in range(runs)],
            "pods/s",
            target=W6,
            peer=[W6_PEER],
            peer_name=PEER,
        ),
        row("PREEMPT-5k", "the same on 5,000 nodes, 20,000 victims", [1000 / big() for _ in range(runs)], "pods/s"),
        row("PREEMPT-gang", "a gang of 64 that clears 64 of 1,000 nodes", _ms(clearing, runs), "ms"),
        row("PREEMPT-vain", "a tick that finds nobody to evict, 5,000 nodes", _ms(in_vain, runs), "ms"),
    ]


def _ms(measure_s: Measure, runs: int) -> list[float]:
    return [measure_s() * 1000 for _ in range(runs)]
