"""The cost of a thousand allocations: bytes of objects and of Redis, memory of each service, CPU and calls.

The four services run on the local cluster; pods run on simulated nodes until they are stopped. A thousand allocations
are launched and stay live, then all are killed and kept as ended. Then two thousand more follow, a thousand at a time.
The states before, with all live, and with all ended are compared. Object bytes are the bytes of all our objects in the
JSON of the API server. etcd stores custom resources as the same JSON, and pods somewhat smaller. The figure for Redis
is `used_memory`. Memory is resident memory after a pause. A service keeps most of its memory for later work. The cost
of ended allocations is therefore what the second and the third thousand added.

SLIPWAY_BENCH_COUNT (1000) and SLIPWAY_BENCH_GANG (1; ranks of each) change the size; figures are per 1,000.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.bench_stack import BenchStack, a_bench_stack, launch_through
from bench.nodes import played, simulated_nodes
from bench.runner import Row, row

COUNT = int(os.environ.get("SLIPWAY_BENCH_COUNT", "1000"))
GANG = int(os.environ.get("SLIPWAY_BENCH_GANG", "1"))
CLIENTS = 16
NODES, NODE_CPUS = 20, 64
RUNS_S = 86_400.0
MORE = 2
"""Rounds after the first, of `COUNT` allocations each."""
WITHIN_S = 600.0
REST_S = 10.0
"""Seconds to wait after the last change, so that temporary data is gone."""
SERVICES = ("api", "scheduler", "podworker", "watcher")
TICKS_PER_S = 100
BUSY = 503
"""The status of an api that cannot answer in time: the call is repeated."""
ALLOCATIONS = "/apis/slipway.dev/v1alpha1/allocations"
OURS = "app.kubernetes.io/managed-by=slipway"
OBJECTS = {
    "allocations": ALLOCATIONS,
    "pods": f"/api/v1/pods?labelSelector={OURS}",
    "configmaps": f"/api/v1/configmaps?labelSelector={OURS}",
    "services": f"/api/v1/services?labelSelector={OURS}",
    "claims": "/api/v1/configmaps?labelSelector=slipway.dev/launch-key",
}


class Reading(msgspec.Struct):
    """All figures at one moment: bytes, MiB, and CPU seconds and calls since the start."""

    objects: dict[str, float] = {}
    redis: float = 0.0
    memory: dict[str, float] = {}
    cpu_s: dict[str, float] = {}
    calls: float = 0.0


async def measure(_runs: int) -> list[Row]:
    """Return the rows of this benchmark; it makes one run, independent of the requested number."""
    async with (
        a_bench_stack(nodes=0) as bench_stack,
        simulated_nodes(Path(bench_stack.stack.kubeconfig), NODES, NODE_CPUS, local=True),
    ):
        # Code that is loaded with the first launch is not a cost of a launch.
        await _launch(bench_stack, 20, runs_s=0.1)
        await _until(bench_stack, lambda phases: set(phases) == {"Terminated"}, "the first have ended")
        await asyncio.sleep(REST_S)
        before = await _read(bench_stack)
        started_s = time.perf_counter()
        ids = await _launch(bench_stack, COUNT, runs_s=RUNS_S)
        await _until(bench_stack, lambda phases: phases.count("Running") >= COUNT, "all run")
        took_s = time.perf_counter() - started_s
        launched = await _read(bench_stack)
        await asyncio.sleep(REST_S)
        live = await _read(bench_stack)
        ended = await _end(bench_stack, ids)
        await asyncio.sleep(REST_S)
        later = await _read(bench_stack)
        again = ended
        for number in range(1, MORE + 1):
            ids = await _launch(bench_stack, COUNT, runs_s=RUNS_S + number)
            await _until(bench_stack, lambda phases: phases.count("Running") >= COUNT, f"thousand {number + 1} runs")
            await asyncio.sleep(REST_S)
            _say(f"memory with thousand {number + 1} live, MiB: {(await _read(bench_stack)).memory}")
            again = await _end(bench_stack, ids)
            _say(f"memory with thousand {number + 1} ended, MiB: {again.memory}")
    _say(f"{COUNT} launched in {took_s:.0f} s")
    work = f"per 1,000 of {GANG} rank{'s' if GANG > 1 else ''}"
    rows = [
        *_standing("live", before, live, work, (before, live), 1),
        *_standing("ended", before, ended, work, (ended, again), MORE),
    ]
    for name in SERVICES:
        rows.append(_row(f"CAP-cpu-{name}", f"{name}: CPU, launches {work}", before.cpu_s, launched.cpu_s, name, "s"))
    rows.append(row("CAP-calls", f"Kubernetes calls, launches {work}", [_per(launched.calls - before.calls)], "calls"))
    ends = sum(ended.cpu_s.values()) - sum(live.cpu_s.values())
    rows.append(row("CAP-cpu-ends", f"the four services: CPU, kills and ends {work}", [_per(ends)], "s"))
    idle = (sum(later.cpu_s.values()) - sum(ended.cpu_s.values())) / REST_S
    rows.append(row("CAP-cpu-idle", f"the four services: CPU beside {COUNT} ended, nothing to do", [idle], "s/s"))
    for name in SERVICES:
        rows.append(row(f"CAP-rss-{name}", f"{name}: resident before", [before.memory[name]], "MiB"))
    return rows


def _standing(
    state: str, before: Reading, after: Reading, work: str, memory: tuple[Reading, Reading], rounds: int
) -> list[Row]:
    """Return the cost of `COUNT` allocations in a state; memory is compared between two readings, `rounds` apart."""
    parts = {name: after.objects[name] - before.objects[name] for name in OBJECTS}
    note = ", ".join(f"{name} {_per(value) / 1e3:.0f} kB" for name, value in parts.items())
    rows = [
        row(f"CAP-{state}-objects", f"{state}: bytes of objects, {work}", [_per(sum(parts.values()))], "B", note=note),
        row(f"CAP-{state}-redis", f"{state}: Redis memory, {work}", [_per(after.redis - before.redis)], "B"),
    ]
    for name in SERVICES:
        what = f"{state}: {name}, resident memory added, {work}"
        added = (memory[1].memory[name] - memory[0].memory[name]) / rounds
        rows.append(row(f"CAP-{state}-rss-{name}", what, [_per(added)], "MiB"))
    return rows


def _row(id_: str, work: str, before: dict[str, float], after: dict[str, float], name: str, unit: str) -> Row:
    return row(id_, work, [_per(after[name] - before[name])], unit)


def _per(value: float) -> float:
    return value / COUNT * 1_000


async def _launch(bench_stack: BenchStack, count: int, *, runs_s: float) -> list[str]:
    """Launch `count` allocations; return their ids."""
    main = {"name": "main", "image": "local", "command": ["true"]}
    spec = {"containers": [main], "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"annotations": played(runs_s)}, "spec": spec}
    asked = {"cpu": "10m", "memory": "8Mi"}
    ranks = [{"name": "worker", "count": GANG, "resources": asked}]
    body = msgspec.json.encode({"kind": "training", "template": template, "ranks": ranks})
    ids: list[str] = []
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            key = f"capacity-{runs_s}-{number}"
            id_, _, _ = await launch_through(bench_stack.session, bench_stack.stack.api_url, body, key=key)
            ids.append(id_)

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return ids


async def _end(bench_stack: BenchStack, ids: list[str]) -> Reading:
    """Kill these allocations; return the reading after all have ended and temporary data is gone."""
    left = iter(ids)

    async def client() -> None:
        for id_ in left:
            await kill(id_)

    async def kill(id_: str) -> None:
        while True:
            async with bench_stack.session.post(f"{bench_stack.stack.api_url}/api/v1/allocations/{id_}/kill") as answer:
                if answer.status != BUSY:
                    answer.raise_for_status()
                    return
            await asyncio.sleep(1.0)

    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    await _until(bench_stack, lambda phases: set(phases) == {"Terminated"}, "all have ended")
    await asyncio.sleep(REST_S)
    return await _read(bench_stack)


async def _until(bench_stack: BenchStack, is_so: Callable[[list[str]], bool], what: str) -> None:
    """Read every allocation until the condition holds, rarely enough not to affect the figures."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            items: list[dict[str, Any]] = (await bench_stack.read(ALLOCATIONS))["items"]
            phases = [str(item.get("status", {}).get("phase", "Pending")) for item in items]
            if is_so(phases):
                return
            _say(f"until {what}: { ({phase: phases.count(phase) for phase in set(phases)}) }")
            await asyncio.sleep(2.0)


