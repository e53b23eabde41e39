"""The api over an in-process cluster and streams, driven through its ASGI application.

Owns the arrangement only: the builders write to the cluster what the other services would write (admission, start,
end).
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2
import msgspec
from starlette.applications import Starlette

from slipway.api.app import create_app
from slipway.api.deps import ApiDeps, connect
from slipway.api.settings import Settings
from slipway.crd import rules, schema
from slipway.crd.meta import LABEL_ALLOCATION_UID, LABEL_ATTEMPT, LABEL_RANK, LABEL_ROLE, Condition
from slipway.crd.transitions import events_after, id_of, record, with_status
from slipway.crd.v1alpha1 import Admission, Allocation, Placement, RankStatus, Release
from slipway.errors import AlreadyExistsError, InvariantError
from slipway.kube.resources import ALLOCATIONS, CRDS, NAMESPACES, NODES, PODS, QUEUES, RESOURCE_POOLS
from slipway.local.apiserver.accounts import ServiceAccountTokens
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.logs import container_of
from slipway.model.ids import pod_name
from slipway.model.lifecycle import Event, RankState
from slipway.runtime.clock import SeededRandom, SystemClock
from slipway.runtime.health import HealthApp, ProcessHealth
from slipway.runtime.service import ServiceStop
from slipway.runtime.tasks import TaskGroup
from slipway.streams.memory_server import MemoryServer
from slipway.streams.memory_side import MemoryStreams
from slipway.streams.ports import NoTally, StreamEntry
from slipway.streams.producer import BestEffortWriter
from tests.support.kube_core import CoreKube

Json = dict[str, Any]

COMMAND: Json = {"kind": "command", "image": "python:3.11", "command": ["python", "-c", "print(1)"]}


class PodLogs:
    """The logs of the pods, as their nodes return them: one line for each pod while `is_talking`, and the lines in
    `said` of each rank. Like the API server, they refuse a request that does not name one of several containers."""

    is_talking = False

    def __init__(self) -> None:
        self.said: dict[int, list[str]] = {}
        """{rank: its lines, each with its time}"""

    async def read(self, pod: Json, node: Json, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        container_of(pod, query.get("container", ""))
        if self.is_talking:
            yield f"2026-01-02T03:04:05.123456789Z I am {pod['metadata']['name']}\n".encode()
        lines = self.said.get(int(pod["metadata"]["labels"].get(LABEL_RANK, 0)), [])
        for line in lines[-int(query.get("tailLines") or len(lines) or 1) :]:
            yield f"{line}\n".encode()


HEARING_TURNS = 8
"""Number of turns of the event loop after which a write has reached the watches' stores, with some to spare."""
LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")


