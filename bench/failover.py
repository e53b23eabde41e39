"""Failover: from the moment when the leading scheduler is killed, or told to stop, to the ledger's next tick.

Real processes run on the local cluster: two schedulers, one of every other service, and one launch that waits for the
new leader. The lease has its default duration: 15 s at first, and 3 s in a steady term, which the benchmark waits for.
One measurement is on an empty cluster, another beside 5,000 nodes and 10,000 held allocations.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from bench.opening import session_into
from bench.runner import Row, Target, percentile, row
from slipway.local.stack import Stack, StackOptions

STEADY_S, STEADY_WAIT_S = 3, 60.0
"""The lease of a leader that renews in time; a lease that stays longer within this wait is measured unchanged."""
NODES, ALLOCATIONS = 5_000, 10_000
AT_ONCE = 16
POLL_S = 0.01
SETTLE_S = 20.0
WARM_S = 5.0
SCHEDULERS = ("scheduler", "scheduler-1")
DEADLINE_S = 120.0
GROUP = "/apis/slipway.dev/v1alpha1"
POOL = f"{GROUP}/resourcepools/default"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/slipway-system/leases/slipway-scheduler-default"
SIZES = {"empty": (0, 0), "large": (NODES, ALLOCATIONS)}
WAYS = {
    "kill": (signal.SIGKILL, "kill -9 of the leader to the next tick", STEADY_S + 1.0),
    "stop": (signal.SIGTERM, "SIGTERM of the leader to the next tick", 1.0),
}
_TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "local", "command": ["true"]}]}}
_RANKS = [{"name": "worker", "count": 1, "resources": {"cpu": "10m"}}]


async def measure(runs: int) -> list[Row]:
    """Return the rows of this benchmark."""
    rows: list[Row] = []
    for size, (nodes, allocations) in SIZES.items():
        async with _a_pair() as pair:
            await pair.fill(nodes, allocations)
            for way, (number, work, must) in WAYS.items():
                samples = [await pair.took_s(number) for _ in range(runs if way == "kill" else 2 * runs)]
                what = f"{work}, {nodes:,} nodes, {allocations:,} allocations"
                target = Target(must=must)
                rows.append(row(f"FAILOVER-{way}-{size}", what, samples, "s", target=target))
                rows.append(
                    row(f"FAILOVER-{way}-{size}-p99", f"{what}, p99", [percentile(samples, 99)], "s", target=target)
                )
    return rows


class Pair:
    """A stack with two schedulers."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession, kubernetes: str) -> None:
        self._stack = stack
        self._session = session
        self._kubernetes = kubernetes
        self._launched = 0

    async def fill(self, nodes: int, allocations: int) -> None:
        """Create the nodes and allocations, and wait until all services know them."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def create(path: str, body: dict[str, Any]) -> None:
            async with slots, self._session.post(f"{self._kubernetes}{path}", json=body) as answer:
                answer.raise_for_status()

        free = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        status = {"allocatable": free, "capacity": free, "conditions": [{"type": "Ready", "status": "True"}]}
        await asyncio.gather(
            *(
                create("/api/v1/nodes", {"metadata": {"name": f"big-{number}"}, "status": status})
                for number in range(nodes)
            )
        )
        spec = {"kind": "command", "ranks": _RANKS, "template": _TEMPLATE, "hold": True}
        await asyncio.gather(
            *(
                create(
                    f"{GROUP}/namespaces/default/allocations", {"metadata": {"name": f"held-{number}"}, "spec": spec}
                )
                for number in range(allocations)
            )
        )
        await asyncio.sleep(SETTLE_S if nodes else 1.0)

    async def took_s(self, number: signal.Signals) -> float:
        """Return the seconds from the signal to the leader until another epoch has committed a tick."""
        # The services must first notice which scheduler was ended the last time.
        await asyncio.sleep(1.0)
        await self._both_run()
        before = await self._ledger()
        begun_s = time.perf_counter()
        os.kill(await self._leader(), number)
        await self._launch()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                now = await self._ledger()
                if now["epoch"] > before["epoch"] and now.get("tick", 0) > before.get("tick", 0):
                    return time.perf_counter() - begun_s
                await asyncio.sleep(POLL_S)

    async def _both_run(self) -> None:
        """Wait until the ended scheduler runs again and has read the cluster, and a launch was admitted since then."""
        async with asyncio.timeout(DEADLINE_S):
            for name in SCHEDULERS:
                while not await self._is_ready(name):  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.1)
        await self._launch()
        await asyncio.sleep(WARM_S)
        async with asyncio.timeout(DEADLINE_S):
            while await self._leader() not in self._pids():  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.1)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STEADY_WAIT_S):
                while (await self._get(LEASE))["spec"]["leaseDurationSeconds"] > STEADY_S:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)

    async def _is_ready(self, name: str) -> bool:
        """Whether the scheduler is ready: an ended one needs some time to start again."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.get(f"{self._stack.children[name].url}/readyz") as answer:
                return answer.status == HTTPStatus.OK
        return False

    def _pids(self) -> list[int]:
        return [pid for pid in (self._stack.children[name].pid for name in SCHEDULERS) if pid]

    async def _leader(self) -> int:
        holder = str((await self._get(LEASE))["spec"].get("holderIdentity") or "-0")
        return int(holder.rsplit("-", 1)[1])

    async def _ledger(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self._get(POOL)).get("status") or {"epoch": 0}
        return found

    async def _get(self, path: str) -> dict[str, Any]:
        async with self._session.get(f"{self._kubernetes}{path}") as answer:
            answer.raise_for_status()
            found: dict[str, Any] = await answer.json()
            return found

    async def _launch(self) -> None:
        self._launched += 1
        spec = {"kind": "command", "ranks": _RANKS, "template": _TEMPLATE}
        body: dict[str, Any] = {"metadata": {"name": f"job-{self._launched}"}, "spec": spec}
        url = f"{self._kubernetes}{GROUP}/namespaces/default/allocations"
        async with self._session.post(url, json=body) as answer:
            answer.raise_for_status()


@asynccontextmanager
async def _a_pair() -> AsyncGenerator[Pair]:
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        options = StackOptions(folder=Path(folder) / "stack", port=0, cpus=64, replicas={"scheduler": 2})
        stack = Stack(options)
        await stack.start()
        try:
            async with session_into(Path(stack.kubeconfig), limit=100) as session:
                yield Pair(stack, session, await asyncio.to_thread(_kubernetes_of, stack.kubeconfig))
        finally:
            await stack.stop()


def _kubernetes_of(kubeconfig: str) -> str:
    """Return the server in a local stack's kubeconfig."""
    lines = Path(kubeconfig).read_text(encoding="utf-8").splitlines()
    return next(line.partition("server:")[2].strip() for line in lines if "server:" in line)
