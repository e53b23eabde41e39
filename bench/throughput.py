"""Sustained launches against the local cluster, the cost of each launch, and the same writes by a bare client.

The nodes are objects without a kubelet: the running pods are not part of the measurement, and a process per pod would
use the two cores of the measured system. A launch is complete when a watching client sees its last rank bound. The rate
is from the first POST to the last bind.

The peer of P3 writes the objects of one single-rank launch (allocation, admission, ConfigMap, pod, release, binding),
in that order for each launch. It writes to its own API server without watches, which is the maximum of any launcher.
"""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from bench.bare import BareCluster, Copied
from bench.bench_stack import BenchStack, a_bench_stack, launch_body
from bench.runner import Row, Target, paired, percentile, row

SINGLES = 150
GANGS = 25
GANG = 8
CLIENTS = 16
NODES = 20
RATE = 50
RATE_S = 2.0
SERVICES = ("api", "scheduler", "podworker", "watcher")
TICKS_PER_S = 100
NODE: dict[str, Any] = {
    "status": {
        "capacity": {"cpu": "64", "memory": "256Gi", "pods": "1000"},
        "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "1000"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
}


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    async with a_bench_stack(nodes=0) as bench_stack, BareCluster.started() as bare:
        for number in range(NODES):
            name = f"fake-{number}"
            labels = {"kubernetes.io/hostname": name}
            await bench_stack.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, **NODE})
        allocation, _, _ = await bench_stack.post(launch_body(1))
        await bench_stack.watching.until_bound(1)
        copied = await Copied.of(bench_stack.read, allocation)
        costs = Costs(bench_stack)
        await _burst(bench_stack, 1, SINGLES // 3)
        await costs.begin()
        ours, theirs = await paired(
            runs, lambda _run: _burst(bench_stack, 1, SINGLES), lambda _run: bare.burst(copied, SINGLES, CLIENTS)
        )
        per_launch = await costs.per_launch(runs * SINGLES)
        gangs = [await _burst(bench_stack, GANG, GANGS) for _ in range(runs)]
        posts = [await _open_loop(bench_stack) for _ in range(runs)]
    return [
        row(
            "P3-singles",
            f"{SINGLES} single ranks, {CLIENTS} clients, POST to last bind",
            ours,
            "launches/s",
            peer=theirs,
            peer_name="bare client, same writes",
            target=Target(better="higher"),
            note="P3 is bounded on a real API server (P3-real): this one is in Python, and shares two cores with us",
        ),
        row("T-gangs8", f"{GANGS} gangs of {GANG}, POST to last bind", [rate * GANG for rate in gangs], "pods/s"),
        row(
            "P10-post-50",
            f"POST p99 at {RATE} launches/s",
            [percentile(run, 99) for run in posts],
            "ms",
            target=Target(must=100, moonshot=30),
        ),
        row("P10-post-50-p50", f"POST p50 at {RATE} launches/s", [statistics.median(run) for run in posts], "ms"),
        *per_launch,
    ]


async def _burst(bench_stack: BenchStack, ranks: int, count: int) -> float:
    """Return the launches per second."""
    before = len(bench_stack.watching.bound)
    body = launch_body(ranks)
    left = iter(range(count))
    started_s = time.perf_counter()

    async def client() -> None:
        for _ in left:
            await bench_stack.post(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    await bench_stack.watching.until_bound(before + count * ranks)
    return count / (bench_stack.watching.bound[before + count * ranks - 1] - started_s)


async def _open_loop(bench_stack: BenchStack) -> list[float]:
    """Return POST latencies in milliseconds at a fixed rate, which does not wait for the answers."""
    before, count = len(bench_stack.watching.bound), int(RATE * RATE_S)
    body = launch_body(1)
    taken: list[float] = []

    async def one() -> None:
        _, sent, answered = await bench_stack.post(body)
        taken.append((answered - sent) * 1_000)

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            await asyncio.sleep(max(0.0, started_s + number / RATE - time.perf_counter()))
            group.create_task(one())
    await bench_stack.watching.until_bound(before + count)
    return taken


class Costs:
    """The costs of the services, from their /metrics and the kernel's accounting."""

    def __init__(self, bench_stack: BenchStack) -> None:
        self._bench_stack = bench_stack
        self._before: dict[str, float] = {}

    async def begin(self) -> None:
        """Count from now on."""
        self._before = await self._read()

    async def per_launch(self, launches: int) -> list[Row]:
        """Return the rows, each per launch."""
        spent = {name: value - self._before.get(name, 0.0) for name, value in (await self._read()).items()}
        total_cpu_s = sum(value for name, value in spent.items() if name.startswith("cpu"))
        rows = [
            row(
                "P11-cpu",
                "CPU of the four services per 1,000 single-rank launches",
                [total_cpu_s / launches * 1_000],
                "s",
                target=Target(must=12, moonshot=5),
                note=", ".join(
                    f"{name.removeprefix('cpu ')} {value / launches * 1_000:.2f}"
                    for name, value in sorted(spent.items())
                    if name.startswith("cpu ")
                ),
            )
        ]
        for what, work in (("kube", "Kubernetes calls"), ("redis", "Redis commands")):
            parts = {name: value / launches for name, value in spent.items() if name.startswith(f"{what} ")}
            note = ", ".join(
                f"{name.removeprefix(what + ' ')} {value:.2f}"
                for name, value in sorted(parts.items(), key=lambda part: -part[1])
                if value >= 0.01
            )
            rows.append(
                row(f"T-{what}-calls", f"{work} per single-rank launch", [sum(parts.values())], "calls", note=note)
            )
        return rows

    async def _read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for service in SERVICES:
            found[f"cpu {service}"] = await asyncio.to_thread(_cpu_s, self._bench_stack.stack.children[service].pid)
            for (name, labels), value in (await self._bench_stack.metrics(service)).items():
                if name == "slipway_kube_calls_total":
                    label = dict(labels)
                    key = f"kube {service}:{label['verb']} {label['resource']} {label['code']}"
                    found[key] = found.get(key, 0.0) + value
        for command, count in (await _redis_commands(self._bench_stack.stack.redis_url)).items():
            found[f"redis {command}"] = count
        return found


async def _redis_commands(url: str) -> dict[str, float]:
    """Return {command: number of its runs on the server}; commands inside a script are included."""
    reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
    try:
        writer.write(b"INFO commandstats\r\n")
        size = int((await reader.readline())[1:])
        text = (await reader.readexactly(size)).decode()
    finally:
        writer.close()
    lines = (line.partition(":") for line in text.splitlines() if line.startswith("cmdstat_"))
    return {
        name.removeprefix("cmdstat_"): float(rest.partition(",")[0].removeprefix("calls=")) for name, _, rest in lines
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
