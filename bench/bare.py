"""The peer of P3: a client that writes the same objects as our launches, and does nothing else.

Owns the copies. The bodies are taken from a launch that our services made. Both sides therefore write the same bytes,
with names of the same length and with the allocation as owner. Must not read, watch, wait or decide. The order within
one launch is kept (allocation, admission, ConfigMap, pods, release, bindings). Pods and bindings of a gang are sent at
once, and many launches run at the same time.
"""

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from bench.opening import session_into
from slipway.kube import client
from slipway.local.access import issue_certificate, make_token
from slipway.local.bootstrap import create_initial_objects
from slipway.local.layout import Layout
from slipway.local.process import Child
from slipway.runtime import private_files
from slipway.runtime.clock import SystemClock, SystemRandom

CONNECTIONS = 64
ALLOCATIONS = "/apis/slipway.dev/v1alpha1/namespaces/default/allocations"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SERVICES = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"
SERVER_MADE = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
SERVER_GIVEN = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy", "sessionAffinity")
POD_DEFAULTS = (
    "dnsPolicy",
    "serviceAccount",
    "serviceAccountName",
    "priority",
    "preemptionPolicy",
    "terminationGracePeriodSeconds",
)
CONTAINER_DEFAULTS = ("terminationMessagePath", "terminationMessagePolicy", "imagePullPolicy")
"""Fields that the server adds to a pod's spec: our services do not send them, so the copies must not either."""
JSON_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}

Read = Callable[[str], Awaitable[dict[str, Any]]]


class Made(msgspec.Struct):
    uid: str = ""
    resource_version: str = msgspec.field(default="", name="resourceVersion")


class Answer(msgspec.Struct):
    """The part of an answer that is decoded."""

    metadata: Made = msgspec.field(default_factory=Made)


_ANSWER = msgspec.json.Decoder(Answer)


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one launch, ready to be written again with another name."""

    allocation: bytes
    admitted: dict[str, Any]
    released: dict[str, Any]
    shared: tuple[tuple[str, bytes], ...]
    """(path, body) of the ConfigMap and, for a gang, of its Service"""
    pods: tuple[bytes, ...]
    name: str
    uid: str
    nodes: tuple[str, ...]

    @property
    def id(self) -> str:
        """The AllocationID of the original."""
        return f"{self.name}-{self.uid[:8]}"

    @classmethod
    async def of(cls, read: Read, allocation_id: str) -> Self:
        """Read back what a launch wrote; `read` gives the object at a path."""
        name = allocation_id.rpartition("-")[0]
        allocation = await read(f"{ALLOCATIONS}/{name}")
        status = allocation.pop("status")
        ranks = len(status["release"]["podUIDs"])
        shared = [(CONFIG_MAPS, _fresh(await read(f"{CONFIG_MAPS}/{allocation_id}-1")))]
        if ranks > 1:
            service = await read(f"{SERVICES}/{allocation_id}-1")
            service.pop("status", None)
            for given in SERVER_GIVEN[1:]:
                service["spec"].pop(given, None)
            shared.append((SERVICES, _fresh(service)))
        pods = [await read(f"{PODS}/{allocation_id}-1-{rank}") for rank in range(ranks)]
        nodes = [str(pod["spec"].pop("nodeName")) for pod in pods]
        for pod in pods:
            _undefault(pod)
        released = {key: status[key] for key in ("attempt", "admission", "release")}
        # The status that the scheduler wrote: later additions of the watcher are not part of a launch.
        released |= {"phase": "Assigned", "seq": 2, "transitions": status["transitions"][:2]}
        released["conditions"] = [item for item in status["conditions"] if item["type"] == "Admitted"]
        return cls(
            allocation=_fresh(allocation),
            admitted={key: value for key, value in released.items() if key != "release"},
            released=released,
            shared=tuple(shared),
            pods=tuple(_fresh(pod) for pod in pods),
            name=name,
            uid=str(allocation["metadata"]["uid"]),
            nodes=tuple(nodes),
        )


class BareClient:
    """Writes launches over at most `CONNECTIONS` connections of its own."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._count = 0

    async def burst(self, copied: Copied, count: int, clients: int) -> None:
        """Write `count` launches, `clients` of them at a time."""
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                await self._launch(copied)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(worker())

    async def place(self, copied: Copied, node: str) -> None:
        """Write one launch of a single rank in its bound state, on that node, in three writes: what a restart finds."""
        self._count += 1
        name = f"bare-{self._count:0{max(1, len(copied.name) - 5)}d}"
        made = await self._send("POST", ALLOCATIONS, copied.allocation.replace(copied.name.encode(), name.encode()))
        renamed = _renaming(copied, name, made.uid)
        there, here = copied.nodes[0].encode(), node.encode()
        pod = msgspec.json.decode(renamed(copied.pods[0]))
        pod["spec"]["nodeName"] = node
        placed = await self._send("POST", PODS, msgspec.json.encode(pod))
        status = {**copied.released, "release": {"attempt": 1, "podUIDs": [placed.uid]}}
        moved = msgspec.json.decode(msgspec.json.encode(status).replace(there, here))
        await self._put_status(name, made, moved)

    async def _launch(self, copied: Copied) -> None:
        self._count += 1
        name = f"bare-{self._count:0{max(1, len(copied.name) - 5)}d}"
        made = await self._send("POST", ALLOCATIONS, copied.allocation.replace(copied.name.encode(), name.encode()))
        renamed = _renaming(copied, name, made.uid)
        made = await self._put_status(name, made, copied.admitted)
        for path, body in copied.shared:
            await self._send("POST", path, renamed(body))
        pods = await self._all([self._send("POST", PODS, renamed(body)) for body in copied.pods])
        released = {**copied.released, "release": {"attempt": 1, "podUIDs": [pod.uid for pod in pods]}}
        await self._put_status(name, made, released)
        id_ = f"{name}-{made.uid[:8]}"
        await self._all(
            [
                self._bind(f"{id_}-1-{rank}", pod.uid, node)
                for rank, (pod, node) in enumerate(zip(pods, copied.nodes, strict=True))
            ]
        )

    async def _put_status(self, name: str, made: Made, status: dict[str, Any]) -> Made:
        body = {
            "apiVersion": "slipway.dev/v1alpha1",
            "kind": "Allocation",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": made.uid,
                "resourceVersion": made.resource_version,
            },
            "status": status,
        }
        return await self._send("PUT", f"{ALLOCATIONS}/{name}/status", msgspec.json.encode(body))

    async def _bind(self, pod: str, uid: str, node: str) -> Made:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": "default", "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        return await self._send("POST", f"{PODS}/{pod}/binding", msgspec.json.encode(binding))

    async def _all(self, calls: list[Any]) -> list[Made]:
        return [await calls[0]] if len(calls) == 1 else list(await asyncio.gather(*calls))

    async def _send(self, method: str, path: str, body: bytes) -> Made:
        async with (
            self._slots,
            self._session.request(method, self._url + path, data=body, headers=JSON_HEADERS) as answer,
        ):
            answered = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {answered[:500]!r}")
        return _ANSWER.decode(answered).metadata


