"""The peer of P3: a client that writes what one launch writes, and does nothing else, to an API server of its own.

Owns the copies: bodies are taken from a launch that our services made, so that both sides write the same bytes. Must
not read, watch, wait or decide.
"""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Self

import msgspec

from bench.stand import Stand
from slipway.kube import client
from slipway.local.furnish import furnish
from slipway.local.layout import Layout
from slipway.local.process import Child
from slipway.runtime.clock import SystemClock, SystemRandom

ALLOCATIONS = "/apis/slipway.dev/v1alpha1/namespaces/default/allocations"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
SERVER_MADE = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "ownerReferences")


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one launch, ready to be written again under another name."""

    allocation: bytes
    admitted: dict[str, Any]
    released: dict[str, Any]
    configmap: bytes
    pod: bytes
    name: bytes
    node: str

    @classmethod
    async def of(cls, stand: Stand, allocation_id: str) -> Self:
        """Read back what a launch wrote."""
        name = allocation_id.rpartition("-")[0]
        allocation = await stand.read(f"{ALLOCATIONS}/{name}")
        configmap = await stand.read(f"{CONFIG_MAPS}/{allocation_id}-1")
        pod = await stand.read(f"{PODS}/{allocation_id}-1-0")
        status = allocation["status"]
        node = str(pod["spec"].pop("nodeName"))
        pod.pop("status")
        released = {
            key: status[key] for key in ("phase", "seq", "attempt", "admission", "transitions", "conditions", "release")
        }
        released["phase"] = "Assigned"
        admitted = {key: value for key, value in released.items() if key != "release"}
        allocation.pop("status")
        return cls(
            allocation=_fresh(allocation),
            admitted=admitted,
            released=released,
            configmap=_fresh(configmap),
            pod=_fresh(pod),
            name=name.encode(),
            node=node,
        )


class BareCluster:
    """An API server with our definitions and nobody watching."""

    def __init__(self, stand: Stand, url: str) -> None:
        self._session = stand.session
        self._url = url

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, stand: Stand) -> AsyncGenerator[Self]:
        """One in a process and a folder of its own, kept on disk as the stack's is."""
        clock = SystemClock()
        with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
            layout = Layout(Path(folder) / "bare")
            layout.make()
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                listen = f"127.0.0.1:{probe.getsockname()[1]}"
            layout.write_kubeconfig(f"http://{listen}")
            argv = [sys.executable, "-m", "slipway.local.apiserver", "--listen", listen, "--data", str(layout.cluster)]
            child = Child(
                "bare", argv, env=dict(os.environ), log=layout.logs / "bare.log", clock=clock, url=f"http://{listen}"
            )
            await child.start()
            try:
                async with client.connect(str(layout.kubeconfig), clock=clock, random=SystemRandom()) as kube:
                    await furnish(kube, clock, system_namespace="slipway-system", local_defaults=True)
                yield cls(stand, f"http://{listen}")
            finally:
                await child.stop(5.0)

    async def burst(self, copied: Copied, count: int, clients: int, run: int) -> float:
        """Launches per second, `clients` at a time."""
        left = iter(range(count))
        started_s = time.perf_counter()

        async def worker() -> None:
            for number in left:
                await self._launch(copied, b"bare-%03d-%05d" % (run, number))

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(worker())
        return count / (time.perf_counter() - started_s)

    async def _launch(self, copied: Copied, name: bytes) -> None:
        allocation = await self._send("POST", ALLOCATIONS, copied.allocation.replace(copied.name, name))
        path = f"{ALLOCATIONS}/{name.decode()}/status"
        allocation = await self._send("PUT", path, msgspec.json.encode({**allocation, "status": copied.admitted}))
        await self._send("POST", CONFIG_MAPS, copied.configmap.replace(copied.name, name))
        pod = await self._send("POST", PODS, copied.pod.replace(copied.name, name))
        uids = [pod["metadata"]["uid"]]
        released = {**copied.released, "release": {**copied.released["release"], "podUIDs": uids}}
        await self._send("PUT", path, msgspec.json.encode({**allocation, "status": released}))
        pod_name = pod["metadata"]["name"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod_name, "uid": uids[0]},
            "target": {"kind": "Node", "name": copied.node},
        }
        await self._send("POST", f"{PODS}/{pod_name}/binding", msgspec.json.encode(binding))

    async def _send(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        async with self._session.request(method, self._url + path, data=body, headers=headers) as answer:
            answered = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {answered[:500]!r}")
        return msgspec.json.decode(answered)


def _fresh(found: dict[str, Any]) -> bytes:
    """Without what the server adds."""
    meta = {key: value for key, value in found["metadata"].items() if key not in SERVER_MADE}
    return msgspec.json.encode({**found, "metadata": meta})
