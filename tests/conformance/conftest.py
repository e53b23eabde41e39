"""The real cluster that conformance runs on, one for the run.

`SLIPWAY_CONFORMANCE=1` (set by `make conformance`) asks for it: a control plane of our own is started, or, when
`KUBECONFIG` names one, that cluster is used. Without it tests that need a real cluster are skipped, so that
`make test` needs no Go toolchain.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.cluster.servers import RealCluster, running_cluster


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A control plane of this run's own: nobody else changes it, and its audit log can be read."""
    if os.environ.get("SLIPWAY_CONFORMANCE") != "1":
        pytest.skip("needs a real Kubernetes API server: make conformance")
    if os.environ.get("KUBECONFIG"):
        pytest.skip("needs a control plane that nobody else uses, and KUBECONFIG names one")
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_kubeconfig(request: pytest.FixtureRequest) -> Path:
    """A kubeconfig of the cluster that KUBECONFIG names, else of the run's own: for what any cluster can show."""
    if os.environ.get("SLIPWAY_CONFORMANCE") == "1" and os.environ.get("KUBECONFIG"):
        return Path(os.environ["KUBECONFIG"])
    cluster: RealCluster = request.getfixturevalue("real")
    return cluster.kubeconfig
