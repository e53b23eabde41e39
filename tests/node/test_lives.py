"""Workloads in real containers: their output, their ends, and how Slipway reports both."""

import re
import signal
from pathlib import Path

from tests.browser.chromium import Page
from tests.node.conftest import SMALL, Product
from tests.node.images import WORKLOAD
from tests.node.nodes import LOG_BYTES_MAX
from tests.node.numbered_lines import NumberedOutput
from tests.support.wait import wait_until

SUM = """
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], 29511)
if rank == 0:
    with socket.create_server(("", 29511)) as server:
        total, peers = 0, []
        for _ in range(size - 1):
            peer, _ = server.accept()
            total += int(peer.recv(16)); peers.append(peer)
        for peer in peers:
            peer.sendall(str(total).encode())
else:
    for _ in range(300):
        try:
            peer = socket.create_connection(address, timeout=5); break
        except OSError:
            time.sleep(0.2)
    peer.sendall(str(rank).encode())
    total = int(peer.recv(16))
print("sum", total)
"""
BROWSER_S = 60.0
FLOOD = LOG_BYTES_MAX // 90
"""lines of 90 bytes and more: with their times, half as much again as one log file"""


def lines_of(out: str) -> list[str]:
    """The output of ranks, without Kubernetes' events about their pods."""
    return [line for line in out.splitlines() if not re.match(r"(\[\d+\] )?-- ", line)]


def test_what_a_program_prints_is_shown(product: Product) -> None:
    """All lines are shown once, and the exit code is 0."""
    ran = product.run("python3", "-c", "for n in range(5): print('line', n)")
    assert ran.code == 0, ran
    assert lines_of(ran.out) == [f"line {n}" for n in range(5)]


def test_a_gang_finds_its_ranks_by_name(product: Product) -> None:
    """Four ranks add up their numbers over sockets at the first rank's name."""
    ran = product.run("python3", "-c", SUM, options=("--ranks", "4"))
    assert ran.code == 0, ran
    assert sorted(lines_of(ran.out)) == [f"[{rank}] sum 6" for rank in range(4)]


def test_an_exit_code_is_the_programs_own(product: Product) -> None:
    """The run has failed, and the failure names the code."""
    ran = product.run("python3", "-c", "raise SystemExit(3)")
    assert ran.code == 3
    assert "rank 0 exited with 3" in ran.err


