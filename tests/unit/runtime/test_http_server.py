"""Everything before a request is parsed has limits, over real connections; requests within the limits are served."""

import asyncio
import io
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from slipway.model import exec_channels, tcp_tunnel
from slipway.runtime import http_server, log
from slipway.runtime.connections import ListenerLimits
from slipway.runtime.http_server import HttpServer, Receive, Scope, Send
from slipway.runtime.listen import ListenAddress, bind
from slipway.runtime.log import LINES_MAX

SOON_S = 10.0
OK = b"HTTP/1.1 200"
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
KIB = 1024


class Served(NamedTuple):
    """A server, and the number of fields of each request that it answered."""

    port: int
    fields: list[int]


@asynccontextmanager
async def server(limits: ListenerLimits | None = None, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Served]:
    """A server that answers any request after its body, with the number of bytes, and echoes over WebSockets."""
    stop, fields = asyncio.Event(), list[int]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept", "subprotocol": next(iter(scope["subprotocols"]), None)})
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})
            return
        size, more = 0, scope["path"] != "/early"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size, more = size + len(message["body"]), message["more_body"]
        fields.append(len(scope["headers"]))
        body = str(size).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    with bind(ListenAddress("127.0.0.1", 0)) as listener:
        running = HttpServer(app, [listener], drain_timeout_s=2, websockets=True, tls=tls, limits=limits)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.serve(stop.wait))
            yield Served(listener.getsockname()[1], fields)
            stop.set()


