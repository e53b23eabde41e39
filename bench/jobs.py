"""Small launches on a real kube-apiserver, beside Kubernetes' own Jobs with the real kube-scheduler.

Three sides use one API server and the same nodes in turn: our launches; plain Jobs, which promise nothing about a gang;
and Jobs that are gangs (the alpha feature WorkloadWithJob with kube-scheduler's gangs). The parts of a side that is not
measured are stopped. A client with 64 connections submits one object per gang. Every pod is created by the side that is
measured. A rate is from the first request to the last binding, and the CPU of every process but the client's is counted
until `QUIET_S` after it. `gentle` submits five gangs of eight a second; its figures are the milliseconds from a gang's
request to the binding of its last pod. Nodes are objects without kubelets, so no pod starts or ends.

At the end, each side gets two gangs of 12 for 16 GPUs: the figure is the number of pods that hold GPUs of a gang that
cannot start.

SLIPWAY_BENCH_STANDING (0) is the number of bound pods of other owners that exist during all measurements.
SLIPWAY_BENCH_GENTLE_S (30) is the length of one turn of `gentle`. SLIPWAY_BENCH_WORK (all) limits a run to some of W8,
W64, W1, gentle and pair, comma-separated.
"""

import asyncio
import contextlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from bench.bare import CONNECTIONS
from bench.bench_cluster import GPU_NODE, BenchCluster, ClusterConfig, a_bench_cluster, cpu_of, poll
from bench.runner import Row, Target, percentile, row

NODES = int(os.environ.get("SLIPWAY_BENCH_NODES", "1000"))
STANDING = int(os.environ.get("SLIPWAY_BENCH_STANDING", "0"))
GENTLE_S = float(os.environ.get("SLIPWAY_BENCH_GENTLE_S", "30"))
WORK = tuple(os.environ.get("SLIPWAY_BENCH_WORK", "W8,W64,W1,gentle,pair").split(","))
BURSTS = {"W8": (200, 8), "W64": (25, 64), "W1": (400, 1)}
"""{work: (gangs, ranks of each)}"""
GENTLE_RANKS, GENTLE_PER_S = 8, 5
PAIR_RANKS, PAIR_NODES = 12, 2
PAIR_LABEL = "bench.slipway.dev/pair"
PAIR_S = 20.0
WARM_UP = 16
QUIET_S, SETTLE_S = 3.0, 2.0
JOBS = "/apis/batch/v1/namespaces/default/jobs"
POD_GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
STANDING_PODS = "/api/v1/namespaces/standing/pods"
WORKLOADS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads"
ONE_GPU = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
QUICK = ("--kube-api-qps=5000", "--kube-api-burst=5000")
GANGS_OF_JOBS = "--feature-gates=GenericWorkload=true,WorkloadWithJob=true"
CONFIG = ClusterConfig(
    nodes=NODES,
    size=GPU_NODE,
    flags={
        "apiserver": [GANGS_OF_JOBS, "--runtime-config=scheduling.k8s.io/v1beta1=true"],
        "controller-manager": QUICK,
        "scheduler": QUICK,
    },
)
PEERS = {
    "jobs": "plain Jobs, same nodes and pods, same run",
    "gang-jobs": "gang Jobs (alpha), same nodes and pods, same run",
}
AT_LEAST = {
    "jobs": {"W8": (1.0, 1.5), "W64": (1.3, None), "W1": (0.7, 1.0)},
    "gang-jobs": {"W8": (1.5, None), "W64": (2.0, None), "W1": (None, None)},
}
"""{peer: {work: (must, moonshot) of our rate, as a multiple of the peer's}}"""
CPU_AT_MOST = {"W8": 12.0, "W64": 8.0, "W1": 28.0}
"""seconds of CPU per 1,000 pods"""
GENTLE_AT_MOST = {50: 90.0, 99: 250.0}
"""{percentile: ms}"""
OTHERS = {
    "W8": "Volcano 1.15: 92 pods/s, 24 s of CPU; Kueue 0.19: 95, 22",
    "W64": "Volcano 1.15: 97 pods/s, 20 s of CPU; Kueue 0.19: 119, 16",
    "W1": "Volcano 1.15: 26 pods/s, 82 s of CPU; Kueue 0.19: 22, 95",
    "gentle": "Volcano 1.15: 3,500 / 4,600 ms; Kueue 0.19: 149 / 348 ms",
    "pair": "Volcano 1.15: 12 + 0 bound; Kueue 0.19: 8 + 8 with a quota that is large enough",
}
"""measured by others with kube-apiserver 1.36.3 on a similar machine (p50 / p99 for `gentle`)"""


