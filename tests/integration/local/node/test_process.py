"""The node process: killed, started again, stopped."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from slipway.crd.roleresources import objects_of
from slipway.errors import TransientError
from slipway.kube.client import KubeClient, connect
from slipway.kube.resources import CONFIG_MAPS
from slipway.local.node.podview import NODES, PODS, NodePod
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.support.http_stub import write_kubeconfig
from tests.support.local_node import is_alive

NAMESPACE = "default"
TOKEN = "secret"


class NodeAndServer:
    """A local API server and the node process, both real."""

    def __init__(self, kube: KubeClient, folder: Path, kubeconfig: str) -> None:
        self.kube = kube
        self.folder = folder
        self._kubeconfig = kubeconfig
        self.node: subprocess.Popen[bytes] | None = None

    def start_node(self) -> None:
        state = ["--state", str(self.folder), "--nodes", "1"]
        self.node = _spawn("slipway.local.node", *state, "--kubeconfig", self._kubeconfig)

    async def stop_node(self, how: signal.Signals) -> int:
        assert self.node is not None
        self.node.send_signal(how)
        async with asyncio.timeout(15):
            return await asyncio.to_thread(self.node.wait)

    async def start(self, name: str, script: str, **more: Any) -> None:
        """Start a pod; `more` are fields of its container."""
        container = {"name": "main", "image": "x", "command": ["sh", "-c", script], **more}
        spec = {"nodeName": "node-0", "restartPolicy": "Never", "containers": [container]}
        await self.kube.create(PODS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})

    async def in_phase(self, name: str, *phases: str) -> NodePod:
        async with asyncio.timeout(15):
            while True:
                pod = await self.kube.get(PODS, name, namespace=NAMESPACE)
                if pod.phase in phases:
                    return pod
                await asyncio.sleep(0.02)

    async def is_ready(self, name: str, *, restarts: int = 0) -> None:
        """Wait until the container is ready, and shown as running."""
        async with asyncio.timeout(15):
            while True:
                pod = await self.kube.get(PODS, name, namespace=NAMESPACE)
                main = objects_of(pod.status["containerStatuses"])[0]
                if main["ready"]:
                    assert ("running" in main["state"], main["restartCount"]) == (True, restarts)
                    return
                await asyncio.sleep(0.02)

    async def log(self, name: str) -> str:
        raw = await self.kube.read_log(NAMESPACE, name)
        return " ".join(line.partition(" ")[2] for line in raw.decode().splitlines())

    async def logged(self, name: str) -> str:
        """Wait for a log that is not empty, and return it."""
        async with asyncio.timeout(10):
            while not (text := await self.log(name)):  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.02)
        return text


@pytest.fixture
async def node_and_server(tmp_path: Path) -> AsyncGenerator[NodeAndServer, None]:
    """A machine with both processes running."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (tmp_path / "token").write_text(TOKEN)
    server = _spawn("slipway.local.apiserver", "--listen", address, "--token-file", str(tmp_path / "token"))
    kubeconfig = write_kubeconfig(tmp_path, f"http://{address}", {"token": TOKEN})
    async with connect(kubeconfig, clock=SystemClock(), random=SeededRandom(1)) as kube:
        node_and_server = NodeAndServer(kube, tmp_path / "nodes", kubeconfig)
        node_and_server.start_node()
        try:
            async with asyncio.timeout(30):
                while not await _has_node(kube):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            yield node_and_server
        finally:
            for process in (node_and_server.node, server):
                if process is not None and process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(10)
                    process.kill()
                    process.wait()


