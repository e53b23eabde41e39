"""The soak test: 50 launches a second for 30 minutes, one in a hundred killed. The memory of each service must be flat.

The four services run on the local cluster; pods run for half a second on simulated nodes. Up to 500 ended allocations
are kept. Retention runs once a minute, so their number varies between 500 and 500 plus those that end in a minute.
Resident memory is read every two seconds. The warm-up is a fifth of the time, and at least two rounds of retention.
After it, the median of the second half is compared with that of the first half. A launch is POSTed at its time even
when earlier ones are not answered, with up to 256 at once.

Two processes are not steady and are only reported: Redis keeps the streams of ended allocations for their lifetime, and
the local API server keeps its history.

SLIPWAY_BENCH_MINUTES (30), SLIPWAY_BENCH_RATE (50) and SLIPWAY_BENCH_KEPT (500) change the duration, the rate and the
size.
"""

import asyncio
import os
import statistics
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from bench.bench_stack import INSIST_MAX, BenchStack, a_bench_stack, launch_through
from bench.nodes import played, simulated_nodes
from bench.runner import Row, Target, percentile, row

MINUTES = float(os.environ.get("SLIPWAY_BENCH_MINUTES", "30"))
RATE = float(os.environ.get("SLIPWAY_BENCH_RATE", "50"))
KILL_EVERY = 100
RUNS_S = 0.5
KEPT = int(os.environ.get("SLIPWAY_BENCH_KEPT", "500"))
NODES, NODE_CPUS = 20, 64
AT_ONCE = 256
SAMPLE_S = 2.0
WARM_UP_PART = 0.2
WARM_UP_S = 150.0
"""The time of two rounds of retention: before that, the number of kept allocations still grows."""
REST_S = 60.0
FLAT = 1.05
SERVICES = ("api", "scheduler", "podworker", "watcher")
BESIDE = ("cluster", "redis")


class LoadFigures:
    """The figures of the load."""

    def __init__(self) -> None:
        self.posts_ms: list[float] = []
        self.killed = 0
        self.memory_mib: dict[str, list[float]] = {}
        self.took_s = 0.0


async def measure(_runs: int) -> list[Row]:
    """Return the rows of this benchmark; it makes one run, independent of the requested number."""
    load_figures = LoadFigures()
    async with (
        a_bench_stack(nodes=0, env={"SLIPWAY_RETENTION_COUNT_MAX": str(KEPT)}) as bench_stack,
        simulated_nodes(Path(bench_stack.stack.kubeconfig), NODES, NODE_CPUS, local=True),
    ):
        sampling = asyncio.ensure_future(_sample(bench_stack, load_figures))
        try:
            await _load(bench_stack, load_figures)
        finally:
            sampling.cancel()
        left = await _unended(bench_stack)
    if left:
        raise RuntimeError(f"{left} allocations had not ended {REST_S:.0f} s after the last launch")
    return _rows(load_figures)


async def _load(bench_stack: BenchStack, load_figures: LoadFigures) -> None:
    """Make the launches at their times; return when the last one has been answered."""
    main = {"name": "main", "image": "local", "command": ["true"]}
    body = msgspec.json.encode(
        {
            "kind": "command",
            "template": {"metadata": {"annotations": played(RUNS_S)}, "spec": {"containers": [main]}},
            "ranks": [{"name": "worker", "count": 1, "resources": {"cpu": "10m", "memory": "8Mi"}}],
        }
    )
    slots, started_s = asyncio.Semaphore(AT_ONCE), time.perf_counter()

    async def launch(number: int) -> None:
        try:
            key = f"soak-{number}"
            id_, sent, answered = await launch_through(bench_stack.session, bench_stack.stack.api_url, body, key=key)
            load_figures.posts_ms.append((answered - sent) * 1_000)
            if number % KILL_EVERY == 0:
                await _kill(bench_stack, id_)
                load_figures.killed += 1
        finally:
            slots.release()

    async with asyncio.TaskGroup() as group:
        for number in range(round(MINUTES * 60 * RATE)):
            await asyncio.sleep(max(0.0, started_s + number / RATE - time.perf_counter()))
            await slots.acquire()
            group.create_task(launch(number))
    load_figures.took_s = time.perf_counter() - started_s


