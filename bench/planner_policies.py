"""The cost of flavors, past use and windows of a pool in a tick: 5,000 nodes of two kinds, 20,000 allocations.

The state differs only in the policy. It has ten queues, a hundred users, and three quarters of the work runs. Among
every 25 waiting pieces is a gang of 8 or 16 whole nodes. A tick admits what fits. The measured tick is the second one
over the same state, so its caches are filled as in a running leader. The figure is CPU time of one thread. The variants
run in turn, and each is compared with the plain tick of the same turn.
"""

import random
import time

import msgspec

from bench.planner import gang, nodes
from bench.planner_backfill import ticked
from bench.runner import Row, Target, row
from slipway.model.decay import DecayedUsage
from slipway.model.facts import FairShareFact, FlavorFact, NodeFact, PoolFact, QueueFact, WindowFact
from slipway.model.lifecycle import Phase
from slipway.model.mig import GPU_UNITS
from slipway.model.resources import GPU, Resources, gpus_of
from slipway.scheduler.plan.state.pool_state import PoolState

NODES, GPUS, WORK, QUEUES, USERS = 5_000, 4, 20_000, 10, 100
LARGE_EVERY = 25
DAY_S = 86_400.0
KINDS = ("h100", "a100")
FLAVORS = tuple(FlavorFact(kind, {"gpu": kind}) for kind in KINDS)
SHARES = FairShareFact(half_life_s=7 * DAY_S)
WINDOWS = (
    WindowFact(name="patch", start=7_200.0, duration=3_600.0, node_selector={"rack": "rack-0003"}, lead_s=DAY_S),
    WindowFact(name="class", start=10_800.0, duration=7_200.0, queues=("q0",), nodes=64, lead_s=DAY_S, every="Weekly"),
)
PLAIN = "plain"
POOLS = {
    PLAIN: PoolFact(name="default"),
    "flavors": PoolFact(name="default", flavors=FLAVORS),
    "past use": PoolFact(name="default", fair_share=SHARES),
    "flavors and past use": PoolFact(name="default", flavors=FLAVORS, fair_share=SHARES),
    "windows": PoolFact(name="default", windows=WINDOWS),
}
WITHIN = Target(must=1.2, better="lower")


def state(pool: PoolFact) -> PoolState:
    """Return the same nodes and work under the policy of `pool`."""
    chance = random.Random(11)
    columns = PoolState(pool)
    columns.set_nodes(_with_kind(number, node) for number, node in enumerate(nodes(NODES, cpu=64, gpus=GPUS)))
    gpus = NODES * GPUS // QUEUES
    own = {gpus_of(kind): gpus * GPU_UNITS // len(KINDS) for kind in KINDS} if pool.flavors else {GPU: gpus}
    columns.set_queues(
        QueueFact(
            name=f"q{number}",
            nominal=Resources.of(own),
            flavors=KINDS if pool.flavors else (),
            user_order="LeastUsed" if pool.fair_share else "Submission",
        )
        for number in range(QUEUES)
    )
    columns.set_workspaces(frozenset({"bench"}))
    running = WORK * 3 // 4
    for index in range(WORK):
        is_large = index >= running and index % LARGE_EVERY == 0
        ranks, each = (chance.choice((8, 16)), GPUS) if is_large else (1, 1)
        fact = msgspec.structs.replace(
            gang(index, ranks, {"cpu": 1, GPU: each}),
            queue=f"q{index % QUEUES}",
            user=f"u{chance.randrange(USERS):03d}",
            max_runtime=3_600.0 + 600.0 * chance.randrange(12),
        )
        if index < running:
            place = {0: f"node-{index % NODES:05d}"}
            fact = msgspec.structs.replace(
                fact, phase=Phase.RUNNING, placements=place, started=-float(chance.randrange(3_600))
            )
        columns.set_allocation(fact)
    if pool.fair_share is not None:
        half_life_ms = int(pool.fair_share.half_life_s * 1000)
        used = {
            f"q{number}": {f"u{user:03d}": chance.randrange(10**9) for user in range(USERS)} for number in range(QUEUES)
        }
        columns.set_decayed(DecayedUsage(half_life_ms=half_life_ms, used=used))
    return columns


def _with_kind(number: int, node: NodeFact) -> NodeFact:
    return msgspec.structs.replace(node, labels={**node.labels, "gpu": KINDS[number % len(KINDS)]})


def tick_s(pool: PoolFact) -> float:
    """Return the seconds of a tick."""
    columns = state(pool)
    ticked(columns)
    start_s = time.process_time()
    ticked(columns)
    return time.process_time() - start_s


async def measure(runs: int) -> list[Row]:
    """Return all rows: milliseconds of each variant, and its ratio to the plain one."""
    times: dict[str, list[float]] = {name: [] for name in POOLS}
    for _ in range(runs):
        for name, pool in POOLS.items():
            times[name].append(tick_s(pool))
    found: list[Row] = []
    for name, taken in times.items():
        id_, what = f"POLICIES-{name.replace(' ', '-')}", f"a tick, {NODES:,} nodes, {WORK:,} allocations: {name}"
        found.append(row(id_, what, [each * 1000 for each in taken], "ms"))
        if name != PLAIN:
            ratios = [one / max(plain, 1e-6) for one, plain in zip(taken, times[PLAIN], strict=True)]
            found.append(row(f"{id_}-ratio", f"{what}, over plain", ratios, "times", target=WITHIN))
    return found
