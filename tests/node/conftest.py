"""One cluster with two real nodes and our chart installed on it, for every test here: `make node ARGS=--test`."""

import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.node.images import SLIPWAY, VALKEY, WORKLOAD, ensure_images
from tests.node.nodes import NodeCluster
from tests.node.programs import ensure_programs
from tests.support import chart
from tests.support.cli import Ran
from tests.support.wait import wait_until

FOLDER = os.environ.get("SLIPWAY_NODE_DIR", "")
VALUES: chart.Values = {
    "image": {"repository": SLIPWAY.rpartition(":")[0], "tag": SLIPWAY.rpartition(":")[2]},
    "valkey": {"image": {"repository": VALKEY.rpartition(":")[0], "tag": VALKEY.rpartition(":")[2]}},
}
SMALL = ("--cpus", "50m", "--memory", "128Mi")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without nodes nothing here can run."""
    if not FOLDER:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs real nodes: make node ARGS=--test"))


class Product:
    """Slipway as it is installed, and a user of it at a terminal beside the nodes."""

    def __init__(self, cluster: NodeCluster, url: str) -> None:
        self.cluster, self.url = cluster, url

    def slipway(self, *words: str, stdin: str = "", timeout_s: float = 90.0) -> Ran:
        """`slipway ...` as a process."""
        argv = [sys.executable, "-m", "slipway.cli.main", *words]
        done = subprocess.run(
            argv, env=self._env(), input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def run(self, *command: str, options: tuple[str, ...] = (), timeout_s: float = 90.0) -> Ran:
        """`slipway run` of a small rank, with the image for workloads."""
        return self.slipway("run", "--image", WORKLOAD, *SMALL, *options, "--", *command, timeout_s=timeout_s)

    def launch(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """The id of a run that goes on by itself."""
        ran = self.run(*command, options=("--detach", *options))
        found = re.search(r"\brun-[a-z0-9]+-[0-9a-f]+\b", ran.out + ran.err)
        assert found is not None, ran
        return found.group()

    def wait(self, id_: str, goal: str, timeout_s: float = 60.0) -> None:
        """Until it runs, or has ended."""
        ran = self.slipway("wait", id_, "--for", goal, "--timeout", f"{timeout_s:.0f}s", timeout_s=timeout_s + 10)
        assert "timed out" not in ran.err, ran

    def _env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        return env | {"SLIPWAY_SERVER": self.url, "HOME": str(self.cluster.folder)}


@pytest.fixture(scope="session")
def cluster() -> Generator[NodeCluster]:
    """Two nodes that are Ready."""
    programs = ensure_programs()
    found = NodeCluster(Path(FOLDER), programs, ensure_images(programs))
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def product(cluster: NodeCluster) -> Generator[Product]:
    """As docs/install.md says it."""
    chart.install(cluster.control.kubeconfig, values=VALUES)
    ours = ("--namespace", chart.NAMESPACE)
    cluster.kubectl(
        *ours, "rollout", "status", "deployment", "--selector", "app.kubernetes.io/instance=slipway",
        "--timeout=120s", timeout_s=130,
    )  # fmt: skip
    cluster.kubectl(
        *ours, "wait", "job", "--for=condition=Complete", "--selector", "app.kubernetes.io/component=setup",
        "--timeout=120s", timeout_s=130,
    )  # fmt: skip
    with _forwarded(cluster) as url:
        yield Product(cluster, url)


@contextmanager
def _forwarded(cluster: NodeCluster) -> Generator[str]:
    """The API by `kubectl port-forward`."""
    argv = [cluster.control.binaries.kubectl, "--kubeconfig", str(cluster.control.kubeconfig)]
    argv += ["--namespace", chart.NAMESPACE, "port-forward", "service/slipway-api", ":8080"]
    log = cluster.folder / "port-forward.log"
    with log.open("w") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "Forwarding from 127.0.0.1" in log.read_text(), "the port is forwarded", timeout_s=20)
        yield "http://" + log.read_text().split("Forwarding from ")[1].split(" ")[0]
    finally:
        process.terminate()
        process.wait(10)
