"""Answers of a workload reach its client unchanged, through the whole system: heads, bodies, WebSockets."""

import http.client
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from slipway.runtime.http_server import WS_MESSAGE_BYTES_MAX
from tests.support.local_stack import RunningStack
from tests.support.plain_http import NO_TLS
from tests.support.wait import DEADLINE_S, wait_until

SERVES_S = 60.0
LARGE = 16 * 1024 * 1024

RAW = """
import asyncio, os

GZIP = bytes.fromhex("1f8b08000000000000034b040043beb7e801000000")
def answer(first, *fields, body=b"ok", length=True):
    sized = [b"Content-Length: %d" % len(body)] if length else []
    return b"\\r\\n".join([b"HTTP/1.1 " + first, *fields, *sized, b"", body])

OK = b"200 OK"
NAME = b"Content-Disposition: attachment; filename=\\"\\xe6\\x97\\xa5\\xc3\\xbc.ipynb\\""
COOKIES = (b"Set-Cookie: a=1; Path=/", b"Set-Cookie: b=2; Path=/app", b"Set-Cookie: a=3")
CHUNKS = b"2\\r\\nok\\r\\n0\\r\\nX-Sum: 1\\r\\n\\r\\n"
HINTS = answer(b"103 Early Hints", b"Link: </a.css>", body=b"", length=False)
ANSWERS = {
    b"/": answer(OK),
    b"/name": answer(OK, NAME),
    b"/latin": answer(OK, b"X-Name: \\xfcbung"),
    b"/empty": answer(OK, b"X-Name:"),
    b"/cookies": answer(OK, *COOKIES),
    b"/chunked": answer(OK, b"Transfer-Encoding: chunked", b"Trailer: X-Sum", body=CHUNKS, length=False),
    b"/hints": HINTS + answer(OK),
    b"/head": answer(OK, b"Content-Length: 12345", body=b"", length=False),
    b"/none": answer(b"204 No Content", body=b"", length=False),
    b"/same": answer(b"304 Not Modified", b'ETag: "e"', body=b"", length=False),
    b"/gzip": answer(OK, b"Content-Encoding: gzip", body=GZIP),
    b"/long": answer(OK, b"X-Name: " + b"a" * 60000),
    b"/old": answer(OK, b"X-Name: old", length=False).replace(b"HTTP/1.1", b"HTTP/1.0"),
    b"/teapot": answer(b"418 I am a teapot"),
    b"/away": answer(b"302 Found", b"Location: /lab?x=1#y", body=b""),
    b"/beside": answer(b"302 Found", b"Location: other/page", body=b""),
    b"/early": answer(b"413 Content Too Large", b"Connection: close", body=b"large"),
}

async def serve(reader, writer):
    try:
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        path = head.split(b" ")[1]
        for prefix in (b"/proxy/" + os.environ["SLIPWAY_ALLOCATION_ID"].encode(),):
            if path.startswith(prefix):
                path = path[len(prefix):]
        if path == b"/self":
            own = head.lower().split(b"host: ")[1].split(b"\\r\\n")[0]
            writer.write(answer(b"302 Found", b"Location: http://" + own + b"/lab", body=b""))
        else:
            writer.write(ANSWERS[path])
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    writer.close()

async def main():
    server = await asyncio.start_server(serve, os.environ["SLIPWAY_POD_IP"], 8080)
    await server.serve_forever()

asyncio.run(main())
"""

SOCKETS = """
import asyncio, os
from websockets.asyncio.server import serve

async def handle(socket):
    try:
        async for message in socket:
            if message == "close":
                await socket.close(4001, "as told")
            elif message == "pieces":
                await socket.send(["a", "b", "c"])
            elif message == "ping":
                await asyncio.wait_for(await socket.ping(b"x"), 10)
                await socket.send("pong")
            elif isinstance(message, str) and message.startswith("size "):
                await socket.send(b"x" * int(message[5:]))
            elif message == "extensions":
                await socket.send(socket.request.headers.get("Sec-WebSocket-Extensions", "none"))
            elif message == "ends":
                await socket.send(repr(ENDS))
            else:
                await socket.send(message)
    finally:
        ENDS.append((socket.close_code, socket.close_reason))

ENDS = []

def refuse(connection, request):
    if "Sec-WebSocket-Key" not in request.headers:
        return connection.respond(200, "ok")
    if request.path.endswith("/refused"):
        answer = connection.respond(403, "not here")
        answer.headers["X-Why"] = "because"
        return answer

def choose(connection, offered):
    return "two" if "two" in offered else None

async def main():
    options = {"max_size": None, "process_request": refuse, "select_subprotocol": choose}
    async with serve(handle, os.environ["SLIPWAY_POD_IP"], 8080, **options):
        await asyncio.Future()

asyncio.run(main())
"""