class SideFigures(msgspec.Struct):
    """The figures of one side."""

    name: str
    rates: dict[str, list[float]] = {}
    """{work: pods/s of each turn}"""
    cpu_s: dict[str, list[float]] = {}
    """{work: seconds of CPU per 1,000 pods, of each turn}"""
    parts_s: dict[str, dict[str, list[float]]] = {}
    """{work: {process: its part of `cpu_s`}}"""
    gentle_ms: list[list[float]] = []
    """the milliseconds of each gang, of each turn"""
    held: list[float] = []
    """pods that hold GPUs of a gang that cannot start"""


Submit = Callable[[str, int, bool], Coroutine[Any, Any, str]]
"""(name, ranks, is_on_pair) -> the prefix of the names of its pods, without the last two parts (separated by `-`)"""


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    sides = [SideFigures(name=name) for name in ("ours", "jobs", "gang-jobs")]
    names = (f"b{number:06d}" for number in itertools.count())
    async with a_bench_cluster(CONFIG) as bench_cluster:
        await bench_cluster.halt()
        await bench_cluster.clean()
        await _stand_pods(bench_cluster)
        await _label_pair(bench_cluster)
        for number in range(runs):
            turn = number % len(sides)
            for side in sides[turn:] + sides[:turn]:
                await _turn(bench_cluster, side, names, is_last=number == runs - 1)
    return _rows(*sides)


async def _turn(bench_cluster: BenchCluster, side: SideFigures, names: Iterator[str], *, is_last: bool) -> None:
    """Measure one side, from a clean cluster to a clean cluster."""
    submit = _launch(bench_cluster) if side.name == "ours" else _job(bench_cluster, is_gang=side.name == "gang-jobs")
    said: list[str] = []
    for work in (name for name in BURSTS if name in WORK):
        async with _working(bench_cluster, side, submit, names):
            await _burst(bench_cluster, side, work, submit, names)
        said.append(f"{work} {side.rates[work][-1]:.0f} pods/s {side.cpu_s[work][-1]:.1f} s")
    if "gentle" in WORK:
        async with _working(bench_cluster, side, submit, names):
            side.gentle_ms.append(await _gentle(bench_cluster, submit, names))
        took = side.gentle_ms[-1]
        said.append(f"gentle {percentile(took, 50):.0f} / {percentile(took, 99):.0f} ms")
    if "pair" in WORK and is_last:
        async with _working(bench_cluster, side, submit, names):
            side.held.append(await _pair(bench_cluster, submit, names))
        said.append(f"two gangs of {PAIR_RANKS}: {side.held[-1]:.0f} pods hold GPUs of a gang that cannot start")
    print(f"  {side.name}: {', '.join(said)} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def _working(
    bench_cluster: BenchCluster, side: SideFigures, submit: Submit, names: Iterator[str]
) -> AsyncGenerator[None]:
    """Start the parts of one side and warm them up; afterwards stop them and delete what they made."""
    cluster = bench_cluster.cluster
    if side.name == "ours":
        await bench_cluster.resume()
    else:
        gates = [GANGS_OF_JOBS] if side.name == "gang-jobs" else []
        await _restart(bench_cluster, "controller-manager", gates)
        await _restart(bench_cluster, "scheduler", gates)
        await asyncio.sleep(SETTLE_S)
    try:
        async with bench_cluster.bound.counting():
            await _many(WARM_UP, lambda: submit(next(names), 1, False))
            await bench_cluster.bound.until(WARM_UP)
        yield
    finally:
        if side.name == "ours":
            await bench_cluster.halt()
        else:
            await asyncio.to_thread(cluster.stop_part, "scheduler")
            await bench_cluster.call("DELETE", f"{JOBS}?gracePeriodSeconds=0&propagationPolicy=Background")
        await bench_cluster.clean()
        await poll(lambda: _is_empty(bench_cluster, JOBS, POD_GROUPS, WORKLOADS), "nothing is left of the Jobs")
        if side.name == "gang-jobs":
            await _restart(bench_cluster, "controller-manager", [])


async def _restart(bench_cluster: BenchCluster, part: str, more: Sequence[str]) -> None:
    """Restart a part of the control plane, or start it, with additional flags."""
    cluster = bench_cluster.cluster
    await asyncio.to_thread(cluster.stop_part, part)
    flags = {**CONFIG.flags, part: [*CONFIG.flags[part], *more]}
    cluster.options = msgspec.structs.replace(cluster.options, more=flags)
    await asyncio.to_thread(cluster.start_part, part)


