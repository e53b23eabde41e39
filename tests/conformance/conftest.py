"""The real cluster that conformance runs on, one for the run.

`SLIPWAY_CONFORMANCE=1` (set by `make conformance`) requests it: the run starts a control plane of its own, or, when
`KUBECONFIG` names one, uses that cluster. Without it tests that need a real cluster are skipped, so that `make test`
needs no Go toolchain.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.cluster.servers import RealCluster, running_cluster
from tests.conformance.wanted import require_conformance, require_own_cluster


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A control plane of this run: no other process changes it, and its audit log can be read."""
    require_own_cluster()
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_kubeconfig(request: pytest.FixtureRequest) -> Path:
    """A kubeconfig of the cluster that KUBECONFIG names, else of the run's own control plane: for tests that need no
    audit log."""
    require_conformance()
    if os.environ.get("KUBECONFIG"):
        return Path(os.environ["KUBECONFIG"])
    cluster: RealCluster = request.getfixturevalue("real")
    return cluster.kubeconfig
