"""A service and its reporter: what counts as use of a notebook, when a TensorBoard waits, and that the service has
priority."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slipway.inside.client import Client
from slipway.inside.service_reporter import BoardActivity, NotebookActivity, opened_by_proxy
from tests.support.wait import wait_until

Json = dict[str, Any]
PREFIX = "/proxy/nb-1"
IDLE: Json = {"execution_state": "idle", "connections": 0, "last_activity": "2026-01-01T00:00:00Z"}
BUSY: Json = {**IDLE, "execution_state": "busy"}
WATCHED: Json = {**IDLE, "connections": 1}
TERMINAL: Json = {"name": "1", "last_activity": "2026-01-01T00:00:00Z"}


class FakeServers:
    """An API that records its calls, and a Jupyter server with given answers."""

    def __init__(self) -> None:
        self.kernels: list[Json] = []
        self.terminals: list[Json] = []
        self.told: list[str] = []
        self.asked: list[str] = []
        """The credential of each request."""
        self.opens = ""
        self.sends_to = ""
        """The address of another server to which it redirects."""
        self.says: Any = None
        """An answer to every request, unchanged."""
        servers = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if servers.sends_to:
                    self.send_response(302)
                    self.send_header("Location", servers.sends_to)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if isinstance(servers.says, bytes):
                    self.wfile.write(servers.says)
                    return
                servers.asked.append(str(self.headers.get("Authorization")))
                if servers.says is not None:
                    self._say(servers.says)
                    return
                if servers.opens and self.headers.get("Authorization") != servers.opens:
                    self._say(None)
                    return
                found: Any = {f"{PREFIX}/api/kernels": servers.kernels, f"{PREFIX}/api/terminals": servers.terminals}
                self._say(found.get(self.path))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                word = self.path.rpartition("/")[2]
                servers.told.append(word if "value" not in body else f"{word}={body['value']}")
                self._say({})

            def _say(self, found: Any) -> None:
                data = json.dumps(found).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)

    def env(self, **more: str) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.server.server_port}"
        told = {"SLIPWAY_API": url, "SLIPWAY_ALLOCATION_ID": "nb-1", "SLIPWAY_POD_IP": "127.0.0.1"}
        return {**told, "SLIPWAY_PROXY_PREFIX": PREFIX, **more}


@contextmanager
def running() -> Generator[FakeServers]:
    servers = FakeServers()
    thread = threading.Thread(target=servers.server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield servers
    finally:
        servers.server.shutdown()
        servers.server.server_close()
        thread.join()


@pytest.fixture
def servers() -> Generator[FakeServers]:
    with running() as found:
        yield found


@pytest.mark.parametrize(
    ("type_", "kernels", "terminals", "is_use"),
    [
        ("activity", [IDLE], [TERMINAL], False),
        ("activity", [IDLE, BUSY], [], True),
        ("activity", [WATCHED], [], False),
        ("activity", [], [], False),
        ("kernels_or_terminals", [IDLE], [], True),
        ("kernels_or_terminals", [], [TERMINAL], True),
        ("kernels_or_terminals", [], [], False),
        ("kernel_connections", [IDLE, WATCHED], [], True),
        ("kernel_connections", [BUSY], [TERMINAL], False),
    ],
)
def test_what_is_use_of_a_notebook(
    servers: FakeServers, type_: str, kernels: list[Json], terminals: list[Json], is_use: bool
) -> None:
    """Use of a notebook is as defined by its type; the state at the first look is no use."""
    env = servers.env(NOTEBOOK_IDLE_TYPE=type_)
    notebook = NotebookActivity(Client(env), env, str(servers.server.server_port))
    servers.kernels, servers.terminals = kernels, terminals
    notebook.look()
    servers.told.clear()
    notebook.look()
    assert servers.told == (["activity"] if is_use else [])


def test_something_new_in_a_terminal_is_use(servers: FakeServers) -> None:
    """A new activity in a terminal is use: the times of the last activity are compared with those of the previous
    look."""
    env = servers.env()
    notebook = NotebookActivity(Client(env), env, str(servers.server.server_port))
    servers.terminals = [TERMINAL]
    notebook.look()
    servers.told.clear()
    servers.terminals = [{**TERMINAL, "last_activity": "2026-01-01T00:00:09Z"}]
    notebook.look()
    assert servers.told == ["activity"]


def test_a_tensorboard_waits_for_its_first_file(servers: FakeServers, tmp_path: Path) -> None:
    """A TensorBoard waits for its first file: the wait is reported once at its start and once at its end; after that
    the folder is not checked."""
    board = BoardActivity(Client(servers.env()), str(tmp_path / "logs"))
    assert board.look()
    assert board.look()
    (tmp_path / "logs" / "run").mkdir(parents=True)
    (tmp_path / "logs" / "run" / "notes.txt").write_text("")
    assert board.look()
    (tmp_path / "logs" / "run" / "events.out.tfevents.1.host").write_text("")
    assert not board.look()
    assert servers.told == ["waiting=True", "waiting=False"]


@pytest.mark.parametrize("folder", ["s3://bucket/logs", ""])
def test_a_folder_elsewhere_is_not_waited_for(servers: FakeServers, folder: str, tmp_path: Path) -> None:
    """A remote folder is not waited for, because the reporter cannot check it."""
    if not folder:
        (tmp_path / "a.tfevents").write_text("")
    assert not BoardActivity(Client(servers.env()), folder or str(tmp_path)).look()
    assert servers.told == []


def start(*argv: str, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "slipway.inside", "tensorboard", *argv]
    told = {**os.environ, **(env or {})}
    return subprocess.Popen(words, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_the_services(script: str, code: int) -> None:
    """The exit code is the service's, whatever happens to the reporter: here there is no API."""
    env = {"SLIPWAY_API": "http://127.0.0.1:1", "SLIPWAY_ALLOCATION_ID": "x-1"}
    with start("/bin/sh", "-c", script, env=env) as run:
        assert run.wait(20) == code


