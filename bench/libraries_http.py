"""HTTP: compares our client of the Kubernetes API with those of libraries, and httpx2 with its predecessor httpx.

Owns one call of each kind to a server in another process, whose answers are prepared in advance. TLS is not used,
because it costs every side the same.
"""

import asyncio
import gc
import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import msgspec

from bench.libraries_server import LISTED
from bench.runner import Row, paired, row
from slipway.kube import client
from slipway.kube.resources import PODS
from slipway.runtime.clock import SystemClock, SystemRandom

CALLS = 600
LISTS = 5
CONTENT = 4_096

Call = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def _server() -> AsyncGenerator[int]:
    """Provide the port of the server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.libraries_server", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    if process.stdout is None or process.stdin is None:
        raise RuntimeError("the server has no pipes")
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def _ours(port: int) -> AsyncGenerator[client.KubeClient]:
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "bench", "user": {"token": "token"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    }
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        path = Path(folder, "kubeconfig")
        path.write_bytes(msgspec.json.encode(kubeconfig))  # noqa: ASYNC240 - a file of a few lines, before anything runs
        async with client.connect(str(path), clock=SystemClock(), random=SystemRandom()) as kube:
            yield kube


@asynccontextmanager
async def _typed(port: int) -> AsyncGenerator[Any]:
    """Provide the library's typed calls over aiohttp."""
    library: Any = importlib.import_module("kubernetes.aio.client")
    configuration = library.Configuration(host=f"http://127.0.0.1:{port}")
    async with library.ApiClient(configuration) as api:
        yield library.CoreV1Api(api)


@asynccontextmanager
async def _typed_and_blocking(port: int) -> AsyncGenerator[Any]:
    """Provide the library's typed calls over urllib3: each call blocks, so a service would also need threads."""
    library: Any = importlib.import_module("kubernetes.client")
    with library.ApiClient(library.Configuration(host=f"http://127.0.0.1:{port}")) as api:
        yield library.CoreV1Api(api)


async def _cost(call: Call, count: int) -> float:
    """Return the CPU time per call in microseconds."""
    await call()
    gc.collect()  # the garbage of the other side must not count for this one
    cpu_s = time.process_time()
    for _ in range(count):
        await call()
    return (time.process_time() - cpu_s) / count * 1e6


def _blocking(call: Callable[[], Any]) -> Call:
    async def made() -> Any:
        return call()

    return made


async def _rows(runs: int, id_: str, work: str, ours: Call, peer: Call, name: str, count: int) -> Row:
    costs = await paired(runs, lambda _: _cost(ours, count), lambda _: _cost(peer, count))
    return row(id_, work, costs[0], "us", peer=costs[1], peer_name=name)


async def _kubernetes(runs: int, port: int) -> list[Row]:
    rows: list[Row] = []
    get = f"http://127.0.0.1:{port}/api/v1/namespaces/default/pods/train"
    headers = {"Authorization": "Bearer token", "Accept": "application/json"}
    decoder = msgspec.json.Decoder(PODS.struct)
    async with (
        _ours(port) as kube,
        _typed(port) as typed,
        _typed_and_blocking(port) as blocking,
        aiohttp.ClientSession(headers=headers) as session,
    ):

        async def raw() -> Any:
            async with session.get(get) as answer:
                return decoder.decode(await answer.read())

        def one() -> Awaitable[Any]:
            return kube.get(PODS, "train", namespace="default")

        def many() -> Awaitable[Any]:
            return kube.list(PODS, namespace="default")

        for name, peer in (
            ("aiohttp and our structs", raw),
            ("kubernetes.aio, typed", lambda: typed.read_namespaced_pod("train", "default")),
            ("kubernetes, typed, blocking", _blocking(lambda: blocking.read_namespaced_pod("train", "default"))),
        ):
            short = name.partition(",")[0].partition(" ")[0].replace(".", "-")
            work = "Kubernetes: GET of a pod, cpu"
            rows.append(await _rows(runs, f"LIB-kube-get-{short}", work, one, peer, name, CALLS))
        for name, peer in (
            ("kubernetes.aio, typed", lambda: typed.list_namespaced_pod("default")),
            ("kubernetes, typed, blocking", _blocking(lambda: blocking.list_namespaced_pod("default"))),
        ):
            short = name.partition(",")[0].replace(".", "-")
            work = f"Kubernetes: LIST of {LISTED} pods, cpu"
            rows.append(await _rows(runs, f"LIB-kube-list-{short}", work, many, peer, name, LISTS))
    return rows


async def _outside(runs: int, port: int) -> list[Row]:
    """Compare the client of webhooks, OIDC, the proxy and the SDK with its predecessor."""
    if importlib.util.find_spec("httpx") is None:
        print("bench libraries: without httpx its successor is not compared with it", file=sys.stderr)
        return []
    older: Any = importlib.import_module("httpx")
    url, body = f"http://127.0.0.1:{port}/small", b"x" * CONTENT
    async with httpx2.AsyncClient(trust_env=False) as ours, older.AsyncClient(trust_env=False) as peer:
        work = "outside Kubernetes: a POST of 4 kB, cpu"
        return [
            await _rows(
                runs,
                "LIB-http-post",
                work,
                lambda: ours.post(url, content=body),
                lambda: peer.post(url, content=body),
                "httpx",
                CALLS,
            )
        ]


async def measure(runs: int) -> list[Row]:
    """Return the rows of this comparison."""
    async with _server() as port:
        return [*await _kubernetes(runs, port), *await _outside(runs, port)]
