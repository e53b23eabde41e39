"""P14: how the planner's cost of one placement grows with nodes and with queued work; drawn in results/growth.svg.

The figures are CPU time of one thread. Each figure is measured in its own process, and the sizes alternate. Over nodes:
one plan places 2,000 single ranks of 20 shapes. The cost may grow in proportion to the nodes, but with repeated shapes
it should grow less. Over queued work: five ticks make 200 decisions each with all the other work queued, and apply
them. The cost should stay flat. There the garbage collector is configured as in every service. Each process reports its
memory. SLIPWAY_BENCH_NODES_MAX and SLIPWAY_BENCH_QUEUED_MAX make a smaller run.
"""

import os
import resource
import subprocess
import sys
import time

import msgspec

from bench.chart import Line, line_chart
from bench.planner import nodes, snapshot
from bench.planner_scale import PER_TICK, shaped, ticked
from bench.runner import RESULTS, Row, Target, row
from slipway.model.facts import PoolFact, QueueFact
from slipway.model.lifecycle import Phase
from slipway.runtime import memory
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.pool_state import PoolState

NODES_MAX = int(os.environ.get("SLIPWAY_BENCH_NODES_MAX", "100000"))
QUEUED_MAX = int(os.environ.get("SLIPWAY_BENCH_QUEUED_MAX", "1000000"))
NODES = [count for count in (1_000, 5_000, 20_000, 100_000) if count <= NODES_MAX]
QUEUED = [count for count in (10_000, 100_000, 1_000_000) if count <= QUEUED_MAX]
RANKS, QUEUED_NODES, TICKS = 2000, 5000, 5
FLAT, FLATTER = 1.5, 1.2
"""the limit of flat growth: samples of one size differ by a fifth on a shared machine"""
SUB_LINEAR = 0.5
"""the limit of sub-linear growth: half of the linear growth"""
TIMEOUT_S = 900


def by_nodes(count: int) -> float:
    """Return the microseconds per placement in one plan on `count` nodes."""
    made = snapshot(nodes(count, cpu=64, gpus=8), [shaped(number) for number in range(RANKS)])
    policy = msgspec.structs.replace(policy_of(made.pool), decisions_max=RANKS)
    start_s = time.process_time()
    decided = plan(made, policy, 0.0, 0)
    return (time.process_time() - start_s) * 1_000_000 / len(decided.admits)


def by_queued(count: int) -> float:
    """Return the microseconds per placement over ticks of 200 decisions each, with `count` queued."""
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(nodes(QUEUED_NODES, cpu=64, gpus=8))
    columns.set_queues([QueueFact(name="default")])
    columns.set_workspaces(frozenset({"bench"}))
    facts = {fact.uid: fact for fact in map(shaped, range(count))}
    for fact in facts.values():
        columns.set_allocation(fact)
    columns.snapshot()
    memory.settle_process()
    placed, start_s = 0, time.process_time()
    for _ in range(TICKS):
        decided = ticked(columns)
        placed += len(decided.admits)
        for admit in decided.admits:
            admitted = msgspec.structs.replace(facts[admit.uid], phase=Phase.ASSIGNED, placements=admit.placements)
            columns.set_allocation(admitted)
    return (time.process_time() - start_s) * 1_000_000 / placed


def peak_mib() -> float:
    """Return the largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Curve:
    """The samples of one curve, by size."""

    def __init__(self, what: str, sizes: list[int]) -> None:
        self.what = what
        self.cost_us: dict[int, list[float]] = {size: [] for size in sizes}
        self.memory_mib: dict[int, float] = {}

    def sample(self, size: int) -> None:
        """Add one sample of one size, measured in its own process."""
        code = f"from bench import growth; print(growth.by_{self.what}({size}), growth.peak_mib())"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
        )
        cost_us, memory_mib = map(float, done.stdout.split())
        self.cost_us[size].append(cost_us)
        self.memory_mib[size] = max(memory_mib, self.memory_mib.get(size, 0.0))

    def rows(self, work: str, *, is_flat: bool) -> list[Row]:
        """Return a row per size, compared with the smallest size."""
        least = min(self.cost_us)
        found: list[Row] = []
        for size, samples in self.cost_us.items():
            grows = size > least
            linear = size / least
            bound = (
                Target(must=FLAT, moonshot=FLATTER) if is_flat else Target(must=linear, moonshot=linear * SUB_LINEAR)
            )
            found.append(
                row(
                    f"P14-{self.what}-{size}",
                    f"one placement, 20 shapes; {size:,} {work}",
                    samples,
                    "us",
                    target=bound if grows else Target(),
                    peer=self.cost_us[least] if grows else (),
                    peer_name=f"ours with {least:,}" if grows else None,
                    note=f"the process took {self.memory_mib[size]:.0f} MiB",
                )
            )
        return found


async def measure(runs: int) -> list[Row]:
    """Return all rows, and write the picture."""
    over_nodes, over_queued = Curve("nodes", NODES), Curve("queued", QUEUED)
    for _ in range(runs):
        for curve in (over_nodes, over_queued):
            for size in curve.cost_us:
                curve.sample(size)
    rows = [
        *over_nodes.rows(f"nodes, {RANKS:,} ranks in one plan", is_flat=False),
        *over_queued.rows(f"queued, {QUEUED_NODES:,} nodes, ticks of {PER_TICK}", is_flat=True),
    ]
    lines = [
        Line(name=f"over {name}", points=[(size, sample) for size, sample in medians(rows, name)])
        for name in ("nodes", "queued")
    ]
    chart = line_chart("CPU per placement, by nodes and by queued work", "how many", "microseconds", lines)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "growth.svg").write_text(chart, encoding="utf-8")
    return rows


def medians(rows: list[Row], what: str) -> list[tuple[float, float]]:
    """Return (size, cost) of one curve, from its rows."""
    start = f"P14-{what}-"
    return [(float(each.id.removeprefix(start)), each.ours) for each in rows if each.id.startswith(start)]