def _spawn(module: str, *argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", module, *argv])


async def _has_node(kube: KubeClient) -> bool:
    try:
        return bool((await kube.list(NODES)).items)
    except TransientError:
        return False


async def test_a_killed_node_process_finds_its_pods_again(node_and_server: NodeAndServer):
    """Programs run on without the node process, are not started again, and no exit or output is lost."""
    wait = "while [ ! -e $HOME/go ]; do sleep 0.02; done"
    await node_and_server.start("lives", f"echo once; {wait}; echo later; exit 5")
    await node_and_server.start("ends", f"echo once; {wait}; exit 6")
    pods = {name: await node_and_server.in_phase(name, "Running") for name in ("lives", "ends")}
    await node_and_server.stop_node(signal.SIGKILL)
    home = {name: node_and_server.folder / "pods" / pod.metadata.uid for name, pod in pods.items()}
    (home["ends"] / "home" / "go").touch()
    async with asyncio.timeout(10):
        while not (home["ends"] / "containers" / "main" / "0" / "exit").exists():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    node_and_server.start_node()
    ended = await node_and_server.in_phase("ends", "Failed")
    assert objects_of(ended.status["containerStatuses"])[0]["state"]["terminated"]["exitCode"] == 6
    (home["lives"] / "home" / "go").touch()
    lived = await node_and_server.in_phase("lives", "Failed")
    assert objects_of(lived.status["containerStatuses"])[0]["state"]["terminated"]["exitCode"] == 5
    assert lived.status["podIP"] == pods["lives"].status["podIP"]
    assert await node_and_server.log("lives") == "once later"


async def test_a_container_that_is_found_again_is_probed_as_it_was_started(node_and_server: NodeAndServer):
    """The probe uses the command and environment of the container's start, also when their sources are gone."""
    await node_and_server.kube.create(
        CONFIG_MAPS, {"metadata": {"name": "code", "namespace": NAMESPACE}, "data": {"FLAG": "ready"}}
    )
    probe = {"exec": {"command": ["sh", "-c", 'test -e "$HOME/$FLAG"']}, "periodSeconds": 1}
    source = [{"configMapRef": {"name": "code"}}]
    await node_and_server.start("probed", "exec sleep 600", envFrom=source, readinessProbe=probe)
    pod = await node_and_server.in_phase("probed", "Running")
    await node_and_server.stop_node(signal.SIGKILL)
    await node_and_server.kube.delete(CONFIG_MAPS, "code", namespace=NAMESPACE)
    (node_and_server.folder / "pods" / pod.metadata.uid / "home" / "ready").touch()
    node_and_server.start_node()
    await node_and_server.is_ready("probed")


async def test_a_lost_process_is_reported_and_not_started_again(node_and_server: NodeAndServer):
    """For a program that was killed together with the node process, or whose folder is gone, the exit is unknown."""
    await node_and_server.start("lost", "echo once; sleep 60")
    pod = await node_and_server.in_phase("lost", "Running")
    await node_and_server.logged("lost")
    await node_and_server.stop_node(signal.SIGKILL)
    folder = node_and_server.folder / "pods" / pod.metadata.uid
    os.killpg(int((folder / "containers" / "main" / "0" / "pid").read_text()), signal.SIGKILL)
    node_and_server.start_node()
    pod = await node_and_server.in_phase("lost", "Failed")
    ended = objects_of(pod.status["containerStatuses"])[0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
    assert await node_and_server.log("lost") == "once"


async def test_sigterm_ends_every_pod_and_says_so(node_and_server: NodeAndServer):
    """The grace is capped, the statuses are written, and no process runs on."""
    await node_and_server.start("polite", "trap 'exit 0' TERM; echo $$$$; while :; do sleep 0.02; done")
    await node_and_server.start("stubborn", "trap '' TERM; echo $$$$; while :; do sleep 0.02; done")
    for name in ("polite", "stubborn"):
        await node_and_server.in_phase(name, "Running")
    pids = [int(await node_and_server.logged(name)) for name in ("polite", "stubborn")]
    assert await node_and_server.stop_node(signal.SIGTERM) == 0
    for name in ("polite", "stubborn"):
        pod = await node_and_server.in_phase(name, "Failed")
        assert pod.status["reason"] == "Terminated"
    for pid in pids:
        assert not is_alive(pid)


async def test_one_process_per_folder(node_and_server: NodeAndServer):
    """A second node process on the same state refuses to start."""
    argv = ["slipway.local.node", "--state", str(node_and_server.folder)]
    second = await asyncio.create_subprocess_exec(sys.executable, "-m", *argv, stderr=subprocess.PIPE)
    _, words = await second.communicate()
    assert second.returncode == 2
    assert b"another process runs the nodes" in words