def test_signals_are_passed_on() -> None:
    """Signals are passed on, and the service ends in its own way."""
    with start("/bin/sh", "-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.1; done") as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGTERM)
        assert run.stdout.readline() == "bye\n"
        assert run.wait(20) == 5


def test_a_service_that_is_not_there() -> None:
    """A missing service is reported in one line, with the usual exit code."""
    with start("/no/such/board") as run:
        _, err = run.communicate(timeout=20)
        assert (run.returncode, "/no/such/board cannot be run" in err) == (127, True)


def test_reports_go_on_while_it_runs(servers: FakeServers, tmp_path: Path) -> None:
    """Reports are sent while the service runs, from its beginning."""
    env = servers.env(TENSORBOARD_LOGDIR=str(tmp_path))
    with start("/bin/sh", "-c", "exec sleep 60", env=env) as run:
        wait_until(lambda: "waiting=True" in servers.told, "it to say that it waits")
        (tmp_path / "x.tfevents").write_text("")
        wait_until(lambda: "waiting=False" in servers.told, "it to find the file")
        run.terminate()


def test_jupyter_answers_the_proxy_only_where_there_is_a_token() -> None:
    """Jupyter requires the token of the proxy when there is one, from its environment, because every account of a
    machine can read the arguments of a process."""
    words = ["jupyter", "lab", "--IdentityProvider.token=", "--no-browser"]
    argv, env = opened_by_proxy(words, {"A": "1", "SLIPWAY_WORKLOAD_TOKEN": "s3cret"})
    assert argv == ["jupyter", "lab", "--no-browser"]
    assert (env["JUPYTER_TOKEN"], env["A"]) == ("s3cret", "1")
    assert opened_by_proxy(words, {"A": "1"}) == (words, {"A": "1"})
    own = ["jupyter", "lab", "--IdentityProvider.token=mine"]
    assert opened_by_proxy(own, {"SLIPWAY_WORKLOAD_TOKEN": "s3cret"})[0] == own


def test_the_reporter_shows_the_token(servers: FakeServers) -> None:
    """The reporter sends the token; otherwise Jupyter would not answer whether it is used."""
    servers.opens, servers.kernels = "Bearer s3cret", [BUSY]
    env = servers.env(SLIPWAY_WORKLOAD_TOKEN="s3cret")
    NotebookActivity(Client(env), env, str(servers.server.server_port)).look()
    assert servers.told == ["activity"]


def test_the_token_of_the_reporter_goes_to_no_other_server(servers: FakeServers) -> None:
    """The reporter follows no redirect, so that the token goes to no other server: the program that it asks is the
    user's own."""
    with running() as elsewhere:
        servers.sends_to = f"http://127.0.0.1:{elsewhere.server.server_port}/"
        env = servers.env(SLIPWAY_WORKLOAD_TOKEN="s3cret")
        NotebookActivity(Client(env), env, str(servers.server.server_port)).look()
        assert elsewhere.asked == []
    assert servers.told == []


@pytest.mark.parametrize("odd", [{"message": "no"}, ["kernel", None], [{"last_activity": None, "execution_state": 5}]])
def test_an_odd_answer_of_a_notebook_is_no_use(servers: FakeServers, odd: Any) -> None:
    """An invalid answer of a notebook is no use, and later use is seen: the reporter continues, and an invalid time is
    not stored."""
    env = servers.env()
    notebook = NotebookActivity(Client(env), env, str(servers.server.server_port))
    servers.says = odd
    assert notebook.look()
    assert servers.told == []
    servers.says, servers.kernels = None, [{**IDLE, "last_activity": "2026-11-30T08:00:00Z"}]
    assert notebook.look()
    assert servers.told == ["activity"]


@pytest.mark.parametrize("cut", [b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n[]"])
def test_an_answer_that_is_cut_off_is_an_error_of_the_connection(servers: FakeServers, cut: bytes) -> None:
    """An answer that is cut off is a connection error, because only such errors are ignored until the next look; the
    library's own class is not one."""
    servers.says = cut
    env = servers.env()
    with pytest.raises(OSError, match="no answer of the notebook"):
        NotebookActivity(Client(env), env, str(servers.server.server_port)).look()