async def _burst(
    bench_cluster: BenchCluster, side: SideFigures, work: str, submit: Submit, names: Iterator[str]
) -> None:
    """Submit all gangs of one work at once; record the rate and the CPU."""
    gangs, ranks = BURSTS[work]
    before = _cpu_s(bench_cluster, side)
    async with bench_cluster.bound.counting():
        started_s = time.perf_counter()
        await _many(gangs, lambda: submit(next(names), ranks, False))
        ended_s = await bench_cluster.bound.until(gangs * ranks)
    await asyncio.sleep(QUIET_S)
    spent = {part: (s - before[part]) / (gangs * ranks) * 1_000 for part, s in _cpu_s(bench_cluster, side).items()}
    side.rates.setdefault(work, []).append(gangs * ranks / (ended_s - started_s))
    side.cpu_s.setdefault(work, []).append(sum(spent.values()))
    parts = side.parts_s.setdefault(work, {})
    for part, s in spent.items():
        parts.setdefault(part, []).append(s)


async def _gentle(bench_cluster: BenchCluster, submit: Submit, names: Iterator[str]) -> list[float]:
    """Submit gangs at a steady rate; return the milliseconds from each request to the binding of its last pod."""
    count = round(GENTLE_S * GENTLE_PER_S)
    sent_s: dict[str, float] = {}

    async def one() -> None:
        began_s = time.perf_counter()
        sent_s[await submit(next(names), GENTLE_RANKS, False)] = began_s

    async with bench_cluster.bound.counting():
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, began_s + number / GENTLE_PER_S - time.perf_counter()))
                group.create_task(one())
        await bench_cluster.bound.until(count * GENTLE_RANKS)
        last_s: dict[str, float] = {}
        for name, at_s in zip(bench_cluster.bound.names, bench_cluster.bound.at, strict=True):
            last_s[name.rsplit("-", 2)[0]] = at_s
    return [(last_s[gang] - at_s) * 1_000 for gang, at_s in sent_s.items()]


async def _pair(bench_cluster: BenchCluster, submit: Submit, names: Iterator[str]) -> float:
    """Submit two gangs onto nodes with room for 1.3 gangs; return the bound pods of gangs that are not complete."""
    async with bench_cluster.bound.counting():
        await asyncio.gather(*(submit(next(names), PAIR_RANKS, True) for _ in range(2)))
        await asyncio.sleep(PAIR_S)
        bound: dict[str, int] = {}
        for name in bench_cluster.bound.names:
            gang = name.rsplit("-", 2)[0]
            bound[gang] = bound.get(gang, 0) + 1
    return float(sum(count for count in bound.values() if count < PAIR_RANKS))


# --- what the sides submit ------------------------------------------------------------------------------------------


def _launch(bench_cluster: BenchCluster) -> Submit:
    """Return the function that makes one launch of ours."""

    async def submit(name: str, ranks: int, is_on_pair: bool) -> str:
        del name
        role: dict[str, Any] = {"name": "worker", "count": ranks, "resources": ONE_GPU}
        if is_on_pair:
            role["nodeSelector"] = {PAIR_LABEL: "yes"}
        kind = "command" if ranks == 1 else "training"
        return await bench_cluster.post(
            msgspec.json.encode({"kind": kind, "image": "local", "command": ["true"], "ranks": [role]})
        )

    return submit


def _job(bench_cluster: BenchCluster, *, is_gang: bool) -> Submit:
    """Return the function that makes one Job."""

    async def submit(name: str, ranks: int, is_on_pair: bool) -> str:
        asked = {"requests": ONE_GPU, "limits": {"nvidia.com/gpu": "1"}}
        pod: dict[str, Any] = {
            "containers": [{"name": "main", "image": "local", "command": ["true"], "resources": asked}],
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
        }
        if is_on_pair:
            pod["nodeSelector"] = {PAIR_LABEL: "yes"}
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": ranks,
            "parallelism": ranks,
            "template": {"spec": pod},
        }
        if is_gang:
            spec["scheduling"] = {"schedulingPolicy": {"gang": {"minCount": ranks}}}
        await bench_cluster.call(
            "POST", JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
        )
        return name

    return submit


# --- the cluster ----------------------------------------------------------------------------------------------------


async def _stand_pods(bench_cluster: BenchCluster) -> None:
    """Create the pods of other owners that exist during the measurement; they request no resources."""
    numbers = itertools.count()

    async def one() -> str:
        number = next(numbers)
        pod = {
            "metadata": {"name": f"standing-{number}-{number}"},
            "spec": {
                "nodeName": f"fake-{number % NODES:04d}",
                "containers": [{"name": "main", "image": "local"}],
                "automountServiceAccountToken": False,
            },
        }
        await bench_cluster.call("POST", STANDING_PODS, pod)
        return ""

    if STANDING:
        await bench_cluster.call("POST", "/api/v1/namespaces", {"metadata": {"name": "standing"}})
        accounts = "/api/v1/namespaces/standing/serviceaccounts"
        await poll(lambda: _has_items(bench_cluster, accounts), "the namespace of the standing pods has its account")
        await _many(STANDING, one)