class ApiWorld:
    """One api, its cluster and its streams."""

    def __init__(self, settings: Settings) -> None:
        # The servers that stand for workloads listen on this machine.
        settings = msgspec.structs.replace(settings, proxy_networks=settings.proxy_networks or LOOPBACK_NETWORKS)
        self.clock = SystemClock()
        random = SeededRandom(7)
        self.core = ClusterCore(clock=self.clock.now, new_uid=lambda: str(uuid.uuid4()), twins=rules.TWINS)
        self.pod_logs = PodLogs()
        self.accounts = ServiceAccountTokens(self.core, b"the key of this cluster")
        self.kube = CoreKube(self.core, random=random, logs=self.pod_logs, accounts=self.accounts)
        self.server = MemoryServer(self.clock)
        self.streams = MemoryStreams(self.server)
        self.stop = ServiceStop()
        self.broken: list[InvariantError] = []
        behind = BestEffortWriter(self.streams, self.clock, NoTally())
        self.parts: ApiDeps = connect(
            settings=settings,
            clock=self.clock,
            random=random,
            stop=self.stop,
            kube=self.kube,
            streams=self.streams,
            behind=behind,
            on_broken=self.broken.append,
        )
        self.app: Starlette = create_app(self.parts, HealthApp(ProcessHealth(self.clock)))
        self.http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://localhost",
            event_hooks={"request": [_let_watches_hear]},
        )

    async def furnish(self) -> None:
        """Create the definitions, the workspace `default`, a pool, a queue and two nodes of 8 cpus."""
        self.core.bootstrap()
        for manifest in schema.crd_manifests():
            await self.kube.create(CRDS, manifest)
        self.core.settle()
        await self.kube.patch(NAMESPACES, "default", {"metadata": {"labels": {"slipway.dev/workspace": "true"}}})
        await self.kube.create(RESOURCE_POOLS, {"metadata": {"name": "default"}, "spec": {}})
        await self.kube.create(QUEUES, {"metadata": {"name": "default"}, "spec": {"pool": "default"}})
        for name in ("n1", "n2"):
            amounts = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2", "pods": "110"}
            ready = {"type": "Ready", "status": "True"}
            status = {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}
            created = await self.kube.create(NODES, {"metadata": {"name": name}})
            meta = {"name": name, "resourceVersion": created.metadata.resource_version}
            await self.kube.replace_status(NODES, {"metadata": meta, "status": status})

    async def offer(self, node: str, amounts: dict[str, str]) -> None:
        """Add these amounts to what the node has allocatable, or replace them."""
        found = msgspec.to_builtins(await self.kube.get(NODES, node))
        meta = {"name": node, "resourceVersion": found["metadata"]["resourceVersion"]}
        status = {**found["status"], "allocatable": {**found["status"]["allocatable"], **amounts}}
        await self.kube.replace_status(NODES, {"metadata": meta, "status": status})

    def token_of(self, pod: str, *, audience: str = "slipway", life_s: int = 3600) -> str:
        """Return the token that the kubelet would project into that pod."""
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod}
        spec = {"audiences": [audience], "expirationSeconds": life_s, "boundObjectRef": bound}
        made = self.accounts.issue("default", "default", {"spec": spec})
        return str(made["status"]["token"])

    async def launch(self, headers: dict[str, str] | None = None, **body: Any) -> Json:
        """Send a launch that the api must accept; return its answer. The queue that it names is created."""
        if "queue" in body:
            await self.make_queue(body["queue"])
        response = await self.http.post("/api/v1/allocations", json={**COMMAND, **body}, headers=headers)
        assert response.status_code in (200, 201), response.text
        return dict(response.json())

    async def make_queue(self, name: str, pool: str = "default") -> None:
        """Create the queue of that name, unless it exists."""
        with suppress(AlreadyExistsError):
            await self.kube.create(QUEUES, {"metadata": {"name": name}, "spec": {"pool": pool}})

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """GET below /api/v1."""
        return await self.http.get(f"/api/v1{path}", headers=headers)

    async def post(self, path: str, body: Json | None = None, **headers: str) -> httpx2.Response:
        """POST below /api/v1."""
        return await self.http.post(f"/api/v1{path}", json=body, headers=headers)

    async def stored(self, name: str, namespace: str = "default") -> Allocation:
        """Return the allocation as the cluster stores it."""
        return await self.kube.get(ALLOCATIONS, name, namespace=namespace)

    async def names(self) -> list[str]:
        """Return the names of all allocations."""
        return [each.metadata.name for each in (await self.kube.list(ALLOCATIONS)).items]

    async def step(self, name: str, event: Event, *, namespace: str = "default", **changes: Any) -> Allocation:
        """Write one transition, as the scheduler or the watcher writes it. Its event is not published."""
        moved = record(await self.stored(name, namespace), event, now=self.clock.now(), **changes)
        return await self.kube.replace_status(ALLOCATIONS, moved)

    async def publish(self, allocation: Allocation, after: int = 0) -> None:
        """Publish the events after number `after`, as the watcher relays them."""
        await self.streams.events.append([StreamEntry(event=event) for event in events_after(allocation, after)])

    async def publish_if_up(self, allocation: Allocation, after: int = 0) -> None:
        """Like `publish`, but without a Redis server nothing happens."""
        if not self.server.absent:
            await self.publish(allocation, after)

    async def explain(self, name: str, code: str, message: str, *, namespace: str = "default") -> None:
        """Write the scheduler's explanation of a waiting allocation."""
        found = await self.stored(name, namespace)
        condition = Condition(
            type="Admitted", status="False", reason=code, message=message, observed_generation=found.status.attempt
        )
        status = msgspec.structs.replace(found.status, conditions=[condition])
        await self.kube.replace_status(ALLOCATIONS, with_status(found, status))

    async def run(
        self, name: str, *, namespace: str = "default", ip: str = "127.0.0.1", node: str = "n1", **changes: Any
    ) -> Allocation:
        """Admit the allocation, create its pods, release them and let them run; `changes` are fields of its status."""
        found = await self.stored(name, namespace)
        roles = [role.name for role in found.spec.ranks for _ in range(role.count)]
        placements = [Placement(rank=rank, role=role, node=node) for rank, role in enumerate(roles)]
        admission = Admission(decision_id="d1", epoch=1, attempt=found.status.attempt, placements=placements)
        found = await self.step(name, Event.ASSIGNED, namespace=namespace, admission=admission)
        uids = [await self.a_pod(found, rank, ip=ip, node=node, role=role) for rank, role in enumerate(roles)]
        release = Release(attempt=found.status.attempt, pod_uids=uids)
        ranks = [RankStatus(pod_uid=uid, node=node, phase=RankState.RUNNING) for uid in uids]
        return await self.step(name, Event.RUNNING, namespace=namespace, release=release, ranks=ranks, **changes)

    async def a_pod(self, allocation: Allocation, rank: int, *, role: str, ip: str, node: str) -> str:
        """Create a running pod of a rank; return its uid."""
        name = pod_name(id_of(allocation), allocation.status.attempt, rank)
        labels = {
            LABEL_ALLOCATION_UID: allocation.metadata.uid,
            LABEL_ATTEMPT: str(allocation.status.attempt),
            LABEL_RANK: str(rank),
            LABEL_ROLE: role,
        }
        meta = {"name": name, "namespace": allocation.metadata.namespace, "labels": labels}
        own = next((each.template for each in allocation.spec.ranks if each.name == role and each.template), None)
        containers = own["spec"]["containers"] if own else [{"name": "main", "image": "a"}]
        spec = {"schedulerName": "slipway", "nodeName": node, "containers": containers}
        pod = await self.kube.create(PODS, {"metadata": meta, "spec": spec})
        sent = {**meta, "resourceVersion": pod.metadata.resource_version}
        status = {"phase": "Running", "podIP": ip, "startTime": "2026-01-02T03:04:05Z"}
        await self.kube.replace_status(PODS, {"metadata": sent, "status": status})
        return pod.metadata.uid


async def _let_watches_hear(_: httpx2.Request) -> None:
    """Before each request, let the watches of the process receive what the test has written, as over a network."""
    for _turn in range(HEARING_TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def watching(parts: ApiDeps) -> AsyncGenerator[None]:
    """Inside the context the watches of that process run, as its composition root runs them."""
    stop = ServiceStop()
    async with TaskGroup() as tasks:
        for kept in (parts.nodes, parts.seen):
            tasks.create_task(kept.run(stop))
        try:
            yield
        finally:
            stop.set()


@asynccontextmanager
async def api_world(settings: Settings | None = None) -> AsyncGenerator[ApiWorld, None]:
    """A world with the objects of `furnish`."""
    world = ApiWorld(settings or Settings())
    await world.furnish()
    async with world.http, watching(world.parts):
        yield world
    await world.parts.forwarder.aclose()
    if world.parts.prometheus is not None:
        await world.parts.prometheus.aclose()
