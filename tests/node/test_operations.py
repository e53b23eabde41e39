"""The chart's own trial, an init container that fails, and TensorBoard, on real nodes."""

from pathlib import Path

import httpx

from tests.node.conftest import SMALL, Product
from tests.node.images import WORKLOAD
from tests.node.test_lives import lines_of
from tests.support import chart


def test_the_installation_passes_its_own_trial(product: Product) -> None:
    """`helm test`: a pod of the chart launches a run, reads its log, and is content."""
    answer = chart.try_out(product.cluster.control.kubeconfig, timeout_s=180)
    assert answer


def test_an_init_container_that_fails_is_named(product: Product, tmp_path: Path) -> None:
    """With its exit code; what it printed is the log of the rank, whose program never began."""
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
    page = httpx.get(f"{product.url}/proxy/{id_}/", trust_env=False, follow_redirects=True, timeout=30)
    assert page.status_code == 200
    assert "TensorBoard" in page.text
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated")
