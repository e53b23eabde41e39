"""P8: on a real kube-apiserver, a job of 10 ranks with 8 GPUs each that does not fit gets its reason.

There are 500 nodes with 8 GPUs. On each node, a pod that is not ours uses one GPU: 3,500 GPUs are free, and no rank
fits on any node. One figure is from the POST to the condition that a watching client sees. The other is to the answer
of `explain`, which is called as soon as the condition exists. Each job is killed before the next one.

SLIPWAY_BENCH_NODES (500) makes a shorter run.
"""

import asyncio
import os
import time
from typing import Any

import msgspec

from bench.bare import ALLOCATIONS, PODS
from bench.bench_cluster import GPU_NODE, BenchCluster, ClusterConfig, a_bench_cluster
from bench.kube_scheduler import many
from bench.runner import Row, Target, percentile, row

NODES = int(os.environ.get("SLIPWAY_BENCH_NODES", "500"))
RANKS, PER_RUN, WARM_UP = 10, 4, 3
KAI_S = 249.5
DEADLINE_S = 60.0
LINE = 8 * 1024 * 1024


class Condition(msgspec.Struct):
    type: str
    status: str
    reason: str = ""


class Status(msgspec.Struct):
    phase: str = ""
    conditions: list[Condition] = []


class Meta(msgspec.Struct):
    name: str = ""
    uid: str = ""


class Allocation(msgspec.Struct):
    metadata: Meta
    status: Status = msgspec.field(default_factory=Status)

    @property
    def has_reason(self) -> bool:
        """Whether the allocation states that it is not admitted, and why."""
        return any(each.type == "Admitted" and each.status == "False" for each in self.status.conditions)


class Change(msgspec.Struct):
    object: Allocation


class ReasonTimes:
    """When (perf_counter seconds) each allocation was first seen with its reason, and which allocations have ended."""

    def __init__(self, bench_cluster: BenchCluster) -> None:
        self._bench_cluster = bench_cluster
        self._changed = asyncio.Event()
        self.at: dict[str, float] = {}
        self.ended: set[str] = set()

    async def until_reason(self, id_: str) -> float:
        """Return the time when the reason was first seen."""
        async with asyncio.timeout(DEADLINE_S):
            while id_ not in self.at:
                await self._next()
        return self.at[id_]

    async def until_ended(self, id_: str) -> None:
        """Wait until the allocation has ended."""
        async with asyncio.timeout(DEADLINE_S):
            while id_ not in self.ended:
                await self._next()

    async def follow(self, version: str) -> None:
        """Watch until cancelled."""
        decode = msgspec.json.Decoder(Change).decode
        params = {"watch": "true", "resourceVersion": version}
        async with self._bench_cluster.kube.get(self._bench_cluster.cluster.url + ALLOCATIONS, params=params) as answer:
            async for line in answer.content:
                now, found = time.perf_counter(), decode(line).object
                id_ = f"{found.metadata.name}-{found.metadata.uid[:8]}"
                if found.has_reason:
                    self.at.setdefault(id_, now)
                if found.status.phase == "Terminated":
                    self.ended.add(id_)
                self._changed.set()

    async def _next(self) -> None:
        self._changed.clear()
        await self._changed.wait()


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    async with a_bench_cluster(ClusterConfig(nodes=NODES, size=GPU_NODE)) as bench_cluster:
        await _take_one_gpu_each(bench_cluster)
        reason_times = ReasonTimes(bench_cluster)
        version = (await bench_cluster.read(f"{ALLOCATIONS}?limit=1"))["metadata"]["resourceVersion"]
        following = asyncio.ensure_future(reason_times.follow(version))
        try:
            for _ in range(WARM_UP):
                await _one(bench_cluster, reason_times)
            found = [[await _one(bench_cluster, reason_times) for _ in range(PER_RUN)] for _ in range(runs)]
        finally:
            following.cancel()
    flat = [each for run in found for each in run]
    reason, message = flat[-1][2], flat[-1][3]
    work = f"{RANKS} x 8 GPUs on {NODES} nodes with 7 free each"
    medians = [percentile([each[1] for each in run], 50) for run in found]
    note = f"{reason}: {message}; KAI's own figure for such a job, on 500 nodes: {KAI_S} s"
    target = Target(must=1_000, moonshot=20)
    return [
        row("P8", f"{work}: POST to the answer of explain", medians, "ms", target=target, note=note),
        row("P8-p99", f"{work}: the same, p99", [percentile([each[1] for each in flat], 99)], "ms"),
        row("P8-condition", f"{work}: POST to the condition", [each[0] for each in flat], "ms"),
    ]


async def _one(bench_cluster: BenchCluster, reason_times: ReasonTimes) -> tuple[float, float, str, str]:
    """Return (milliseconds to the condition, to the explanation, its code, its message)."""
    role = {"name": "worker", "count": RANKS, "resources": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}}
    body: dict[str, Any] = {"kind": "training", "image": "local", "command": ["true"], "ranks": [role]}
    sent_s = time.perf_counter()
    id_ = await bench_cluster.post(msgspec.json.encode(body))
    told_s = await reason_times.until_reason(id_)
    async with bench_cluster.web.get(f"{bench_cluster.stack.api_url}/api/v1/allocations/{id_}/explain") as answer:
        explained = await answer.json()
    read_s = time.perf_counter()
    if answer.status != 200 or not explained["message"]:
        raise RuntimeError(f"no explanation: {explained}")
    async with bench_cluster.web.post(f"{bench_cluster.stack.api_url}/api/v1/allocations/{id_}/kill") as answer:
        answer.raise_for_status()
    await reason_times.until_ended(id_)
    return (told_s - sent_s) * 1_000, (read_s - sent_s) * 1_000, explained["code"], explained["message"]


async def _take_one_gpu_each(bench_cluster: BenchCluster) -> None:
    names = [node["metadata"]["name"] for node in (await bench_cluster.read("/api/v1/nodes"))["items"]]
    asked = {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}

    async def take(number: int) -> None:
        spec = {"nodeName": names[number], "containers": [{"name": "main", "image": "local", "resources": asked}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"other-{number}"}, "spec": spec}
        await bench_cluster.call("POST", PODS, body)

    await many(len(names), take)
