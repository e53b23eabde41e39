"""The real JupyterLab and TensorBoard behind the proxy, and ports of workloads: without a browser."""

import hashlib
import json
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.browser.test_programs import write_scalars
from tests.support.local_stack import RunningStack, cli_words
from tests.support.plain_http import NO_TLS
from tests.support.wait import DEADLINE_S, wait_until

Json = dict[str, Any]
SERVES_S = 60.0
MIB = 1024 * 1024

# Reports its rank, counts the bytes that it gets, and sends the requested number of bytes.
SERVER = """
import hashlib, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        size = int(self.path.partition("size=")[2] or 0)
        self.send_response(200)
        self.send_header("X-Rank", os.environ["RANK"])
        self.send_header("Content-Length", str(size))
        self.end_headers()
        for start in range(0, size, 65536):
            self.wfile.write(b"z" * min(65536, size - start))

    def do_POST(self):
        seen, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left:
            data = self.rfile.read(min(left, 65536))
            seen.update(data)
            left -= len(data)
        body = seen.hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass

ThreadingHTTPServer((os.environ["SLIPWAY_POD_IP"], 8080), Site).serve_forever()
"""

# Answers each line with the same line in capitals, on many connections at once.
ECHO = """
import os, socketserver

class Line(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())

socketserver.ThreadingTCPServer((os.environ["SLIPWAY_POD_IP"], 7000), Line).serve_forever()
"""


def serving(stack: RunningStack, **body: Any) -> str:
    """The id of a running service."""
    id_ = stack.launch(body)
    wait_until(lambda: stack.view(id_)["ready"], f"{id_} to listen", timeout_s=SERVES_S)
    return id_


class Jupyter:
    """A client of a Jupyter server that behaves like its page: with cookies, and with the token against forged
    requests."""

    def __init__(self, stack: RunningStack, id_: str) -> None:
        self.opens = stack.headers
        self.origin, self.root = stack.url, f"{stack.url}/proxy/{id_}"
        self.http = httpx2.Client(
            headers=stack.headers, verify=NO_TLS, trust_env=False, follow_redirects=True, timeout=DEADLINE_S
        )
        self.page = self.http.get(f"{self.root}/")
        self.token = str(self.http.cookies.get("_xsrf"))

    def post(self, path: str, *, origin: str = "") -> httpx2.Response:
        headers: dict[str, str] = {
            "X-XSRFToken": self.token,
            "Origin": origin or self.origin,
        }
        return self.http.post(f"{self.root}/{path}", json={}, headers=headers)

    def run(self, code: str) -> str:
        """The result of a cell, from a new kernel, over its WebSocket."""
        kernel = self.post("api/kernels").json()["id"]
        cookies = "; ".join(f"{name}={value}" for name, value in self.http.cookies.items())
        url = f"{self.root.replace('http', 'ws')}/api/kernels/{kernel}/channels"
        header = {"msg_id": uuid.uuid4().hex, "username": "t", "session": "s", "msg_type": "execute_request"}
        content: Json = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": {},
            "allow_stdin": False,
        }
        message: Json = {
            "header": {**header, "version": "5.3"},
            "parent_header": {},
            "metadata": {},
            "content": content,
        }
        with connect(
            url, additional_headers={**self.opens, "Cookie": cookies, "Origin": self.origin}, proxy=None
        ) as channels:
            channels.send(json.dumps({**message, "channel": "shell", "buffers": []}))
            while True:
                told = json.loads(channels.recv(SERVES_S))
                if told["msg_type"] == "execute_result":
                    return str(told["content"]["data"]["text/plain"])
                assert told["msg_type"] != "error", told