async def _kill(bench_stack: BenchStack, id_: str) -> None:
    """Kill an allocation as any client would: repeat the call while the api is unavailable."""
    for _ in range(INSIST_MAX):
        async with bench_stack.session.post(f"{bench_stack.stack.api_url}/api/v1/allocations/{id_}/kill") as answer:
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                answer.raise_for_status()
                return
        await asyncio.sleep(1.0)
    raise RuntimeError(f"{id_} could not be killed")


async def _sample(bench_stack: BenchStack, load_figures: LoadFigures) -> None:
    while True:
        for name in SERVICES:
            load_figures.memory_mib.setdefault(name, []).append(_resident_mib(bench_stack.stack.children[name].pid))
        load_figures.memory_mib.setdefault("cluster", []).append(
            _resident_mib(bench_stack.stack.children["cluster"].pid)
        )
        if bench_stack.stack.valkey is not None and bench_stack.stack.valkey.pid:
            load_figures.memory_mib.setdefault("redis", []).append(_resident_mib(bench_stack.stack.valkey.pid))
        await asyncio.sleep(SAMPLE_S)


async def _unended(bench_stack: BenchStack) -> int:
    """Wait up to `REST_S` until all allocations have ended; return how many have not."""
    path = "/apis/slipway.dev/v1alpha1/allocations?fieldSelector=status.phase!=Terminated"
    left = 1
    for _ in range(round(REST_S)):
        found: dict[str, Any] = await bench_stack.read(path)
        left = len(found["items"])
        if not left:
            return 0
        await asyncio.sleep(1.0)
    return left


def halves(samples: list[float], warm_up_s: float = WARM_UP_S) -> tuple[list[float], list[float]]:
    """Return the first and the second half of the samples after the warm-up. Raises ValueError if there are too few."""
    warm = samples[max(round(warm_up_s / SAMPLE_S), int(len(samples) * WARM_UP_PART)) :]
    middle = len(warm) // 2
    if middle < 1:
        raise ValueError(f"{len(samples)} samples are too few: let it run longer")
    return warm[:middle], warm[middle:]


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def _rows(load_figures: LoadFigures) -> list[Row]:
    count = len(load_figures.posts_ms)
    work = f"{RATE:g} launches/s for {MINUTES:g} min"
    note = (
        f"{count:,} launches, {load_figures.killed} killed, every one ended, {KEPT} kept; samples every {SAMPLE_S:g} s"
    )
    rows: list[Row] = []
    for name in (*SERVICES, *BESIDE):
        first, second = halves(load_figures.memory_mib.get(name, []))
        target = Target(must=FLAT) if name in SERVICES else Target()
        row_ = row(
            f"SOAK-{name}",
            f"{name}: resident in the second half, {work}",
            [statistics.median(second)],
            "MiB",
            peer=[statistics.median(first)],
            peer_name="in the first half",
            target=target,
            note=note,
        )
        # Only enough samples are kept to see a slope; the medians are of all samples.
        rows.append(msgspec.structs.replace(row_, samples=_thinned([*first, *second])))
    rate = Target(must=0.98, better="higher")
    rows.append(
        row(
            "SOAK-rate",
            f"launches answered, {work}",
            [count / load_figures.took_s],
            "launches/s",
            target=rate,
            peer=[RATE],
            peer_name="asked for",
        )
    )
    rows.append(row("SOAK-post-p99", f"POST p99, {work}", [percentile(load_figures.posts_ms, 99)], "ms"))
    _say(note)
    return rows


def _thinned(samples: list[float]) -> list[float]:
    every = max(1, len(samples) // 30)
    return [round(sample, 1) for sample in samples[::every]]


def _say(text: str) -> None:
    print(f"  {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
