"""docs/install.md, followed to the letter on a real API server: its console blocks are run as they are written.

Only the tables below contain what differs from place to place. Nodes here forward no ports, so a pipe to the pod
replaces `kubectl port-forward`. Kubernetes' own controllers create the pods, which run as processes.
"""

import json
import re
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from slipway.local.valkey import ServerOptions
from tests.conformance.cluster.servers import running_cluster
from tests.conformance.system.operator import GROUP, Operator
from tests.conformance.system.pods import ADDRESS, running_pods
from tests.conformance.wanted import require_own_cluster
from tests.support import chart
from tests.support.install_page import ELSEWHERE, Reader, blocks, reason_of
from tests.support.ports import free_port
from tests.support.redis import running_server
from tools.release.version import version

SUBSTITUTED = {"REGISTRY/slipway": "registry.invalid/slipway", "tag=TAG": f"tag={version()}"}
"""The placeholders of the page, and their values here."""
ADDED: dict[str, object] = {"valkey": {"enabled": False}, "audit": {"enabled": False}}
"""Values that the page does not set. Pods here cannot resolve names of Services, so Redis runs on this machine."""


def _pipe(folder: Path) -> Path:
    """A program that replaces `kubectl port-forward service/NAME LOCAL:REMOTE`: it pipes to the address of one ready
    pod."""
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
    """A cluster without objects of ours, and a reader of the page."""
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
        reader = Reader(
            folder,
            kubectl=cluster.binaries.kubectl,
            kubeconfig=cluster.kubeconfig,
            values=values,
            placeholders=SUBSTITUTED,
            forward=_pipe(folder),
        )
        stays.callback(reader.close)
        yield reader, operator


def test_every_block_is_run_or_has_its_reason() -> None:
    """Each block is run or has a reason why not: every placeholder has a value, no value is unused, and no reason is
    for a missing block."""
    found = blocks()
    scripts = [block.script for block in found]
    for table in (SUBSTITUTED, ELSEWHERE):
        for mark in table:
            assert any(mark in script for script in scripts), mark
    for block in found:
        if not reason_of(block):
            script = re.sub(r"\bEOF\b", "", block.script)
            for name in SUBSTITUTED:
                script = script.replace(name, "")
            assert re.findall(r"\b[A-Z]{3,}\b", script) == [], block
    sections = [block.section for block in found if not reason_of(block)]
    assert {"Install", "Reach the API", "Upgrade", "Uninstall"} <= set(sections)


def test_the_page_leads_to_a_running_allocation_and_back(place: tuple[Reader, Operator]) -> None:
    """The page installs, tries, reaches, launches, upgrades and uninstalls: each block as written, in the page's
    order."""
    reader, operator = place
    launched = ""
    for block in blocks():
        if reason_of(block):
            continue
        done = reader.follow(block)
        if "slipway run" in block.script:
            launched = done.out
            _check_ran(operator, done.out)
    assert launched, "nothing was launched"
    assert operator.find(f"{GROUP}/allocations") is None, "the definitions are gone in the end"


def _check_ran(operator: Operator, said: str) -> None:
    """The allocation ran as a pod, and `kubectl get` shows it."""
    assert said.splitlines()[0] == "hello from a pod"
    [item] = operator.items(f"{GROUP}/allocations")
    assert f"default     {item['metadata']['name']}" in said
    told = [entry["type"] for entry in item["status"]["transitions"]]
    assert {"assigned", "running"} <= set(told), told
    assert item["status"]["ranks"][0]["exitCode"] == 0
