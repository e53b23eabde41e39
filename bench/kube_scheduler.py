"""P2: gangs end to end on a real kube-apiserver, beside the real kube-scheduler with the same nodes and number of pods.

Both sides use one API server in turn; the side that is not measured is stopped. W3e: one-GPU pods onto GPU nodes,
created while they are bound; ours are gangs of 8. The rate is from the first request to the last binding. W5b: gangs of
64. Ours are measured from the POST as before. kube-scheduler finds its pods and pod groups when it starts, and its time
begins with its first binding, so neither its start nor the creation of its pods is measured. Its gangs are its own
feature (GenericWorkload). Its client may send 5,000 requests a second, as in its own benchmark. For each pod,
kube-scheduler's side writes a pod, a binding and an event. Ours writes a pod and a binding, and for each gang an
allocation, its admission, a ConfigMap, a Service and a release.

The possible maximum is measured too: a bare client writes the objects of our gangs, and neither plans nor watches.

SLIPWAY_BENCH_NODES (1000) and SLIPWAY_BENCH_PODS (6400) make a shorter run.
"""

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from bench.bare import CONNECTIONS, JSON_HEADERS, PODS, Copied
from bench.bench_cluster import GPU_NODE, BenchCluster, ClusterConfig, a_bench_cluster, cpu_of
from bench.runner import Row, Target, row

NODES = int(os.environ.get("SLIPWAY_BENCH_NODES", "1000"))
PODS_COUNT = int(os.environ.get("SLIPWAY_BENCH_PODS", "6400"))
SMALL_GANG, LARGE_GANG = 8, 64
WARM_UP = 16
BARE_PART = 4
"""The bare client writes this fraction (1/N) of the gangs: its rate does not depend on their number."""
POD_GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
GATES = "--feature-gates=GenericWorkload=true"
CONFIG = ClusterConfig(
    nodes=NODES,
    size=GPU_NODE,
    flags={
        "apiserver": [GATES, "--runtime-config=scheduling.k8s.io/v1beta1=true"],
        "controller-manager": ["--kube-api-qps=5000", "--kube-api-burst=5000", GATES],
        "scheduler": ["--kube-api-qps=5000", "--kube-api-burst=5000", GATES],
    },
)
ONE_GPU = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
PEER = "kube-scheduler 1.37, same nodes and pods, same run"
PUBLISHED = {"W3e": 345.0, "W5b": 285.0}
TARGETS = {"W3e": Target(better="higher"), "W5b": Target(must=1, moonshot=2, better="higher")}
"""W3e has no target, because the peer binds single pods and no gangs (ADR 37)."""
OF_BARE = Target(must=0.5, moonshot=0.8, better="higher")
"""the fraction of a bare client's rate with the same writes (ADR 37)"""
SETTLE_S = 2.0


class SideFigures(msgspec.Struct):
    """The figures of one side for one kind of work."""

    rates: list[float] = []
    """pods/s, one per turn"""
    cpu_s: list[float] = []
    """CPU of every process, per 1,000 pods"""


class TurnFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one turn: pods/s, and seconds of CPU per 1,000 pods."""

    rate: float
    cpu_s: float


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    works = {"W3e": (SMALL_GANG, False), "W5b": (LARGE_GANG, True)}
    ours, theirs, bare = ({work: SideFigures() for work in works} for _ in range(3))
    async with a_bench_cluster(CONFIG) as bench_cluster:
        copies = await _copies(bench_cluster, [ranks for ranks, _ in works.values()])
        for number in range(runs):
            for work, (ranks, is_found) in works.items():
                turns = [(ours[work], True), (theirs[work], False)]
                for side, is_ours in turns if number % 2 == 0 else reversed(turns):
                    gangs = PODS_COUNT // ranks
                    if is_ours:
                        shown = await _ours(bench_cluster, ranks, gangs)
                    else:
                        theirs_ = (
                            _found(bench_cluster, ranks, gangs, number)
                            if is_found
                            else _created(bench_cluster, gangs * ranks)
                        )
                        shown = await theirs_
                    side.rates.append(shown.rate)
                    side.cpu_s.append(shown.cpu_s)
                    await bench_cluster.clean()
                    await bench_cluster.call("DELETE", POD_GROUPS)
                shown = await _written(bench_cluster, copies[ranks], PODS_COUNT // BARE_PART // ranks)
                bare[work].rates.append(shown.rate)
                bare[work].cpu_s.append(shown.cpu_s)
                await bench_cluster.clean()
                rates = [side[work].rates[-1] for side in (ours, theirs, bare)]
                _say(f"{work}: ours {rates[0]:.0f}, kube-scheduler {rates[1]:.0f}, bare {rates[2]:.0f} pods/s")
    return [each for work in works for each in _rows(work, works[work][0], ours[work], theirs[work], bare[work])]


def _servers(bench_cluster: BenchCluster) -> float:
    return sum(cpu_of(bench_cluster.cluster.pid(part)) for part in ("apiserver", "etcd"))


async def _copies(bench_cluster: BenchCluster, sizes: Sequence[int]) -> dict[int, Copied]:
    """Return {ranks: what we write for a gang of that size}; delete the originals and halt the services."""
    async with bench_cluster.bound.counting():
        ids = {ranks: await bench_cluster.post(_launch(ranks)) for ranks in sizes}
        await bench_cluster.bound.until(sum(sizes))
    copies = {ranks: await Copied.of(bench_cluster.read, id_) for ranks, id_ in ids.items()}
    await bench_cluster.halt()
    await bench_cluster.clean()
    return copies


async def _written(bench_cluster: BenchCluster, copied: Copied, gangs: int) -> TurnFigures:
    """Write the same objects with a bare client; measured from the first request to the last binding."""
    count, servers_s, own_s = gangs * len(copied.nodes), _servers(bench_cluster), cpu_of(os.getpid())
    async with bench_cluster.bound.counting():
        started_s = time.perf_counter()
        await bench_cluster.bare.burst(copied, gangs, CONNECTIONS)
        ended_s = await bench_cluster.bound.until(count)
    spent_s = _servers(bench_cluster) - servers_s + cpu_of(os.getpid()) - own_s
    return TurnFigures(rate=count / (ended_s - started_s), cpu_s=spent_s / count * 1_000)


async def _ours(bench_cluster: BenchCluster, ranks: int, count: int) -> TurnFigures:
    """Measure our launches from the first POST to the last binding."""
    await bench_cluster.resume()
    async with bench_cluster.bound.counting():
        await _post(bench_cluster, 1, WARM_UP)
        await bench_cluster.bound.until(WARM_UP)
    before = bench_cluster.cpu_s()
    async with bench_cluster.bound.counting():
        started_s = time.perf_counter()
        await _post(bench_cluster, ranks, count)
        posted_s = time.perf_counter()
        ended_s = await bench_cluster.bound.until(count * ranks)
        at = bench_cluster.bound.at
        _say(
            f"  ours: all answered after {posted_s - started_s:.1f} s, first pod bound after {at[0] - started_s:.1f}, "
            f"half {at[len(at) // 2] - started_s:.1f}, all {ended_s - started_s:.1f}"
        )
    spent_s = sum(
        after - before[name] for name, after in bench_cluster.cpu_s().items() if name not in ("kcm", "client")
    )
    await bench_cluster.halt()
    return TurnFigures(rate=count * ranks / (ended_s - started_s), cpu_s=spent_s / (count * ranks) * 1_000)


async def _post(bench_cluster: BenchCluster, ranks: int, count: int) -> None:
    """Make launches with `CONNECTIONS` clients."""
    body = _launch(ranks)
    await many(count, lambda _number: bench_cluster.post(body))


def _launch(ranks: int) -> bytes:
    kind = "command" if ranks == 1 else "training"
    role = {"name": "worker", "count": ranks, "resources": ONE_GPU}
    return msgspec.json.encode({"kind": kind, "image": "local", "command": ["true"], "ranks": [role]})


async def _created(bench_cluster: BenchCluster, count: int) -> TurnFigures:
    """Measure from the first create to the last binding, with kube-scheduler already running."""
    servers_s = _servers(bench_cluster)
    async with _scheduling(bench_cluster), bench_cluster.bound.counting():
        started_s = time.perf_counter()
        await _create(bench_cluster, count)
        ended_s = await bench_cluster.bound.until(count)
        spent_s = _servers(bench_cluster) - servers_s + cpu_of(bench_cluster.cluster.pid("scheduler"))
    return TurnFigures(rate=count / (ended_s - started_s), cpu_s=spent_s / count * 1_000)


async def _found(bench_cluster: BenchCluster, ranks: int, groups: int, turn: int) -> TurnFigures:
    """Measure from the first to the last binding of pods that exist when the scheduler starts."""
    count, servers_s = groups * ranks, _servers(bench_cluster)
    # A controller needs time to delete the groups of the previous turn, so these groups have other names.
    names = [f"gang-{turn}-{number}" for number in range(groups)]
    await many(groups, lambda number: bench_cluster.call("POST", POD_GROUPS, _group(names[number], ranks)))
    await _create(bench_cluster, count, names)
    async with bench_cluster.bound.counting(), _scheduling(bench_cluster):
        ended_s = await bench_cluster.bound.until(count)
        spent_s = _servers(bench_cluster) - servers_s + cpu_of(bench_cluster.cluster.pid("scheduler"))
        return TurnFigures(rate=(count - 1) / (ended_s - bench_cluster.bound.at[0]), cpu_s=spent_s / count * 1_000)


@contextlib.asynccontextmanager
async def _scheduling(bench_cluster: BenchCluster) -> AsyncGenerator[None]:
    """Run the real kube-scheduler."""
    await asyncio.to_thread(bench_cluster.cluster.start_part, "scheduler")
    try:
        await asyncio.sleep(SETTLE_S)
        yield
    finally:
        await asyncio.to_thread(bench_cluster.cluster.stop_part, "scheduler")


async def _create(bench_cluster: BenchCluster, count: int, groups: Sequence[str] = ()) -> None:
    """Create pods with a bare client, the same number in each of the groups, if there are any."""
    url = bench_cluster.cluster.url + PODS

    async def one(number: int) -> None:
        body = msgspec.json.encode(_pod(number, groups[number * len(groups) // count] if groups else ""))
        async with bench_cluster.kube.post(url, data=body, headers=JSON_HEADERS) as answer:
            if answer.status != 201:
                raise RuntimeError(f"{answer.status} {await answer.text()}")
            await answer.read()

    await many(count, one)


async def many(count: int, do: Callable[[int], Awaitable[Any]]) -> None:
    """Call `do(0)` to `do(count - 1)`, `CONNECTIONS` at a time."""
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            await do(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(client())


def _pod(number: int, group: str) -> dict[str, Any]:
    asked = {"requests": ONE_GPU, "limits": {"nvidia.com/gpu": "1"}}
    main = {"name": "main", "image": "local", "command": ["true"], "resources": asked}
    spec: dict[str, Any] = {"containers": [main], "restartPolicy": "Never", "automountServiceAccountToken": False}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"theirs-{number:05d}"}, "spec": spec}


def _group(name: str, ranks: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": ranks}}},
    }


def _rows(work: str, ranks: int, ours: SideFigures, theirs: SideFigures, bare: SideFigures) -> list[Row]:
    gangs = f"{PODS_COUNT // ranks} gangs of {ranks} one-GPU pods on {NODES:,} nodes"
    pairs = ", ".join(f"{left:.0f}/{right:.0f}" for left, right in zip(ours.rates, theirs.rates, strict=True))
    how = "from its first binding, pods found there" if work == "W5b" else "single pods, from their first create"
    note = (
        f"ours / kube-scheduler, pair by pair: {pairs}; theirs {how}; measured by others on such a machine: "
        f"{PUBLISHED[work]:g} pods/s"
    )
    return [
        row(
            f"P2-{work}",
            f"{gangs}, POST to last bind",
            ours.rates,
            "pods/s",
            peer=theirs.rates,
            peer_name=PEER,
            target=TARGETS[work],
            note=note,
        ),
        row(
            f"P2-{work}-bare",
            f"{gangs}, beside a bare client's writes of the same",
            ours.rates,
            "pods/s",
            peer=bare.rates,
            peer_name=f"bare client, same writes, {PODS_COUNT // BARE_PART // ranks} gangs of them",
            target=OF_BARE,
        ),
        row(
            f"P2-{work}-reach",
            f"{gangs}: what the launch protocol allows at most here, beside kube-scheduler",
            bare.rates,
            "pods/s",
            peer=theirs.rates,
            peer_name=PEER,
            note="a bare client's writes, and nothing else: "
            f"{statistics.median(bare.cpu_s):.2f} s of CPU per 1,000 pods, its own with it",
        ),
        row(
            f"P2-{work}-cpu",
            f"{gangs}: CPU of all processes but the client's per 1,000 pods",
            ours.cpu_s,
            "s",
            peer=theirs.cpu_s,
            peer_name=PEER,
            note=f"ours {statistics.median(ours.cpu_s):.2f} s with creating; theirs with creating"
            + (" before its clock begins" if work == "W5b" else ""),
        ),
    ]


def _say(text: str) -> None:
    print(f"  {text} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
