"""The chart's own trial, single runs, a node that is drained, an init container that fails, and TensorBoard."""

from pathlib import Path

import httpx2

from tests.node.conftest import SMALL, VALUES, Product, cordoned, settle
from tests.node.images import WORKLOAD
from tests.node.nodes import RealNode
from tests.node.test_lives import lines_of
from tests.node.test_machines import end, launch_on_last
from tests.support import chart
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

COUNT = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit(0))
for n in range(100_000): print(n, flush=True); time.sleep(0.2)
"""


def test_the_installation_passes_its_own_trial(product: Product) -> None:
    """`helm test`: a pod of the chart launches a run, reads its log, and succeeds."""
    answer = chart.try_out(product.cluster.control.kubeconfig, timeout_s=180)
    assert answer


def test_single_runs_of_the_scheduler_launch_what_waits(product: Product) -> None:
    """With `scheduler.once` a CronJob replaces the Deployment: each run does the present work, and ends."""
    ours = ("--namespace", chart.NAMESPACE)
    kubeconfig = product.cluster.control.kubeconfig
    chart.upgrade(kubeconfig, values={**VALUES, "scheduler": {"once": {"enabled": True}}})
    try:
        wait_until(lambda: "scheduler" not in product.cluster.kubectl(*ours, "get", "deployments"), "it is replaced")
        id_ = product.launch("echo", "launched")
        product.cluster.kubectl(*ours, "create", "job", "one-run", "--from=cronjob/slipway-scheduler")
        product.cluster.kubectl(
            *ours, "wait", "job/one-run", "--for=condition=Complete", "--timeout=120s", timeout_s=130
        )
        product.wait(id_, "terminated", 90)
        assert lines_of(product.slipway("logs", id_).out) == ["launched"]
    finally:
        product.cluster.kubectl(*ours, "delete", "job", "one-run", "--ignore-not-found")
        chart.rollback(kubeconfig)
        settle(product.cluster)
        product.connect()


def test_the_node_of_the_services_is_drained(product: Product) -> None:
    """The services restart elsewhere, a run on another node is not affected, and each of its lines is shown once.

    At the end the services are on the first node again, because other tests lose the others.
    """
    cluster = product.cluster
    first, last = cluster.nodes[0], cluster.nodes[-1]
    id_, _ = launch_on_last(product, "python3", "-c", COUNT, ranks=1)
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
    try:
        cluster.kubectl("drain", first.name, *words, timeout_s=160)
        settle(cluster)
        product.connect()
        assert services_on(product, first) == []
        assert len(services_on(product, last)) >= len(chart.SERVICES)
    finally:
        cluster.kubectl("uncordon", first.name)
        with cordoned(cluster, last):
            cluster.kubectl("--namespace", chart.NAMESPACE, "rollout", "restart", "deployments")
            settle(cluster)
        product.connect()
    before = len(lines_of(product.slipway("logs", id_).out))
    wait_until(lambda: len(lines_of(product.slipway("logs", id_).out)) > before, "it goes on", timeout_s=60)
    numbers = [int(line) for line in lines_of(product.slipway("logs", id_).out)]
    assert numbers == list(range(len(numbers)))
    assert product.view(id_)["attempt"] == 1
    end(product, id_)


def services_on(product: Product, node: RealNode) -> list[str]:
    """The pods of the release's Deployments on that node."""
    selector = f"app.kubernetes.io/component in ({','.join(chart.SERVICES)})"
    found = product.cluster.kubectl(
        "--namespace", chart.NAMESPACE, "get", "pods", "--output", "name", "--selector", selector,
        "--field-selector", f"spec.nodeName={node.name},status.phase=Running",
    )  # fmt: skip
    return found.split()


def test_an_init_container_that_fails_is_named(product: Product, tmp_path: Path) -> None:
    """The failure has its exit code; its output is the log of the rank, whose program never started."""
    beside = {
        "initContainers": [{"name": "prepare", "image": WORKLOAD, "command": ["sh", "-c", "echo no data; exit 7"]}]
    }
    id_ = product.apply(tmp_path, command=["sh", "-c", "echo main"], template={"spec": beside})
    product.wait(id_, "terminated", 90)
    said = product.slipway("describe", id_).out
    assert "init container prepare" in said, said
    assert "7" in said, said
    assert lines_of(product.slipway("logs", id_, "--container", "prepare").out) == ["no data"]
    assert "main" not in lines_of(product.slipway("logs", id_).out)


def test_a_tensorboard_is_reached_through_the_proxy(product: Product) -> None:
    """TensorBoard answers below the proxy's path."""
    ran = product.slipway("tensorboard", "start", "--detach", "--image", WORKLOAD, *SMALL)
    assert ran.code == 0, ran
    id_ = product.newest("tensorboard")
    product.wait(id_, "ready", 120)
    page = httpx2.get(f"{product.url}/proxy/{id_}/", verify=NO_TLS, trust_env=False, follow_redirects=True, timeout=30)
    assert page.status_code == 200
    assert "TensorBoard" in page.text
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated")