def test_an_out_of_memory_kill_is_named(product: Product, tmp_path: Path) -> None:
    """The kernel kills a process beyond its memory limit, and the failure names that reason."""
    limited = {"count": 1, "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "64Mi"}}}
    command = ["python3", "-c", "held = [b'x' * 2**20 + bytes(n) for n in range(10_000)]"]
    id_ = product.apply(tmp_path, command=command, ranks=[limited])
    product.wait(id_, "terminated")
    said = product.slipway("describe", id_).out
    assert "OOMKilled" in said, said


def test_a_program_that_is_not_there_is_named(product: Product) -> None:
    """The failure names the program and what is wrong."""
    ran = product.run("no-such-program")
    assert ran.code == 128
    assert "no-such-program" in ran.err + ran.out


def test_an_image_that_is_not_there_is_named(product: Product) -> None:
    """While the pull is retried, `explain` names the image and the reason."""
    id_ = product.launch("true", options=("--image", "slipway.local/missing:1"))
    wait_until(lambda: "slipway.local/missing:1" in product.slipway("explain", id_).out, "it is said", timeout_s=40)
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated")


def test_a_termination_request_reaches_the_program(product: Product) -> None:
    """The program gets SIGTERM, the output of its handler is stored, and the end does not wait for the whole grace."""
    script = """
import signal, sys, time
signal.signal(15, lambda *_: sys.exit("last words"))
print("ready", flush=True)
time.sleep(600)
"""
    id_ = product.launch("python3", "-c", script)
    wait_until(lambda: "ready" in lines_of(product.slipway("logs", id_).out), "it has begun", timeout_s=40)
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated", 25)
    assert lines_of(product.slipway("logs", id_).out) == ["ready", "last words"]


def test_files_come_with_it(product: Product, tmp_path: Path) -> None:
    """The program starts in the folder of the context."""
    (tmp_path / "train.py").write_text("print(open('data.txt').read())")
    (tmp_path / "data.txt").write_text("forty-two")
    ran = product.run("python3", "train.py", options=("--context", str(tmp_path)))
    assert ran.code == 0, ran
    assert lines_of(ran.out) == ["forty-two"]


def test_bursts_of_a_gang_are_complete(product: Product) -> None:
    """Eight ranks print 600 lines at once; each line is shown once."""
    ran = product.run("python3", "-c", "for n in range(600): print('line', n)", options=("--ranks", "8"))
    assert ran.code == 0, ran
    found = lines_of(ran.out)
    for rank in range(8):
        mine = [line for line in found if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] line {n}" for n in range(600)]


def test_a_log_that_is_rotated_is_complete(product: Product) -> None:
    """The kubelet begins a new file while the program prints; the lines after a flood, with the cause of the
    failure, are stored. Lines that the node removed before they were read are reported as missing."""
    script = f"for n in range({FLOOD}): print('line', n, 'x' * 80)\nraise RuntimeError('the cause')"
    ran = product.run("python3", "-c", script, timeout_s=180)
    assert ran.code == 1
    found = lines_of(ran.out)
    # The two streams use two pipes, so their order is not defined.
    beside = [line for line in found if not line.startswith("line ")]
    assert any(line.endswith("RuntimeError: the cause") for line in beside), (len(found), found[-1], beside, ran.err)
    NumberedOutput(ran.out, ran.err).check(FLOOD)


def test_the_last_lines_of_the_failed_rank_are_shown(product: Product) -> None:
    """A rank floods and fails, and the others of its gang are ended for it: its log is read before its pod is
    deleted."""
    script = (
        "import os, time\n"
        "if os.environ['RANK'] != '1': time.sleep(600)\n"
        "for n in range(60_000): print('line', n, 'x' * 80)\n"
        "raise RuntimeError('the cause')"
    )
    ran = product.run("python3", "-c", script, options=("--ranks", "3"), timeout_s=180)
    assert ran.code == 1
    found = [line.removeprefix("[1] ") for line in lines_of(ran.out) if line.startswith("[1] ")]
    # The two streams use two pipes, so their order is not defined.
    beside = [line for line in found if not line.startswith("line ")]
    assert any(line.endswith("RuntimeError: the cause") for line in beside), (len(found), found[-1], beside, ran.err)
    NumberedOutput(ran.out, ran.err, "1").check(60_000)


def test_helpers_beside_a_rank_have_logs(product: Product, tmp_path: Path) -> None:
    """Logs of init containers and sidecars are read by their names."""
    beside = {
        "initContainers": [
            {"name": "prepare", "image": WORKLOAD, "command": ["sh", "-c", "echo prepared"]},
            {
                "name": "helper",
                "image": WORKLOAD,
                "restartPolicy": "Always",
                "command": ["sh", "-c", "trap 'exit 0' TERM; echo helping; while true; do sleep 0.1; done"],
            },
        ]
    }
    id_ = product.apply(tmp_path, command=["sh", "-c", "echo main; sleep 2"], template={"spec": beside})
    product.wait(id_, "terminated")
    assert lines_of(product.slipway("logs", id_).out) == ["main"]
    assert product.slipway("logs", id_, "--container", "prepare").out == "prepared\n"
    assert product.slipway("logs", id_, "--container", "helper").out == "helping\n"


def test_a_notebook_runs_a_cell_in_a_browser(product: Product, page: Page) -> None:
    """Through the proxy JupyterLab's page opens, and its kernel in the container runs a cell."""
    ran = product.slipway("notebook", "start", "--detach", "--image", WORKLOAD, *SMALL)
    assert ran.code == 0, ran
    id_ = product.newest("notebook")
    product.wait(id_, "ready", 90)
    page.goto(f"{product.url}/proxy/{id_}/")
    page.wait_for("!!document.querySelector('.jp-LauncherCard')", timeout_s=BROWSER_S)
    page.click(".jp-LauncherCard[data-category='Notebook']")
    page.wait_for("!!document.querySelector('.jp-Notebook .cm-content')", timeout_s=BROWSER_S)
    page.wait_for("document.body.innerText.includes('| Idle')", timeout_s=BROWSER_S)
    page.click(".jp-Notebook .cm-content")
    page.wait_for("!!document.activeElement.closest('.jp-Notebook')")
    page.type("import os; print(os.environ['HOSTNAME'], 40 + 2)")
    page.press("Enter", 13, "\r", modifiers=8)
    wanted = f"document.querySelector('.jp-OutputArea-output')?.innerText.includes('{id_}-1-0 42')"
    page.wait_for(wanted, timeout_s=BROWSER_S)
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated")


def test_a_shell_runs_commands(product: Product) -> None:
    """Input, output and the exit code work; on a terminal, the shell has the terminal's size, also after a resize."""
    assert product.slipway("shell", "start", "--detach", "--image", WORKLOAD, *SMALL).code == 0
    id_ = product.newest("shell")
    product.wait(id_, "ready", 60)
    ran = product.slipway("shell", "open", id_, "--", "sh", "-c", "cat; exit 5", stdin="typed\n")
    assert (ran.code, ran.out) == (5, "typed\n"), ran
    with product.at_terminal("shell", "open", id_) as person:
        person.until("detaches, and it goes on")
        person.type("stty size; echo first-$((1+1))\n")
        assert "24 80" in person.until("first-2")
        person.resize(40, 100)
        person.type('until [ "$(stty size)" = "40 100" ]; do sleep 0.05; done; echo second-$((1+1))\n')
        person.until("second-2")
        person.type("exit 9\n")
        assert person.to_end() == 9
    assert product.slipway("kill", id_).code == 0
    product.wait(id_, "terminated")


def test_a_kubelet_that_comes_back_has_lost_nothing(product: Product) -> None:
    """The kubelet is killed while a rank prints; every line is shown."""
    script = "import time\nfor n in range(80): print('line', n, flush=True); time.sleep(0.1)"
    id_ = product.launch("python3", "-c", script)
    wait_until(lambda: "line 5" in lines_of(product.slipway("logs", id_).out), "it prints", timeout_s=40)
    for node in product.cluster.nodes:
        node.kubelet.stop(signal.SIGKILL)
        node.kubelet.start()
    product.connect()
    product.wait(id_, "terminated", 90)
    assert lines_of(product.slipway("logs", id_).out) == [f"line {n}" for n in range(80)]
