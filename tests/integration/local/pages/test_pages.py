"""The pages of local mode, over real HTTP and with a real kernel."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from slipway.local.pages.server import CONNECTIONS_MAX, NotebookSite, PageServer, Site, TensorboardSite
from tests.support.plain_http import NO_TLS
from tests.support.wait import wait_until

PREFIX = "/proxy/notebook-abc-12345678"


@contextlib.contextmanager
def served(site: Site, prefix: str = PREFIX, *, token: str = "") -> Generator[httpx2.Client, None, None]:
    server = PageServer(("127.0.0.1", 0), site, prefix=prefix, token=token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{server.server_port}", verify=NO_TLS, trust_env=False) as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        site.close()
        server.server_close()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    monkeypatch.setenv("SLIPWAY_ALLOCATION_ID", "notebook-abc-12345678")
    monkeypatch.setenv("SLIPWAY_RANK", "0")
    with served(NotebookSite()) as client:
        yield client


def run(client: httpx2.Client, code: str) -> list[dict[str, Any]]:
    answer = client.post(f"{PREFIX}/run", json={"code": code})
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def told(events: list[dict[str, Any]], type_: str) -> str:
    return "".join(str(event["text"]) for event in events if event["type"] == type_)


def test_the_page_is_there_with_and_without_the_prefix(notebook: httpx2.Client):
    """The page works behind the proxy and at the pod's own address; it loads nothing from other hosts."""
    page = notebook.get(f"{PREFIX}/")
    assert page.status_code == 200
    assert "<title>notebook-abc-12345678" in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert "http://" not in page.text
    assert notebook.get("/").status_code == 200
    assert notebook.get(PREFIX).status_code == 200
    assert notebook.get(f"{PREFIX}x/").status_code == 404
    assert ["Rank", "0 of 1"] in notebook.get(f"{PREFIX}/facts").json()["facts"]
    assert notebook.get("/healthz").text == "ok\n"


def test_a_cell_runs_in_a_namespace_that_lasts(notebook: httpx2.Client):
    """A cell shows its output and the value of its last expression; the next cell has the same variables."""
    first = run(notebook, "x = 41\nprint('hello')\nx + 1")
    assert told(first, "stdout") == "hello\n"
    assert told(first, "result") == "42"
    assert first[0] == {"type": "begin", "count": 1}
    assert first[-1]["type"] == "end"
    assert told(run(notebook, "x"), "result") == "41"
    assert told(run(notebook, "_"), "result") == "41"


@pytest.mark.parametrize(
    ("code", "words"),
    [("1 / 0", "ZeroDivisionError"), ("def f(:", "SyntaxError"), ("raise SystemExit(3)", "SystemExit: 3")],
)
def test_an_error_is_output(notebook: httpx2.Client, code: str, words: str):
    """An error is shown as output; the kernel runs on, and our own frames are not shown."""
    text = told(run(notebook, code), "error")
    assert words in text
    assert "kernel.py" not in text
    assert told(run(notebook, "1"), "result") == "1"


def test_a_kernel_that_ends_is_replaced(notebook: httpx2.Client):
    """The page reports the end of the kernel; the next cell runs."""
    assert "The kernel ended" in told(run(notebook, "import os; os._exit(1)"), "error")
    assert told(run(notebook, "2"), "result") == "2"


def test_a_cell_can_be_interrupted(notebook: httpx2.Client):
    """Another request interrupts a running cell."""
    with notebook.stream("POST", f"{PREFIX}/run", json={"code": "print('up')\nwhile True: pass"}) as answer:
        lines = answer.iter_lines()
        while "up" not in next(lines):
            pass
        assert notebook.post(f"{PREFIX}/interrupt", json={}).status_code == 200
        assert "KeyboardInterrupt" in "".join(lines)


def test_a_restart_forgets(notebook: httpx2.Client):
    """Variables are gone, and cells are counted from one."""
    run(notebook, "x = 1")
    notebook.post(f"{PREFIX}/restart", json={})
    events = run(notebook, "x")
    assert "NameError" in told(events, "error")
    assert events[0]["count"] == 1


def test_other_sites_can_not_run_anything(notebook: httpx2.Client):
    """A form of another site, a DNS name that points here, and a body without an end are refused."""
    form = notebook.post("/run", data={"code": "1"})
    rebound = notebook.post("/run", json={"code": "1"}, headers={"Host": "evil.example"})
    seen = notebook.get("/", headers={"Host": "evil.example"})
    wrong = notebook.post("/run", json={"code": 1})
    broken = notebook.post("/run", content=b"{", headers={"Content-Type": "application/json"})
    nowhere = notebook.post("/nowhere", json={})
    codes = [answer.status_code for answer in (form, rebound, seen, wrong, broken, nowhere)]
    assert codes == [415, 403, 403, 400, 400, 404]
    assert notebook.get("/", headers={"Host": "localhost:8080"}).status_code == 200


