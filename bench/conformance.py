"""P3 on a real kube-apiserver: launches per second of our services, beside a bare client that writes the same objects.

Both sides use one API server in turn, and the order changes with each pair: the four services with a client that POSTs,
and a client with 64 connections that writes the objects of such launches. A rate is from the first request to the last
binding, as a watch of bound pods counts them. Nodes are objects without kubelets.

SLIPWAY_BENCH_SINGLES and SLIPWAY_BENCH_GANGS (0 leaves them out) change the size of a run, for profiling.
"""

import asyncio
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from bench.bare import CONNECTIONS, Copied
from bench.bench_cluster import BenchCluster, a_bench_cluster
from bench.bench_stack import launch_body
from bench.runner import Row, Target, row

SINGLES = int(os.environ.get("SLIPWAY_BENCH_SINGLES", "400"))
GANGS = int(os.environ.get("SLIPWAY_BENCH_GANGS", "2"))
RANKS = 512
WARM_UP = 32
QUIET_S = 6.0
OURS = ("api", "scheduler", "podworker", "watcher")


class SideFigures:
    """The figures of one side of the comparison."""

    def __init__(self) -> None:
        self.singles: list[float] = []
        self.gangs: list[float] = []
        self.cpu_s: dict[str, list[float]] = {}
        """{process: seconds per 1,000 single ranks, of each run}"""
        self.gang_cpu_s: dict[str, list[float]] = {}
        """the same figures per 1,000 pods of gangs"""
        self.calls: Counter[str] = Counter()

    def spent(self, into: dict[str, list[float]], before: dict[str, float], after: dict[str, float], by: int) -> None:
        """Record the CPU that each process used for `by` launches or pods, per 1,000 of them."""
        for name, after_s in after.items():
            into.setdefault(name, []).append((after_s - before.get(name, 0.0)) / by * 1_000)


def _total(cpu_s: dict[str, list[float]], names: Collection[str] | None = None) -> list[float]:
    """Return the sum over processes, for each run."""
    return [sum(spent) for spent in zip(*(cpu_s[name] for name in names or cpu_s), strict=True)]


def _line(cpu_s: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(spent):.2f}" for name, spent in sorted(cpu_s.items()))


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    ours, bare = SideFigures(), SideFigures()
    async with a_bench_cluster() as bench_cluster:
        single, gang = await _copies(bench_cluster)

        def post(ranks: int, count: int) -> Awaitable[None]:
            return _launch(bench_cluster, ranks, count)

        def write(ranks: int, count: int) -> Awaitable[None]:
            return bench_cluster.bare.burst(single if ranks == 1 else gang, count, CONNECTIONS)

        for number in range(runs):
            sides = [(ours, post), (bare, write)]
            for side, launch in sides if number % 2 == 0 else reversed(sides):
                await _turn(bench_cluster, side, launch, is_ours=side is ours)
            _say(f"pair {number + 1}: ours {ours.singles[-1]:.0f}, bare {bare.singles[-1]:.0f} launches/s")
            if GANGS:
                _say(f"        ours {ours.gangs[-1]:.0f}, bare {bare.gangs[-1]:.0f} pods/s in gangs")
    return _rows(ours, bare, runs)


async def _copies(bench_cluster: BenchCluster) -> tuple[Copied, Copied]:
    """Return copies of a single rank and of a gang for the bare client; delete the originals and halt the services."""
    async with bench_cluster.bound.counting():
        single = await bench_cluster.post(launch_body(1))
        gang = await bench_cluster.post(launch_body(RANKS))
        await bench_cluster.bound.until(1 + RANKS)
    copies = await Copied.of(bench_cluster.read, single), await Copied.of(bench_cluster.read, gang)
    await bench_cluster.halt()
    await bench_cluster.clean()
    return copies


async def _turn(
    bench_cluster: BenchCluster, side: SideFigures, launch: Callable[[int, int], Awaitable[None]], *, is_ours: bool
) -> None:
    """Run one side, from a clean cluster to a clean cluster."""
    if is_ours:
        await bench_cluster.resume()
    await _burst(bench_cluster, launch, 1, WARM_UP)
    calls = await bench_cluster.calls() if is_ours else Counter[str]()
    cpu_s = _living(bench_cluster.cpu_s(), is_ours=is_ours)
    side.singles.append(await _burst(bench_cluster, launch, 1, SINGLES))
    await asyncio.sleep(QUIET_S)
    side.spent(side.cpu_s, cpu_s, _living(bench_cluster.cpu_s(), is_ours=is_ours), SINGLES)
    if is_ours:
        side.calls += await bench_cluster.calls() - calls
    if GANGS:
        cpu_s = _living(bench_cluster.cpu_s(), is_ours=is_ours)
        side.gangs.append(RANKS * await _burst(bench_cluster, launch, RANKS, GANGS))
        await asyncio.sleep(QUIET_S)
        side.spent(side.gang_cpu_s, cpu_s, _living(bench_cluster.cpu_s(), is_ours=is_ours), GANGS * RANKS)
    if is_ours:
        await bench_cluster.halt()
    await bench_cluster.clean()