def test_jupyterlab_behind_the_proxy(stack: RunningStack, request: pytest.FixtureRequest) -> None:
    """Its page works under the prefix, and a kernel adds one and one; origin, host and the proxy token are checked."""
    id_ = serving(stack, kind="notebook")
    jupyter = Jupyter(stack, id_)
    request.addfinalizer(jupyter.http.close)
    assert jupyter.page.status_code == 200
    assert f'"baseUrl": "/proxy/{id_}/"' in jupyter.page.text
    (cookie,) = [each for each in jupyter.http.cookies.jar if each.name == "_xsrf"]
    assert cookie.path.startswith(f"/proxy/{id_}/")
    assert jupyter.run("1 + 1") == "2"
    assert jupyter.post("api/kernels", origin="https://evil.example").status_code == 403
    kernel = jupyter.http.get(f"{jupyter.root}/api/kernels").json()[0]["id"]
    (pod,) = stack.kubernetes("GET", f"/api/v1/pods?labelSelector=slipway.dev/allocation={id_}")["items"]
    rebound = {"Host": "evil.example"}
    own = f"http://{pod['status']['podIP']}:8888/proxy/{id_}"
    assert httpx2.get(f"{own}/lab", headers=rebound, verify=NO_TLS, trust_env=False).status_code == 403
    assert httpx2.get(f"{own}/api/kernels", verify=NO_TLS, trust_env=False).status_code == 403
    assert httpx2.post(f"{own}/api/kernels", json={}, verify=NO_TLS, trust_env=False).status_code == 403
    url = f"{jupyter.root.replace('http', 'ws')}/api/kernels/{kernel}/channels"
    with pytest.raises(InvalidStatus) as refused, connect(url, origin=Origin("https://evil.example"), proxy=None):
        pass
    assert refused.value.response.status_code == 403


def test_a_notebook_without_jupyter(stack: RunningStack) -> None:
    """The page that replaces JupyterLab on machines without it runs cells too."""
    command = [sys.executable, "-m", "slipway.local.pages", "notebook"]
    id_ = serving(stack, kind="notebook", command=command)
    page = httpx2.get(f"{stack.url}/proxy/{id_}/", headers=stack.headers, verify=NO_TLS, trust_env=False)
    assert (page.status_code, id_ in page.text) == (200, True)
    url, code = f"{stack.url}/proxy/{id_}/run", {"code": "1 + 1"}
    answer = httpx2.post(url, json=code, headers=stack.headers, verify=NO_TLS, trust_env=False, timeout=DEADLINE_S)
    events = [json.loads(line) for line in answer.text.splitlines()]
    assert {"type": "result", "text": "2"} in events


def test_tensorboard_waits_for_files_and_shows_them(stack: RunningStack, tmp_path: Path) -> None:
    """It waits while there are no files, then shows the scalars of a real event file; it uses no slot."""
    id_ = serving(stack, kind="tensorboard", env={"TENSORBOARD_LOGDIR": str(tmp_path)})
    wait_until(lambda: stack.view(id_)["waiting"], "it to say that there is nothing to show")
    assert stack.view(id_)["status"]["slots"] == 0
    write_scalars(tmp_path / "run")
    wait_until(lambda: not stack.view(id_)["waiting"], "it to find the files")
    url = f"{stack.url}/proxy/{id_}/data/plugin/scalars"

    def tags() -> Any:
        return httpx2.get(f"{url}/tags", headers=stack.headers, verify=NO_TLS, trust_env=False).json().get("run")

    assert "loss" in wait_until(tags, "TensorBoard to load them", timeout_s=SERVES_S)
    asked = {"run": "run", "tag": "loss"}
    points = httpx2.get(f"{url}/scalars", params=asked, headers=stack.headers, verify=NO_TLS, trust_env=False).json()
    assert len(points) == 50


