"""Simulated nodes for a benchmark, in their own process: bound pods run and end as their annotation says."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from tests.conformance.kubelets import PLAY

READY_S = 120.0
STOP_S = 15.0
MEMORY = "1024Gi"


@contextlib.asynccontextmanager
async def simulated_nodes(
    kubeconfig: Path, nodes: int, cpus: int, pods: int = 1000, *, local: bool = False
) -> AsyncGenerator[int]:
    """Start `nodes` simulated nodes and wait until they are ready; yield the pid. `local`: for the local cluster."""
    argv = [sys.executable, "-m", "tests.conformance.kubelets", "--kubeconfig", str(kubeconfig), "--no-heartbeat"]
    argv += ["--nodes", str(nodes), "--cpu", str(cpus), "--memory", MEMORY, "--pods", str(pods)]
    argv += ["--local"] if local else []
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, env=env)
    try:
        if process.stdout is None:
            raise RuntimeError("no output of the simulated nodes")
        async with asyncio.timeout(READY_S):
            line = await process.stdout.readline()
        if b"ready" not in line:
            raise RuntimeError(f"the simulated nodes say {line!r}")
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(STOP_S):
            await process.communicate()


def played(runs_s: float) -> dict[str, str]:
    """Return the annotations of a pod that starts at once and runs for `runs_s` seconds."""
    return {PLAY: msgspec.json.encode({"startsS": 0, "runsS": runs_s}).decode()}
