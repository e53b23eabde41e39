"""The planner at size: the cost of a tick over a large pool and a long queue, and the memory of its state.

Times are CPU time of one thread, so a busy machine does not change them. A tick consists of the leader's steps after a
change: apply the change, make the snapshot, plan, lint. `growth.py` measures how the cost of one placement grows.
Memory is that of a separate process that holds the state and has planned on it.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from bench.planner import gang, nodes, snapshot
from bench.runner import Row, Target, row
from slipway.model.facts import AllocationFact, PodFact, PoolFact, QueueFact
from slipway.model.lifecycle import Phase
from slipway.model.resources import GPU, Resources
from slipway.scheduler.plan.lint import lint
from slipway.scheduler.plan.placement.policy import policy_of
from slipway.scheduler.plan.planner import plan
from slipway.scheduler.plan.state.plan_types import Plan
from slipway.scheduler.plan.state.pool_state import PoolState

SHAPES = 20
PER_TICK = 200


def shaped(number: int) -> AllocationFact:
    """Return one rank of one of 20 shapes; eight of the shapes have GPUs."""
    shape = number % SHAPES
    asked = {"cpu": 1, GPU: 1 + shape // 4} if shape < 8 else {"cpu": f"{100 + 50 * shape}m", "memory": "500Mi"}
    return gang(number, 1, asked)


def blocked(number: int) -> AllocationFact:
    """Return an allocation of one of 20 shapes that do not fit in a full pool."""
    return gang(number, 1, {"cpu": 1 + number % SHAPES, GPU: 8})


def full_state(node_count: int, running: int, queued: int) -> PoolState:
    """Return a pool whose GPUs are all in use by `running` ranks, with `queued` waiting allocations."""
    columns = PoolState(PoolFact(name="default"))
    columns.set_nodes(nodes(node_count, cpu=64, gpus=8))
    columns.set_queues([QueueFact(name="default")])
    columns.set_workspaces(frozenset({"bench"}))
    each = {"cpu": 1, GPU: node_count * 8 // running}
    for index in range(running):
        where = f"node-{index % node_count:05d}"
        fact = gang(index, 1, each)
        columns.set_allocation(msgspec.structs.replace(fact, phase=Phase.RUNNING, placements={0: where}))
        columns.set_pod(_pod(index, where, fact.uid, each))
    for index in range(running, running + queued):
        columns.set_allocation(blocked(index))
    return columns


def ticked(columns: PoolState, decisions_max: int = PER_TICK) -> Plan:
    """Run one tick."""
    made = columns.snapshot()
    decided = plan(made, msgspec.structs.replace(policy_of(made.pool), decisions_max=decisions_max), 0.0, 0)
    if lint(made, decided):
        raise SystemExit("the plan breaks its own rules")
    return decided


def ten_thousand() -> Callable[[], float]:
    """Return a function that measures the seconds of one plan: 10,000 single ranks of 20 shapes on 5,000 nodes."""
    made = snapshot(nodes(5000, cpu=64, gpus=8), [shaped(number) for number in range(10_000)])
    policy = msgspec.structs.replace(policy_of(made.pool), decisions_max=10_000)

    def measure() -> float:
        start_s = time.process_time()
        decided = plan(made, policy, 0.0, 0)
        taken_s = time.process_time() - start_s
        if len(decided.admits) != 10_000:
            raise SystemExit(f"{len(decided.admits)} of 10,000 admitted")
        return taken_s

    return measure


class Large:
    """The cost of a tick with 5,000 nodes, 10,000 running and 50,000 queued allocations."""

    def __init__(self) -> None:
        self.columns = full_state(5000, 10_000, 50_000)
        ticked(self.columns)
        self.next = 60_000

    def idle(self) -> float:
        """Return the milliseconds of a tick without a change."""
        start_s = time.process_time()
        for _ in range(20):
            ticked(self.columns)
        return (time.process_time() - start_s) * 1000 / 20

    def arrival(self) -> float:
        """Return the milliseconds of a tick after the arrival of an allocation that does not fit."""
        fresh = [blocked(number) for number in range(self.next, self.next + 20)]
        self.next += 20
        start_s = time.process_time()
        for fact in fresh:
            self.columns.set_allocation(fact)
            ticked(self.columns)
        return (time.process_time() - start_s) * 1000 / 20

    def departure(self) -> float:
        """Return the milliseconds of a tick after a rank has ended: its place is free, and all shapes are retried."""
        runs(self.columns, self.next)
        start_s = time.process_time()
        ends(self.columns, self.next)
        self.next += 1
        return (time.process_time() - start_s) * 1000


def runs(columns: PoolState, number: int) -> None:
    """Add a single rank that runs on one of the first 1,000 nodes, and run the tick that sees it."""
    where = f"node-{number % 1000:05d}"
    fact = gang(number, 1, {"cpu": 1})
    columns.set_allocation(msgspec.structs.replace(fact, phase=Phase.RUNNING, placements={0: where}))
    columns.set_pod(_pod(number, where, fact.uid, {"cpu": 1}))
    ticked(columns)


def ends(columns: PoolState, number: int) -> None:
    """Remove the rank that `runs` added, and run the tick after it."""
    fact = gang(number, 1, {"cpu": 1})
    pod = _pod(number, f"node-{number % 1000:05d}", fact.uid, {"cpu": 1})
    columns.drop_pod(pod.namespace, pod.name, pod.uid)
    columns.drop_allocation(fact.uid)
    ticked(columns)


def rebuild() -> float:
    """Return the seconds from the facts to the first plan: 5,000 nodes, 10,000 running, 50,000 queued."""
    start_s = time.process_time()
    ticked(full_state(5000, 10_000, 50_000))
    return time.process_time() - start_s


def memory() -> float:
    """Return the MiB of a process with 20,000 nodes, 10,000 running and 100,000 queued that has planned twice."""
    code = (
        "from bench.planner_scale import full_state, ticked, resident_mib\n"
        "columns = full_state(20_000, 10_000, 100_000)\n"
        "ticked(columns); ticked(columns)\n"
        "print(resident_mib())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


async def measure(runs: int) -> list[Row]:
    """Return all rows."""
    many, large = ten_thousand(), Large()
    state = "5,000 nodes, 10,000 running, 50,000 queued"

    def some(take: Callable[[], float]) -> list[float]:
        return [take() for _ in range(runs)]

    found = [
        row("PLAN-10k-shapes", "10,000 single ranks of 20 shapes, 5,000 nodes", some(many), "s", target=Target(must=1)),
        row("TICK-idle", f"tick, nothing has changed; {state}", some(large.idle), "ms", target=Target(must=2)),
        row("TICK-arrival", "the same after an arrival without a place", some(large.arrival), "ms"),
        row("TICK-departure", "the same after an end: every shape is tried again", some(large.departure), "ms"),
        row("PLAN-rebuild", f"from facts to the first plan; {state}", some(rebuild), "s", target=Target(must=3)),
        row(
            "PLAN-memory",
            "20,000 nodes, 10,000 running, 100,000 queued",
            some(memory),
            "MiB",
            target=Target(must=500, moonshot=250),
        ),
    ]
    return found


def _pod(number: int, node: str, owner: str, asked: dict[str, int]) -> PodFact:
    name = f"pod-{number}"
    requests = Resources.parse(asked)
    return PodFact(
        namespace="bench", name=name, uid=name, node=node, requests=requests, allocation_uid=owner, attempt=1, rank=0
    )
