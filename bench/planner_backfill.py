"""Backfill queues compared with BestEffort queues: the cost of reservations in a tick and in a simulated hour.

The state differs only in the ordering of its four queues. It has nodes with four GPUs, of which nearly all are in use.
The work has run limits of one to twelve times ten minutes. Among every 25 waiting pieces is a gang of 8 or 16 whole
nodes. The measured tick is the second one over the same state, so its caches are filled as in a running leader. The
figure is CPU time of one thread. `bench/budget` enforces the ratio with counts, which a busy machine does not change.
"""

import random
import time
from typing import Any

import msgspec

from bench.planner import gang, nodes
from bench.runner import Row, Target, row
from slipway.model.facts import PoolFact, QueueFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import GPU, Resources
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.pool_state import PoolState
from slipway.scheduler.simulate.run import simulate
from slipway.scheduler.simulate.scenario import checked

SIZES = ((250, 1_000), (1_000, 4_000), (5_000, 20_000))
"""(nodes, allocations)"""
SIMULATED = (60, 240)
QUEUES = 4
LARGE_EVERY = 25
BEST_EFFORT, BACKFILL = "BestEffortFIFO", "Backfill"
TWICE = Target(must=2.0, moonshot=1.2, better="lower")


def state(node_count: int, work: int, ordering: str, *, preempts: bool = False) -> PoolState:
    """Return a state in which three quarters of the work runs and the rest waits."""
    chance = random.Random(7)
    within, reclaim = ("LowerPriority", "Any") if preempts else ("Never", "Never")
    nominal = Resources.parse({GPU: node_count}) if preempts else None
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(nodes(node_count, cpu=64, gpus=4))
    columns.set_queues(
        QueueFact(name=f"q{number}", nominal=nominal, ordering=ordering, within_queue=within, reclaim=reclaim)
        for number in range(QUEUES)
    )
    columns.set_workspaces(frozenset({"bench"}))
    running = work * 3 // 4
    for index in range(running):
        fact = msgspec.structs.replace(
            gang(index, 1, {"cpu": 1, GPU: 1}),
            queue=f"q{index % QUEUES}",
            phase=Phase.RUNNING,
            placements={0: f"node-{index % node_count:05d}"},
            started=-float(chance.randrange(3600)),
            max_runtime=3600.0 + 600.0 * chance.randrange(12),
            preemptible=preempts,
            priority=index % 3,
        )
        columns.set_allocation(fact)
    for index in range(running, work):
        is_large = index % LARGE_EVERY == 0
        ranks, gpus = (chance.choice((8, 16)), 4) if is_large else (1, 1)
        fact = msgspec.structs.replace(
            gang(index, ranks, {"cpu": 1, GPU: gpus}),
            created=index / 1000 - 1000.0,
            queue=f"q{index % QUEUES}",
            max_runtime=600.0 * chance.randrange(1, 12),
            preemptible=preempts,
            priority=5 if is_large and preempts and index % 2 else 1,
        )
        columns.set_allocation(fact)
    return columns


def ticked(columns: PoolState) -> Plan:
    """Return one plan over the current state."""
    made = columns.snapshot((), 0.0)
    return plan(made, policy_of(made.pool), 0.0, 0)


def scenario(node_count: int, work: int, ordering: str, *, preempts: bool = False) -> dict[str, Any]:
    """Return an hour in which the same kind of work arrives."""
    chance = random.Random(7)
    own: dict[str, Any] = {"ordering": ordering}
    if preempts:
        own |= {"nominal": {"gpus": node_count}, "preemption": {"withinQueue": "LowerPriority", "reclaim": "Any"}}
    allocations: list[dict[str, Any]] = []
    for index in range(work):
        is_large, run_s = index % LARGE_EVERY == 0, 600 * chance.randrange(1, 12)
        ranks = (
            {"count": chance.choice((8, 16)), "gpus": 4} if is_large else {"count": 1, "gpus": chance.choice((1, 2))}
        )
        allocations.append(
            {
                "name": f"a{index}",
                "queue": f"q{chance.randrange(QUEUES)}",
                "priority": chance.randrange(3),
                "submit": chance.randrange(3600),
                "duration": run_s * chance.choice((0.5, 0.9)),
                "maxRuntime": run_s,
                "preemptible": preempts,
                "ranks": [{"cpu": 1, **ranks}],
            }
        )
    return {
        "nodes": [{"name": "n", "count": node_count, "cpu": 64, "memory": "64Gi", "gpus": 4}],
        "queues": [{"name": f"q{number}", **own} for number in range(QUEUES)],
        "allocations": allocations,
    }


def tick_s(node_count: int, work: int, ordering: str, *, preempts: bool) -> float:
    """Return the seconds of a tick that admits what fits."""
    columns = state(node_count, work, ordering, preempts=preempts)
    ticked(columns)
    start_s = time.process_time()
    ticked(columns)
    return time.process_time() - start_s


def simulated_s(ordering: str, *, preempts: bool) -> float:
    """Return the seconds of simulating an hour of arrivals until all work has ended."""
    said = checked(scenario(*SIMULATED, ordering, preempts=preempts))
    start_s = time.process_time()
    simulate(said)
    return time.process_time() - start_s


async def measure(runs: int) -> list[Row]:
    """Return all rows: milliseconds of both orderings, and the ratio of Backfill to BestEffort."""
    found: list[Row] = []
    for node_count, work in SIZES:
        for preempts in (False, True):
            times = {
                ordering: [tick_s(node_count, work, ordering, preempts=preempts) for _ in range(runs)]
                for ordering in (BEST_EFFORT, BACKFILL)
            }
            found += _rows(
                f"BACKFILL-{node_count}", f"a tick, {node_count:,} nodes, {work:,} allocations", times, preempts
            )
    for preempts in (False, True):
        times = {
            ordering: [simulated_s(ordering, preempts=preempts) for _ in range(runs)]
            for ordering in (BEST_EFFORT, BACKFILL)
        }
        found += _rows(
            "BACKFILL-sim", f"a simulated hour, {SIMULATED[0]} nodes, {SIMULATED[1]} allocations", times, preempts
        )
    return found


def _rows(name: str, what: str, times: dict[str, list[float]], preempts: bool) -> list[Row]:
    name, what = (f"{name}-preempting", f"{what}, with preemption") if preempts else (name, what)
    ratios = [one / max(other, 1e-6) for one, other in zip(times[BACKFILL], times[BEST_EFFORT], strict=True)]
    return [
        row(name, f"{what}: Backfill", [each * 1000 for each in times[BACKFILL]], "ms"),
        row(f"{name}-ratio", f"{what}: Backfill over BestEffort", ratios, "times", target=TWICE),
    ]
