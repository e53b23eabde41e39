"""Nodes that run each pod as real processes: the nodes of local mode, in a process of their own, on a real API server.

Owns the process. `slipway.local.node` does the work: commands and their environment, ConfigMaps, account tokens,
probes, ports on addresses of the loopback, logs over TLS.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.cluster.servers import RealCluster
from tests.support.wait import wait_until

PREFIX = "process"
READY_S = 60.0
STOP_S = 20.0


@contextmanager
def running_process_nodes(
    cluster: RealCluster,
    folder: Path,
    *,
    nodes: int = 1,
    cpus: int = 8,
    more: Sequence[str] = (),
    python: str = sys.executable,
) -> Generator[None]:
    """`process-0` and so on, ready. At the end all their processes have ended, and the nodes are deleted.

    Containers search the folder of `python` for programs first.
    """
    made = cluster.credentials
    words = [
        "--state",
        str(folder),
        "--nodes",
        str(nodes),
        "--cpus",
        str(cpus),
        "--kubeconfig",
        str(cluster.kubeconfig),
    ]
    words += ["--certificate", str(made.kubelet), "--client-ca", str(made.ca), *more]
    words += ["--prefix", PREFIX]
    argv = [python, "-m", "slipway.local.node", *words]
    guard = shutil.which("setpriv")
    if guard:
        # The guard ends the process with its parent, so it cannot outlive a killed test run.
        argv = [guard, "--pdeathsig", "TERM", *argv]
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{PREFIX}-{index}" for index in range(nodes)]
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(os.environ))
        try:
            wait_until(lambda: all(_is_ready(cluster, name) for name in names), "nodes ready", timeout_s=READY_S)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            cluster.kubectl("delete", "nodes", *names, "--ignore-not-found")


def _is_ready(cluster: RealCluster, name: str) -> bool:
    """Whether the node is ready and no longer has a startup taint that keeps pods away."""
    path = "{.status.conditions[?(@.type=='Ready')].status}{.spec.taints}"
    return cluster.kubectl("get", "node", name, "-o", f"jsonpath={path}").stdout == "True"
