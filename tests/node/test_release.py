"""A release with real pods: upgraded, rolled back and uninstalled; running pods are not affected, and nothing of the
release stays."""

import contextlib
import re
from collections.abc import Generator

import pytest

from tests.node.conftest import VALUES, Product, cordoned, settle
from tests.node.test_lives import lines_of
from tests.support import chart
from tests.support.wait import wait_until

TICKS = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit(0))
for n in range(100_000): print("line", n, flush=True); time.sleep(0.2)
"""
CHANGED: chart.Values = {**VALUES, "settings": {"logLevel": "debug"}}
KINDS = (
    "deployments,statefulsets,daemonsets,replicasets,jobs,cronjobs,pods,services,endpointslices,configmaps,secrets,"
    "serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,networkpolicies,poddisruptionbudgets,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,leases"
)
STAYS = re.compile(r"configmap/slipway-(key|usage)-.*|lease\.coordination\.k8s\.io/slipway-(feed|scheduler-.*)")
"""Objects that stay according to the page, beside the definitions and their objects: totals of usage, keys, expired
leases."""


def pod_of(product: Product, id_: str) -> tuple[str, int]:
    """The uid of a run's pod, and the restarts of its containers."""
    where = "jsonpath={.metadata.uid} {.status.containerStatuses[0].restartCount}"
    uid, restarts = product.cluster.kubectl("get", "pod", f"{id_}-1-0", "--output", where).split()
    return uid, int(restarts)


def level_of(product: Product) -> str:
    """The log level of the running scheduler."""
    where = "jsonpath={.items[*].data.SLIPWAY_LOG_LEVEL}"
    said = product.cluster.kubectl("--namespace", chart.NAMESPACE, "get", "configmaps", "--output", where).split()
    assert len(set(said)) == 1, said
    return said[0]


def is_going_on(product: Product, id_: str) -> bool:
    """Whether its output is shown, also lines that it prints from now on."""
    before = len(lines_of(product.slipway("logs", id_).out))
    wait_until(lambda: len(lines_of(product.slipway("logs", id_).out)) > before, "it goes on", timeout_s=60)
    return True


def left(product: Product) -> set[str]:
    """Objects of the cluster with the release's name or labels, except those that stay."""
    listed = product.cluster.kubectl("get", KINDS, "--all-namespaces", "--output", "name")
    labelled = product.cluster.kubectl(
        "get", KINDS, "--all-namespaces", "--output", "name", "--selector", "app.kubernetes.io/instance=slipway"
    )
    found = {name for name in listed.split() if "slipway" in name.partition("/")[2]} | set(labelled.split())
    return {name for name in found if not STAYS.fullmatch(name)}


@pytest.fixture(autouse=True)
def on_the_first_node(product: Product) -> Generator[None]:
    """Move the services to the first node, because other tests lose the other nodes."""
    with cordoned(product.cluster, *product.cluster.nodes[1:]):
        yield


def test_a_run_lives_through_upgrade_and_rollback_and_an_uninstall_leaves_nothing(product: Product) -> None:
    """A changed setting reaches the pods and is reverted; the same container runs on, each line shown once."""
    kubeconfig = product.cluster.control.kubeconfig
    id_ = product.launch("python3", "-c", TICKS)
    product.wait_running(id_, 1)
    before, level = pod_of(product, id_), level_of(product)

    chart.upgrade(kubeconfig, values=CHANGED)
    settle(product.cluster)
    product.connect()
    assert (level, level_of(product)) == ("info", "debug")
    assert is_going_on(product, id_)

    chart.rollback(kubeconfig)
    settle(product.cluster)
    product.connect()
    assert level_of(product) == level
    assert is_going_on(product, id_)
    assert pod_of(product, id_) == before
    numbers = [int(line.split()[1]) for line in lines_of(product.slipway("logs", id_).out)]
    assert numbers == list(range(len(numbers)))

    product.uninstall()
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left(product), "nothing is left", timeout_s=60)
    assert left(product) == set[str]()
    kept = product.cluster.kubectl("get", "crds,resourcepools,queues", "--output", "name")
    assert "allocations.slipway.dev" in kept
    assert "resourcepool.slipway.dev/default" in kept
    for node in product.cluster.nodes:
        wait_until(lambda node=node: not node.running() + node.running(chart.NAMESPACE), f"{node.name} runs nothing")