def test_scalars_are_served(tmp_path: Path):
    """The page and its data are served."""
    (tmp_path / "m.jsonl").write_text('{"step": 1, "loss": 2}\n')
    with served(TensorboardSite(tmp_path), "/proxy/tb") as client:
        assert "scalars" in client.get("/proxy/tb/").text
        assert client.get("/proxy/tb/scalars").json() == {"runs": {".": {"loss": [[1, 2.0]]}}, "left_out": []}
        assert client.post("/proxy/tb/run", json={"code": "1"}).status_code == 404


def test_with_a_token_the_proxy_only_is_answered():
    """Every user of a machine can connect to a loopback address, so the token is needed."""
    with served(NotebookSite(), token="s3cret") as client:
        opens = {"Authorization": "Bearer s3cret"}
        for headers, code in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), (opens, 200)):
            assert client.get(f"{PREFIX}/", headers=headers).status_code == code
            assert client.post(f"{PREFIX}/run", json={"code": "1"}, headers=headers).status_code == code
        assert client.get("/healthz").status_code == 200


def answer_to(client: httpx2.Client, *pieces: bytes) -> bytes:
    """Everything received until the connection ends."""
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=10) as connection:
        with contextlib.suppress(OSError):
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        try:
            return connection.recv(64)
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: %s\r\n" % (b"x" * 1000) * 17 + b"\r\n",
        b"GET / HTTP/1.1\r\na: " + b"x" * 17_000,
        b"GET /" + b"x" * 17_000,
    ],
)
def test_a_head_that_is_too_large(notebook: httpx2.Client, head: bytes):
    """A head that is too large is not read to its end."""
    assert b" 200 " not in answer_to(notebook, head)
    assert b" 200 " in answer_to(notebook, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


class _Paused:
    """A site that answers when the test allows it, with answers larger than both socket buffers."""

    def __init__(self) -> None:
        self.asked, self.may_answer, self.ran = threading.Event(), threading.Event(), threading.Event()

    def page(self, prefix: str, nonce: str) -> str:
        self._wait()
        return "x" * 32_000_000

    def read(self, path: str) -> dict[str, Any] | None:
        if path == "/broken":
            raise LookupError("of the site")
        self._wait()
        return {"long": "x" * 32_000_000}

    def act(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]] | None:
        self._wait()
        return self._events()

    def close(self) -> None: ...

    def _wait(self) -> None:
        self.asked.set()
        assert self.may_answer.wait(10)

    def _events(self) -> Iterator[dict[str, Any]]:
        yield from ({"text": "x" * 1_000_000} for _ in range(32))
        self.ran.set()


def leaving(port: int, request: bytes, site: _Paused) -> None:
    """Send a request and reset the connection before the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(request)
        assert site.asked.wait(10)
    site.may_answer.set()


def has_answered_all() -> bool:
    return not any("process_request_thread" in thread.name for thread in threading.enumerate())


@pytest.mark.parametrize(
    "request_", [b"GET /", b"GET /facts", b"POST /run"], ids=["a page", "its data", "a stream of events"]
)
def test_a_client_that_leaves_is_no_error(capfd: pytest.CaptureFixture[str], request_: bytes):
    """The pod's log shows no error, the started work goes on, and other clients are served."""
    site = _Paused()
    with served(site) as client:
        head = b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        leaving(client.base_url.port or 0, request_ + head, site)
        assert client.get("/healthz").text == "ok\n"
        if request_ == b"POST /run":
            assert site.ran.wait(10)
    wait_until(has_answered_all, "the threads of the requests to end")
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_site_is_printed(capfd: pytest.CaptureFixture[str]):
    """Only errors of a lost connection are ignored."""
    with served(_Paused()) as client, pytest.raises(httpx2.RemoteProtocolError):
        client.get("/broken")
    wait_until(has_answered_all, "the threads of the requests to end")
    assert "LookupError: of the site" in capfd.readouterr().err


def test_connections_are_limited(notebook: httpx2.Client):
    """Each connection is a thread; one above the limit is closed at once."""
    with contextlib.ExitStack() as held:
        for _ in range(CONNECTIONS_MAX):
            held.enter_context(socket.create_connection(("127.0.0.1", notebook.base_url.port or 0), timeout=10))
        assert answer_to(notebook, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") == b""