async def _burst(
    bench_cluster: BenchCluster, launch: Callable[[int, int], Awaitable[None]], ranks: int, count: int
) -> float:
    """Return the launches per second, from the first request to the last binding."""
    async with bench_cluster.bound.counting():
        started_s = time.perf_counter()
        await launch(ranks, count)
        ended_s = await bench_cluster.bound.until(count * ranks)
    return count / (ended_s - started_s)


async def _launch(bench_cluster: BenchCluster, ranks: int, count: int) -> None:
    body = launch_body(ranks)
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await bench_cluster.post(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(client())


def _living(cpu_s: dict[str, float], *, is_ours: bool) -> dict[str, float]:
    """Return the figures. Those of our services are left out while the services are halted."""
    return {name: spent for name, spent in cpu_s.items() if is_ours or name not in (*OURS, "redis")}


def _say(text: str) -> None:
    print(f"  {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)


def _pairs(ours: list[float], bare: list[float]) -> str:
    each = ", ".join(f"{left:.0f}/{right:.0f}" for left, right in zip(ours, bare, strict=True))
    return f"ours / bare, pair by pair: {each}"


def _rows(ours: SideFigures, bare: SideFigures, runs: int) -> list[Row]:
    peer = "bare client, 64 connections, same writes"
    cpu_s = _total(ours.cpu_s, OURS)
    per_launch = {name: count / (runs * SINGLES) for name, count in ours.calls.items()}
    calls = ", ".join(
        f"{name} {count:.2f}" for name, count in sorted(per_launch.items(), key=lambda item: -item[1]) if count >= 0.005
    )
    work = f"{SINGLES} single ranks, {CONNECTIONS} clients, POST to last bind"
    target = Target(must=0.6, moonshot=0.85, better="higher")
    rows = [
        row(
            "P3-real",
            work,
            ours.singles,
            "launches/s",
            peer=bare.singles,
            peer_name=peer,
            target=target,
            note=_pairs(ours.singles, bare.singles),
        ),
        row(
            "P11-real",
            "CPU of the four services per 1,000 single-rank launches",
            cpu_s,
            "s",
            target=Target(must=12, moonshot=5),
            note=_line({name: ours.cpu_s[name] for name in OURS}),
        ),
        row(
            "P3-real-cpu",
            f"CPU of every process per 1,000 single ranks, with the {QUIET_S:g} s after them",
            _total(ours.cpu_s),
            "s",
            peer=_total(bare.cpu_s),
            peer_name=peer,
            target=Target(must=1 / 0.6, moonshot=1 / 0.85),
            note=f"ours: {_line(ours.cpu_s)}; bare: {_line(bare.cpu_s)}",
        ),
        row(
            "T-real-kube-calls",
            "Kubernetes calls of the services per single-rank launch",
            [sum(per_launch.values())],
            "calls",
            note=calls,
        ),
    ]
    if GANGS:
        work = f"{GANGS} gangs of {RANKS}, POST to last bind"
        target = Target(must=0.7, moonshot=0.9, better="higher")
        note = _pairs(ours.gangs, bare.gangs)
        gangs = row(
            "P3-real-gangs", work, ours.gangs, "pods/s", peer=bare.gangs, peer_name=peer, target=target, note=note
        )
        rows.insert(1, gangs)
        rows.append(
            row(
                "P3-real-gangs-cpu",
                f"CPU of every process per 1,000 pods of gangs, with the {QUIET_S:g} s after them",
                _total(ours.gang_cpu_s),
                "s",
                peer=_total(bare.gang_cpu_s),
                peer_name=peer,
                target=Target(must=1 / 0.7, moonshot=1 / 0.9),
                note=f"ours: {_line(ours.gang_cpu_s)}; bare: {_line(bare.gang_cpu_s)}",
            )
        )
    return rows
