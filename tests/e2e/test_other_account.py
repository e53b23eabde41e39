"""Another account of the machine: it can connect to every listener of a local stack, and none gives it anything."""

import itertools
import os
import re
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from tests.support.local_stack import RunningStack, processes_of
from tests.support.plain_http import NO_TLS
from tests.support.wait import DEADLINE_S, wait_until

NOBODY = 65534
ASKED = {
    "api": ("GET", "/api/v1/allocations"),
    "api tasks": ("POST", "/api/v1/allocations/a/ready"),
    "scheduler": ("GET", "/metrics"),
    "podworker": ("GET", "/metrics"),
    "watcher": ("GET", "/metrics"),
    "cluster": ("GET", "/api/v1/pods"),
    "nodes": ("GET", "/logs/default/uid"),
}
"""A valuable request for each listener of the system. A listener that is in no table here fails the tests below."""
WORKLOADS = {
    "jupyter-lab": "notebook",
    "slipway.local.pages notebook": "notebook",
    "ipykernel_launcher": "kernel",
    "tensorboard_data_server": "tensorboard data server",
    "tensorboard": "tensorboard",
    "terminal": "shell",
}
"""Texts on the command lines of processes in pods; the first that matches names the process."""
ASKED_OF_WORKLOADS = {
    "notebook": [("GET", "/proxy/{notebook}/api/kernels"), ("POST", "/proxy/{notebook}/api/kernels")],
    "shell": [("GET", "/sessions")],
}
"""{kind of workload: requests}: each of these would run commands."""
OPEN = {
    "kernel": "takes what its subprocesses print, by a random key; sends nothing",
    "tensorboard": "has no authentication",
    "tensorboard data server": "part of TensorBoard",
}
"""{listener that answers without a token: why}; the page on local mode documents each."""
PAGE = Path(__file__).parents[2] / "docs" / "local-cluster.md"
SAID = {
    "api": "REST API, pages, proxy",
    "api tasks": "the task port of the api",
    "scheduler": "scheduler, podworker, watcher",
    "podworker": "scheduler, podworker, watcher",
    "watcher": "scheduler, podworker, watcher",
    "cluster": "the API server of the cluster",
    "nodes": "logs of the nodes",
    "notebook": "notebooks, shells",
    "shell": "notebooks, shells",
    "kernel": "kernels of notebooks",
    "tensorboard": "TensorBoard",
    "tensorboard data server": "TensorBoard",
}
"""The beginning of each listener's row on that page."""

TRIES = """
import os, socket, sys
other = int(sys.argv[1])
os.setgroups([]); os.setgid(other); os.setuid(other)
for path in sys.argv[2:]:
    try:
        if path.endswith(".sock"):
            socket.socket(socket.AF_UNIX).connect(path)
        else:
            os.close(os.open(path, os.O_RDONLY))
        print("opened:" + path)
    except PermissionError:
        print("closed")
"""
"""A program under another account, which tries to open each of these."""


class Listener(NamedTuple):
    """One socket that accepts connections: `what` listens, and where."""

    what: str
    host: str
    port: int


def processes(stack: RunningStack) -> dict[int, str]:
    """{pid: name} of every process of the stack; its command line if the name is unknown."""
    known = {child.pid: name for name, child in stack.stack.children.items()}
    found: dict[int, str] = {}
    for line in processes_of(str(stack.folder)):
        pid, _, words = line.partition(" ")
        by_words = next((name for mark, name in WORKLOADS.items() if mark in words), words)
        found[int(pid)] = known.get(int(pid), by_words)
    return found


def sockets_of(pid: int) -> set[str]:
    """The inodes of a process's sockets; none when it has ended."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    except OSError:
        return set()
    return {match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link)) is not None}


def rows_of(table: str) -> list[list[str]]:
    """The kernel's table of sockets."""
    path = Path(f"/proc/net/{table}")
    return [line.split() for line in path.read_text("utf-8", "replace").splitlines()[1:]] if path.exists() else []


def listeners(stack: RunningStack) -> set[Listener]:
    """Every TCP socket of every process of the stack that accepts connections."""
    doors = {int(url.rpartition(":")[2]) for url in stack.stack.doors.values()}
    owners = {inode: what for pid, what in processes(stack).items() for inode in sockets_of(pid)}
    found: set[Listener] = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for fields in rows_of(table):
            if fields[3] == "0A" and fields[9] in owners:
                raw, _, port = fields[1].partition(":")
                words = [bytes.fromhex(raw[at : at + 8])[::-1] for at in range(0, len(raw), 8)]
                number = int(port, 16)
                what = "api tasks" if number in doors else owners[fields[9]]
                found.add(Listener(what, socket.inet_ntop(family, b"".join(words)), number))
    return found


