"""The chart on a cluster with real nodes: installed, one command run to its end, removed without a trace.

Runs when KUBECONFIG names a cluster, and SLIPWAY_CONFORMANCE_IMAGE the services' image, as the nodes can pull it. The
command runs in the same image, so no other image is needed. Only the chart and kubectl are used.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conformance.system.operator import Json
from tests.conformance.system.system import MANAGED, an_allocation
from tests.support import chart

NAMESPACE = "slipway-conformance"
INSTALLED_S = 300
RUN_S = 180
IMAGE = os.environ.get("SLIPWAY_CONFORMANCE_IMAGE", "")
"""repository:tag"""


class Cluster:
    """The cluster of the kubeconfig, with kubectl."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = INSTALLED_S) -> str:
        """Run kubectl and return its output; it must succeed."""
        argv = ["kubectl", f"--kubeconfig={self.kubeconfig}", f"--namespace={NAMESPACE}", *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout_s + 10, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def installed(real_kubeconfig: Path) -> Generator[Cluster]:
    """The chart, with a workspace, a pool and a queue for the test; everything is removed at the end."""
    if not os.environ.get("KUBECONFIG") or not IMAGE:
        pytest.skip("needs nodes that run containers: KUBECONFIG, and the services' image as SLIPWAY_CONFORMANCE_IMAGE")
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    repository, _, tag = IMAGE.rpartition(":")
    values: Json = {
        "image": {"repository": repository, "tag": tag},
        "crds": {"keep": False},
        "setup": {"workspaces": [NAMESPACE]},
        "valkey": {"enabled": False},
    }
    cluster = Cluster(real_kubeconfig)
    chart.install(real_kubeconfig, NAMESPACE, values)
    try:
        wait = f"--timeout={INSTALLED_S}s"
        cluster.kubectl("wait", "job", "--all", "--for=condition=Complete", wait)
        cluster.kubectl("wait", "deployment", "--all", "--for=condition=Available", wait)
        yield cluster
    finally:
        # The services must still run to remove the finalizers.
        cluster.kubectl("delete", "alloc", "--all", f"--timeout={INSTALLED_S}s")
        chart.uninstall(real_kubeconfig, NAMESPACE)
        cluster.kubectl("delete", "namespace", NAMESPACE, f"--timeout={INSTALLED_S}s")


def test_one_command(installed: Cluster) -> None:
    """The command is applied, admitted, bound, run and observed, and its pod is gone at the end."""
    manifest = an_allocation("hello", namespace=NAMESPACE)
    container: Json = {"name": "main", "image": IMAGE, "command": ["python", "-c", "print('hello from a rank')"]}
    manifest["spec"]["template"] = {"spec": {"containers": [container], "securityContext": {"runAsUser": 65532}}}
    installed.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    installed.kubectl("wait", "alloc/hello", "--for=condition=Complete", f"--timeout={RUN_S}s")
    status: Json = json.loads(installed.kubectl("get", "alloc", "hello", "-o", "json"))["status"]
    assert (status["result"], status["ranks"][0]["exitCode"]) == ("Succeeded", 0)
    installed.kubectl("wait", "pod", "-l", MANAGED, "--for=delete", f"--timeout={RUN_S}s")
    assert json.loads(installed.kubectl("get", "pods", "-l", MANAGED, "-o", "json"))["items"] == []
    installed.kubectl("delete", "alloc", "hello", f"--timeout={RUN_S}s")