def _served(stack: RunningStack, program: str) -> str:
    command = [sys.executable, "-c", program]
    body = {"kind": "training", "image": "local", "command": command, "ports": [{"name": "http", "port": 8080}]}
    id_ = stack.launch(body)

    def answers() -> bool:
        return (
            httpx2.get(f"{stack.url}/proxy/{id_}/", headers=stack.headers, verify=NO_TLS, trust_env=False).status_code
            == 200
        )

    wait_until(answers, "the server to listen", timeout_s=SERVES_S)
    return id_


@pytest.fixture(scope="module")
def raw(stack: RunningStack) -> str:
    """A server that answers each path with fixed bytes."""
    return _served(stack, RAW)


@pytest.fixture(scope="module")
def sockets(stack: RunningStack) -> str:
    """A WebSocket server."""
    return _served(stack, SOCKETS)


class Answer:
    """An answer as bytes: its status, its fields in order, its body."""

    def __init__(self, wire: bytes) -> None:
        head, _, self.body = wire.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        self.status = int(first.split(b" ")[1])
        pairs = [line.split(b":", 1) for line in lines]
        self.fields = [(name.strip().lower(), value.strip(b" \t")) for name, value in pairs]

    def all(self, name: bytes) -> list[bytes]:
        """The values of all fields of that name."""
        return [value for key, value in self.fields if key == name]


def _asked(stack: RunningStack, id_: str, path: str, method: str = "GET") -> Answer:
    """The request that the api sends, byte for byte."""
    parts = urlsplit(stack.url)
    named = "".join(f"{name}: {value}\r\n" for name, value in stack.headers.items())
    request = f"{method} /proxy/{id_}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\n{named}Connection: close\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port), timeout=DEADLINE_S) as connection:
        connection.sendall(request.encode())
        wire = b""
        while piece := connection.recv(65536):
            wire += piece
    return Answer(wire)


@pytest.mark.parametrize(
    ("path", "field", "values"),
    [
        ("/name", b"content-disposition", ['attachment; filename="日ü.ipynb"'.encode()]),
        ("/latin", b"x-name", [b"\xfcbung"]),
        ("/empty", b"x-name", [b""]),
        ("/long", b"x-name", [b"a" * 60_000]),
        ("/old", b"x-name", [b"old"]),
        ("/gzip", b"content-encoding", [b"gzip"]),
    ],
)
def test_fields_arrive_byte_for_byte(
    stack: RunningStack, raw: str, path: str, field: bytes, values: list[bytes]
) -> None:
    """Bytes above 127, empty values, and many fields arrive unchanged."""
    answer = _asked(stack, raw, path)
    assert answer.status == 200
    assert answer.all(field) == values


def test_bodies_that_are_encoded_are_passed_on_as_they_are(stack: RunningStack, raw: str) -> None:
    assert _asked(stack, raw, "/gzip").body.startswith(b"\x1f\x8b\x08")


def test_cookies_stay_several_and_below_the_prefix(stack: RunningStack, raw: str) -> None:
    """Two cookies stay two, also with one name, and their path is below the prefix."""
    cookies = _asked(stack, raw, "/cookies").all(b"set-cookie")
    assert [each.split(b";")[0] for each in cookies] == [b"a=1", b"b=2", b"a=3"]
    assert all(f"Path=/proxy/{raw}/".encode() in each for each in cookies), cookies


@pytest.mark.parametrize("path", ["/chunked", "/hints", "/old", "/teapot"])
def test_the_final_answer_is_passed_on(stack: RunningStack, raw: str, path: str) -> None:
    """A chunked answer with a trailer, one after early hints, one that ends with its connection, and an odd status
    arrive."""
    answer = _asked(stack, raw, path)
    assert answer.status == (418 if path == "/teapot" else 200)
    is_chunked = answer.all(b"transfer-encoding") == [b"chunked"]
    assert answer.body.startswith(b"2\r\nok\r\n" if is_chunked else b"ok")


def test_an_answer_to_head_keeps_its_length(stack: RunningStack, raw: str) -> None:
    """The length is that of the answer to a GET, and there is no body."""
    answer = _asked(stack, raw, "/head", "HEAD")
    assert (answer.status, answer.all(b"content-length"), answer.body) == (200, [b"12345"], b"")


@pytest.mark.parametrize(("path", "status"), [("/none", 204), ("/same", 304)])
def test_answers_without_a_body_have_none(stack: RunningStack, raw: str, path: str, status: int) -> None:
    answer = _asked(stack, raw, path)
    assert (answer.status, answer.body, answer.all(b"transfer-encoding")) == (status, b"", [])


