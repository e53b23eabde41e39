"""P4: Kueue's own performance tests, in full: five cohorts of six queues (W7a), ten cohorts of a hundred queues (W7b).

A queue owns 20 cpu and may borrow 100 from its cohort. It reclaims its own quota from borrowers and preempts work of
lower priority. Work arrives as Kueue's generator sends it. Here each piece is a launch: POST, decision, ConfigMap, pod,
binding on a real kube-apiserver. Its pod runs on simulated nodes for the duration of the piece. Kueue's test has no
pods: there a piece ends that long after its admission. Wall time is from the first POST to the last end.

SLIPWAY_BENCH_SCALE (0.1) is the fraction of the pieces of each queue (W7a) or of the queues of each cohort (W7b) that
is run; 1 runs all. SLIPWAY_BENCH_WORK (W7a,W7b) chooses the tests. Kueue's published time is scaled by the number of
pieces.
"""

import asyncio
import os
import statistics
import sys
import time
from typing import Any

import msgspec

from bench.bare import ALLOCATIONS, CONNECTIONS
from bench.bench_cluster import BenchCluster, ClusterConfig, MatchCounter, a_bench_cluster, cpu_of, poll
from bench.nodes import played, simulated_nodes
from bench.runner import Row, row

SCALE = float(os.environ.get("SLIPWAY_BENCH_SCALE", "0.1"))
PLAYED = os.environ.get("SLIPWAY_BENCH_WORK", "W7a,W7b").split(",")
QUEUES = "/apis/slipway.dev/v1alpha1/queues"
NOMINAL, BORROWED = 20, 100
NODE_CPUS = 60
"""a multiple of the request of each piece, so that the quota decides and not the size of nodes"""
WITHIN_S = 3_600.0
KUEUE_CPU_MS = 41.0
"""CPU of all processes per piece of W7a, measured by running Kueue's own test on two cores"""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One class of pieces in a queue."""

    name: str
    count: int
    cpus: int
    runs_s: float
    every_s: float
    priority: int


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One of Kueue's tests."""

    id: str
    cohorts: int
    queues: int
    pieces: tuple[Piece, ...]
    kueue_s: float

    @property
    def total(self) -> int:
        """The number of pieces of all queues."""
        return self.cohorts * self.queues * sum(piece.count for piece in self.pieces)

    @property
    def cpus(self) -> int:
        """The total quota of all queues."""
        return self.cohorts * self.queues * NOMINAL

    @property
    def bound_s(self) -> float:
        """The shortest wall time of a scheduler without idle time: the work itself, or the last arrival."""
        each = sum(piece.count * piece.cpus * piece.runs_s for piece in self.pieces)
        last = max((piece.count - 1) * piece.every_s + piece.runs_s for piece in self.pieces)
        return max(each * self.cohorts * self.queues / self.cpus, last)


def work_of(id_: str, scale: float) -> Work:
    """Return W7a with a fraction of the pieces of each queue, or W7b with a fraction of its queues."""

    def part(count: int) -> int:
        return max(1, round(count * scale))

    if id_ == "W7a":
        pieces = (
            Piece(name="small", count=part(350), cpus=1, runs_s=0.2, every_s=0.1, priority=50),
            Piece(name="medium", count=part(100), cpus=5, runs_s=0.5, every_s=0.5, priority=100),
            Piece(name="large", count=part(50), cpus=20, runs_s=1.0, every_s=1.2, priority=200),
        )
        return Work(id=id_, cohorts=5, queues=6, pieces=pieces, kueue_s=351.0 * _share(pieces, 500))
    pieces = (
        Piece(name="small", count=35, cpus=1, runs_s=0.15, every_s=0.06, priority=50),
        Piece(name="medium", count=11, cpus=5, runs_s=0.35, every_s=0.3, priority=100),
        Piece(name="large", count=4, cpus=20, runs_s=0.7, every_s=0.7, priority=200),
    )
    return Work(id=id_, cohorts=10, queues=part(100), pieces=pieces, kueue_s=1179.0 * part(100) / 100)


