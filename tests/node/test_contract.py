"""The contract of nodes on a real one: the suite that the local cluster's node passes too."""

import os
import subprocess
import sys
from pathlib import Path

from tests.node.images import WORKLOAD
from tests.node.nodes import NodeCluster

SUITE = Path(__file__).parents[1] / "contract" / "nodes"
AT_ONCE = 4
"""The number of parallel tests: a test mostly waits for its pods."""


def test_a_real_node_keeps_the_contract_of_nodes(cluster: NodeCluster) -> None:
    """Every test of `tests/contract/nodes` passes on it."""
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"} | {
        "SLIPWAY_CONTRACT_NODE": cluster.nodes[-1].name,
        "SLIPWAY_CONTRACT_NODE_KUBECONFIG": str(cluster.control.kubeconfig),
        "SLIPWAY_CONTRACT_IMAGE": WORKLOAD,
    }
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(SUITE), "--numprocesses", str(AT_ONCE)]
    argv += ["--dist", "worksteal", "--durations=5", "--tb=short"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.stdout.write(done.stdout)
