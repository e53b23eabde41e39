"""The same simulated nodes on the local cluster's API server: the part of their behaviour that `make test` can
check."""

import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from slipway.local.apiserver.core import ClusterCore
from slipway.local.apiserver.http import create_app
from tests.conformance.kubelets import Kubelets, Script
from tests.conformance.kubelets.access import read_access
from tests.conformance.kubelets.builders import manifest
from tests.conformance.kubelets.connections import Connections, RefusedError
from tests.support.clock import wait_until
from tests.support.http_stub import serve_app, write_kubeconfig


class LocalKubelets:
    """The core behind the server, and the nodes."""

    def __init__(self, core: ClusterCore, kubelets: Kubelets, wire: Connections) -> None:
        self.core = core
        self.kubelets = kubelets
        self._wire = wire

    async def run(self, name: str, script: Script | None, *, node: str = "node-0") -> None:
        """Create a bound pod; without a script it has no annotation."""
        body = manifest(name, script, node=node)
        if script is None:
            del body["metadata"]["annotations"]
        await self._wire.call("POST", "/api/v1/namespaces/default/pods", msgspec.json.encode(body))

    async def log(self, name: str) -> str:
        """The log of the container."""
        return (await self._wire.call("GET", f"/api/v1/namespaces/default/pods/{name}/log")).decode()

    async def delete(self, name: str) -> None:
        await self._wire.call("DELETE", f"/api/v1/namespaces/default/pods/{name}")

    def phase(self, name: str) -> str:
        record = self.core.store.find("pods", "default", name)
        return str(record.obj["status"]["phase"]) if record else "gone"

    async def until(self, name: str, phase: str) -> None:
        await wait_until(lambda: self.phase(name) == phase, f"{name} {phase}")


@pytest.fixture
async def local_kubelets(tmp_path: Path) -> AsyncIterator[LocalKubelets]:
    core = ClusterCore(clock=time.time, new_uid=lambda: str(uuid.uuid4()))  # noqa: TID251 - a real server
    core.bootstrap()
    app = create_app(core)
    async with serve_app(app, before_stop=app.state.server.close) as url:
        kubeconfig = Path(write_kubeconfig(tmp_path, url))
        wire = Connections(read_access(kubeconfig))
        async with Kubelets(kubeconfig, nodes=2, local=True, script=Script(starts_s=0)) as kubelets:
            yield LocalKubelets(core, kubelets, wire)
        wire.close()


async def test_nodes_are_ready_and_have_leases(local_kubelets: LocalKubelets) -> None:
    """When `Kubelets` has started, its nodes are ready and have leases."""
    assert [str(item["metadata"]["name"]) for item in local_kubelets.core.list("nodes").items] == ["node-0", "node-1"]
    assert len(local_kubelets.core.list("leases.coordination.k8s.io").items) == 2


async def test_a_pod_runs_to_its_end(local_kubelets: LocalKubelets) -> None:
    """A pod runs to its end with as few status writes as a kubelet could make: one when it runs, one when it has
    ended."""
    await local_kubelets.run("a", Script(starts_s=0, runs_s=0.2, exit=4))
    await local_kubelets.until("a", "Running")
    await local_kubelets.until("a", "Failed")
    assert [run.code for run in local_kubelets.kubelets.runs] == [4]
    await wait_until(lambda: local_kubelets.kubelets.count.status_writes == 2, "two writes")


async def test_the_log_comes_from_the_node(local_kubelets: LocalKubelets) -> None:
    """The API server fetches the log from the address in the Node: while the container runs, and when it has ended."""
    await local_kubelets.run("a", Script(starts_s=0, runs_s=60))
    await local_kubelets.until("a", "Running")
    local_kubelets.kubelets.write("default/a", "hello")
    assert await local_kubelets.log("a") == "hello\n"
    local_kubelets.kubelets.exit("default/a", 0)
    await local_kubelets.until("a", "Succeeded")
    assert await local_kubelets.log("a") == "hello\n"


async def test_a_deleted_pod_ends_and_goes(local_kubelets: LocalKubelets) -> None:
    """A deleted pod ends and is gone, also one that never started."""
    await local_kubelets.run("a", Script(starts_s=0, term_s=0))
    await local_kubelets.run("b", Script(starts_s=60))
    await local_kubelets.until("a", "Running")
    await local_kubelets.delete("a")
    await local_kubelets.delete("b")
    await local_kubelets.until("a", "gone")
    await local_kubelets.until("b", "gone")
    assert [(run.pod, run.code) for run in local_kubelets.kubelets.runs] == [("default/a", 143)]
    await wait_until(lambda: local_kubelets.kubelets.count.deletions == 2, "both confirmed")


async def test_programs_end_when_a_test_says_so(local_kubelets: LocalKubelets) -> None:
    """A test ends a program by the pod's name or uid; a pod that does not run cannot be ended."""
    await local_kubelets.run("a", Script(starts_s=0))
    await local_kubelets.until("a", "Running")
    assert local_kubelets.kubelets.exit("default/a", 9)
    await local_kubelets.until("a", "Failed")
    assert not local_kubelets.kubelets.exit("default/a", 9)
    with pytest.raises(KeyError):
        local_kubelets.kubelets.exit("default/nobody", 1)


async def test_a_callback_plays_pods_without_annotation(local_kubelets: LocalKubelets) -> None:
    """The annotation wins over the callback, and the default is for pods for which the callback returns None."""
    local_kubelets.kubelets.rules.play = lambda pod: (
        Script(starts_s=0, runs_s=0) if pod.metadata.name == "short" else None
    )
    await local_kubelets.run("short", None)
    await local_kubelets.run("long", None)
    await local_kubelets.until("short", "Succeeded")
    await local_kubelets.until("long", "Running")


async def test_a_refusal_is_no_retry(local_kubelets: LocalKubelets) -> None:
    """A permanent refusal of the server is raised at once."""
    with pytest.raises(RefusedError) as caught:
        await local_kubelets.delete("nobody")
    assert (caught.value.code, caught.value.reason) == (404, "NotFound")