class BareCluster:
    """A local API server with our definitions and without watches."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._client = BareClient(session, url)

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls) -> AsyncGenerator[Self]:
        """Start an API server in its own process and folder, with data on disk, a token and TLS, as in the stack."""
        clock = SystemClock()
        with tempfile.TemporaryDirectory(prefix="slipway-bench-") as folder:
            layout = Layout(Path(folder) / "bare")
            layout.make()
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                listen = f"127.0.0.1:{probe.getsockname()[1]}"
            url, token, issued = f"https://{listen}", make_token(layout, clock.now()), issue_certificate(clock.now())
            private_files.write(layout.certificate, issued.server)
            layout.write_kubeconfig(url, token=token, authority=issued.authority)
            argv = [sys.executable, "-m", "slipway.local.apiserver", "--listen", listen, "--data", str(layout.cluster)]
            argv += ["--token-file", str(layout.token), "--tls-cert-file", str(layout.certificate)]
            child = Child("bare", argv, env=dict(os.environ), log=layout.logs / "bare.log", clock=clock, url=url)
            await child.start()
            try:
                async with client.connect(str(layout.kubeconfig), clock=clock, random=SystemRandom()) as kube:
                    await create_initial_objects(kube, clock, system_namespace="slipway-system", local_defaults=True)
                async with session_into(layout.kubeconfig) as session:
                    yield cls(session, url)
            finally:
                await child.stop(5.0)

    async def burst(self, copied: Copied, count: int, clients: int) -> float:
        """Write launches, `clients` at a time; return the launches per second."""
        started_s = time.perf_counter()
        await self._client.burst(copied, count, clients)
        return count / (time.perf_counter() - started_s)


def _renaming(copied: Copied, name: str, uid: str) -> Callable[[bytes], bytes]:
    """Return a function that renames a body. It replaces the id first, because the id contains the name."""
    pairs = [(copied.id, f"{name}-{uid[:8]}"), (copied.uid, uid), (copied.name, name)]
    changes = [(old.encode(), new.encode()) for old, new in pairs]

    def renamed(body: bytes) -> bytes:
        for old, new in changes:
            body = body.replace(old, new)
        return body

    return renamed


def _undefault(pod: dict[str, Any]) -> None:
    pod.pop("status")
    spec = pod["spec"]
    spec["tolerations"] = [
        item for item in spec.get("tolerations", ()) if not str(item.get("key")).startswith("node.kubernetes.io/")
    ]
    for parts, added in ((spec, POD_DEFAULTS), *((item, CONTAINER_DEFAULTS) for item in spec["containers"])):
        for key in added:
            parts.pop(key, None)
    if not spec["tolerations"]:
        del spec["tolerations"]


def _fresh(found: dict[str, Any]) -> bytes:
    """Return the object without the fields that the server adds."""
    meta = {key: value for key, value in found["metadata"].items() if key not in SERVER_MADE}
    return msgspec.json.encode({**found, "metadata": meta})
