"""Local nodes serve a real API server: they run real processes with the environment and files that a kubelet would
provide."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.conformance.cluster.servers import RealCluster
from tests.conformance.kubelets.builders import manifest
from tests.conformance.kubelets.objects import Json
from tests.conformance.kubelets.processes import running_process_nodes
from tests.support.wait import wait_until

NAMESPACE = "kn-processes"


class KubectlHarness:
    """One node of processes, and kubectl."""

    def __init__(self, cluster: RealCluster) -> None:
        self.cluster = cluster

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl and return its output; fail when it fails."""
        done = self.cluster.kubectl("-n", NAMESPACE, *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, name: str, script: str, **container: object) -> None:
        """Create a pod that runs a shell script."""
        main = {"name": "main", "image": "i", "command": ["sh", "-c", script], **container}
        body = manifest(name, node="process-0", namespace=NAMESPACE, containers=[main])
        self.kubectl("create", "-f", "-", stdin=msgspec.json.encode(body).decode())

    def until(self, name: str, phase: str) -> Json:
        """Wait for a phase and return the status."""

        def look() -> Json | None:
            pod = msgspec.json.decode(self.kubectl("get", "pod", name, "-o", "json"))
            return pod["status"] if pod["status"]["phase"] == phase else None

        status = wait_until(look, f"{name} {phase}")
        assert status is not None
        return status


@pytest.fixture(scope="module")
def harness(real: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubectlHarness]:
    """A node and kubectl in a namespace of its own."""
    real.kubectl("create", "namespace", NAMESPACE)
    account = ("-n", NAMESPACE, "get", "serviceaccount", "default")
    wait_until(lambda: real.kubectl(*account).returncode == 0, "the namespace's account")
    folder: Path = tmp_path_factory.mktemp("processes") / "state"
    with running_process_nodes(real, folder):
        yield KubectlHarness(real)
    real.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_a_process_has_its_configuration_and_its_end_is_reported(harness: KubectlHarness) -> None:
    """A process has the environment of a ConfigMap, its output is in `kubectl logs`, and its exit code in the
    status."""
    harness.kubectl("create", "configmap", "words", "--from-literal=GREETING=hello")
    harness.run("talks", 'echo "$GREETING"; exit 5', envFrom=[{"configMapRef": {"name": "words"}}])
    status = harness.until("talks", "Failed")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    assert harness.kubectl("logs", "talks") == "hello\n"


def test_a_token_of_the_account_is_where_it_is_mounted(harness: KubectlHarness) -> None:
    """The API server accepts the mounted token as the pod's account."""
    path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    harness.run("calls", f"cat {path}")
    harness.until("calls", "Succeeded")
    token = harness.kubectl("logs", "calls").strip()
    url, ca = harness.cluster.url, str(harness.cluster.ca)
    said = harness.cluster.kubectl(
        f"--server={url}",
        f"--certificate-authority={ca}",
        f"--token={token}",
        "--kubeconfig=/dev/null",
        "auth",
        "whoami",
    )
    assert f"system:serviceaccount:{NAMESPACE}:default" in said.stdout, said.stderr


def test_deletion_is_a_signal_and_a_grace(harness: KubectlHarness) -> None:
    """A deleted pod's process gets SIGTERM and may still write a line; then the pod is gone."""
    harness.run("stops", 'trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.1; done')
    harness.until("stops", "Running")
    wait_until(lambda: "up" in harness.kubectl("logs", "stops"), "it is up")
    began = time.monotonic()
    harness.kubectl("delete", "pod", "stops")
    assert time.monotonic() - began < 15
