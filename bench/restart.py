"""P12: the start of a scheduler with 5,000 nodes, 10,000 live and 50,000 queued allocations, until its first decision.

The live allocations run, and use every GPU (two allocations with four GPUs on each node). The queued ones request
eight, so no rank starts. The benchmark stops the scheduler and launches a rank without a GPU. The time is from the
start of the process until a watch reports that this rank is Assigned. It runs on the local cluster;
SLIPWAY_BENCH_REAL=1 uses a real kube-apiserver with etcd. The existing objects are written through the Kubernetes API,
as copies of the objects of one launch.

Then the api and the watcher are restarted, each alone. The api's time ends when it is ready (a load balancer would then
send requests to it) and has answered a page of allocations. The watcher's time ends when a watch reports that an
allocation is Running. Its pod began to run while the watcher was down.

Then a second scheduler is on standby, and the leading one gets SIGKILL or SIGTERM. The time is until another such rank
is Assigned.

SLIPWAY_BENCH_NODES (5000), SLIPWAY_BENCH_LIVE (10000), SLIPWAY_BENCH_QUEUED (50000) make a smaller run.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.bare import ALLOCATIONS, CONNECTIONS, PODS, BareClient, Copied
from bench.bench_cluster import KUBE_CALLS, ClusterConfig, MatchCounter, a_bench_cluster
from bench.bench_stack import LINE_LIMIT, launch_through, metrics_of
from bench.kube_scheduler import many
from bench.opening import session_into
from bench.runner import Row, Target, percentile, row
from slipway.local.stack import SERVICES, Stack, StackOptions

NODES = int(os.environ.get("SLIPWAY_BENCH_NODES", "5000"))
LIVE = int(os.environ.get("SLIPWAY_BENCH_LIVE", "10000"))
QUEUED = int(os.environ.get("SLIPWAY_BENCH_QUEUED", "50000"))
IS_REAL = os.environ.get("SLIPWAY_BENCH_REAL", "") == "1"
SIZE = {"cpu": "96", "memory": "768Gi", "pods": "110", "nvidia.com/gpu": "8"}
GPUS_EACH = 4
SETTLE_S = 15.0
QUIET_S, QUIET_WRITES = 5.0, 20
DEADLINE_S = 600.0
LEASE = "/apis/coordination.k8s.io/v1/namespaces/slipway-system/leases/slipway-scheduler-default"
STEADY_S = 3.0
"""The duration of the lease of a leader that renews in time. The lease is this short after `SETTLE_S`."""
SECOND = "scheduler-1"
PAIR = ("scheduler", SECOND)
TWO = {"scheduler": 2}
WAYS = {
    "kill": (signal.SIGKILL, "kill -9 of the leading scheduler to the next decision", STEADY_S + 1.0),
    "stop": (signal.SIGTERM, "SIGTERM of the leading scheduler to the next decision", 1.0),
}
PROBE = {
    "kind": "command",
    "image": "local",
    "command": ["true"],
    "priority": 90,
    "ranks": [{"name": "worker", "count": 1, "resources": {"cpu": "10m", "memory": "8Mi"}}],
}


class RestartedStack:
    """A running stack and its Kubernetes API."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession, web: aiohttp.ClientSession, url: str) -> None:
        self.stack = stack
        self._session = session
        self._web = web
        self._url = url
        self._assigned = MatchCounter(session, url, ALLOCATIONS, "status.phase=Assigned")
        self._posts = 0

    async def post(self, body: dict[str, Any]) -> str:
        """Launch; return the AllocationID."""
        self._posts += 1
        key, encoded = f"restart-{self._posts}", msgspec.json.encode(body)
        return (await launch_through(self._web, self.stack.api_url, encoded, key=key))[0]

    async def fill(self) -> None:
        """Create nodes, live and queued allocations; return when the services have handled all of them.

        One allocation is launched. The others are written while the services are halted.
        """
        await many(NODES, self._add_node)
        asked = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(GPUS_EACH)}
        bound = MatchCounter(self._session, self._url)
        async with bound.counting():
            original = await self.post({**PROBE, "ranks": [{"name": "worker", "count": 1, "resources": asked}]})
            await bound.until(1)
        copied = await Copied.of(self._read, original)
        await asyncio.gather(*(self.stack.halt(name) for name in (*SERVICES, SECOND)))
        bare = BareClient(self._session, self._url)
        taken = copied.nodes[0]
        # The original uses one place itself.
        places = [taken] + [
            f"big-{n:05d}" for n in range(NODES) for _ in range(8 // GPUS_EACH) if f"big-{n:05d}" != taken
        ]
        await many(min(LIVE, len(places)), lambda number: bare.place(copied, places[number]))
        await many(QUEUED, self._queue)
        # The services start one after the other: each reads all objects, and parallel reads would exceed the time
        # limit.
        for name in SERVICES:
            await self.stack.resume(name)
        await asyncio.sleep(SETTLE_S)
        await self._until_assigned()
        await self._start_pods()
        await self._until_quiet()

    async def _start_pods(self) -> None:
        """Let all pods run, and wait until their allocations are Running."""
        pods = [pod["metadata"]["name"] for pod in (await self._read(PODS))["items"]]
        running = self._running()
        async with running.counting():
            await many(len(pods), lambda number: self._run(pods[number]))
            await running.until(len(pods))

    def _running(self) -> MatchCounter:
        return MatchCounter(self._session, self._url, ALLOCATIONS, "status.phase=Running")

    async def took_s(self) -> tuple[float, float]:
        """Return the seconds from the start of the process to (ready, the first decision)."""
        await self.stack.halt("scheduler")
        async with self._assigned.counting():
            await self.post(PROBE)
            started_s = time.perf_counter()
            resuming = asyncio.ensure_future(self.stack.resume("scheduler"))
            decided_s = await self._assigned.until(1, DEADLINE_S)
            await resuming
            ready_s = time.perf_counter()
        await asyncio.sleep(SETTLE_S)
        return ready_s - started_s, decided_s - started_s

    async def api_took_s(self) -> float:
        """Return the seconds from the start of the process until the api is ready and answers a page of allocations."""
        await self.stack.halt("api")
        started_s = time.perf_counter()
        await self.stack.resume("api")
        async with self._web.get(f"{self.stack.api_url}/api/v1/allocations?limit=100") as answer:
            answer.raise_for_status()
            await answer.read()
        took_s = time.perf_counter() - started_s
        await asyncio.sleep(SETTLE_S)
        return took_s

    async def watcher_took_s(self) -> float:
        """Return the seconds from the start of the process until the watcher reports that a pod runs.

        The pod began to run while the watcher was down.
        """
        bound = MatchCounter(self._session, self._url)
        async with bound.counting():
            await self.post(PROBE)
            await bound.until(1)
        await self.stack.halt("watcher")
        await self._run(bound.names[0])
        running = self._running()
        async with running.counting():
            started_s = time.perf_counter()
            resuming = asyncio.ensure_future(self.stack.resume("watcher"))
            took_s = await running.until(1, DEADLINE_S) - started_s
            await resuming
        await asyncio.sleep(SETTLE_S)
        return took_s

    async def _run(self, pod: str) -> None:
        """Write what a kubelet writes when the pod's container runs."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state = {"running": {"startedAt": now}}
        container = {
            "name": "main",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": state,
            "image": "local",
        }
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        status = {"phase": "Running", "startTime": now, "conditions": [ready], "containerStatuses": [container]}
        headers = {"Content-Type": "application/merge-patch+json"}
        url = f"{self._url}{PODS}/{pod}/status"
        async with self._session.patch(url, data=msgspec.json.encode({"status": status}), headers=headers) as answer:
            answer.raise_for_status()
            await answer.read()

    async def begin_pair(self) -> None:
        """Start a second scheduler on standby."""
        await self.stack.resume(SECOND)
        await asyncio.sleep(SETTLE_S)

    async def failover_s(self, number: signal.Signals) -> float:
        """Return the seconds from the signal to the leader until the next decision; the stack restarts the leader."""
        for name in PAIR:
            await self.stack.children[name].answers("/readyz", DEADLINE_S)
        await self._until_assigned()
        leader = await self._leader()
        async with self._assigned.counting():
            begun_s = time.perf_counter()
            os.kill(leader, number)
            await self.post(PROBE)
            decided_s = await self._assigned.until(1, DEADLINE_S)
        # The stack must notice the ended scheduler and start it again.
        await asyncio.sleep(SETTLE_S)
        return decided_s - begun_s

    async def _leader(self) -> int:
        holder = str((await self._read(LEASE))["spec"].get("holderIdentity") or "")
        pid = int(holder.rpartition("-")[2] or 0)
        if pid not in [self.stack.children[name].pid for name in PAIR]:
            raise RuntimeError(f"the lease is held by {holder!r}, which is none of ours")
        return pid

    async def _until_quiet(self) -> None:
        """Wait until the scheduler stops writing, because every waiting allocation has its reason."""
        writes, until_s = -1.0, time.perf_counter() + DEADLINE_S
        while (found := await self._writes()) - writes >= QUIET_WRITES:
            if time.perf_counter() > until_s:
                raise RuntimeError("the scheduler goes on writing")
            writes = found
            await asyncio.sleep(QUIET_S)

    async def _writes(self) -> float:
        told = await metrics_of(self._web, self.stack.children["scheduler"].url)
        wanted = {("verb", "update"), ("resource", "allocations")}
        return sum(value for (name, labels), value in told.items() if name == KUBE_CALLS and wanted <= labels)

    async def _until_assigned(self) -> None:
        async with self._assigned.counting():
            await self.post(PROBE)
            await self._assigned.until(1, DEADLINE_S)

    async def _add_node(self, number: int) -> None:
        name = f"big-{number:05d}"
        status = {"allocatable": SIZE, "capacity": SIZE, "conditions": [{"type": "Ready", "status": "True"}]}
        labels = {"kubernetes.io/hostname": name}
        await self._create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "status": status})

    async def _queue(self, number: int) -> None:
        asked = [{"name": "worker", "count": 1, "resources": {"cpu": "1", "nvidia.com/gpu": "8"}}]
        main = {"name": "main", "image": "local", "command": ["true"]}
        spec = {"kind": "command", "ranks": asked, "template": {"spec": {"containers": [main]}}}
        body = {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": f"queued-{number}"}}
        await self._create(ALLOCATIONS, {**body, "spec": spec})

    async def _create(self, path: str, body: dict[str, Any]) -> None:
        async with self._session.post(f"{self._url}{path}", json=body) as answer:
            if answer.status != 201:
                raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")
            await answer.read()

    async def _read(self, path: str) -> dict[str, Any]:
        async with self._session.get(f"{self._url}{path}") as answer:
            answer.raise_for_status()
            found: dict[str, Any] = await answer.json()
            return found


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    async with _a_real_site() if IS_REAL else _a_local_site() as restarted:
        begun_s = time.perf_counter()
        await restarted.fill()
        print(f"  filled and settled after {time.perf_counter() - begun_s:.0f} s", file=sys.stderr, flush=True)
        found = [await restarted.took_s() for _ in range(runs)]
        api = [await restarted.api_took_s() for _ in range(runs)]
        watcher = [await restarted.watcher_took_s() for _ in range(runs)]
        await restarted.begin_pair()
        ways = {way: [await restarted.failover_s(number) for _ in range(runs)] for way, (number, _, _) in WAYS.items()}
    where = "a real kube-apiserver" if IS_REAL else "the local API server"
    size = f"{NODES:,} nodes, {LIVE:,} live, {QUEUED:,} queued on {where}"
    id_ = "P12-real" if IS_REAL else "P12"
    decided = [decided_s for _, decided_s in found]
    target = Target(must=5, moonshot=1)
    return [
        row(id_, f"scheduler: start of the process to its first decision; {size}", decided, "s", target=target),
        row(f"{id_}-max", "the slowest of them", [percentile(decided, 100)], "s"),
        row(f"{id_}-api", f"api: start of the process until it answers a page of allocations; {size}", api, "s"),
        row(f"{id_}-watcher", f"watcher: start of the process until it reports a pod's start; {size}", watcher, "s"),
        *(row_ for way, samples in ways.items() for row_ in _failovers(way, samples, size)),
    ]


def _failovers(way: str, samples: list[float], size: str) -> list[Row]:
    _, work, must = WAYS[way]
    id_, target = f"FAILOVER-{way}-{'real' if IS_REAL else 'size'}", Target(must=must)
    return [
        row(id_, f"{work}; {size}", samples, "s", target=target),
        row(f"{id_}-max", "the slowest of them", [percentile(samples, 100)], "s", target=target),
    ]


@contextlib.asynccontextmanager
async def _a_local_site() -> AsyncGenerator[RestartedStack]:
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        stack = Stack(StackOptions(folder=Path(folder) / "stack", port=0, nodes=0, replicas=TWO))
        await stack.start()
        try:
            timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
            path, limit = Path(stack.kubeconfig), 2 * CONNECTIONS
            async with session_into(path, limit=limit, timeout=timeout, read_bufsize=LINE_LIMIT) as session:
                yield RestartedStack(stack, session, session, stack.children["cluster"].url)
        finally:
            await stack.stop()


@contextlib.asynccontextmanager
async def _a_real_site() -> AsyncGenerator[RestartedStack]:
    async with a_bench_cluster(ClusterConfig(nodes=0, replicas=TWO)) as bench_cluster:
        yield RestartedStack(bench_cluster.stack, bench_cluster.kube, bench_cluster.web, bench_cluster.cluster.url)