@pytest.mark.parametrize(
    ("path", "location"),
    [("/away", "/proxy/{id}/lab?x=1#y"), ("/self", "/proxy/{id}/lab"), ("/beside", "other/page")],
)
def test_redirects_stay_below_the_prefix(stack: RunningStack, raw: str, path: str, location: str) -> None:
    """Redirects stay below the prefix, also absolute ones to the server itself."""
    answer = _asked(stack, raw, path)
    (found,) = answer.all(b"location")
    wanted = location.format(id=raw)
    assert answer.status == 302
    assert found.decode() in (wanted, f"{stack.url}{wanted}")


def test_an_early_refusal_of_an_upload_is_shown(stack: RunningStack, raw: str) -> None:
    """A 413 before the end of the body reaches the client, instead of a broken connection."""
    parts = urlsplit(stack.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=DEADLINE_S)
    connection.putrequest("POST", f"/proxy/{raw}/early")
    for name, value in {**stack.headers, "Content-Length": str(10**9)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    with suppress(ConnectionError, TimeoutError):
        for _ in range(320):
            connection.send(b"x" * 65_536)
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (413, b"large")
    connection.close()


@contextmanager
def _connected(
    stack: RunningStack, id_: str, path: str = "/", protocols: list[str] | None = None
) -> Generator[ClientConnection]:
    url = f"{stack.url.replace('http', 'ws')}/proxy/{id_}{path}"
    offered = [Subprotocol(each) for each in protocols or []] or None
    with connect(
        url, additional_headers=stack.headers, proxy=None, max_size=None, subprotocols=offered, open_timeout=DEADLINE_S
    ) as client:
        yield client


@pytest.mark.parametrize("message", ["text", "", "日本語", b"\x00\xff", b"", b"x" * (LARGE + 1)])
def test_messages_come_back_as_they_were_sent(stack: RunningStack, sockets: str, message: str | bytes) -> None:
    """Text and binary messages, empty ones, and ones larger than 16 MiB arrive unchanged, both ways."""
    with _connected(stack, sockets) as client:
        client.send(message)
        assert client.recv(timeout=60) == message


def test_messages_in_pieces_arrive_whole(stack: RunningStack, sockets: str) -> None:
    with _connected(stack, sockets) as client:
        client.send(["ab", "cd", "ef"])
        assert client.recv(timeout=DEADLINE_S) == "abcdef"
        client.send("pieces")
        assert client.recv(timeout=DEADLINE_S) == "abc"


@pytest.mark.parametrize("way", ["to the workload", "to the client"])
def test_a_message_that_is_too_large_says_so(stack: RunningStack, sockets: str, way: str) -> None:
    """The connection is closed with 1009, whichever side sends it."""
    with _connected(stack, sockets) as client:
        client.send(
            b"x" * (WS_MESSAGE_BYTES_MAX + 1) if way == "to the workload" else f"size {WS_MESSAGE_BYTES_MAX + 1}"
        )
        with pytest.raises(ConnectionClosed) as ended:
            client.recv(timeout=60)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1009


def test_pings_are_answered_both_ways(stack: RunningStack, sockets: str) -> None:
    with _connected(stack, sockets) as client:
        assert client.ping(b"y").wait(DEADLINE_S)
        client.send("ping")
        assert client.recv(timeout=DEADLINE_S) == "pong"


def test_a_close_of_the_workload_keeps_its_code_and_reason(stack: RunningStack, sockets: str) -> None:
    with _connected(stack, sockets) as client:
        client.send("close")
        with pytest.raises(ConnectionClosed) as ended:
            client.recv(timeout=DEADLINE_S)
        assert ended.value.rcvd is not None
        assert (ended.value.rcvd.code, ended.value.rcvd.reason) == (4001, "as told")


def test_a_close_of_the_client_keeps_its_code_and_reason(stack: RunningStack, sockets: str) -> None:
    with _connected(stack, sockets) as client:
        client.close(4002, "have seen enough")

    def is_told() -> bool:
        with _connected(stack, sockets) as other:
            other.send("ends")
            return "(4002, 'have seen enough')" in str(other.recv(timeout=DEADLINE_S))

    wait_until(is_told, "the workload to be told")


def test_the_subprotocol_is_the_workload_s_choice(stack: RunningStack, sockets: str) -> None:
    with _connected(stack, sockets, protocols=["one", "two"]) as client:
        assert client.subprotocol == "two"


def test_compression_is_between_two_neighbours(stack: RunningStack, sockets: str) -> None:
    """The client may use compression with the api; it is not offered to the workload, because no part would undo it."""
    with _connected(stack, sockets) as client:
        client.send("extensions")
        assert client.recv(timeout=DEADLINE_S) == "none"


def test_a_refused_upgrade_is_shown_as_it_is(stack: RunningStack, sockets: str) -> None:
    with pytest.raises(InvalidStatus) as refused, _connected(stack, sockets, "/refused"):
        pass
    answer = refused.value.response
    assert (answer.status_code, answer.headers["X-Why"], answer.body) == (403, "because", b"not here")
