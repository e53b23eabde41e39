"""The chart with its image on a real API server: every pod of the release is a container of the image's files.

Kubernetes' own controllers create the pods: services, the setup, and the Job that Helm runs before an uninstall. Each
reaches the API server with its account's mounted token, runs as user nobody, and has a read-only root.
"""

from collections.abc import Generator
from pathlib import Path

import pytest

from slipway.local.valkey import ServerOptions
from tests.conformance.cluster.servers import running_cluster
from tests.conformance.system.conftest import QUICK
from tests.conformance.system.operator import GROUP, Json, Operator
from tests.conformance.system.pods import ADDRESS, await_rolled_out, running_pods_of
from tests.conformance.wanted import require_own_cluster
from tests.support import chart
from tests.support.container import made_image, require_root
from tests.support.dockerfile import Image
from tests.support.ports import free_port
from tests.support.redis import running_server
from tests.support.wait import wait_until

ALLOCATIONS = f"{GROUP}/namespaces/default/allocations"
JOBS = f"/apis/batch/v1/namespaces/{chart.NAMESPACE}/jobs"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Generator[Image]:
    require_own_cluster()
    require_root()
    with made_image(tmp_path_factory.mktemp("image")) as made:
        yield made


@pytest.fixture(scope="module")
def operator(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Generator[Operator]:
    """An operator of a cluster on which the chart is installed."""
    folder = tmp_path_factory.mktemp("of-the-image")
    with (
        running_cluster(folder / "cluster") as cluster,
        running_server("valkey", ServerOptions(port=free_port())) as server,
        running_pods_of(image, cluster, folder / "pods"),
    ):
        found = Operator(cluster)
        services = {name: {**QUICK.get(name, {}), "extraEnv": ADDRESS} for name in chart.SERVICES}
        more = {"valkey": {"enabled": False}, "externalRedis": {"url": server.url}}
        values = {**services, **more, "uninstall": {"removeAllocations": True}}
        try:
            chart.install(cluster.kubeconfig, values=values)
            await_rolled_out(found)
            yield found
        finally:
            found.close()


def processes_of(image: Image) -> dict[str, list[Path]]:
    """{command: its processes in /proc} of every process that runs the image's Python on the image's files"""
    found: dict[str, list[Path]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            root = (entry / "root").readlink()
        except OSError:
            continue
        if str(root) != "/" and len(words) > 1 and words[0] == b"/usr/local/bin/python3":
            found.setdefault(Path(words[1].decode()).name, []).append(entry)
    return found


def test_the_chart_runs_on_the_image(operator: Operator, image: Image) -> None:
    """The chart is installed, used and uninstalled, in this order."""
    check_every_service_is_of_the_image_and_ready(operator, image)
    check_a_launch_lives_its_whole_life(operator)
    check_the_uninstall_leaves_nothing(operator, image)


def check_every_service_is_of_the_image_and_ready(operator: Operator, image: Image) -> None:
    """Each service has two processes on the image's files, with the image's user; the setup has run and created the
    objects that a launch needs."""
    wait_until(lambda: all(job["status"].get("succeeded") for job in operator.items(JOBS)), "the setup has run")
    assert operator.find(f"{GROUP}/queues/default") is not None
    running = processes_of(image)
    assert {name: len(found) for name, found in running.items()} == {f"slipway-{name}": 2 for name in chart.SERVICES}
    user, _, _ = image.user.partition(":")
    for found in running.values():
        for entry in found:
            status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
            assert (set(status["Uid"].split()), status["NoNewPrivs"]) == ({user}, "1")
            mounts = [line.split() for line in (entry / "mounts").read_text().splitlines()]
            assert [options.split(",")[0] for _, point, _, options, *_ in mounts if point == "/"][-1:] == ["ro"]


def check_a_launch_lives_its_whole_life(operator: Operator) -> None:
    """An allocation is applied, admitted, bound, run until its end, and deleted."""
    container = {"name": "main", "image": "local", "command": ["sh", "-c", "sleep 0.5"]}
    spec = {
        "kind": "command",
        "template": {"spec": {"containers": [container]}},
        "ranks": [{"name": "worker", "count": 2, "resources": {"cpu": "10m", "memory": "16Mi"}}],
    }
    operator.apply(
        {"apiVersion": "slipway.dev/v1alpha1", "kind": "Allocation", "metadata": {"name": "first"}, "spec": spec}
    )

    def status() -> Json:
        return operator.get(f"{ALLOCATIONS}/first")["status"]

    wait_until(lambda: status().get("phase") == "Terminated", "it has ended", timeout_s=60)
    assert status()["result"] == "Succeeded"


def check_the_uninstall_leaves_nothing(operator: Operator, image: Image) -> None:
    """The Job of the uninstall runs in the image too, and finds its account: no allocation and no process is left."""
    chart.uninstall(operator.cluster.kubeconfig)
    assert operator.items(ALLOCATIONS) == []
    wait_until(lambda: processes_of(image) == {}, "every process of the image has ended", timeout_s=60)
