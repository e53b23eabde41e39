"""docs/install.md, followed to the letter on a real API server: its console blocks are run as they are written.

What differs by place stands in the tables below, and nowhere else. Pods are made by Kubernetes' own controllers, and
run as processes.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from slipway.local.valkey import ServerOptions
from tests.conformance.cluster.servers import RealCluster, running_cluster
from tests.conformance.system.helm_words import PLACE
from tests.conformance.system.operator import GROUP, Operator
from tests.conformance.system.pods import ADDRESS, running_pods
from tests.conformance.wanted import require_own_cluster
from tests.support import chart
from tests.support.cli import Ran
from tests.support.ports import free_port
from tests.support.redis import running_server
from tests.support.wait import wait_until

PAGE = chart.ROOT / "docs" / "install.md"
SUBSTITUTED = {"REGISTRY/slipway": "registry.invalid/slipway", "tag=TAG": "tag=0.1.0"}
"""The placeholders of the page, and what they stand for here."""
ADDED: dict[str, object] = {"valkey": {"enabled": False}, "audit": {"enabled": False}}
"""Values that the page does not set: pods here have no names of Services, so Redis is one of this machine."""
STAYS = "port-forward"
"""A block with it runs in a terminal of its own. Nodes here forward no ports: a pipe to the pod stands for it."""
ELSEWHERE = {
    "--kubeconfig ~/.local/state": "of a laptop: tests/integration/helm/test_local_cluster.py",
    "python -m slipway.ops.setup.remove": "when no service is left: tests/conformance/system/test_nothing_stuck.py",
    "slipway-api & slipway-scheduler": "without Helm: tests/e2e run the four programs so",
}
"""Blocks that are not run here, by what is in them, and why."""
BLOCK_S = 240.0


class Block(NamedTuple):
    """One console block: its heading, and its commands as a script."""

    section: str
    script: str


def blocks(text: str) -> list[Block]:
    """The console blocks of a page, in order. What no `$` begins goes on with the command before it."""
    found: list[Block] = []
    section, lines = "", list[str]()
    is_inside = False
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        if line == "```console":
            is_inside, lines = True, []
        elif line == "```" and is_inside:
            is_inside = False
            found.append(Block(section, "\n".join(lines) + "\n"))
        elif is_inside:
            lines.append(line.removeprefix("$ "))
    return found


def here(script: str) -> str:
    """With what the placeholders stand for."""
    for name, value in SUBSTITUTED.items():
        script = script.replace(name, value)
    return script


def reason_of(block: Block) -> str:
    """Why a block is not run here; empty: it is."""
    return next((why for mark, why in ELSEWHERE.items() if mark in block.script), "")


class Reader:
    """Somebody at a terminal in the source folder, with the programs that the page asks for."""

    def __init__(self, cluster: RealCluster, folder: Path, values: Path) -> None:
        tools = folder / "tools"
        tools.mkdir()
        kubectl = cluster.binaries.kubectl
        _program(tools / "helm", f'exec {sys.executable} -m tests.conformance.system.helm_words "$@"')
        forward = f"exec {sys.executable} {_pipe(folder)}"
        _program(tools / "kubectl", f'case "$*" in *{STAYS}*) {forward} "$@" ;; *) exec {kubectl} "$@" ;; esac')
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("SLIPWAY_")},
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(chart.ROOT),
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "KUBECONFIG": str(cluster.kubeconfig),
            "REAL_KUBECTL": str(kubectl),
            "NO_COLOR": "1",
            PLACE: str(values),
        }
        self._open: list[subprocess.Popen[bytes]] = []

    def run(self, script: str) -> Ran:
        """A block; it stops at the first command that fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=self._env,
            cwd=chart.ROOT,
            capture_output=True,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def leave_running(self, script: str) -> None:
        """A block in a terminal of its own, until `close`; its port answers when this returns."""
        port = int(re.findall(r"(\d+):\d+", script)[-1])
        self._open.append(
            subprocess.Popen(["bash", "-c", f"exec {script}"], env=self._env, cwd=chart.ROOT, start_new_session=True)
        )
        wait_until(lambda: _answers(port), f"port {port} is forwarded")

    def close(self) -> None:
        """Close the terminals."""
        for process in self._open:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(10)


