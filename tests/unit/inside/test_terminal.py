"""The terminal server as a pod starts it: a separate process with a WebSocket API."""

import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin, Subprotocol

from slipway.inside import terminal
from slipway.inside.sessions import REPLAY_BYTES, Replay
from tests.support.plain_http import NO_TLS
from tests.support.ports import free_port
from tests.support.wait import wait_until

INSIDE = Path(terminal.__file__).parent
MODULES = ("__main__.py", "service_reporter.py", "client.py", "home.py", "terminal.py", "sessions.py", "sockets.py")
WAIT_S = 20.0


class Served:
    """A terminal server that runs."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes]") -> None:
        self.url, self.process = url, process

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return httpx2.get(f"{self.url}{path}", headers=headers, verify=NO_TLS, trust_env=False)

    def sessions(self) -> list[dict[str, Any]]:
        return self.get("/sessions").json()["items"]

    @contextmanager
    def socket(self, origin: str = "") -> Generator[ClientConnection]:
        with connect(
            f"{self.url.replace('http', 'ws')}/terminal",
            subprotocols=[Subprotocol(terminal.PROTOCOL)],
            origin=Origin(origin) if origin else None,
            proxy=None,
            max_size=None,
        ) as opened:
            yield opened

    @contextmanager
    def opened(self, **words: Any) -> Generator["Client"]:
        with self.socket() as opened:
            opened.send(json.dumps({"type": "open", **words}))
            yield Client(opened)


class Client:
    """One connection, after its first message; `out` and `err` are what was read so far."""

    def __init__(self, opened: ClientConnection) -> None:
        self.socket = opened
        self.out, self.err = bytearray(), bytearray()
        self.exit: int | None = None
        self.received = 0
        self.session: dict[str, Any] = json.loads(opened.recv(WAIT_S))

    def step(self) -> None:
        """Read one message."""
        message = self.socket.recv(WAIT_S)
        if isinstance(message, bytes):
            if message[0] == 1:
                self.out += message[1:]
            else:
                self.err += message[1:]
            return
        told = json.loads(message)
        if told["type"] == "exit":
            self.exit = told["code"]
        elif told["type"] == "received":
            self.received = told["bytes"]

    def until(self, text: bytes) -> bytearray:
        """Read until `text` was printed."""
        while text not in self.out:
            self.step()
        return self.out

    def to_end(self) -> int:
        """Read to the exit code; return it."""
        while self.exit is None:
            self.step()
        return self.exit

    def say(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))


@contextmanager
def a_server(folder: Path, **env: str) -> Generator[Served]:
    """The server, started from nothing but its own files, as in a foreign image."""
    library = folder / "lib" / "slipway" / "inside"
    library.mkdir(parents=True)
    for name in MODULES:
        (library / name).write_bytes((INSIDE / name).read_bytes())
    (folder / "lib" / "__main__.py").write_bytes((INSIDE / "__main__.py").read_bytes())
    port = free_port()
    told = {
        "PATH": os.environ["PATH"],
        "SHELL": "/bin/sh",
        "HOME": str(folder),
        "SLIPWAY_TERMINAL_PORT": str(port),
        **env,
    }
    argv = [sys.executable, "-I", "-S", str(folder / "lib"), "terminal"]
    process = subprocess.Popen(argv, env=told, stderr=subprocess.DEVNULL)
    served = Served(f"http://127.0.0.1:{port}", process)

    def answers() -> bool:
        try:
            return served.get("/healthz").status_code == 200
        except httpx2.TransportError:
            return False

    try:
        wait_until(answers, "the terminal server to listen")
        yield served
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    with a_server(tmp_path_factory.mktemp("terminal")) as running:
        yield running


def test_a_command_has_a_terminal_and_an_exit_code(served: Served) -> None:
    """A command has the size of the terminal and a controlling terminal, and its exit code is reported."""
    with served.opened(rows=33, cols=99) as client:
        client.socket.send(b"stty size; tty >/dev/null && echo has-$((1+1))-tty; : < /dev/tty; exit 7\n")
        assert client.to_end() == 7
        assert b"33 99" in client.out
        assert b"has-2-tty" in client.out


def test_a_signal_is_an_exit_code(served: Served) -> None:
    """An end by a signal is an exit code as in a shell: 128 plus the number of the signal."""
    with served.opened(command=["/bin/sh", "-c", "kill -9 $$"]) as client:
        assert client.to_end() == 137


def test_a_resize_reaches_the_program(served: Served) -> None:
    """A resize is set in the kernel, which signals the program."""
    with served.opened(rows=24, cols=80) as client:
        client.say(type="resize", rows=50, cols=132)
        client.socket.send(b"stty size; exit\n")
        assert client.to_end() == 0
        assert b"50 132" in client.out


def test_a_session_outlives_its_connection(served: Served) -> None:
    """A session outlives its connection: a client that reconnects sends the session and its offset, and gets the rest
    without a repeat or a gap."""
    with served.opened(client="a") as first:
        first.socket.send(b"echo one-$((1+1)); echo $$\n")
        first.until(b"one-2")
        seen, id_ = bytes(first.out), first.session["id"]
    with served.opened(session=id_, client="a") as whole, served.opened(session=id_, client="b") as other:
        whole.until(seen)
        whole.socket.send(b"echo two-$((1+1))\n")
        whole.until(b"two-2")
        other.until(b"two-2")
    with served.opened(session=id_, **{"from": len(seen)}) as again:
        assert again.session["offset"] == len(seen)
        assert again.session["truncated"] is False
        again.socket.send(b"exit 3\n")
        assert again.to_end() == 3
        assert b"one-2" not in again.out
        assert b"two-2" in again.out
    with served.opened(session=id_, **{"from": 10**9}) as late:
        assert late.to_end() == 3


def test_opening_twice_opens_once(served: Served) -> None:
    """Opening twice with the same request opens one session, for a client whose connection broke before it got the
    session."""
    with served.opened(client="same", command=["/bin/sh"]) as one, served.opened(client="same") as two:
        assert one.session["id"] == two.session["id"]
        one.say(type="kill")


def test_input_is_counted_per_client(served: Served) -> None:
    """Input is counted per client: a client that reconnects gets the offset from which to send."""
    with served.opened(client="counter", command=["/bin/cat"], tty=False) as client:
        client.socket.send(b"12345")
        while client.received < 5:
            client.step()
        id_ = client.session["id"]
    with served.opened(session=id_, client="counter") as again, served.opened(session=id_, client="new") as other:
        assert again.session["received"] == 5
        assert other.session["received"] == 0
        again.say(type="eof")
        assert again.to_end() == 0


def test_pipes_keep_output_and_errors_apart(served: Served) -> None:
    """Without a terminal nothing is echoed, and the end of input is the end of the script."""
    with served.opened(tty=False) as client:
        client.socket.send(b"echo out; echo err >&2; exit 4")
        client.say(type="eof")
        assert client.to_end() == 4
        assert (client.out, client.err) == (b"out\n", b"err\n")


def test_a_slow_reader_makes_the_program_wait(served: Served) -> None:
    """A slow reader makes the program wait: its output is neither lost nor stored without a limit."""
    size = 64 * REPLAY_BYTES
    with served.opened(tty=False, command=["/bin/sh", "-c", f"head -c {size} /dev/zero; echo end >&2"]) as client:
        assert served.sessions()[-1]["busy"] is True
        assert client.to_end() == 0
        assert len(client.out) == size


def test_without_a_client_the_program_is_not_blocked(served: Served) -> None:
    """A program without a reader continues; its last output is stored, with a note that there was more."""
    script = f"read go; head -c {3 * REPLAY_BYTES} /dev/zero; echo the-end"
    with served.opened(tty=False, command=["/bin/sh", "-c", script]) as client:
        client.socket.send(b"go\n")
        id_ = client.session["id"]

    def ended() -> bool:
        return next(each for each in served.sessions() if each["id"] == id_)["exitCode"] == 0

    wait_until(ended, "the program to end with nobody watching")
    with served.opened(session=id_) as late:
        assert late.session["truncated"] is True
        assert late.session["offset"] > 2 * REPLAY_BYTES
        assert late.to_end() == 0
        assert late.out.endswith(b"the-end\n")


def test_a_lost_reader_is_waited_for(served: Served) -> None:
    """The program waits for a lost reader: a client whose connection broke gets all output when it reconnects, however
    much that is."""
    size = 8 * REPLAY_BYTES
    script = f"read go; head -c {size} /dev/zero; echo end >&2"
    words: dict[str, Any] = {"tty": False, "client": "lost", "acks": True}
    with served.opened(command=["/bin/sh", "-c", script], **words) as client:
        id_ = client.session["id"]
        client.socket.send(b"go\n")
        while not client.out:
            client.step()
        seen = len(client.out)
        client.socket.socket.shutdown(socket.SHUT_RDWR)

    def is_left() -> bool:
        return next(each for each in served.sessions() if each["id"] == id_)["viewers"] == 0

    wait_until(is_left, "the server to notice")
    with served.opened(session=id_, **words, **{"from": seen}) as again:
        assert again.session["truncated"] is False
        while again.exit is None:
            again.step()
            with contextlib.suppress(ConnectionClosed):  # all output was sent
                again.say(type="seen", offset=seen + len(again.out) + len(again.err))
        assert len(again.out) == size - seen


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"session": "nope"}, 4404),
        ({"rows": -1}, 4400),
        ({"command": "ls"}, 4400),
        ({"command": ["/no/such/program"]}, 4422),
    ],
)
def test_a_session_that_cannot_be_opened_says_why(served: Served, words: dict[str, Any], code: int) -> None:
    """A request that cannot be fulfilled gets a text with the reason, then a close code."""
    with served.opened(**words) as client:
        assert client.session["type"] == "error"
        assert client.session["message"]
        with pytest.raises(ConnectionClosed) as closed:
            client.socket.recv(WAIT_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == code


def test_foreign_pages_reach_nothing(served: Served) -> None:
    """Pages of another origin, or of a foreign name that resolves to this machine, are refused."""
    with pytest.raises(InvalidStatus), served.socket(origin="http://evil.example"):
        pass
    assert served.get("/sessions", host="evil.example").status_code == 403
    assert served.get("/", host="evil.example").status_code == 403
    with served.socket(origin=served.url):
        pass


def test_the_page_finds_its_files(served: Served) -> None:
    """The page loads its files from the API, by a relative path that fits the depth of the prefix, and nothing from
    elsewhere."""
    answer = served.get("/", **{"x-forwarded-prefix": "/proxy/shell-1/7681"})
    assert '"../../../assets/terminal/terminal.js"' in answer.text
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    nonce = answer.text.partition('data-nonce="')[2].partition('"')[0]
    assert f"'nonce-{nonce}'" in policy
    assert nonce not in served.get("/").text


def test_the_end_takes_the_programs_along(tmp_path: Path) -> None:
    """SIGTERM ends the programs: they get SIGHUP, those that ignore it are killed, and the server ends in time."""
    with (
        a_server(tmp_path) as served,
        served.opened(command=["/bin/sh", "-c", "trap '' HUP; echo $$; sleep 600"]) as client,
    ):
        pid = int(client.until(b"\n").split()[0])
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(10) == 0
        assert time.monotonic() - began < 8
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the program to be gone")


def test_a_replay_is_bounded_and_exact() -> None:
    """A replay is bounded, and from any stored offset it has exactly the output after it."""
    replay = Replay()
    printed = b"".join(bytes([index % 251]) * 10_000 for index in range(100))
    for start in range(0, len(printed), 10_000):
        replay.add(1, printed[start : start + 10_000])
    assert replay.end == len(printed)
    assert replay.end - replay.first <= REPLAY_BYTES
    for offset in (replay.first, replay.first + 1, replay.end - 1, replay.end):
        assert b"".join(piece for _, _, piece in replay.after(offset)) == printed[offset:]


@pytest.mark.parametrize("name", MODULES)
def test_any_python_reads_it(name: str) -> None:
    """Old Pythons of images can run it: the syntax is that of Python 3.9, and only the standard library is imported."""
    module = ast.parse((INSIDE / name).read_text("utf-8"), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(module) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(module) if isinstance(node, ast.ImportFrom)}
    foreign = {each for each in imported if each.split(".")[0] not in sys.stdlib_module_names}
    assert all(each.startswith("slipway.inside") for each in foreign)


def test_with_a_token_the_proxy_only_is_answered(tmp_path: Path) -> None:
    """With a token only the proxy gets answers, because every account of a machine can reach a loopback address; the
    health check needs none."""
    with a_server(tmp_path, SLIPWAY_WORKLOAD_TOKEN="s3cret") as served:
        url = f"{served.url}/sessions"
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
            assert httpx2.get(url, headers=given, verify=NO_TLS, trust_env=False).status_code == 401
            with pytest.raises(InvalidStatus) as refused:
                connect(
                    f"{served.url.replace('http', 'ws')}/terminal",
                    subprotocols=[Subprotocol(terminal.PROTOCOL)],
                    additional_headers=given,
                    proxy=None,
                )
            assert refused.value.response.status_code == 401
        opens = {"Authorization": "Bearer s3cret"}
        assert httpx2.get(url, headers=opens, verify=NO_TLS, trust_env=False).json() == {"items": []}
        assert served.get("/healthz").status_code == 200


def test_a_request_for_another_pod_is_refused(tmp_path: Path) -> None:
    """A request that names another pod is refused; one that names none arrived another way, such as by a forwarded
    port."""
    with a_server(tmp_path, SLIPWAY_POD_UID="mine") as served:
        named = {"X-Slipway-Pod-Uid": "another"}
        assert served.get("/sessions").status_code == 200
        for headers, status in (({"X-Slipway-Pod-Uid": "mine"}, 200), (named, 421)):
            answer = httpx2.get(f"{served.url}/sessions", headers=headers, verify=NO_TLS, trust_env=False)
            assert answer.status_code == status
        with pytest.raises(InvalidStatus) as refused:
            connect(
                f"{served.url.replace('http', 'ws')}/terminal",
                subprotocols=[Subprotocol(terminal.PROTOCOL)],
                additional_headers=named,
                proxy=None,
            )
        assert refused.value.response.status_code == 421
