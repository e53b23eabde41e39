"""P6: one round over a long queue: 320,000 single ranks of 1 cpu in ten queues fill 1,000 nodes of 32 cpu.

The figure is the CPU time of one `plan`, which decides the 32,000 ranks that fit and a reason for the others. Each run
is in its own process. The snapshot already contains the queue in columns, as in a leader. The time to build the columns
from the facts is a separate row. Armada, whose workload this is, publishes no time for it; by default its scheduler
starts 100 jobs a second.
"""

import subprocess
import sys
import time

import msgspec

from bench.planner import gang, nodes
from bench.runner import Row, Target, row
from slipway.model.facts import PoolFact, QueueFact
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.pool_state import PoolState

NODES, CPUS, QUEUES, QUEUED = 1000, 32, 10, 320_000
ONE_CPU = {"cpu": 1, "memory": "512Mi"}
ARMADA_PER_S = 100
TIMEOUT_S = 600


def a_round() -> tuple[float, float, float]:
    """Return the seconds of (building, planning, linting) one round in this process."""
    start_s = time.process_time()
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(nodes(NODES, cpu=CPUS))
    columns.set_queues([QueueFact(name=f"q{number}") for number in range(QUEUES)])
    columns.set_workspaces(frozenset({"bench"}))
    for number in range(QUEUED):
        columns.set_allocation(msgspec.structs.replace(gang(number, 1, ONE_CPU), queue=f"q{number % QUEUES}"))
    made = columns.snapshot()
    policy = msgspec.structs.replace(policy_of(made.pool), decisions_max=QUEUED)
    built_s = time.process_time()
    decided = plan(made, policy, 0.0, 0)
    planned_s = time.process_time()
    if len(decided.admits) != NODES * CPUS:
        raise SystemExit(f"{len(decided.admits)} of {NODES * CPUS} admitted")
    if lint(made, decided):
        raise SystemExit("the plan breaks its own rules")
    return built_s - start_s, planned_s - built_s, time.process_time() - planned_s


def _in_a_process() -> tuple[float, float, float]:
    code = "from bench.rounds import a_round; print(*a_round())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    built_s, planned_s, linted_s = map(float, done.stdout.split())
    return built_s, planned_s, linted_s


async def measure(runs: int) -> list[Row]:
    """Return all rows."""
    found = [_in_a_process() for _ in range(runs)]
    size = f"{QUEUED:,} queued over {QUEUES} queues, {NODES:,} nodes x {CPUS} cpu"
    placed = NODES * CPUS
    note = (
        f"{placed:,} placed; Armada's default rate, {ARMADA_PER_S} jobs/s, needs {placed / ARMADA_PER_S:.0f} s for them"
    )
    planned = [planned_s for _, planned_s, _ in found]
    target = Target(must=3, moonshot=0.5)
    return [
        row("P6", f"one round: {size}", planned, "s", target=target, note=note),
        row("P6-build", "the same facts into columns, from nothing", [built_s for built_s, _, _ in found], "s"),
        row("P6-lint", "the check of that plan", [linted_s for _, _, linted_s in found], "s"),
    ]