class HttpConnection:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, *pieces: bytes) -> None:
        """Send the pieces, until the server closes the connection."""
        try:
            for piece in pieces:
                self._writer.write(piece)
                await self._writer.drain()
        except ConnectionError:
            pass

    async def answer(self) -> bytes:
        """The first line of the answer; empty when the connection ends without one."""
        try:
            async with asyncio.timeout(SOON_S):
                return await self._reader.readline()
        except ConnectionError:
            return b""

    async def is_served(self) -> bool:
        """Whether the answer is the application's; then read it to its end."""
        first = await self.answer()
        if first.startswith(OK):
            while await self.answer() != b"\r\n":
                pass
            await self._reader.readexactly(1)
        return first.startswith(OK)

    async def rest(self) -> bytes:
        """The remaining bytes, to the end of the connection."""
        try:
            async with asyncio.timeout(SOON_S):
                return await self._reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def dialled(port: int) -> AsyncGenerator[HttpConnection]:
    """A connection to the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    http_connection = HttpConnection(reader, writer)
    try:
        yield http_connection
    finally:
        http_connection.close()


@pytest.mark.parametrize(
    ("target", "is_served"),
    [
        (b"http://x/livez", True),
        (b"HTTP://X/", True),
        (b"http://evil.example/livez", False),
        (b"http://x@evil.example/", False),
        (b"http://x:80/", False),
        (b"https:///livez", False),
        (b"x:80", False),
    ],
)
async def test_a_target_that_names_another_host_than_the_field_is_refused(target: bytes, is_served: bool) -> None:
    """A target with another host than the Host field is refused, because a proxy would use the host of the target, and
    the server the field."""
    async with server() as served, dialled(served.port) as http_connection:
        await http_connection.send(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await http_connection.is_served() is is_served


def fields(count: int) -> bytes:
    return b"".join(b"a%d: b\r\n" % number for number in range(count))


@pytest.mark.parametrize(
    ("what", "head"),
    [
        ("fields", GET + fields(100)),
        ("bytes in many fields", GET + b"".join(b"a: %s\r\n" % (b"x" * 1000) for _ in range(17))),
        ("bytes of one field", GET + b"a: " + b"x" * 17 * KIB),
        ("the name of a field", GET + b"x" * 17 * KIB + b": y"),
        ("the target", b"GET /" + b"x" * 17 * KIB + b" HTTP/1.1\r\n"),
    ],
)
async def test_a_head_that_is_too_large(what: str, head: bytes):
    """A head that is too large gets 431 and the end of the connection, and does not reach the application."""
    async with server() as served, dialled(served.port) as http_connection:
        await http_connection.send(head + b"\r\n\r\n")
        assert b" 431 " in await http_connection.answer(), what
        assert (await http_connection.rest()).endswith(b"connection: close\r\n\r\n")
        assert served.fields == []


@pytest.mark.parametrize(
    "start",
    [
        GET + b"a: ",
        GET,
        b"GET /",
        b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
    ids=["value", "name", "target", "blank lines", "trailer", "chunk extension"],
)
async def test_what_never_ends_is_ended(start: bytes):
    """A request with a part that never ends is cut off after some kilobytes, whichever part it is."""
    async with server() as served, dialled(served.port) as http_connection:
        piece = b"\r\n" * KIB if start == b"\r\n\r\n" else b"x" * 2 * KIB
        await http_connection.send(start, *[piece] * 512)
        await http_connection.rest()
        assert served.fields == []


async def test_a_head_within_the_limits_is_served():
    """A head within the limits is served: a hundred fields, sixteen kilobytes. The next request of the connection has
    the same limits."""
    async with server() as served, dialled(served.port) as http_connection:
        for _ in range(3):
            await http_connection.send(GET + fields(98) + b"last: " + b"x" * 14 * KIB + b"\r\n\r\n")
            assert await http_connection.is_served()
        assert served.fields == [100, 100, 100]


async def test_trailers_are_no_fields_of_the_head():
    """Trailers are no fields of the head: they cannot change what was decided by the head."""
    async with server() as served, dialled(served.port) as http_connection:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        await http_connection.send(head, b"3\r\nabc\r\n0\r\nX-Slipway-User: root\r\n\r\n")
        assert (await http_connection.answer()).startswith(OK)
        assert served.fields == [2]


async def test_too_many_trailers():
    """Trailers have the limits of a head."""
    async with server() as served, dialled(served.port) as http_connection:
        await http_connection.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + fields(102)
        )
        await http_connection.rest()
        assert served.fields == []


async def test_a_large_body_is_no_head():
    """A large body is served, because only the head is limited here."""
    async with server() as served, dialled(served.port) as http_connection:
        await http_connection.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n", *[b"x" * 300_000] * 10
        )
        assert (await http_connection.answer()).startswith(OK)


async def test_pipelined_requests_are_answered_in_order_up_to_a_limit():
    """Pipelined requests are answered in order up to a limit, because each takes memory while it waits."""
    async with server(ListenerLimits(pipelined=4)) as served:
        async with dialled(served.port) as http_connection:
            await http_connection.send((GET + b"\r\n") * 4 + GET + b"Connection: close\r\n\r\n")
            assert (await http_connection.rest()).count(OK) == 5
        async with dialled(served.port) as http_connection:
            await http_connection.send((GET + b"\r\n") * 4000)
            await http_connection.rest()
        assert len(served.fields) <= 12


@pytest.mark.parametrize("sent", [b"", GET, b"GET /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx"])
async def test_a_head_or_the_rest_of_a_body_that_does_not_come(sent: bytes):
    """A head, or the rest of a body, that does not arrive in time ends the connection, also when the client sends a
    byte now and then; a begun request gets an answer that says so."""
    async with server(ListenerLimits(head_s=0.3)) as served, dialled(served.port) as http_connection:
        await http_connection.send(sent)
        answered = await http_connection.answer()
        assert (b" 408 " in answered) is (sent == GET)
        if answered.startswith(OK):
            await http_connection.send(b"y")
        await http_connection.rest()


async def test_a_kept_connection_is_not_late():
    """A kept connection is not late between two requests; when the next request begins, its time starts."""
    async with server(ListenerLimits(head_s=0.3)) as served, dialled(served.port) as http_connection:
        await http_connection.send(GET + b"\r\n")
        assert await http_connection.is_served()
        async with dialled(served.port) as silent:
            await silent.rest()
        await http_connection.send(GET + b"\r\n")
        assert await http_connection.is_served()
        await http_connection.send(GET)
        assert b" 408 " in await http_connection.rest()


async def test_half_open_connections_do_not_keep_others_out():
    """Half-open connections do not block others: the oldest are dropped, and a complete request is served beside
    them."""
    async with server(ListenerLimits(heads_per_address=5)) as served:
        slow = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(20)]
        for _, writer in slow:
            writer.write(GET)
        async with dialled(served.port) as http_connection:
            await http_connection.send(GET + b"\r\n")
            assert (await http_connection.answer()).startswith(OK)
        async with asyncio.timeout(SOON_S):
            for reader, _ in slow[:10]:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
        for _, writer in slow:
            writer.transport.abort()


async def test_connections_above_the_limit_are_closed():
    """Connections above the limit are closed. A WebSocket counts until it is closed, and then makes room."""
    async with server(ListenerLimits(connections=1)) as served:
        async with connect(f"ws://127.0.0.1:{served.port}/", proxy=None) as socket:
            await socket.send("still here")
            assert await socket.recv() == "still here"
            async with dialled(served.port) as http_connection:
                await http_connection.send(GET + b"\r\n")
                assert await http_connection.answer() == b""

        async def is_served() -> bool:
            async with dialled(served.port) as http_connection:
                await http_connection.send(GET + b"\r\n")
                return (await http_connection.answer()).startswith(OK)

        async with asyncio.timeout(SOON_S):
            while not await is_served():
                pass


@pytest.mark.parametrize("protocol", [exec_channels.PROTOCOL, tcp_tunnel.PROTOCOL])
async def test_a_client_whose_reader_is_slow_is_not_dead(monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    """A command or a tunnel waits for the program behind it, which reads as slowly as it likes, and reads no ping
    meanwhile. Any other client that answers no ping is given up."""
    monkeypatch.setattr(http_server, "PING_S", 0.02)
    monkeypatch.setattr(http_server, "PONG_S", 0.1)
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    async with asyncio.timeout(SOON_S), server() as served:
        url, subprotocols = f"ws://127.0.0.1:{served.port}", [Subprotocol(protocol)]
        async with connect(url, subprotocols=subprotocols, proxy=None) as slow:
            slow.transport.pause_reading()
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(GET + upgrade)
            await reader.readuntil(b"keepalive ping timeout")
            writer.close()
            slow.transport.resume_reading()
            await slow.send("here")
            assert await slow.recv() == "here"


async def test_tls_handshakes_are_heads_too():
    """A TLS handshake counts as a head: a silent client is half open, and late; a client that speaks TLS is served
    beside it."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)  # pyright: ignore[reportUnknownMemberType] - of trustme
    known = ssl.create_default_context()
    authority.configure_trust(known)  # pyright: ignore[reportUnknownMemberType]
    async with server(ListenerLimits(heads_per_address=3, head_s=1.0), tls) as served:
        silent = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(6)]
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=known)
        http_connection = HttpConnection(reader, writer)
        await http_connection.send(GET + b"\r\n")
        assert (await http_connection.answer()).startswith(OK)
        http_connection.close()
        for reader, writer in silent:
            assert await HttpConnection(reader, writer).rest() == b""
            writer.transport.abort()