def arrivals(work: Work) -> list[tuple[float, str, Piece]]:
    """Return (seconds since the beginning, queue, piece), the earliest first."""
    found = [
        (number * piece.every_s, queue, piece)
        for queue in _queue_names(work)
        for piece in work.pieces
        for number in range(piece.count)
    ]
    return sorted(found, key=lambda each: each[0])


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    wall_s: float
    half_s: float
    """seconds until half of the pieces had ended"""
    most_s: float
    """seconds until 95 % of the pieces had ended"""
    cpu_ms: dict[str, float]
    """CPU of each process except the simulated nodes, per piece"""
    nodes_ms: float
    evictions: int


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    rows: list[Row] = []
    for id_ in PLAYED:
        work = work_of(id_, SCALE)
        async with a_bench_cluster(ClusterConfig(nodes=0)) as bench_cluster:
            nodes = -(-work.cpus * 3 // 2 // NODE_CPUS)
            async with simulated_nodes(bench_cluster.cluster.kubeconfig, nodes, NODE_CPUS) as pid:
                await _ready(bench_cluster, nodes)
                await _make_queues(bench_cluster, work)
                found: list[RunFigures] = []
                for number in range(runs):
                    found.append(await _play(bench_cluster, work, pid))
                    _say(f"{id_}: {_times(found[-1])}, {found[-1].evictions} evictions")
                    if number + 1 < runs:
                        await bench_cluster.halt()
                        await bench_cluster.clean()
                        await bench_cluster.resume()
        rows += _rows(work, found)
    return rows


async def _play(bench_cluster: BenchCluster, work: Work, nodes_pid: int) -> RunFigures:
    """Let all pieces arrive, and wait until all have ended with success."""
    ended = MatchCounter(bench_cluster.kube, bench_cluster.cluster.url, ALLOCATIONS, "status.phase=Terminated")
    before, nodes_before_s = bench_cluster.cpu_s(), cpu_of(nodes_pid)
    async with ended.counting():
        started_s = time.perf_counter()
        await _arrive(bench_cluster, work)
        ended_s = await ended.until(work.total, WITHIN_S)
    after, nodes_s = bench_cluster.cpu_s(), cpu_of(nodes_pid) - nodes_before_s
    items = (await bench_cluster.read(ALLOCATIONS))["items"]
    bad = [item["metadata"]["name"] for item in items if item["status"].get("result") != "Succeeded"]
    if bad or len(items) != work.total:
        raise RuntimeError(f"{len(items)} of {work.total} there, {len(bad)} did not succeed, such as {bad[:3]}")
    return RunFigures(
        wall_s=ended_s - started_s,
        half_s=ended.at[work.total // 2] - started_s,
        most_s=ended.at[work.total * 95 // 100] - started_s,
        cpu_ms={name: (after[name] - before[name]) * 1_000 / work.total for name in after},
        nodes_ms=nodes_s * 1_000 / work.total,
        evictions=sum(len(item["status"].get("preemptions", ())) for item in items),
    )


async def _arrive(bench_cluster: BenchCluster, work: Work) -> None:
    """Send each POST at its time, with at most `CONNECTIONS` in parallel."""
    slots, started_s = asyncio.Semaphore(CONNECTIONS), time.perf_counter()

    async def post(queue: str, piece: Piece) -> None:
        try:
            await bench_cluster.post(_body(queue, piece))
        finally:
            slots.release()

    async with asyncio.TaskGroup() as group:
        for due_s, queue, piece in arrivals(work):
            await asyncio.sleep(max(0.0, started_s + due_s - time.perf_counter()))
            await slots.acquire()
            group.create_task(post(queue, piece))


def _body(queue: str, piece: Piece) -> bytes:
    main = {"name": "main", "image": "local", "command": ["true"]}
    body: dict[str, Any] = {
        "kind": "command",
        "queue": queue,
        "priority": piece.priority,
        "preemptible": True,
        "preemptionGrace": "1s",
        "template": {"metadata": {"annotations": played(piece.runs_s)}, "spec": {"containers": [main]}},
        "ranks": [{"name": "worker", "count": 1, "resources": {"cpu": str(piece.cpus)}}],
    }
    return msgspec.json.encode(body)


async def _make_queues(bench_cluster: BenchCluster, work: Work) -> None:
    cohort_cpus = {"cpu": str(work.queues * NOMINAL)}
    for cohort in range(work.cohorts):
        await _make_queue(bench_cluster, f"cohort-{cohort}", {"limit": cohort_cpus})
    for name in _queue_names(work):
        spec = {
            "parent": name.rpartition("-")[0].replace("queue", "cohort"),
            "nominal": {"cpu": str(NOMINAL)},
            "borrowingLimit": {"cpu": str(BORROWED)},
            "preemption": {"withinQueue": "LowerPriority", "reclaim": "Any"},
        }
        await _make_queue(bench_cluster, name, spec)

    async def are_known() -> bool:
        async with bench_cluster.web.get(
            f"{bench_cluster.stack.api_url}/api/v1/queues", params={"limit": "500"}
        ) as answer:
            names = {item["name"] for item in (await answer.json())["items"]}
        # A page may not contain all of them.
        return len(names & set(_queue_names(work))) >= min(400, work.cohorts * work.queues)

    await poll(are_known, "the queues are known")


async def _make_queue(bench_cluster: BenchCluster, name: str, spec: dict[str, Any]) -> None:
    body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    await bench_cluster.call("POST", QUEUES, body)


async def _ready(bench_cluster: BenchCluster, nodes: int) -> None:
    async def are_ready() -> bool:
        items = (await bench_cluster.read("/api/v1/nodes"))["items"]
        return len(items) == nodes and not any(node["spec"].get("taints") for node in items)

    await poll(are_ready, "the nodes are ready")


def _queue_names(work: Work) -> list[str]:
    return [f"queue-{cohort}-{queue}" for cohort in range(work.cohorts) for queue in range(work.queues)]


def _share(pieces: tuple[Piece, ...], full: int) -> float:
    return sum(piece.count for piece in pieces) / full


def _rows(work: Work, found: list[RunFigures]) -> list[Row]:
    walls = [each.wall_s for each in found]
    size = f"{work.total:,} pieces, {work.cohorts} cohorts x {work.queues} queues"
    part = "" if SCALE == 1 else f" x {SCALE:g}, the part of the pieces that was played"
    evictions = statistics.median(each.evictions for each in found)
    note = (
        f"nothing idle would take {work.bound_s:.1f} s; {evictions:.0f} evictions; every piece succeeded; "
        f"{'; '.join(_times(each) for each in found)}"
    )
    rows = [
        row(
            f"P4-{work.id}",
            f"{size}: first POST to last end",
            walls,
            "s",
            peer=[work.kueue_s],
            peer_name=f"Kueue's published wall time{part}",
            note=note,
        ),
        row(
            f"P4-{work.id}-bound",
            f"{size}: beside a schedule that leaves nothing idle",
            walls,
            "s",
            peer=[work.bound_s],
            peer_name="the work itself, or its last arrival",
        ),
    ]
    peer = [KUEUE_CPU_MS] if work.id == "W7a" else []
    nodes_ms = statistics.median(each.nodes_ms for each in found)
    by_process = {name: statistics.median(each.cpu_ms[name] for each in found) for name in found[0].cpu_ms}
    parts = ", ".join(f"{name} {spent:.1f}" for name, spent in sorted(by_process.items()))
    cpu = row(
        f"P4-{work.id}-cpu",
        f"{size}: CPU of all processes per piece",
        [sum(each.cpu_ms.values()) for each in found],
        "ms",
        peer=peer,
        peer_name="Kueue, API server, etcd and generator, all of W7a on two cores" if peer else None,
        note=f"{parts}; ours have pods, Kueue's have none; the simulated nodes ({nodes_ms:.0f} ms) are not counted",
    )
    return [*rows, cpu]


def _times(each: RunFigures) -> str:
    return f"half after {each.half_s:.1f} s, 95 % after {each.most_s:.1f} s, all after {each.wall_s:.1f} s"


def _say(text: str) -> None:
    print(f"  {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
