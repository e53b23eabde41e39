"""A benchmark on a real kube-apiserver: its own control plane, fake nodes, our four services, and a counting watch.

Owns their lifetimes and the measurements: CPU of every process from the kernel's accounting, Kubernetes calls from our
services' metrics. Both sides of a comparison use the same API server in turn. The services are halted while the bare
client works, and the objects of one side are deleted before the other side begins.

Our services and the bare client authenticate with the token of a service account, as pods do. With a certificate, as
administrators and Kubernetes' own parts use it, the API server would verify its signature for every request.
"""

import asyncio
import contextlib
import os
import re
import ssl
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.bare import ALLOCATIONS, CONFIG_MAPS, CONNECTIONS, PODS, SERVICES, BareClient
from bench.bench_stack import launch_through, metrics_of
from bench.opening import opened_by
from slipway.local.stack import SERVICES as OURS
from slipway.local.stack import Stack, StackOptions
from tests.conformance.cluster.credentials import write_kubeconfig
from tests.conformance.cluster.servers import PARTS, ClusterOptions, RealCluster, running_cluster

NODE_SIZE = {"cpu": "64", "memory": "256Gi", "pods": "1000"}
GPU_NODE = {"cpu": "96", "memory": "768Gi", "pods": "110", "nvidia.com/gpu": "8"}
NODES_AT_ONCE = 32
WATCH_BYTES = 8 * 1024 * 1024
DEADLINE_S = 400.0
SETTLE_S = 1.5
POLL_S = 0.2
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_VERSION = re.compile(rb'"resourceVersion":"(\d+)"')
KUBE_CALLS = "slipway_kube_calls_total"
ACCOUNT = "bench"
TOKEN_S = 86_400


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a comparison."""

    nodes: int = 32
    """number of node objects without a kubelet; 0: the benchmark adds nodes itself"""
    size: Mapping[str, str] = msgspec.field(default_factory=lambda: NODE_SIZE)
    flags: Mapping[str, Sequence[str]] = {}
    """{part of the control plane: additional flags}"""
    env: Mapping[str, str] = {}
    """additional environment variables of our services"""
    replicas: Mapping[str, int] = {}
    """{service: number of processes}, for services with more than one"""


DEFAULT_CONFIG = ClusterConfig()


class MatchCounter:
    """Counts the objects that begin to match a field selector, with a watch of only these objects.

    Bodies are not decoded. The default selector matches pods with a node."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        path: str = "/api/v1/pods",
        selector: str = "spec.nodeName!=",
    ) -> None:
        self._session = session
        self._url = f"{url}{path}"
        self._selector = selector
        self._changed = asyncio.Event()
        self._ready = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self.at: list[float] = []
        self.names: list[str] = []
        """the name of each object, as `at`"""

    async def until(self, count: int, within_s: float = DEADLINE_S) -> float:
        """Return when the `count`-th object arrived. Raises RuntimeError if that takes too long or the watch fails."""
        try:
            async with asyncio.timeout(within_s):
                while len(self.at) < count:
                    if self._following is not None and self._following.done():
                        await self._following
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise RuntimeError(f"{len(self.at)} of {count} with {self._selector} in {within_s:.0f} s") from None
        return self.at[count - 1]

    @contextlib.asynccontextmanager
    async def counting(self) -> AsyncGenerator[None]:
        """Count from now on, starting at 0."""
        self.at.clear()
        self.names.clear()
        self._ready.clear()
        task = self._following = asyncio.ensure_future(self._follow())
        task.add_done_callback(lambda _: self._wake())
        try:
            await self._ready.wait()
            if task.done():
                await task
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _wake(self) -> None:
        """Let everybody who waits look again: the watch has ended."""
        self._ready.set()
        self._changed.set()

    async def _follow(self) -> None:
        params = {"fieldSelector": self._selector, "limit": "1"}
        async with self._session.get(self._url, params=params) as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        while True:
            # A busy API server may end the watch: continue from the last version.
            version = await self._watch(version)

    async def _watch(self, version: str) -> str:
        """Watch until the server ends the watch; return the version from which the next watch continues."""
        params = {"fieldSelector": self._selector, "watch": "true", "resourceVersion": version}
        async with self._session.get(self._url, params=params, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            self._ready.set()
            async for line in answer.content:
                if line.startswith(b'{"type":"ADDED"'):
                    self.at.append(time.perf_counter())
                    self.names.append(_name_of(line))
                    self._changed.set()
                found = _VERSION.search(line)
                if found is None or line.startswith(b'{"type":"ERROR"'):
                    raise RuntimeError(f"a watch says {line[:300]!r}")
                version = found.group(1).decode()
        return version


class _Named(msgspec.Struct):
    name: str


class _Object(msgspec.Struct):
    metadata: _Named


class _Watched(msgspec.Struct):
    object: _Object


_WATCHED = msgspec.json.Decoder(_Watched)
"""Skips everything but the name."""


def _name_of(line: bytes) -> str:
    return _WATCHED.decode(line).object.metadata.name


class BenchCluster:
    """A control plane with our services, and clients."""

    def __init__(self, cluster: RealCluster, stack: Stack, kube: aiohttp.ClientSession, web: aiohttp.ClientSession):
        self.cluster = cluster
        self.stack = stack
        self.bound = MatchCounter(kube, cluster.url)
        self.bare = BareClient(kube, cluster.url)
        self.kube = kube
        self.web = web
        self._posts = 0

    async def post(self, body: bytes) -> str:
        """Launch; return the AllocationID."""
        self._posts += 1
        return (await launch_through(self.web, self.stack.api_url, body, key=f"bench-{self._posts}"))[0]

    async def read(self, path: str) -> dict[str, Any]:
        """Read an object of the cluster."""
        return await self.call("GET", path)

    async def halt(self) -> None:
        """Stop our services."""
        await asyncio.gather(*(self.stack.halt(name) for name in OURS))

    async def resume(self) -> None:
        """Start our services again."""
        await asyncio.gather(*(self.stack.resume(name) for name in OURS))

    async def clean(self) -> None:
        """Delete all launched objects without a grace period; our services must be halted."""
        for path in (PODS, ALLOCATIONS):
            metas = [item["metadata"] for item in (await self.read(path))["items"]]
            names = [meta["name"] for meta in metas if meta.get("finalizers")]
            for start in range(0, len(names), CONNECTIONS):
                await asyncio.gather(*(self._let_go(f"{path}/{name}") for name in names[start : start + CONNECTIONS]))
            await self.call("DELETE", f"{path}?gracePeriodSeconds=0&propagationPolicy=Background")
        ours = "labelSelector=app.kubernetes.io/managed-by%3Dslipway"
        for path in (CONFIG_MAPS, SERVICES):
            await self.call("DELETE", f"{path}?{ours}")

        async def is_empty() -> bool:
            return not any([(await self.read(path))["items"] for path in (PODS, ALLOCATIONS)])

        await poll(is_empty, "nothing is left of the launches")
        await asyncio.sleep(SETTLE_S)

    async def add_nodes(self, count: int, size: Mapping[str, str]) -> None:
        """Add nodes without a kubelet; wait until the controllers consider them ready."""
        slots = asyncio.Semaphore(NODES_AT_ONCE)

        async def add(number: int) -> None:
            name = f"fake-{number:04d}"
            ready = [{"type": "Ready", "status": "True"}]
            body = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"capacity": size, "allocatable": size, "conditions": ready},
            }
            async with slots:
                await self.call("POST", "/api/v1/nodes", body)

        await asyncio.gather(*(add(number) for number in range(count)))

        async def are_ready() -> bool:
            return not any(node["spec"].get("taints") for node in (await self.read("/api/v1/nodes"))["items"])

        await poll(are_ready, "the nodes are ready")

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU seconds of each process and of this client since their start."""
        pids = {name: self.stack.children[name].pid for name in OURS}
        pids |= {part: self.cluster.pid(part) for part in PARTS if part != "scheduler"}
        pids["client"] = os.getpid()
        if self.stack.valkey is not None and self.stack.valkey.pid is not None:
            pids["redis"] = self.stack.valkey.pid
        return {("kcm" if name == "controller-manager" else name): cpu_of(pid) for name, pid in pids.items()}

    async def calls(self) -> Counter[str]:
        """Return {service:verb resource code: Kubernetes calls} of our services since their start."""
        found: Counter[str] = Counter()
        for service in OURS:
            for (name, labels), value in (await metrics_of(self.web, self.stack.children[service].url)).items():
                if name == KUBE_CALLS:
                    label = dict(labels)
                    found[f"{service}:{label['verb']} {label['resource']} {label['code']}"] += int(value)
        return found

    async def _let_go(self, path: str) -> None:
        await self.call("PATCH", path, {"metadata": {"finalizers": None}}, content="application/merge-patch+json")

    async def call(self, method: str, path: str, body: Any = None, content: str = "application/json") -> dict[str, Any]:
        """Make one call of the Kubernetes API. Raises RuntimeError when it is refused."""
        headers = {"Content-Type": content}
        async with self.kube.request(method, self.cluster.url + path, json=body, headers=headers) as answer:
            if answer.status >= 300 and not (answer.status == 404 and method == "PATCH"):
                raise RuntimeError(f"{method} {path}: {answer.status} {await answer.text()}")
            return await answer.json()


@contextlib.asynccontextmanager
async def a_bench_cluster(config: ClusterConfig = DEFAULT_CONFIG) -> AsyncGenerator[BenchCluster]:
    """Start the whole stand and always stop it; the services run at the beginning."""
    # No kubelet renews the leases of our nodes.
    options = ClusterOptions(scheduler=False, audit=False, node_monitor_grace_s=86_400, more=config.flags)
    with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
        cluster = await asyncio.to_thread(_entered, running_cluster(Path(folder) / "cluster", options))
        async with contextlib.AsyncExitStack() as stopping:
            stopping.push(cluster.leave)
            kubeconfig = Path(folder) / "kubeconfig"
            token = await asyncio.to_thread(account, cluster.it, kubeconfig)
            stack = Stack(
                StackOptions(
                    folder=Path(folder) / "stack",
                    port=0,
                    nodes=0,
                    kubeconfig=str(kubeconfig),
                    keep=True,
                    env=config.env,
                    replicas=dict(config.replicas),
                )
            )
            await stack.start()
            stopping.push_async_callback(stack.stop)
            trusting = ssl.create_default_context(cafile=str(cluster.it.ca))
            connector = aiohttp.TCPConnector(limit=0, ssl=trusting)
            timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
            kube = await stopping.enter_async_context(
                aiohttp.ClientSession(
                    timeout=timeout,
                    connector=connector,
                    read_bufsize=WATCH_BYTES,
                    headers={"Authorization": f"Bearer {token}"},
                )
            )
            web = await stopping.enter_async_context(
                aiohttp.ClientSession(
                    timeout=timeout, connector=aiohttp.TCPConnector(limit=0), headers=opened_by(stack.token)
                )
            )
            bench_cluster = BenchCluster(cluster.it, stack, kube, web)
            await bench_cluster.add_nodes(config.nodes, config.size)
            yield bench_cluster


def account(cluster: RealCluster, kubeconfig: Path) -> str:
    """Create a service account with all permissions; return its token, and write it to a kubeconfig."""
    binding = {
        "metadata": {"name": ACCOUNT},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}],
    }
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    with cluster.client() as client:
        client.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", json=binding).raise_for_status()
        client.post(accounts, json={"metadata": {"name": ACCOUNT}}).raise_for_status()
        made = client.post(f"{accounts}/{ACCOUNT}/token", json={"spec": {"expirationSeconds": TOKEN_S}})
        token: str = made.raise_for_status().json()["status"]["token"]
    write_kubeconfig(kubeconfig, url=cluster.url, ca=cluster.ca, user={"token": token})
    return token


class _Entered:
    """A cluster that was started in a thread, and the function that stops it."""

    def __init__(self, it: RealCluster, leave: Any) -> None:
        self.it = it
        self.leave = leave


async def poll(check: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until `check` returns true. Raises RuntimeError when that takes too long."""
    for _ in range(round(DEADLINE_S / POLL_S)):
        if await check():
            return
        await asyncio.sleep(POLL_S)
    raise RuntimeError(f"not within {DEADLINE_S:.0f} s: {what}")


def _entered(context: Any) -> _Entered:
    return _Entered(context.__enter__(), context.__exit__)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process since its start; 0 when the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
