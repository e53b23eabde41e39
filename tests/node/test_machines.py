"""Lost, disconnected and rebooted machines, and deleted pods: nothing runs twice, nothing is lost."""

import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from slipway.runtime.clock import SystemClock
from tests.node.conftest import Product, cordoned
from tests.node.images import write_image
from tests.node.nodes import CONTROL_PLANE, GRACE_S, WITNESS_PORT, RealNode
from tests.node.test_lives import lines_of
from tests.node.test_pods import a_template
from tests.support.wait import wait_until

CLOCK = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit(0))
while True: print(time.time(), flush=True); time.sleep(0.1)
"""
WITNESSED_CLOCK = f"""
import signal, socket, sys, time
signal.signal(15, lambda *_: sys.exit(0))
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    print(time.time(), flush=True)
    out.sendto(str(time.time()).encode(), ("{CONTROL_PLANE}", {WITNESS_PORT}))
    time.sleep(0.1)
"""
SILENT_S = 2 * GRACE_S + 20
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


def launch_on_last(product: Product, *command: str, ranks: int = 2) -> tuple[str, RealNode]:
    """Launch a gang on the last node, where no pod of Slipway itself runs; it may also run on the first."""
    first, last = product.cluster.nodes[0], product.cluster.nodes[-1]
    with cordoned(product.cluster, first):
        id_ = product.launch(*command, options=("--ranks", str(ranks)))
        product.wait_running(id_, 1)
    return id_, last


def times_of(product: Product, id_: str, attempt: int) -> list[float]:
    """The output of all ranks of an attempt, in order of time."""
    shown = lines_of(product.slipway("logs", id_, "--attempt", str(attempt)).out)
    return sorted(float(line.rpartition(" ")[2]) for line in shown)


def is_ready(product: Product, node: RealNode) -> bool:
    return product.cluster.has_condition(node.name, "Ready")


def end(product: Product, id_: str) -> None:
    """Kill it, and wait until no node has a process of it."""
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated", 90)
    for node in product.cluster.nodes:
        wait_until(lambda node=node: not pods_on(node, id_), f"nothing of {id_} runs on {node.name}")


def pods_on(node: RealNode, id_: str) -> list[str]:
    return [name for name in node.running() if name.startswith(id_)]


def await_pods(node: RealNode, id_: str, attempt: int | None, ranks: int = 2) -> None:
    """Wait until exactly the pods of that attempt run there, all of them; None: no pod."""
    wanted = [f"{id_}-{attempt}-{rank}" for rank in range(ranks)] if attempt else []
    wait_until(lambda: pods_on(node, id_) == wanted, f"{wanted} run on {node.name}", timeout_s=60)


def hear_of_after(moment: float) -> None:
    """Wait until a container reports a later time (epoch seconds)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ear:
        ear.bind((CONTROL_PLANE, WITNESS_PORT))
        ear.settimeout(10.0)
        while float(ear.recv(64)) < moment:
            continue


@pytest.mark.parametrize("how", [(), ("--force", "--grace-period=0")], ids=["asked", "forced"])
def test_a_pod_deleted_by_hand(product: Product, how: tuple[str, ...]) -> None:
    """The whole gang ends, and only then restarts; this is not the user's failure."""
    id_ = product.launch("python3", "-c", CLOCK, options=("--ranks", "2"))
    product.wait_running(id_, 1)
    wait_until(lambda: times_of(product, id_, 1), "it prints")
    product.cluster.kubectl("delete", "pod", f"{id_}-1-0", "--wait=false", *how)
    product.wait_running(id_, 2)
    second = wait_until(lambda: times_of(product, id_, 2), "it prints again")
    assert times_of(product, id_, 1)[-1] < second[0]
    assert product.view(id_)["status"].get("restarts", 0) == 0
    end(product, id_)


def test_a_machine_that_is_gone(product: Product) -> None:
    """Its gang is not restarted until an administrator states that the machine is off; then the whole gang runs
    elsewhere.

    When the machine is back, nothing of the gang runs on it.
    """
    id_, lost = launch_on_last(product, "python3", "-c", CLOCK)
    lost.power_off()
    wait_until(lambda: not is_ready(product, lost), "the node is not ready", timeout_s=SILENT_S)
    assert f"node {lost.name} does not answer" in product.slipway("explain", id_).out
    assert product.view(id_)["attempt"] == 1
    product.cluster.kubectl("taint", "node", lost.name, f"{OUT_OF_SERVICE}=nodeshutdown:NoExecute")
    product.wait_running(id_, 2)
    await_pods(product.cluster.nodes[0], id_, 2)
    lost.power_on()
    product.cluster.kubectl("taint", "node", lost.name, f"{OUT_OF_SERVICE}-")
    wait_until(lambda: is_ready(product, lost), "the node is ready", timeout_s=SILENT_S)
    await_pods(lost, id_, None)
    assert product.view(id_)["attempt"] == 2
    end(product, id_)


