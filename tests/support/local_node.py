"""A cluster core with real local nodes in one process: pods are real processes, the API is function calls.

Owns the kubelet's life around a test, and the few steps that tests of pods share. No process outlives the test.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from slipway.crd.meta import RawObject
from slipway.crd.roleresources import objects_of
from slipway.errors import NotFoundError
from slipway.kube.resources import CONFIG_MAPS
from slipway.local.apiserver.accounts import ServiceAccountTokens
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.logs import NodeLogSource
from slipway.local.node.kubelet import Kubelet
from slipway.local.node.podview import PODS, NodePod
from slipway.local.node.registration import NodeShape
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.support.clock import wait_until
from tests.support.kube_core import CoreKube

NAMESPACE = "default"
SHAPE = NodeShape(cpus=4, memory="8Gi", gpus=2)


class NodeWorld:
    """Two nodes and a client. Pods are created unbound and bound by `start`, as the pod worker does."""

    def __init__(self, core: ClusterCore, kube: CoreKube, folder: Path) -> None:
        self.core = core
        self.kube = kube
        self.folder = folder

    async def start(self, name: str, command: list[str] | None = None, *, node: str = "node-0", **more: Any) -> NodePod:
        """A pod of one container, bound. `more` goes into the container, `spec` and `metadata` into the pod."""
        spec: RawObject = more.pop("spec", {})
        metadata: RawObject = more.pop("metadata", {})
        container: RawObject = {"name": "main", "image": "local", **more}
        if command is not None:
            container["command"] = command
        body = {
            "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
            "spec": {"restartPolicy": "Never", "schedulerName": "slipway", "containers": [container], **spec},
        }
        pod = await self.kube.create(PODS, body)
        await self.kube.bind(NAMESPACE, name, pod.metadata.uid, node)
        return pod

    async def run(self, name: str, command: list[str] | None = None, **more: Any) -> NodePod:
        """Start a pod and wait for its end."""
        await self.start(name, command, **more)
        return await self.ended(name)

    async def ended(self, name: str) -> NodePod:
        await wait_until(lambda: self.pod(name).is_over, f"the end of {name}")
        return self.pod(name)

    async def running(self, name: str) -> NodePod:
        await wait_until(lambda: self.pod(name).phase == "Running", f"{name} running")
        return self.pod(name)

    async def gone(self, name: str) -> None:
        await wait_until(lambda: self.core.store.find("pods", NAMESPACE, name) is None, f"{name} gone")

    async def logged(self, name: str, words: str) -> str:
        """Wait until the log contains `words`; return the log."""
        await wait_until(lambda: self.pod(name).phase != "Pending", f"a log of {name}")
        async with asyncio.timeout(5):
            while words not in (text := await self.log(name)):  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.01)
        return text

    async def log(self, name: str, container: str = "") -> str:
        """Return the log without times."""
        raw = await self.kube.read_log(NAMESPACE, name, container=container)
        return "".join(line.partition(" ")[2] for line in raw.decode().splitlines(keepends=True))

    def pod(self, name: str) -> NodePod:
        """Return the pod as it is now, read from the core without the client."""
        record = self.core.store.find("pods", NAMESPACE, name)
        if record is None:
            raise NotFoundError(name)
        return msgspec.convert(record.obj, NodePod)

    def state(self, name: str, index: int = 0) -> RawObject:
        """Return the state of a container of the pod."""
        return dict(objects_of(self.pod(name).status["containerStatuses"])[index]["state"])

    async def config(self, name: str, data: dict[str, str]) -> None:
        await self.kube.create(CONFIG_MAPS, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": data})

    async def delete(self, name: str, grace_s: int | None = None) -> None:
        await self.kube.delete(PODS, name, namespace=NAMESPACE, grace_s=grace_s)


@contextlib.asynccontextmanager
async def node_world(
    folder: Path, *, core: ClusterCore | None = None, nodes: int = 2
) -> AsyncGenerator[NodeWorld, None]:
    """The world with ready nodes; all its processes end with the context. `core` is the core of another world, instead
    of a new one."""
    clock, random = SystemClock(), SeededRandom(5)
    core = core or ClusterCore(clock=clock.now, new_uid=lambda: str(uuid.uuid4()))
    core.bootstrap()
    kube = CoreKube(
        core, random=random, logs=NodeLogSource(), accounts=ServiceAccountTokens(core, b"the key of this cluster")
    )
    kubelet = Kubelet(kube, folder, nodes=nodes, shape=SHAPE, clock=clock, random=random)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kubelet.run(stop))
        try:
            await wait_until(lambda: len(core.list("nodes").items) >= nodes, "nodes registered")
            yield NodeWorld(core, kube, folder)
        finally:
            stop.set()


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