GARBAGE = {
    "another protocol": b"SSH-2.0-client\r\n\r\n",
    "TLS without TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "half a head": GET,
    "half a body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n1",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n1",
    "an upgrade to what is not served": GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "a WebSocket without a key": GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a WebSocket of another version": GET
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 7\r\n"
    + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    "a WebSocket whose key is none": GET
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n",
    "frames that are none": GET
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    + b"\xff\xff\xff\xff",
    "text that is none": GET
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    + b"\x81\x84\x00\x00\x00\x00\xff\xfe\xff\xfe",
}
FLOOD = 40


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", GARBAGE)
async def test_unauthenticated_calls_do_not_flood_the_log(kind: str, *, is_tls: bool) -> None:
    """Any number of invalid requests causes only a few log lines per minute."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    log.setup("test", stream=written)
    tls: ssl.SSLContext | None = None
    if is_tls:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(tls)  # pyright: ignore[reportUnknownMemberType]
    try:
        async with server(tls=tls) as served:
            for _ in range(FLOOD):
                async with dialled(served.port) as http_connection:
                    await http_connection.send(GARBAGE[kind])
                    if not kind.startswith("half") and not (is_tls and kind == "TLS without TLS"):
                        async with asyncio.timeout(SOON_S):
                            await http_connection.answer()
            async with dialled(served.port) as http_connection:
                http_connection.close()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert len(written.getvalue().splitlines()) <= 2 * LINES_MAX
