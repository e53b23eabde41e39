"""Hostile clients and pages of a real api process: all are refused, and the memory does not grow (V22)."""

import http.client
import select
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from slipway.runtime.connections import HEAD_S
from tests.support.listeners import Listener, forget_peak, listeners_below
from tests.support.listeners import rss_mib as rss_of
from tests.support.local_stack import RunningStack
from tests.support.wait import DEADLINE_S, wait_until

MIB = 1024 * 1024
GROWTH_MIB_MAX = 48
SLEEPS = {"kind": "shell", "image": "local", "command": ["sleep", "300"]}


def rss_mib(stack: RunningStack) -> int:
    """The memory of the api."""
    return rss_of(stack.pid("api"))


@contextmanager
def raw(stack: RunningStack) -> Generator[socket.socket]:
    """A bare connection to the api."""
    parts = urlsplit(stack.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S) as connection:
        yield connection


def status_of(connection: socket.socket) -> int:
    """The status of the answer; 0 when the connection is closed without one."""
    try:
        response = http.client.HTTPResponse(connection)
        response.begin()
    except (http.client.HTTPException, ConnectionError):
        return 0
    return response.status


def netloc_of(stack: RunningStack) -> str:
    """The api's host and port."""
    return str(urlsplit(stack.url).netloc)


def get(stack: RunningStack, path: str, **headers: str) -> httpx2.Response:
    """GET a path without following redirects."""
    with raw(stack) as connection:
        headers = {**stack.headers, **headers}
        named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        host = "" if "Host" in headers else f"Host: {netloc_of(stack)}\r\n"
        connection.sendall(f"GET {path} HTTP/1.1\r\n{host}{named}Connection: close\r\n\r\n".encode("latin-1"))
        response = http.client.HTTPResponse(connection)
        response.begin()
        return httpx2.Response(response.status, headers=response.getheaders(), content=response.read())


@pytest.fixture(scope="module")
def shell(stack: RunningStack) -> str:
    """A running allocation with an address."""
    id_ = stack.launch(SLEEPS)
    stack.wait_for(id_, "Running")
    return id_


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "http://localhost.evil.example"])
def test_a_websocket_of_a_foreign_page(stack: RunningStack, shell: str, origin: str) -> None:
    """It is refused at the handshake, before any connection to the workload."""
    url = f"{stack.url.replace('http', 'ws')}/proxy/{shell}/x"
    with pytest.raises(InvalidStatus) as refused, connect(url, origin=Origin(origin), proxy=None):
        pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "169.254.169.254", "[::1", "localhost:80@evil.example", "a" * 5000])
def test_a_foreign_host(stack: RunningStack, shell: str, host: str) -> None:
    """A foreign host name that resolves to us is not served."""
    assert get(stack, f"/proxy/{shell}/", Host=host).status_code in (400, 421)


@pytest.mark.parametrize(
    "path",
    [
        "/proxy/{id}/169.254.169.254/latest",
        "/proxy/{id}@evil.example/",
        "/proxy/127.0.0.1:1/",
        "/proxy/http://127.0.0.1:1/",
        "/proxy/{id}/?host=127.0.0.1&target=http://127.0.0.1:1",
        "/proxy/{id}:22/",
        "/proxy/..%2f..%2fapi/",
    ],
)
def test_a_client_can_not_choose_the_target(stack: RunningStack, shell: str, path: str) -> None:
    """The target is the allocation's own address and a declared port; other names lead nowhere."""
    answer = get(stack, path.format(id=shell), Host="localhost", X_Forwarded_Host="127.0.0.1:1")
    assert answer.status_code in (400, 404, 502, 503), answer.text
    assert "root:" not in answer.text


@pytest.mark.parametrize("path", ["//evil.example/..", "/%2f%2fevil.example", "/..//evil.example", "/\\evil.example"])
def test_no_redirect_leaves_the_origin(stack: RunningStack, shell: str, path: str) -> None:
    """No path redirects to another site."""
    for asked in (path, f"/proxy/{shell}{path}", f"/proxy/{shell[:-2]}{path}"):
        where: str = get(stack, asked).headers.get("location", "/")
        target = urlsplit(where.replace("\\", "/")).netloc
        assert target in ("", netloc_of(stack))
        assert not where.startswith("//")


def test_a_body_of_a_gigabyte(stack: RunningStack) -> None:
    """With its length announced it is refused at once, without when it becomes too long; the memory stays bounded."""
    before = rss_mib(stack)
    head = f"POST /api/v1/allocations HTTP/1.1\r\nHost: {netloc_of(stack)}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: {stack.headers['Authorization']}\r\n"
    with raw(stack) as connection:
        connection.sendall(f"{head}Content-Length: {1024 * MIB}\r\n\r\n".encode())
        assert status_of(connection) == 413
    with raw(stack) as connection:
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk, sent, answered_at = b"%x\r\n" % MIB + b"x" * MIB + b"\r\n", 0, 0
        while sent < 256:
            connection.sendall(chunk)
            sent += 1
            if not answered_at and select.select([connection], [], [], 0)[0]:
                answered_at = sent
        assert 0 < answered_at < 64
        assert status_of(connection) == 413
    assert rss_mib(stack) - before < GROWTH_MIB_MAX