async def _label_pair(bench_cluster: BenchCluster) -> None:
    for number in range(PAIR_NODES):
        change = {"metadata": {"labels": {PAIR_LABEL: "yes"}}}
        path = f"/api/v1/nodes/fake-{number:04d}"
        await bench_cluster.call("PATCH", path, change, content="application/merge-patch+json")


async def _has_items(bench_cluster: BenchCluster, path: str) -> bool:
    return bool((await bench_cluster.read(path))["items"])


async def _is_empty(bench_cluster: BenchCluster, *paths: str) -> bool:
    return not any([await _has_items(bench_cluster, path) for path in paths])


def _cpu_s(bench_cluster: BenchCluster, side: SideFigures) -> dict[str, float]:
    """Return the CPU seconds of each process that works for a side, without the client."""
    spent = bench_cluster.cpu_s()
    del spent["client"]
    if side.name != "ours":
        servers = ("apiserver", "etcd", "kcm")
        spent = {part: spent[part] for part in servers} | {
            "kube-scheduler": cpu_of(bench_cluster.cluster.pid("scheduler"))
        }
    return spent


async def _many(count: int, do: Callable[[], Coroutine[Any, Any, str]]) -> None:
    """Call `do` `count` times, `CONNECTIONS` at a time."""
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await do()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(count, CONNECTIONS)):
            group.create_task(client())


# --- rows -----------------------------------------------------------------------------------------------------------


def _rows(ours: SideFigures, *peers: SideFigures) -> list[Row]:
    rows: list[Row] = []
    for work in ours.rates:
        rows += _burst_rows(work, ours, peers)
    if ours.gentle_ms:
        rows += _gentle_rows(ours, peers)
    beside = f" beside {STANDING:,} pods" if STANDING else ""
    for peer in peers if ours.held else ():
        rows.append(
            row(
                f"JOBS-pair-{peer.name}",
                f"two gangs of {PAIR_RANKS} on {8 * PAIR_NODES} GPUs{beside}: pods bound for a gang that cannot start",
                ours.held,
                "pods",
                note=f"{PEERS[peer.name]}: {peer.held[-1]:.0f}; {OTHERS['pair']}",
                target=Target(must=0),
            )
        )
    return rows


def _burst_rows(work: str, ours: SideFigures, peers: Sequence[SideFigures]) -> list[Row]:
    gangs, ranks = BURSTS[work]
    beside = f" beside {STANDING:,} pods" if STANDING else ""
    what = (f"{gangs} gangs of {ranks}" if ranks > 1 else f"{gangs} single ranks") + f" on {NODES:,} nodes{beside}"
    rows: list[Row] = []
    for peer in peers:
        must, moonshot = AT_LEAST[peer.name][work]
        pairs = ", ".join(f"{a:.0f}/{b:.0f}" for a, b in zip(ours.rates[work], peer.rates[work], strict=True))
        rows.append(
            row(
                f"JOBS-{work}-{peer.name}",
                f"{what}, one object each: first request to last binding",
                ours.rates[work],
                "pods/s",
                peer=peer.rates[work],
                peer_name=PEERS[peer.name],
                target=Target(must=must, moonshot=moonshot, better="higher"),
                note=f"turn by turn: {pairs}; {OTHERS[work]}",
            )
        )
    parts = "; ".join(f"{side.name}: {_parts(side.parts_s[work])}" for side in (ours, *peers))
    rows.append(
        row(
            f"JOBS-{work}-cpu",
            f"{what}: CPU of all processes but the client's per 1,000 pods, until {QUIET_S:g} s after the last binding",
            ours.cpu_s[work],
            "s",
            target=Target(must=CPU_AT_MOST[work]),
            note=parts,
        )
    )
    return rows


def _parts(spent: dict[str, list[float]]) -> str:
    parts = {part: statistics.median(each) for part, each in sorted(spent.items())}
    return f"{sum(parts.values()):.1f} ({', '.join(f'{part} {s:.1f}' for part, s in parts.items())})"


def _gentle_rows(ours: SideFigures, peers: Sequence[SideFigures]) -> list[Row]:
    beside = f" beside {STANDING:,} pods" if STANDING else ""
    rows: list[Row] = []
    for percent, most in GENTLE_AT_MOST.items():
        theirs = "; ".join(
            f"{peer.name} {statistics.median([percentile(turn, percent) for turn in peer.gentle_ms]):.0f} ms"
            for peer in peers
        )
        rows.append(
            row(
                f"JOBS-gentle-p{percent}",
                f"{GENTLE_PER_S} gangs of {GENTLE_RANKS} a second for {GENTLE_S:g} s on {NODES:,} nodes{beside}: "
                f"request to the binding of the last pod, p{percent}",
                [percentile(turn, percent) for turn in ours.gentle_ms],
                "ms",
                target=Target(must=most),
                note=f"{theirs}; {OTHERS['gentle']}",
            )
        )
    return rows
