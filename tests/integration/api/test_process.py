"""The api as a process: it checks itself, refuses what is unsafe, serves, and stops quickly."""

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx2
import msgspec
import pytest

from slipway.kube.client import connect
from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import create_app
from slipway.local.bootstrap import create_initial_objects
from slipway.runtime.clock import SeededRandom, SystemClock
from tests.support.http_stub import serve_app, write_kubeconfig
from tests.support.plain_http import NO_TLS
from tests.support.ports import free_port
from tests.support.wait import wait_until

EXIT_S = 20.0


def environment(kubeconfig: str, **settings: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    return {**kept, "KUBECONFIG": kubeconfig, "SLIPWAY_LOG_LEVEL": "warning", **settings}


async def run(env: dict[str, str], *args: str) -> tuple[int, str]:
    """Run one api and return (exit code, output)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "slipway.api.main", *args, env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(EXIT_S):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said.decode()


@asynccontextmanager
async def a_cluster(folder: Path, *, is_furnished: bool = True) -> AsyncGenerator[str, None]:
    """A kubeconfig for a fresh local cluster."""
    from slipway.crd import rules

    clock = SystemClock()
    core = ClusterCore(clock=clock.now, new_uid=lambda: str(uuid.uuid4()), twins=rules.TWINS)
    core.bootstrap()
    app = create_app(core)
    async with serve_app(app, before_stop=app.state.server.close) as url:
        kubeconfig = write_kubeconfig(folder, url)
        if is_furnished:
            async with connect(kubeconfig, clock=clock, random=SeededRandom(1)) as kube:
                await create_initial_objects(kube, clock, system_namespace="slipway-system", local_defaults=False)
        yield kubeconfig


@pytest.mark.parametrize("is_furnished", [True, False])
async def test_once_checks_that_the_service_can_start(tmp_path: Path, is_furnished: bool) -> None:
    """`--once` returns 0 when Kubernetes answers and has our resources, else 1 with the next step."""
    async with a_cluster(tmp_path, is_furnished=is_furnished) as kubeconfig:
        code, said = await run(environment(kubeconfig), "--once")
    assert code == (0 if is_furnished else 1), said
    assert is_furnished or "not installed" in said


async def test_once_without_kubernetes_fails(tmp_path: Path) -> None:
    """Without Kubernetes `--once` returns 1: there is nothing to serve."""
    kubeconfig = write_kubeconfig(tmp_path, f"http://127.0.0.1:{free_port()}")
    code, said = await run(environment(kubeconfig), "--once")
    assert code == 1
    assert "Traceback" not in said


async def test_an_unsafe_address_is_refused(tmp_path: Path) -> None:
    """An unsafe address gives exit code 2 before any socket is opened."""
    kubeconfig = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    code, said = await run(environment(kubeconfig, SLIPWAY_LISTEN="0.0.0.0:0"))
    assert (code, "loopback" in said) == (2, True)


async def test_it_serves_and_stops_with_streams_open(tmp_path: Path) -> None:
    """The api launches over a real socket without Redis; SIGTERM ends an open stream and the process, with exit code
    0."""
    port = free_port()
    async with a_cluster(tmp_path) as kubeconfig:
        env = environment(kubeconfig, SLIPWAY_LISTEN=f"127.0.0.1:{port}")
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "slipway.api.main", env=env)
        try:
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", verify=NO_TLS, trust_env=False
            ) as client:
                await _ready(client)
                body = {"kind": "command", "image": "a", "command": ["x"]}
                answer = (await client.post("/api/v1/allocations", json=body)).json()
                async with client.stream("GET", f"/api/v1/allocations/{answer['id']}/events") as response:
                    lines = response.aiter_lines()
                    while not (await anext(lines)).startswith("data:"):
                        pass
                    process.send_signal(signal.SIGTERM)
                    async with asyncio.timeout(5):
                        assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _has_lines(file: Path, count: int) -> bool:
    return file.is_file() and file.read_bytes().count(b"\n") == count


async def test_audit_events_are_in_the_file_when_the_process_has_ended(tmp_path: Path) -> None:
    """A launch and a refused one are a CloudEvent each, in a file that only our user can read."""
    port, file = free_port(), tmp_path / "audit.jsonl"
    async with a_cluster(tmp_path) as kubeconfig:
        env = environment(kubeconfig, SLIPWAY_LISTEN=f"127.0.0.1:{port}", SLIPWAY_AUDIT_FILE=str(file))
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "slipway.api.main", env=env)
        try:
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", verify=NO_TLS, trust_env=False
            ) as client:
                await _ready(client)
                body = {"kind": "command", "image": "a", "command": ["x"], "name": "told"}
                assert (await client.post("/api/v1/allocations", json=body)).status_code == 201
                assert (await client.post("/api/v1/allocations", json={**body, "queue": "none"})).status_code == 422
            # Then the process has nothing left to deliver: a process that waits for events must end too.
            written = partial(_has_lines, file, 2)
            await asyncio.to_thread(wait_until, written, "both events are in the file")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(EXIT_S):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    events = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    assert [(each["type"], each["data"]["status"]) for each in events] == [
        ("dev.slipway.audit.v1", 201),
        ("dev.slipway.audit.v1", 422),
    ]
    assert events[0]["data"]["object"]["name"] == "told"
    assert file.stat().st_mode & 0o777 == 0o600


async def test_probes_have_an_address_of_their_own(tmp_path: Path) -> None:
    """In a pod the kubelet reaches the probes from outside while the api listens inside only; the probe address
    serves nothing else."""
    port, health_port = free_port(), free_port()
    async with a_cluster(tmp_path) as kubeconfig:
        env = environment(
            kubeconfig, SLIPWAY_LISTEN=f"127.0.0.1:{port}", SLIPWAY_HEALTH_LISTEN=f"127.0.0.1:{health_port}"
        )
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "slipway.api.main", env=env)
        try:
            async with httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{health_port}", verify=NO_TLS, trust_env=False
            ) as client:
                await _ready(client)
                codes = {path: (await client.get(path)).status_code for path in ("/livez", "/metrics", "/api/v1/me")}
            assert codes == {"/livez": 200, "/metrics": 200, "/api/v1/me": 404}
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(EXIT_S):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _ready(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(EXIT_S):
        while True:
            try:
                if (await client.get("/readyz")).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.05)
