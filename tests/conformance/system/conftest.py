"""One installed Slipway for the whole folder, and the order of tests: those that read the audit log run last.

The folder may run in parallel shards, each with a cluster and an installation of its own. Every file is in one shard;
the tests that read the audit log are in all. A permission is needed when any shard used it. The cluster of the first
shard, and of a run in one piece, serves groups of pods; the others run Kubernetes as it is delivered, which does not.

A test leaves nothing behind: after each test the remaining allocations are ended, and every pod, ConfigMap and Service
of ours must be gone.
"""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from slipway.local.valkey import ServerOptions
from tests.conformance.cluster.servers import ClusterOptions, RealCluster, running_cluster
from tests.conformance.system.deployment import Installation
from tests.conformance.system.nodes import simulated_nodes
from tests.conformance.system.operator import Operator
from tests.conformance.system.system import System
from tests.conformance.wanted import require_own_cluster
from tests.support.ports import free_port
from tests.support.redis import running_server

LAST = "test_rbac.py"
WHOLE = pytest.StashKey[bool]()
SHARD = os.environ.get("SLIPWAY_CONFORMANCE_SHARD", "")
"""`1/2`: the first of two; empty: all files"""
UNUSED = os.environ.get("SLIPWAY_CONFORMANCE_UNUSED", "")
"""The file to which a shard writes the permissions that it did not use, one a line."""
FOLDER = Path(__file__).parent
WITH_POD_GROUPS = "test_pod_groups.py"
"""The file that needs groups of pods; it runs in the first shard."""
WITHOUT_POD_GROUPS = "test_binding_delegate.py"
"""The file that needs a cluster without groups of pods; it runs in another shard, if there is one."""
QUICK = {
    "valkey": {"enabled": False},
    "audit": {"enabled": True},
    "api": {"settings": {"webhookNetworks": ["127.0.0.0/8"], "proxyNetworks": ["127.0.0.0/8"]}},
    "scheduler": {"settings": {"leaseDurationS": 8, "leaseRenewDeadlineS": 6, "leaseRetryS": 0.5, "autoscaling": True}},
    "podworker": {"settings": {"workerPatienceS": 3}},
    "watcher": {
        "settings": {
            "resyncIntervalS": 5,
            "sweepIntervalS": 3,
            "standbyDelayS": 1,
            "imagePullLimitS": 2,
            "restartBackoffS": 0.1,
            "restartBackoffMaxS": 1,
            "relayWaitS": 3,
            "unschedulableLimitS": 2,
            "logDrainS": 2,
            "leaseDurationS": 8,
            "leaseRenewDeadlineS": 6,
            "leaseRetryS": 0.5,
        }
    },
}
"""Shorter times than in the chart, so that tests need not wait; all other values are the chart's own."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests that judge the audit log after all others of the session, however the rest is shuffled."""
    items.sort(key=lambda item: item.path == FOLDER / LAST)
    collected = {item.path for item in items}
    config.stash[WHOLE] = collected >= set(FOLDER.glob("test_*.py")) and not config.getoption("keyword")
    if SHARD:
        number, shards = map(int, SHARD.split("/"))
        placed = {WITH_POD_GROUPS: 1, WITHOUT_POD_GROUPS: 2}
        files = sorted(path for path in FOLDER.glob("test_*.py") if path.name != LAST)
        others = {path for index, path in enumerate(files) if placed.get(path.name, index % shards + 1) != number}
        config.hook.pytest_deselected(items=[item for item in items if item.path in others])
        items[:] = [item for item in items if item.path not in others]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of each service's log with a failure, because the folder of a run is not kept for long."""
    report = yield
    system: System | None = getattr(item, "funcargs", {}).get("system")
    if report.failed and system is not None:
        for name, process in system.installation.processes.items():
            state = "runs" if process.is_running else "does not run"
            report.sections.append((f"{name} {state}; the end of its log", process.tail()))
    return report


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Generator[RealCluster]:
    """The control plane of this shard."""
    require_own_cluster()
    options = ClusterOptions(pod_groups=SHARD in ("", "1/2"))
    with running_cluster(tmp_path_factory.mktemp("cluster"), options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def system(real: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    """The chart on a real API server, its services as processes under their own accounts, simulated nodes, Redis 7."""
    operator = Operator(real)
    with running_server("redis", ServerOptions(port=free_port())) as server, simulated_nodes(real.kubeconfig) as nodes:
        values = {**QUICK, "externalRedis": {"url": server.url}}
        installation = Installation(operator, tmp_path_factory.mktemp("services"), values)
        try:
            installation.install()
            installation.start()
            yield System(installation, nodes, server)
        finally:
            installation.stop()
            operator.close()


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> Generator[None]:
    yield
    if "system" in request.fixturenames:
        system: System = request.getfixturevalue("system")
        system.installation.await_ready()
        system.settle()