def _program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/bash\n{line}\n", "utf-8")
    path.chmod(0o755)


def _answers(port: int) -> bool:
    with closing(socket.socket()) as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _pipe(folder: Path) -> Path:
    """A program that does `kubectl port-forward service/NAME LOCAL:REMOTE`, to the address of one ready pod."""
    file = folder / "forward.py"
    file.write_text(
        """import asyncio, json, os, subprocess, sys
words = sys.argv[1:]
namespace = words[words.index("--namespace") + 1]
service = next(word for word in words if word.startswith("service/"))
local, remote = map(int, words[-1].split(":"))
def ask(*more):
    argv = [os.environ["REAL_KUBECTL"], "--namespace", namespace, "get", *more, "-o", "json"]
    return json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
selector = ",".join(f"{key}={value}" for key, value in ask(service)["spec"]["selector"].items())
pods = [pod for pod in ask("pods", "--selector", selector)["items"] if pod["status"]["phase"] == "Running"]
async def one(reader, writer):
    there = await asyncio.open_connection(pods[0]["status"]["podIP"], remote)
    async def pump(source, sink):
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))
async def main():
    async with await asyncio.start_server(one, "127.0.0.1", local) as server:
        await server.serve_forever()
asyncio.run(main())
""",
        "utf-8",
    )
    return file


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Reader, Operator]]:
    """A cluster with nothing of ours in it, and somebody who reads the page."""
    require_own_cluster()
    folder = tmp_path_factory.mktemp("page")
    with ExitStack() as stays:
        cluster = stays.enter_context(running_cluster(folder / "cluster"))
        server = stays.enter_context(running_server("valkey", ServerOptions(port=free_port())))
        stays.enter_context(running_pods(cluster, folder / "pods", {}))
        values = folder / "place.json"
        services = {name: {"extraEnv": ADDRESS} for name in chart.SERVICES}
        added = {**ADDED, **services, "externalRedis": {"url": server.url}}
        values.write_text(json.dumps(added), "utf-8")
        operator = Operator(cluster)
        stays.callback(operator.close)
        reader = Reader(cluster, folder, values)
        stays.callback(reader.close)
        yield reader, operator


def test_every_block_is_run_or_has_its_reason() -> None:
    """No placeholder is left, none is made up, and no reason is for a block that is gone."""
    found = blocks(PAGE.read_text("utf-8"))
    scripts = [block.script for block in found]
    for table in (SUBSTITUTED, ELSEWHERE):
        for mark in table:
            assert any(mark in script for script in scripts), mark
    for block in found:
        if not reason_of(block):
            assert re.findall(r"\b[A-Z]{3,}\b", re.sub(r"\bEOF\b", "", here(block.script))) == [], block
    sections = [block.section for block in found if not reason_of(block)]
    assert {"Install", "Reach the API", "Upgrade", "Uninstall"} <= set(sections)


def test_the_page_leads_to_a_running_allocation_and_back(place: tuple[Reader, Operator]) -> None:
    """Installed, tried, reached, launched, upgraded, uninstalled: each block as it stands, in the page's order."""
    reader, operator = place
    launched = ""
    for block in blocks(PAGE.read_text("utf-8")):
        if reason_of(block):
            continue
        if STAYS in block.script:
            reader.leave_running(here(block.script).strip())
            continue
        done = reader.run(here(block.script))
        assert done.code == 0, f"{block.section}: {block.script}\n{done.out}\n{done.err}"
        if "slipway run" in block.script:
            launched = done.out
            _check_ran(operator, done.out)
    assert launched, "nothing was launched"
    assert operator.find(f"{GROUP}/allocations") is None, "the definitions are gone in the end"


def _check_ran(operator: Operator, said: str) -> None:
    """It ran as a pod of its own, and `kubectl get` shows it."""
    assert said.splitlines()[0] == "hello from a pod"
    [item] = operator.items(f"{GROUP}/allocations")
    assert f"default     {item['metadata']['name']}" in said
    told = [entry["type"] for entry in item["status"]["transitions"]]
    assert {"assigned", "running"} <= set(told), told
    assert item["status"]["ranks"][0]["exitCode"] == 0