def socket_files(stack: RunningStack) -> list[str]:
    """The names of the unix sockets at which a process of the stack accepts connections."""
    inodes = {inode for pid in processes(stack) for inode in sockets_of(pid)}
    accepting = [fields for fields in rows_of("unix") if fields[3] == "00010000" and fields[6] in inodes]
    return [fields[7] if len(fields) > 7 else "" for fields in accepting]


def is_private(path: Path) -> bool:
    """Whether a folder above the file is closed to other accounts."""
    for folder in path.parents:
        about = folder.stat()
        if about.st_uid == os.geteuid() and not about.st_mode & 0o077:
            return True
    return False


def shown(listener: Listener) -> str:
    """The listener's address in a Host header."""
    return f"[{listener.host}]:{listener.port}" if ":" in listener.host else f"{listener.host}:{listener.port}"


def answer_of(listener: Listener, method: str, path: str, *fields: str, body: str = "") -> str:
    """The head of the listener's answer; without fields the request has the listener's host and no credential."""
    sent = [f"{method} {path} HTTP/1.1", *(fields or (f"Host: {shown(listener)}",)), f"Content-Length: {len(body)}"]
    with ExitStack() as opened:
        connection = opened.enter_context(socket.create_connection((listener.host, listener.port), timeout=DEADLINE_S))
        if listener.what == "cluster":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection = opened.enter_context(context.wrap_socket(connection))
        connection.sendall("\r\n".join([*sent, "Connection: close", "", body]).encode())
        answer = opened.enter_context(connection.makefile("rb"))
        lines = iter(answer.readline, b"")
        return "".join(line.decode("latin-1") for line in itertools.takewhile(bytes.strip, lines))


def status_of(listener: Listener, method: str, path: str, *fields: str, body: str = "") -> int:
    """The status of the listener's answer."""
    return int(answer_of(listener, method, path, *fields, body=body).split(None, 2)[1])


class BusyStack(NamedTuple):
    """A stack with a running allocation of each kind; `ids` by kind."""

    stack: RunningStack
    ids: dict[str, str]


@pytest.fixture(scope="module")
def busy(stack: RunningStack) -> BusyStack:
    """An allocation of each kind runs, and the notebook has a kernel."""
    ids = {kind: stack.launch({"kind": kind}) for kind in ("notebook", "shell", "tensorboard")}
    gang = {"kind": "training", "image": "local", "command": ["sleep", "600"], "ranks": [{"name": "w", "count": 2}]}
    stack.wait_for(stack.launch(gang), "Running")
    for kind in ASKED_OF_WORKLOADS:
        wait_until(lambda kind=kind: stack.view(ids[kind])["ready"], f"the {kind} to listen", timeout_s=90)
    wait_until(lambda: "tensorboard" in {each.what for each in listeners(stack)}, "TensorBoard to listen", timeout_s=90)
    kernels = f"{stack.url}/proxy/{ids['notebook']}/api/kernels"
    started = httpx2.post(
        kernels, json={"name": "python3"}, headers=stack.headers, timeout=60, verify=NO_TLS, trust_env=False
    )
    assert started.status_code in (200, 201), started.text
    wait_until(
        lambda: any("kernel" in name for name in [*socket_files(stack), *(each.what for each in listeners(stack))]),
        "a kernel to listen",
        timeout_s=60,
    )
    return BusyStack(stack, ids)


def test_every_listener_of_every_process_is_closed(busy: BusyStack) -> None:
    """Each socket that accepts connections is on a loopback address and refuses a client without a token, or with a
    wrong one, except those listed with a reason. A new listener fails here until it is in a table above."""
    found = listeners(busy.stack)
    assert {each.what for each in found} >= {*ASKED, *ASKED_OF_WORKLOADS}
    assert len([each for each in found if each.what == "kernel"]) <= 1, "cells would print to every account"
    for each in found:
        assert each.host in ("::1",) or each.host.startswith("127."), each
        if each.what in OPEN:
            continue
        questions = [ASKED[each.what]] if each.what in ASKED else ASKED_OF_WORKLOADS[each.what]
        for credential in ((), ("Authorization: Bearer wrong",), ("Authorization: Basic d3Jvbmc6d3Jvbmc=",)):
            for method, path in questions:
                status = status_of(each, method, path.format_map(busy.ids), f"Host: {shown(each)}", *credential)
                assert status in (401, 403), (each, credential)


