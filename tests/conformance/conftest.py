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
from tests.conformance.wanted import require_conformance, require_own_cluster


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A control plane of this run's own: nobody else changes it, and its audit log can be read."""
    require_own_cluster()
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_kubeconfig(request: pytest.FixtureRequest) -> Path:
    """A kubeconfig of the cluster that KUBECONFIG names, else of the run's own: for what any cluster can show."""
    require_conformance()
    if os.environ.get("KUBECONFIG"):
        return Path(os.environ["KUBECONFIG"])
    cluster: RealCluster = request.getfixturevalue("real")
    return cluster.kubeconfig
