"""Output of ranks on a real API server: each reader gets every line once, in order, to the end.

The ranks are real processes on separate nodes, which form a pool: the API server delivers their logs over TLS.
"""

from collections.abc import Generator

import pytest

from tests.conformance.cluster.servers import RealCluster
from tests.conformance.kubelets.processes import PREFIX, running_process_nodes
from tests.conformance.system.system import System
from tests.support import output
from tests.support.output import Readers

POOL = "and-processes"
"""Its name comes first: of the pools that select a node, the first by name gets it, and the default pool selects all
nodes."""
LABEL = "test.example.org/output"


@pytest.fixture(scope="module")
def readers(system: System, real: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Generator[Readers]:
    """The readers, on a pool whose nodes run real processes."""
    group = "slipway.dev/v1alpha1"
    pool = {"apiVersion": group, "kind": "ResourcePool", "metadata": {"name": POOL}}
    queue = {"apiVersion": group, "kind": "Queue", "metadata": {"name": POOL}, "spec": {"pool": POOL}}
    with running_process_nodes(real, tmp_path_factory.mktemp("processes") / "nodes", cpus=16):
        system.kubectl("label", "node", f"{PREFIX}-0", f"{LABEL}=true")
        system.operator.apply({**pool, "spec": {"nodeSelector": {LABEL: "true"}}}, queue)
        try:
            where = ["--image", "local", "--pool", POOL, "--queue", POOL]
            yield Readers(system.cli, system.ask, where=where)
        finally:
            system.settle()
            system.kubectl("delete", f"queues.{group.partition('/')[0]}", POOL)
            system.kubectl("delete", f"resourcepools.{group.partition('/')[0]}", POOL)


def test_a_burst_of_several_ranks(readers: Readers) -> None:
    """Three ranks that print 3,000 lines at once and end: each reader gets 9,000 lines."""
    output.check_burst(readers)


def test_a_flood_and_its_traceback(readers: Readers) -> None:
    """A rank prints 40,000 lines and fails: its log is complete, and ends with the error."""
    output.check_flood_and_traceback(readers)


def test_the_cause_stands_among_the_lines_of_others(readers: Readers) -> None:
    """Of eight ranks that print, one prints why it fails: the log contains its line, and the failure names that
    rank."""
    output.check_cause_among_others(readers)


def test_the_watcher_is_killed(system: System, readers: Readers) -> None:
    """Output that continues while the only watcher is killed and restarted, and ends soon after, loses no line."""
    output.check_kill_of_the_watcher(readers, lambda: system.installation.kill("watcher"))