async def _read(bench_stack: BenchStack) -> Reading:
    found = Reading()
    for name, path in OBJECTS.items():
        found.objects[name] = float(await _bytes(bench_stack, path))
    found.redis = await _redis_bytes(bench_stack.stack.redis_url)
    for name in SERVICES:
        pid = bench_stack.stack.children[name].pid
        found.memory[name] = _resident_mib(pid)
        found.cpu_s[name] = _cpu_s(pid)
        metrics = await bench_stack.metrics(name)
        found.calls += sum(value for (each, _), value in metrics.items() if each == "slipway_kube_calls_total")
    return found


async def _bytes(bench_stack: BenchStack, path: str) -> int:
    """Return the total size of a list's objects, each as JSON without spaces."""
    items: list[dict[str, Any]] = (await bench_stack.read(path))["items"]
    return sum(len(msgspec.json.encode(item)) for item in items)


async def _redis_bytes(url: str) -> float:
    reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
    try:
        writer.write(b"INFO memory\r\n")
        size = int((await reader.readline())[1:])
        text = (await reader.readexactly(size)).decode()
    finally:
        writer.close()
    return float(next(line.partition(":")[2] for line in text.splitlines() if line.startswith("used_memory:")))


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _say(text: str) -> None:
    print(f"  {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
