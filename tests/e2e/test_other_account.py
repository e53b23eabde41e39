"""Another account of the machine: it can connect to every listener of a local stack, and gets nothing from any."""

import os
import re
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.local_stack import RunningStack
from tests.support.wait import wait_until

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
"""What would be worth having at each listener. One that is not listed here fails the test below."""


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
"""An account of its own, which tries to open each of these."""


def listeners(pid: int) -> set[tuple[str, int]]:
    """Where a process listens, by the kernel's own table."""
    inodes: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)) if link.is_symlink() else None
        inodes |= {found[1]} if found else set()
    listening: set[tuple[str, int]] = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        path = Path(f"/proc/{pid}/net/{table}")
        for line in path.read_text("ascii").splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                raw, _, port = fields[1].partition(":")
                words = [bytes.fromhex(raw[at : at + 8])[::-1] for at in range(0, len(raw), 8)]
                listening.add((socket.inet_ntop(family, b"".join(words)), int(port, 16)))
    return listening


def by_name(stack: RunningStack) -> dict[str, set[tuple[str, int]]]:
    """{what it is: where it listens} of every process of the stack."""
    found: dict[str, set[tuple[str, int]]] = {}
    doors = {int(url.rpartition(":")[2]) for url in stack.stack.doors.values()}
    for name, child in stack.stack.children.items():
        for host, port in listeners(child.pid):
            found.setdefault(f"{name} tasks" if port in doors else name, set()).add((host, port))
    return found


def status_of(name: str, host: str, port: int, method: str, path: str, *fields: str) -> int:
    """The status of a request with no credential."""
    shown = f"[{host}]" if ":" in host else host
    sent = [f"{method} {path} HTTP/1.1", *(fields or (f"Host: {shown}:{port}",)), "Content-Length: 0"]
    with ExitStack() as opened:
        connection = opened.enter_context(socket.create_connection((host, port), timeout=10))
        if name == "cluster":
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection = opened.enter_context(context.wrap_socket(connection))
        connection.sendall("\r\n".join([*sent, "Connection: close", "", ""]).encode())
        answer = opened.enter_context(connection.makefile("rb"))
        return int(answer.readline().split()[1])


def test_every_listener_asks_for_a_token(stack: RunningStack) -> None:
    """All of them are listed here, on loopback addresses, and answer 401."""
    found = by_name(stack)
    assert set(found) == set(ASKED)
    for name, addresses in found.items():
        for host, port in addresses:
            assert host in ("127.0.0.1", "::1"), (name, host)
            assert status_of(name, host, port, *ASKED[name]) == 401, (name, host, port)


def test_no_listener_serves_pages_of_other_sites(stack: RunningStack) -> None:
    """A name of another that resolves to this machine, and a page of another origin, are refused everywhere."""
    for name, addresses in by_name(stack).items():
        if name == "api tasks":
            continue  # pages of any site are like any caller there: each needs the token of a task
        for host, port in addresses:
            method, path = ASKED[name]
            assert status_of(name, host, port, method, path, "Host: evil.example") == 421, name
            own = (f"Host: 127.0.0.1:{port}", "Origin: http://127.0.0.1:9")
            assert status_of(name, host, port, "POST", path, *own) in (401, 403), name


def test_probes_need_no_token(stack: RunningStack) -> None:
    """That a process lives is no secret."""
    for name in ("api", "scheduler", "podworker", "watcher", "cluster"):
        for host, port in by_name(stack)[name]:
            assert status_of(name, host, port, "GET", "/livez") == 200, name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_another_account_reads_no_file(stack: RunningStack) -> None:
    """Not the token, the kubeconfig, a log or the socket of Valkey, though it is told where they are."""
    names = ["token", "kubeconfig", "stack.json", "logs/api.log", "tokens", "redis/valkey.sock"]
    assert all((stack.folder / name).exists() for name in names)
    wanted = [f"{stack.folder.name}/{name}" for name in names]
    # It begins next to the folder, so that nothing above it keeps anything closed.
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRIES, str(NOBODY), *wanted],
        cwd=stack.folder.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["closed"] * len(names)), done.stdout + done.stderr


def test_no_secret_is_on_a_command_line(stack: RunningStack) -> None:
    """Every account reads those."""
    for child in stack.stack.children.values():
        assert stack.stack.token not in Path(f"/proc/{child.pid}/cmdline").read_text("utf-8"), child.name


def test_a_workload_answers_the_proxy_only(stack: RunningStack) -> None:
    """A notebook and a shell listen on loopback addresses too, and run whatever they are asked to."""
    ids = {kind: stack.launch({"kind": kind}) for kind in ("notebook", "shell")}
    for kind, id_ in ids.items():
        wait_until(lambda id_=id_: stack.view(id_)["ready"], f"the {kind} to listen", timeout_s=60)
    at: dict[str, str] = {}
    for kind, id_ in ids.items():
        (pod,) = stack.kubernetes("GET", f"/api/v1/pods?labelSelector=slipway.dev/allocation={id_}")["items"]
        at[kind] = str(pod["status"]["podIP"])
    kernels = f"/proxy/{ids['notebook']}/api/kernels"
    assert status_of("notebook", at["notebook"], 8888, "GET", kernels) == 403
    assert status_of("notebook", at["notebook"], 8888, "POST", kernels) == 403
    assert status_of("shell", at["shell"], 7681, "GET", "/sessions") == 401
    said = (stack.folder / "workload-token").read_text()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert said not in path.read_text("utf-8", "replace"), path
        except OSError:
            continue