def test_only_rank_0_is_shown_and_bodies_have_no_limit(stack: RunningStack) -> None:
    """Large bodies pass in both directions, and a reader that stops reading stops the sender, not the API."""
    ports = [{"name": "http", "port": 8080}]
    command = [sys.executable, "-c", SERVER]
    id_ = stack.launch({"kind": "training", "command": command, "ports": ports, "ranks": [{"name": "w", "count": 2}]})
    url = f"{stack.url}/proxy/{id_}/"

    def answers() -> bool:
        return httpx2.get(url, headers=stack.headers, verify=NO_TLS, trust_env=False).status_code == 200

    wait_until(answers, "the servers to listen", timeout_s=SERVES_S)
    assert {
        httpx2.get(url, headers=stack.headers, verify=NO_TLS, trust_env=False).headers["x-rank"] for _ in range(10)
    } == {"0"}
    sent = b"0123456789abcdef" * (2 * MIB)
    answer = httpx2.post(url, content=sent, headers=stack.headers, verify=NO_TLS, trust_env=False, timeout=60)
    assert answer.text == hashlib.sha256(sent).hexdigest()
    with httpx2.stream(
        "GET", f"{url}?size={512 * MIB}", headers=stack.headers, verify=NO_TLS, trust_env=False, timeout=60
    ) as slow:
        pieces = slow.iter_raw()
        next(pieces)  # then no more is read for a while
        before = rss_mib(stack.pid("api"))
        got = httpx2.get(f"{url}?size={64 * MIB}", headers=stack.headers, verify=NO_TLS, trust_env=False, timeout=60)
        assert len(got.content) == 64 * MIB
        assert rss_mib(stack.pid("api")) - before < 64


def rss_mib(pid: int) -> int:
    """The memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


@contextmanager
def forwarded(stack: RunningStack, id_: str, *ports: str) -> Generator[list[int]]:
    """A running `slipway port-forward`; the ports of this machine."""
    argv = cli_words("port-forward", id_, *ports)
    with subprocess.Popen(argv, env=stack.cli_environment(), stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            yield [int(run.stdout.readline().partition(" ")[0].rpartition(":")[2]) for _ in ports]
        finally:
            run.terminate()


def test_port_forward(stack: RunningStack) -> None:
    """A TCP port of a workload is reachable on this machine: by many connections at once, also after a kill of the
    API."""
    ports = [{"name": "echo", "port": 7000, "scheme": "tcp"}]
    id_ = stack.launch({"kind": "command", "command": [sys.executable, "-c", ECHO], "ports": ports})
    stack.wait_for(id_, "Running")
    with forwarded(stack, id_, "0:7000") as (port,):

        def shout(words: str) -> str:
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as line:
                line.sendall(words.encode())
                line.shutdown(socket.SHUT_WR)
                return line.makefile("rb").read().decode()

        wait_until(lambda: shout("hello\n") == "HELLO\n", "the server to listen")
        texts = [f"line {number}\n" * 2000 for number in range(20)]
        with ThreadPoolExecutor(len(texts)) as pool:
            assert list(pool.map(shout, texts)) == [text.upper() for text in texts]
        stack.kill("api")
        assert shout("again\n") == "AGAIN\n"


def test_what_can_not_be_forwarded(stack: RunningStack) -> None:
    """An invalid port, an undeclared one, and an ended allocation each give one line of error."""
    id_ = stack.launch({"kind": "command", "command": ["true"], "ports": [{"name": "http", "port": 8080}]})
    assert stack.command("port-forward", id_, "http").code == 2
    stack.wait_for(id_, "Terminated")
    ended = stack.command("port-forward", id_, "8080")
    assert (ended.code, "nothing to reach" in ended.err) == (1, True)
    words = ("command", "start", "--hold", "-q", "--port", "8080", "--port", "db=5432/tcp", "--", "true")
    held = stack.command(*words).out.strip()
    ports = [{"name": "port-8080", "port": 8080, "scheme": "http"}, {"name": "db", "port": 5432, "scheme": "tcp"}]
    assert stack.view(held)["spec"]["ports"] == ports
    undeclared = stack.command("port-forward", held, "22")
    assert (undeclared.code, "it declares 5432, 8080" in undeclared.err) == (2, True)
    stack.command("kill", held)
    bad = stack.command("command", "start", "--port", "http", "--", "true")
    assert (bad.code, "is no port" in bad.err) == (2, True)
