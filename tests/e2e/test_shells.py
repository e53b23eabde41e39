"""Shells: from a terminal, from a pipe, across a killed API, through any replica."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

import httpx2
import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from slipway.inside.terminal import PROTOCOL
from slipway.local.stack import LOOPBACK_NETWORKS
from tests.support.local_stack import RunningStack, cli_words
from tests.support.names import fresh
from tests.support.plain_http import NO_TLS
from tests.support.ports import free_port
from tests.support.terminals import TerminalUser, at_terminal
from tests.support.wait import DEADLINE_S, wait_until

DETACH = "\x1d"


@pytest.fixture(scope="module")
def shell(stack: RunningStack) -> Generator[str]:
    """A shell for the tests that do not change it."""
    id_ = stack.launch({"kind": "shell"})
    wait_until(lambda: stack.view(id_)["ready"], "the shell to listen")
    yield id_
    stack.ask(lambda api: api.post(f"/allocations/{id_}/kill"))


@contextmanager
def opened(stack: RunningStack, *words: str, **env: str) -> Generator[TerminalUser]:
    """`slipway shell ...` on a terminal."""
    with at_terminal(cli_words("shell", *words), {**stack.cli_environment(), **env}) as person:
        yield person


def test_a_shell_needs_no_argument(stack: RunningStack) -> None:
    """A shell is launched, attached, used and resized; its exit code becomes the command's, and the pod runs until it
    is ended.

    The size is the terminal's real one, not that of the environment.
    """
    with opened(stack, "start", COLUMNS="70", LINES="20") as person:
        person.until("detaches, and it goes on")
        person.type("stty size; tty > /dev/null && echo tty-$((1+1))\n")
        assert "24 80" in person.until("tty-2")
        person.resize(40, 100)
        person.type("sleep 0.2; stty size\n")
        person.until("40 100")
        person.type("exit 9\n")
        seen = person.until("slipway shell stop ")
        assert person.to_end() == 9
    found = re.search(r"slipway shell stop (\S+)", seen)
    assert found is not None
    assert stack.view(found[1])["phase"] == "Running"
    assert stack.command("shell", "stop", found[1]).code == 0
    assert stack.wait_for(found[1], "Terminated")["result"] == "Canceled"


def test_detaching_and_coming_back(stack: RunningStack, shell: str) -> None:
    """Ctrl-] leaves the session running and prints how to return."""
    with opened(stack, "open", shell) as person:
        person.until("detaches, and it goes on")
        person.type("KEPT=yes-$((40+2)); echo set-$((1+1))\n")
        person.until("set-2")
        person.type(DETACH)
        seen = person.until("Come back with")
        assert person.to_end() == 130
    session = re.search(r"--session (\w+)", seen)
    assert session is not None
    listed = stack.command("shell", "open", shell, "--sessions")
    assert (listed.code, session[1] in listed.out) == (0, True)
    with opened(stack, "open", shell, "--session", session[1]) as person:
        person.type("echo $KEPT; exit\n")
        person.until("yes-42")
        assert person.to_end() == 0


def test_kill_9_of_the_api_in_between(stack: RunningStack, shell: str) -> None:
    """The terminal reconnects by itself; input and output of that time are there, once and in order."""
    with opened(stack, "open", shell) as person:
        person.until("detaches, and it goes on")
        person.type("PS1=; stty -echo; for i in $(seq 400); do echo line-$i; sleep 0.01; done; echo done-$((1+1))\n")
        person.until("line-20\r")
        stack.kill("api")
        person.type("echo typed-while-away\n")
        person.until("reconnected")
        person.until("done-2")
        seen = person.until("typed-while-away")
        person.type("exit\n")
        assert person.to_end() == 0
    lines = [int(number) for number in re.findall(r"line-(\d+)\r", seen)]
    assert lines == list(range(1, 401))
    assert seen.count("typed-while-away") == 1


def test_a_session_survives_a_kill_of_each_service(stack: RunningStack, shell: str) -> None:
    """Every service, the nodes' process, the cluster and Redis fail in turn: the session and its output are not
    affected."""
    with opened(stack, "open", shell) as person:
        person.until("detaches, and it goes on")
        person.type("PS1=; stty -echo; for i in $(seq 600); do echo line-$i; sleep 0.01; done; echo done-$((1+1))\n")
        person.until("line-20\r")
        with stack.redis() as redis:
            redis.flushall()
        for name in ("watcher", "scheduler", "podworker", "nodes", "cluster", "api"):
            stack.kill(name)
        seen = person.until("done-2")
        person.type("exit 4\n")
        assert person.to_end() == 4
    assert [int(number) for number in re.findall(r"line-(\d+)\r", seen)] == list(range(1, 601))
    assert stack.view(shell)["attempt"] == 1


def test_a_script_is_piped_in(stack: RunningStack) -> None:
    """Without a terminal output and errors are separate, the exit code is the script's, and with --rm nothing is
    left."""
    name = fresh("piped")
    argv = cli_words("shell", "start", "--rm", "--name", name)
    script = "read word\nfrom-the-script\necho out $word\necho err >&2\nexit 6\n"
    done = subprocess.run(
        argv, env=stack.cli_environment(), input=script, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (6, "out from-the-script\n")
    assert "err\n" in done.stderr
    assert stack.wait_for(name, "Terminated")["result"] == "Canceled"


def test_large_output_through_a_kill_is_whole(stack: RunningStack, shell: str) -> None:
    """No byte is lost or doubled, though the API is killed in the middle."""
    argv = cli_words("shell", "open", shell, "--", sys.executable, "-c", _NUMBERS)
    with subprocess.Popen(argv, env=stack.cli_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        first = run.stdout.read(200_000)
        killing = threading.Thread(target=stack.kill, args=("api",))
        killing.start()
        rest = run.stdout.read()
        killing.join()
        assert run.wait(60) == 0
    assert (first + rest).decode().split() == [str(number) for number in range(300_000)]


_NUMBERS = "import time\nfor n in range(300000):\n    print(n)\n    if n % 1000 == 0: time.sleep(0.005)"


def test_any_replica_serves_any_session(stack: RunningStack, shell: str) -> None:
    """A session that was opened through one API continues through another."""
    port = free_port()
    env = {**stack.environment(), "SLIPWAY_LISTEN": f"127.0.0.1:{port}", "SLIPWAY_PROXY_NETWORKS": LOOPBACK_NETWORKS}
    other = subprocess.Popen([sys.executable, "-m", "slipway.api.main"], env=env, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            try:
                return httpx2.get(f"http://127.0.0.1:{port}/readyz", verify=NO_TLS, trust_env=False).status_code == 200
            except httpx2.TransportError:
                return False

        wait_until(answers, "the second replica to be ready")
        with opened(stack, "open", shell) as person:
            person.until("detaches, and it goes on")
            person.type("echo first-$((1+1))\n")
            person.until("first-2")
            listed = f"http://127.0.0.1:{port}/proxy/{shell}/sessions"
            sessions = httpx2.get(listed, verify=NO_TLS, trust_env=False).json()["items"]
            (mine,) = [each["id"] for each in sessions if each["viewers"]]
            url = f"ws://127.0.0.1:{port}/proxy/{shell}/terminal"
            with connect(url, subprotocols=[Subprotocol(PROTOCOL)], proxy=None) as socket:
                socket.send(json.dumps({"type": "open", "session": mine}))
                assert json.loads(socket.recv(DEADLINE_S))["id"] == mine
                seen = b""
                while b"first-2" not in seen:
                    message = socket.recv(DEADLINE_S)
                    seen += message if isinstance(message, bytes) else b""
                socket.send(b"echo second-$((1+1))\n")
                person.until("second-2")
            person.type("exit\n")
            assert person.to_end() == 0
    finally:
        other.terminate()
        other.wait(DEADLINE_S)


def test_what_can_not_be_opened(stack: RunningStack, shell: str) -> None:
    """A missing session, a missing program and an ended allocation each give one line of error."""
    gone = stack.command("shell", "open", shell, "--session", "nope")
    assert (gone.code, "there is no session 'nope'" in gone.err) == (3, True)
    missing = stack.command("shell", "open", shell, "--", "/no/such/program")
    assert (missing.code, "/no/such/program cannot be run" in missing.err) == (1, True)
    ended = stack.launch({"kind": "command", "command": ["true"]})
    stack.wait_for(ended, "Terminated")
    over = stack.command("shell", "open", ended)
    assert (over.code, "nothing to open" in over.err) == (1, True)


def test_only_traffic_counts_as_activity(stack: RunningStack) -> None:
    """An open connection without traffic does not keep a shell alive; typed input does."""
    id_ = stack.launch({"kind": "shell", "idleTimeout": "8s"})
    wait_until(lambda: stack.view(id_)["ready"], "the shell to listen")
    url = f"{stack.url.replace('http', 'ws')}/proxy/{id_}/terminal"
    protocols = [Subprotocol(PROTOCOL)]
    with connect(url, subprotocols=protocols, additional_headers=stack.headers, proxy=None) as socket:
        socket.send(json.dumps({"type": "open"}))
        socket.recv(DEADLINE_S)
        for _ in range(5):  # for longer than the timeout
            socket.send(b"\n")
            done = threading.Event()
            done.wait(2.0)
        assert stack.view(id_)["phase"] == "Running"
        ended = stack.wait_for(id_, "Terminated", timeout_s=40)
    assert (ended["result"], ended["reason"]) == ("TimedOut", "IdleTimeout")


def test_the_processes_of_a_pod_end_with_it(stack: RunningStack) -> None:
    """Processes that were started in a session end with the pod."""
    id_ = stack.launch({"kind": "shell"})
    wait_until(lambda: stack.view(id_)["ready"], "the shell to listen")
    ran = stack.command("shell", "open", id_, "--", "/bin/sh", "-c", "sleep 987 >/dev/null 2>&1 & echo $!")
    pid = int(ran.out)
    assert os.path.exists(f"/proc/{pid}")
    stack.command("shell", "stop", id_)
    stack.wait_for(id_, "Terminated")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"), "the background process to be gone")