def test_a_machine_that_is_cut_off(product: Product) -> None:
    """Its containers run on without reports. When an administrator gives them up, the gang runs elsewhere, and the
    machine ends them later.

    The collector of the chaos runs receives their reports all the time.
    """
    id_, lost = launch_on_last(product, "python3", "-c", WITNESSED_CLOCK)
    lost.cut_off()
    try:
        hear_of_after(SystemClock().now())
        wait_until(lambda: not is_ready(product, lost), "the node is not ready", timeout_s=SILENT_S)
        assert lost.name in product.slipway("forget", id_).out
        product.wait_running(id_, 2)
        await_pods(lost, id_, 1)
    finally:
        lost.reconnect()
    await_pods(lost, id_, None)
    await_pods(product.cluster.nodes[0], id_, 2)
    end(product, id_)


def test_a_machine_that_boots(product: Product) -> None:
    """It is back before an administrator gave it up: its pods are reported as lost, and the whole gang restarts."""
    id_, lost = launch_on_last(product, "python3", "-c", CLOCK)
    wait_until(lambda: times_of(product, id_, 1), "it prints")
    lost.power_off()
    lost.power_on()
    product.wait_running(id_, 2)
    assert product.view(id_)["status"].get("restarts", 0) == 0
    assert not any(re.fullmatch(f"{id_}-1-.*", name) for node in product.cluster.nodes for name in node.running())
    end(product, id_)


def test_a_runtime_that_comes_back_has_lost_nothing(product: Product) -> None:
    """containerd is killed while ranks print: they run on, and every line is shown."""
    script = "import time\nfor n in range(100): print('line', n, flush=True); time.sleep(0.1)"
    id_, node = launch_on_last(product, "python3", "-c", script, ranks=1)
    wait_until(lambda: "line 5" in lines_of(product.slipway("logs", id_).out), "it prints", timeout_s=40)
    node.runtime.program.stop(signal.SIGKILL)
    node.runtime.start()
    product.wait(id_, "terminated", 90)
    assert lines_of(product.slipway("logs", id_).out) == [f"line {n}" for n in range(100)]
    assert product.view(id_)["attempt"] == 1


FILL = """
import pathlib, shutil, sys, time
disk = shutil.disk_usage("/scratch")
if disk.total > 16 * 2**30:
    print("there is room")
    sys.exit()
with open("/scratch/large", "wb") as file:
    while shutil.disk_usage("/scratch").free > disk.total * 0.05:
        file.write(bytes(2**20))
        file.flush()
print("the disk is full", flush=True)
time.sleep(600)
"""
SPARE = "slipway.local/spare:1"


def test_a_disk_that_is_full(product: Product, tmp_path: Path) -> None:
    """The kubelet removes unused images first, then evicts the rank that has filled the disk.

    The run shows the eviction in the kubelet's words and does not count it as a restart; its next attempt runs on
    another node. Pinned images stay, so the node can run work again.
    """
    first, last = product.cluster.nodes[0], product.cluster.nodes[-1]
    (tmp_path / "root").mkdir()
    write_image(tmp_path / "root", tmp_path / "spare.tar", SPARE, Cmd=["nothing"])
    last.runtime.ctr("images", "import", str(tmp_path / "spare.tar"))
    # A kubelet looks for images when it starts, and then every five minutes.
    last.kubelet.stop()
    last.kubelet.start()
    wait_until(lambda: is_ready(product, last), "the node is ready", timeout_s=SILENT_S)
    scratch: dict[str, Any] = {"name": "scratch", "emptyDir": {}}
    template = a_template(scratch, volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}])
    with cordoned(product.cluster, first):
        id_ = product.apply(tmp_path, command=["python3", "-c", FILL], template=template)
        product.wait_running(id_, 1)
    product.wait(id_, "terminated", 150)
    view, story = product.view(id_), product.slipway("describe", id_).out
    assert (view["attempt"], view["result"], view["status"].get("restarts", 0)) == (2, "Succeeded", 0), story
    assert "low on resource: ephemeral-storage" in story + product.slipway("logs", id_, "--attempt", "1").out, story
    wait_until(lambda: SPARE not in last.runtime.ctr("images", "list", "--quiet").split(), "the unused image is gone")
    wait_until(lambda: not has_pressure(product, last), "the machine has room again", timeout_s=60)
    with cordoned(product.cluster, first):
        ran = product.run("python3", "-c", "print('here again')")
    assert "here again" in ran.out, ran


def has_pressure(product: Product, node: RealNode) -> bool:
    """Whether the kubelet reports disk pressure."""
    return product.cluster.has_condition(node.name, "DiskPressure")