def test_the_security_page_has_a_row_for_each_listener(busy: BusyStack) -> None:
    """Every listener that runs here is in the page's table of what protects local mode."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    for what in {each.what for each in listeners(busy.stack)}:
        assert any(row.startswith(f"| {SAID[what]}") for row in rows), what


def test_every_socket_file_is_in_a_folder_of_this_account(busy: BusyStack) -> None:
    """No other account may connect to the socket files of Valkey and of kernels. Abstract names would be open to
    every account."""
    found = socket_files(busy.stack)
    assert any(name.endswith("valkey.sock") for name in found)
    assert [name for name in found if not name.startswith("/") or not is_private(Path(name))] == []


def test_nothing_listens_to_datagrams(busy: BusyStack) -> None:
    """Neither the system nor its workloads listen to datagrams."""
    inodes = {inode: what for pid, what in processes(busy.stack).items() for inode in sockets_of(pid)}
    found = [inodes[fields[9]] for table in ("udp", "udp6") for fields in rows_of(table) if fields[9] in inodes]
    assert found == []


def test_no_listener_serves_pages_of_other_sites(stack: RunningStack) -> None:
    """A foreign name that resolves to this machine, and a page of another origin, are refused everywhere, also with
    the token. The api answers reads, but no page of another origin can see the answer."""
    token = f"Authorization: {stack.headers['Authorization']}"
    for each in listeners(stack):
        if each.what not in ASKED or each.what == "api tasks":
            continue  # there a page of any site is like any caller: it needs the token of a task
        method, path = ASKED[each.what]
        assert status_of(each, method, path, "Host: evil.example", token) == 421, each
        for sign in ("Origin: http://127.0.0.1:9", "Sec-Fetch-Site: cross-site"):
            for verb in ("POST", "DELETE", "GET"):
                fields = (f"Host: {shown(each)}", sign, token)
                if (each.what, verb) == ("api", "GET"):
                    assert "access-control" not in answer_of(each, verb, path, *fields).lower()
                else:
                    assert status_of(each, verb, path, *fields) == 403, (each, verb, sign)


def test_no_listener_takes_what_a_form_of_any_page_can_send(stack: RunningStack) -> None:
    """A browser sends `text/plain` without a preflight request: such a body is refused, also with the token."""
    token = f"Authorization: {stack.headers['Authorization']}"
    writes = {"api": "/api/v1/allocations", "cluster": "/api/v1/namespaces/default/pods"}
    for each in listeners(stack):
        if each.what in ASKED and each.what != "api tasks":
            path = writes.get(each.what, ASKED[each.what][1])
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
                fields = (f"Host: {shown(each)}", token, f"Content-Type: {kind}")
                status = status_of(each, "POST", path, *fields, body="{}")
                assert status == (415 if each.what in writes else 405), (each, kind)


def test_probes_need_no_token(stack: RunningStack) -> None:
    """A probe shows only that a process lives, which is no secret."""
    for each in listeners(stack):
        if each.what in ("api", "scheduler", "podworker", "watcher", "cluster"):
            assert status_of(each, "GET", "/livez") == 200, each


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_another_account_reads_no_file(stack: RunningStack) -> None:
    """It cannot read the token, the kubeconfig, a log or the socket of Valkey, though it knows their paths."""
    names = ["token", "kubeconfig", "stack.json", "logs/api.log", "tokens", "redis/valkey.sock"]
    assert all((stack.folder / name).exists() for name in names)
    wanted = [f"{stack.folder.name}/{name}" for name in names]
    # It begins next to the folder, so that no folder above closes it.
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRIES, str(NOBODY), *wanted],
        cwd=stack.folder.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["closed"] * len(names)), done.stdout + done.stderr


def test_no_secret_is_on_a_command_line(stack: RunningStack) -> None:
    """Every account can read command lines."""
    for child in stack.stack.children.values():
        assert stack.stack.token not in Path(f"/proc/{child.pid}/cmdline").read_text("utf-8"), child.name


def test_no_token_of_workloads_is_on_a_command_line(busy: BusyStack) -> None:
    """The proxy sends the token to notebooks and shells, where it would allow to run commands."""
    said = (busy.stack.folder / "workload-token").read_text()
    for pid in processes(busy.stack):
        assert said not in Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace"), pid
