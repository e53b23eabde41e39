"""One cluster with two real nodes and our chart installed on it, for every test here: `make node ARGS=--test`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.browser.chromium import Page, find, running_browser
from tests.conformance.cluster.binaries import MissingProgramError, ensure_debian
from tests.node.images import SLIPWAY, VALKEY, WORKLOAD, ensure_images
from tests.node.nodes import NodeCluster, RealNode
from tests.node.programs import ensure_programs
from tests.support import chart
from tests.support.cli import CommandResult
from tests.support.plain_http import NO_TLS
from tests.support.terminals import TerminalUser, at_terminal
from tests.support.wait import wait_until

FOLDER = os.environ.get("SLIPWAY_NODE_DIR", "")
VALUES: chart.Values = {
    "image": {"repository": SLIPWAY.rpartition(":")[0], "tag": SLIPWAY.rpartition(":")[2]},
    "valkey": {"image": {"repository": VALKEY.rpartition(":")[0], "tag": VALKEY.rpartition(":")[2]}},
}
SETTLE_S = 240.0
SMALL = ("--cpus", "50m", "--memory", "128Mi")
LAST = ("test_release", "test_install_page")
"""Files whose tests run after all others, in this order: they uninstall, so that nothing has to be installed again."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a node when there are none; with nodes run those that uninstall last."""
    if FOLDER:
        items.sort(key=lambda item: LAST.index(item.path.stem) + 1 if item.path.stem in LAST else 0)
    else:
        for item in items:
            needs = {"cluster"} & set(getattr(item, "fixturenames", ()))
            if needs and Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="needs real nodes: make node ARGS=--test"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what the services logged meanwhile: the cluster is gone when the failure is read."""
    report = yield
    product: object = getattr(item, "funcargs", {}).get("installation")
    if report.failed and isinstance(product, Product):
        for name in chart.SERVICES:
            report.sections.append((f"log of the {name}", product.log_of(name)))
    return report


class Product:
    """An installed Slipway, and a user of it at a terminal beside the nodes."""

    def __init__(self, cluster: NodeCluster) -> None:
        self.cluster, self._url = cluster, ""
        self.is_installed = False
        self._forward: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL of the API. A forwarded port ends with its pod, also when an earlier test moved that pod: then it
        is opened again."""
        if self._forward is not None and self._forward.poll() is not None:
            self.connect()
        return self._url

    def install(self) -> None:
        """Install as in docs/install.md, if not installed; everything on the first node, so that other nodes may be
        lost."""
        if not self.is_installed:
            with cordoned(self.cluster, *self.cluster.nodes[1:]):
                chart.install(self.cluster.control.kubeconfig, values=VALUES)
                self.is_installed = True
                settle(self.cluster)
            self.connect()

    def uninstall(self) -> None:
        """Uninstall as in docs/install.md, if installed: the allocations first."""
        if self.is_installed:
            self.cluster.kubectl("delete", "allocations", "--all", "--all-namespaces", timeout_s=90)
            self.disconnect()
            chart.uninstall(self.cluster.control.kubeconfig)
            self.is_installed = False

    def connect(self) -> None:
        """Forward a port to the API with `kubectl port-forward`; again when a kubelet has ended the one before."""
        argv = [self.cluster.control.binaries.kubectl, "--kubeconfig", str(self.cluster.control.kubeconfig)]
        argv += ["--namespace", chart.NAMESPACE, "port-forward", "service/slipway-api", ":8080"]
        log = self.cluster.folder / "port-forward.log"

        def is_forwarded() -> bool:
            if self._forward is None or self._forward.poll() is not None:
                self.disconnect()
                with log.open("w") as out:
                    self._forward = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
            return "Forwarding from 127.0.0.1" in log.read_text()

        self.disconnect()
        wait_until(is_forwarded, "the port is forwarded", timeout_s=60)
        self._url = "http://" + log.read_text().split("Forwarding from ")[1].split(" ")[0]

    def disconnect(self) -> None:
        if self._forward is not None:
            self._forward.terminate()
            self._forward.wait(10)
            self._forward = None

    def log_of(self, service: str) -> str:
        """The recent logs of a service's containers; kubectl's error if it cannot read them."""
        selector = f"app.kubernetes.io/component={service}"
        words = ("logs", "--selector", selector, "--tail=60", "--prefix", "--since=180s")
        done = self.cluster.control.kubectl("--namespace", chart.NAMESPACE, *words)
        return done.stdout + done.stderr

    def slipway(self, *words: str, stdin: str = "", timeout_s: float = 90.0) -> CommandResult:
        """Run `slipway ...` as a process."""
        argv = [sys.executable, "-m", "slipway.cli.main", *words]
        done = subprocess.run(
            argv, env=self._env(), input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def run(self, *command: str, options: tuple[str, ...] = (), timeout_s: float = 90.0) -> CommandResult:
        """Run `slipway run` for a small rank, with the image for workloads."""
        return self.slipway("run", "--image", WORKLOAD, *SMALL, *options, "--", *command, timeout_s=timeout_s)

    def launch(self, *command: str, options: tuple[str, ...] = ()) -> str:
        """Launch without waiting and return the id."""
        ran = self.run(*command, options=("--detach", *options))
        found = re.search(r"\brun-[a-z0-9]+-[0-9a-f]+\b", ran.out + ran.err)
        assert found is not None, ran
        return found.group()

    def apply(self, folder: Path, **body: Any) -> str:
        """Launch a command from a file without waiting, and return its id."""
        file = folder / "launch.json"
        whole = {"kind": "command", "image": WORKLOAD, **body}
        whole.setdefault("ranks", [{"count": 1, "resources": {"cpu": "50m", "memory": "64Mi"}}])
        file.write_text(json.dumps(whole))
        ran = self.slipway("apply", "-f", str(file))
        found = re.search(r"\b[a-z]+-[a-z0-9]+-[0-9a-f]{8}\b", ran.out + ran.err)
        assert found is not None, ran
        return found.group()

    @contextmanager
    def at_terminal(self, *words: str) -> Generator[TerminalUser]:
        """Run `slipway ...` on a terminal."""
        with at_terminal([sys.executable, "-m", "slipway.cli.main", *words], self._env()) as person:
            yield person

    def view(self, id_: str) -> Any:
        """An allocation as the API shows it."""
        return httpx2.get(f"{self.url}/api/v1/allocations/{id_}", verify=NO_TLS, trust_env=False, timeout=30).json()

    def wait_running(self, id_: str, attempt: int, timeout_s: float = 90.0) -> None:
        """Wait until every rank of an attempt runs."""

        def is_running() -> bool:
            view = self.view(id_)
            return (view["attempt"], view["phase"]) == (attempt, "Running")

        wait_until(is_running, f"attempt {attempt} of {id_} runs", timeout_s=timeout_s)

    def newest(self, kind: str) -> str:
        """The id of the newest allocation of that kind."""
        answer = httpx2.get(
            f"{self.url}/api/v1/allocations", params={"kind": kind}, verify=NO_TLS, trust_env=False
        ).json()
        return max(answer["items"], key=lambda item: item["createdAt"])["id"]

    def wait(self, id_: str, goal: str, timeout_s: float = 60.0) -> None:
        """Wait until it runs or has ended."""
        ran = self.slipway("wait", id_, "--for", goal, "--timeout", f"{timeout_s:.0f}s", timeout_s=timeout_s + 10)
        has_ended = bool(re.search(r"^Ended:", self.slipway("describe", id_).out, re.MULTILINE))
        assert has_ended if goal == "terminated" else ran.code == 0, ran

    def _env(self) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        return env | {"SLIPWAY_SERVER": self.url, "HOME": str(self.cluster.folder)}


def settle(cluster: NodeCluster) -> None:
    """Wait until everything in the chart is ready.

    Raises:
        RuntimeError: it is not ready in time; the message has the pods' status.
    """
    ours = ("--namespace", chart.NAMESPACE)
    timeout = f"--timeout={SETTLE_S:.0f}s"
    try:
        for name in ("valkey", *chart.SERVICES):
            cluster.kubectl(
                *ours, "rollout", "status", f"deployment/slipway-{name}", timeout, timeout_s=SETTLE_S + 10
            )  # fmt: skip
        cluster.kubectl(
            *ours, "wait", "job", "--for=condition=Complete", "--selector", "app.kubernetes.io/component=setup",
            timeout, timeout_s=SETTLE_S + 10,
        )  # fmt: skip
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        pods = cluster.kubectl(*ours, "describe", "pods")
        raise RuntimeError(f"{error}\n{pods}") from error


@contextmanager
def cordoned(cluster: NodeCluster, *nodes: RealNode) -> Generator[None]:
    """Cordon these nodes in this context."""
    for node in nodes:
        cluster.kubectl("cordon", node.name)
    try:
        yield
    finally:
        for node in nodes:
            cluster.kubectl("uncordon", node.name)


@contextmanager
def started() -> Generator[NodeCluster]:
    """Two nodes that are Ready."""
    programs = ensure_programs()
    found = NodeCluster(Path(FOLDER), programs, ensure_images(programs))
    found.start()
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def used(cluster: NodeCluster) -> Generator[Product]:
    """A product on the nodes, not installed yet."""
    found = Product(cluster)
    try:
        yield found
    finally:
        found.disconnect()


@contextmanager
def installed(cluster: NodeCluster) -> Generator[Product]:
    """A product on the nodes, installed."""
    with used(cluster) as found:
        found.install()
        yield found


@pytest.fixture(scope="session")
def cluster() -> Generator[NodeCluster]:
    """The nodes of every test."""
    with started() as found:
        yield found


@pytest.fixture
def page() -> Generator[Page]:
    """A tab of a browser; the test is skipped when there is none and none can be installed."""
    try:
        program = find() or ensure_debian("chromium-headless-shell")
    except MissingProgramError as error:
        pytest.skip(f"no browser: {error}")
    with running_browser(program) as browser, browser.page() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def installation(cluster: NodeCluster) -> Generator[Product]:
    """The product, installed or not."""
    with used(cluster) as found:
        yield found


@pytest.fixture
def product(installation: Product) -> Product:
    """The installed product; installed again when the test before has uninstalled it."""
    installation.install()
    return installation
