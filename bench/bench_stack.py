"""A local stack for a benchmark, and a client that launches and watches with as little work as possible.

Owns the stack's lifetime, raw HTTP and the decoding of watch events. It must be cheap, because it runs on the same CPU
cores as the system that it measures.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.opening import session_into
from slipway.local.stack import Stack, StackOptions

LAUNCH_PATH = "/api/v1/allocations"
WATCHED = {
    "pods": "/api/v1/pods",
    "allocations": "/apis/slipway.dev/v1alpha1/allocations",
}
DEADLINE_S = 60.0
INSIST_MAX = 20
OWNERS = ("slipway.dev/allocation", "batch.kubernetes.io/job-name")
"""labels of a pod that name its owner"""
LINE_LIMIT = 8 * 1024 * 1024


class Spec(msgspec.Struct):
    node_name: str = msgspec.field(default="", name="nodeName")


class Status(msgspec.Struct):
    phase: str = ""
    release: dict[str, object] | None = None


class Meta(msgspec.Struct):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] = {}


class WatchedObject(msgspec.Struct):
    """The decoded part of a watched object."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)


class Change(msgspec.Struct):
    type: str
    object: WatchedObject


class Marks:
    """When (perf_counter seconds) the watching client first saw each step of an allocation or a Job."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.bound: set[str] = set()
        self.gone: set[str] = set()
        self.changed = asyncio.Event()

    def mark(self, what: str, now: float) -> None:
        """Record when a step was first seen."""
        self.at.setdefault(what, now)
        self.changed.set()

    async def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until `ready()` is true. Raises RuntimeError when that takes too long."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not ready():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise RuntimeError(f"did not see {what} within {DEADLINE_S:.0f} s; seen: {sorted(self.at)}") from None


class Watching:
    """Follows pods and allocations of a cluster."""

    def __init__(self, session: aiohttp.ClientSession, kubernetes: str) -> None:
        self._session = session
        self._kubernetes = kubernetes
        self._marks: dict[str, Marks] = {}
        self._decoder = msgspec.json.Decoder(Change)
        self._tasks: list[asyncio.Task[None]] = []
        self.bound: list[float] = []
        """when each pod was first seen with a node"""
        self.changed = asyncio.Event()

    def of(self, owner: str) -> Marks:
        """Return the marks of an AllocationID or of a Job's name; they are created at the first use."""
        return self._marks.setdefault(owner, Marks())

    async def until_bound(self, count: int) -> None:
        """Wait until `count` pods were seen with a node. Raises RuntimeError when that takes too long."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while len(self.bound) < count:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise RuntimeError(f"{len(self.bound)} of {count} pods bound after {DEADLINE_S:.0f} s") from None

    async def start(self) -> None:
        """Start the watches."""
        for kind in WATCHED:
            ready = asyncio.Event()
            self._tasks.append(asyncio.ensure_future(self._follow(kind, ready)))
            await ready.wait()

    async def stop(self) -> None:
        """End the watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, kind: str, ready: asyncio.Event) -> None:
        url = f"{self._kubernetes}{WATCHED[kind]}"
        async with self._session.get(url, params={"limit": "1"}) as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        params = {"watch": "true", "resourceVersion": version}
        async with self._session.get(url, params=params, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            ready.set()
            take = self._take_pod if kind == "pods" else self._take_allocation
            async for line in answer.content:
                now = time.perf_counter()
                change = self._decoder.decode(line)
                take(change, now)

    def _take_pod(self, change: Change, now: float) -> None:
        pod = change.object
        owner = next((pod.metadata.labels[label] for label in OWNERS if label in pod.metadata.labels), None)
        if owner is None:
            return
        marks = self.of(owner)
        if change.type == "DELETED":
            marks.gone.add(pod.metadata.name)
            marks.changed.set()
            return
        marks.mark("pod", now)
        if pod.spec.node_name and pod.metadata.name not in marks.bound:
            marks.bound.add(pod.metadata.name)
            marks.mark(f"bound:{len(marks.bound)}", now)
            self.bound.append(now)
            self.changed.set()

    def _take_allocation(self, change: Change, now: float) -> None:
        found = change.object
        if change.type == "DELETED":
            return
        marks = self.of(f"{found.metadata.name}-{found.metadata.uid[:8]}")
        marks.mark("created", now)
        if found.status.phase:
            marks.mark(found.status.phase, now)
        if found.status.release is not None:
            marks.mark("release", now)


class BenchStack:
    """A running stack with a client."""

    def __init__(self, stack: Stack, session: aiohttp.ClientSession, watching: Watching, kubernetes: str) -> None:
        self.stack = stack
        self.session = session
        self.watching = watching
        self.kubernetes = kubernetes

    async def post(self, body: bytes) -> tuple[str, float, float]:
        """Launch; return (the AllocationID, when it was sent, when it was answered)."""
        return await launch_through(self.session, self.stack.api_url, body)

    async def create(self, path: str, body: dict[str, Any]) -> None:
        """Create an object in the cluster."""
        async with self.session.post(f"{self.kubernetes}{path}", json=body) as answer:
            if answer.status != 201:
                raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")

    async def read(self, path: str) -> dict[str, Any]:
        """Read an object of the cluster."""
        async with self.session.get(f"{self.kubernetes}{path}") as answer:
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status} {await answer.text()}")
            return await answer.json()

    async def metrics(self, service: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return {(name, labels): value} of one service's /metrics."""
        return await metrics_of(self.session, self.stack.children[service].url)


async def launch_through(
    session: aiohttp.ClientSession, api_url: str, body: bytes, *, key: str = ""
) -> tuple[str, float, float]:
    """Launch; return (the AllocationID, when it was sent, when it was answered). Retries only with a `key`."""
    sent = time.perf_counter()
    headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
    refusal = ""
    for _ in range(INSIST_MAX if key else 1):
        try:
            async with session.post(f"{api_url}{LAUNCH_PATH}", data=body, headers=headers) as answer:
                answered = await answer.read()
                now = time.perf_counter()
                if answer.status in (200, 201):
                    return str(msgspec.json.decode(answered)["id"]), sent, now
                refusal = f"{answer.status}: {answered[:500]!r}"
                if answer.status < 500:
                    break
        except aiohttp.ClientConnectionError as error:
            # The connection was idle and its process was replaced: the key makes it safe to send the launch again.
            refusal = repr(error)
    raise RuntimeError(refusal)


async def metrics_of(
    session: aiohttp.ClientSession, service_url: str
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return {(name, labels): value} of one service's /metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    async with session.get(f"{service_url}/metrics") as answer:
        text = await answer.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def launch_body(ranks: int = 1, *, command: tuple[str, ...] = ("true",)) -> bytes:
    """Return the body of a launch that needs almost no resources."""
    asked = {"cpu": "10m", "memory": "8Mi"}
    body: dict[str, Any] = {
        "kind": "command" if ranks == 1 else "training",
        "image": "local",
        "command": list(command),
        "ranks": [{"name": "worker", "count": ranks, "resources": asked}],
    }
    return msgspec.json.encode(body)


@contextlib.asynccontextmanager
async def a_bench_stack(**options: Any) -> AsyncGenerator[BenchStack]:
    """Start a stack in its own folder, and always stop it."""
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        stack = Stack(StackOptions(folder=Path(folder) / "stack", port=0, **options))
        await stack.start()
        try:
            kubernetes = stack.children["cluster"].url
            timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
            async with session_into(Path(stack.kubeconfig), timeout=timeout, read_bufsize=LINE_LIMIT) as session:
                watching = Watching(session, kubernetes)
                await watching.start()
                try:
                    yield BenchStack(stack, session, watching, kubernetes)
                finally:
                    await watching.stop()
        finally:
            await stack.stop()