def test_a_user_name_of_a_megabyte(stack: RunningStack) -> None:
    """It is refused, and no log contains it."""
    before, logged = rss_mib(stack), len(stack.log_tail("api"))
    for size in (129, 5000, MIB):
        with raw(stack) as connection:
            netloc = netloc_of(stack)
            try:
                opens = f"Authorization: {stack.headers['Authorization']}"
                connection.sendall(f"GET /api/v1/me HTTP/1.1\r\nHost: {netloc}\r\n{opens}\r\nX-Slipway-User: ".encode())
                connection.sendall(b"n" * size + b"\r\n\r\n")
            except ConnectionError:
                pass
            assert status_of(connection) in (0, 400, 431)
    assert "n" * 129 not in stack.log_tail("api")[logged:]
    assert rss_mib(stack) - before < GROWTH_MIB_MAX


def test_a_header_that_never_ends(stack: RunningStack) -> None:
    """With many slow clients other clients get an answer before the slow ones time out."""
    parts = urlsplit(stack.url)
    idle = [socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S) for _ in range(100)]
    try:
        for connection in idle:
            connection.sendall(b"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        assert get(stack, "/api/v1/me").status_code == 200
        for connection in idle:
            connection.settimeout(0)
        assert not all(map(is_over, idle))
    finally:
        for connection in idle:
            connection.close()


FLOOD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
HEADS = {
    "fields": (FLOOD, b"a:b\r\n" * (MIB // 5)),
    "one field": (FLOOD + b"a: ", b"x" * MIB),
    "target": (b"GET /", b"x" * MIB),
    "trailers": (b"POST /livez HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a:b\r\n" * (MIB // 5)),
    "requests": (b"", (FLOOD + b"\r\n") * (MIB // len(FLOOD))),
}


@pytest.fixture(scope="module")
def terminal(stack: RunningStack) -> str:
    """A shell with its terminal server."""
    id_ = stack.launch({"kind": "shell", "image": "local"})
    wait_until(lambda: any("terminal" in each.words for each in all_listeners(stack)), "the terminal to listen")
    return id_


def all_listeners(stack: RunningStack) -> list[Listener]:
    """Every HTTP listener of the stack and of its pods."""
    found = listeners_below([child.pid for child in stack.stack.children.values()])
    return [each for each in found if any("slipway" in word for word in each.words)]


def dialled(stack: RunningStack, each: Listener) -> socket.socket:
    """A connection to it, over TLS if it uses TLS."""
    connection = socket.create_connection((each.host, each.port), timeout=DEADLINE_S)
    if each.pid != stack.pid("cluster"):
        return connection
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection)


def is_over(connection: socket.socket) -> bool:
    """Whether the connection is closed."""
    try:
        return not connection.recv(65_536)
    except OSError as error:
        return isinstance(error, ConnectionError)


@pytest.mark.parametrize("what", HEADS)
def test_heads_without_an_end_on_every_listener(stack: RunningStack, terminal: str, what: str) -> None:
    """No process of the system or of a pod stores 64 MiB of one request's head, sent without a token."""
    start, piece = HEADS[what]
    listeners = all_listeners(stack)
    names = {name for name, child in stack.stack.children.items() if child.pid in {each.pid for each in listeners}}
    assert {"api", "scheduler", "podworker", "watcher", "cluster", "nodes"} <= names
    for each in listeners:
        forget_peak(each.pid)
        before = rss_of(each.pid)
        with suppress(OSError), dialled(stack, each) as connection:
            connection.sendall(start)
            for _ in range(64):
                connection.sendall(piece)
        assert rss_of(each.pid, "VmHWM") - before < GROWTH_MIB_MAX, each


def test_half_open_heads_on_every_listener(stack: RunningStack, terminal: str) -> None:
    """Of 300 connections from one address, each with 15 KiB of an unfinished head, not all are kept; others can
    connect."""
    for each in all_listeners(stack):
        held: list[socket.socket] = []
        try:
            for _ in range(300):
                with suppress(OSError):
                    held.append(dialled(stack, each))
                    held[-1].sendall(FLOOD + b"a: " + b"x" * 15_000)
            with dialled(stack, each) as connection:
                connection.sendall(FLOOD + b"Connection: close\r\n\r\n")
                assert status_of(connection) > 0, each
            for connection in held:
                connection.settimeout(0)
            # Later each would have reached the time limit for a head.
            wait_until(
                lambda held=held: sum(map(is_over, held)) >= 150, f"half are over of {each}", timeout_s=HEAD_S - 2
            )
        finally:
            for connection in held:
                connection.close()
