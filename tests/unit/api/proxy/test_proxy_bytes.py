"""The answer of a workload reaches the client as it was sent: bytes of fields, large messages, refusals."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from slipway.runtime.http_server import WS_MESSAGE_BYTES_MAX
from tests.support.api_world import ApiWorld
from tests.unit.api.proxy.test_proxy import served


@asynccontextmanager
async def a_raw_server(answer: bytes) -> AsyncGenerator[int]:
    """Answers each request with these bytes after its head, and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def a_workload(world: ApiWorld, port: int) -> str:
    answer = await world.launch(ports=[{"name": "http", "port": port}])
    await world.run(answer["name"])
    return str(answer["id"])


async def exchanged(port: int, request: bytes) -> bytes:
    """The whole answer of our own server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("name", ["日本語.ipynb", "übung.ipynb", "a.ipynb"])
async def test_fields_are_passed_on_byte_for_byte(world: ApiWorld, name: str) -> None:
    """A value may hold bytes above 127 (RFC 9110, 5.5), and may be empty."""
    value = f'attachment; filename="{name}"'.encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Disposition: " + value + b"\r\nX-Empty:\r\nContent-Length: 2\r\n\r\nok"
    async with a_raw_server(head) as port, served(world.app) as api:
        id_ = await a_workload(world, port)
        answer = await exchanged(
            api, f"GET /proxy/{id_}/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
    fields = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert fields[0] == b"HTTP/1.1 200 OK"
    assert b"content-disposition: " + value in fields
    assert b"x-empty: " in fields


@pytest.mark.parametrize("upgrade", ["", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"], ids=["http", "socket"])
async def test_fields_of_a_request_are_passed_on_byte_for_byte(world: ApiWorld, upgrade: str) -> None:
    """A browser sends the bytes of a cookie as a page has set them."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    key = (
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" if upgrade else "Connection: close\r\n"
    )
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, served(world.app) as api:
        id_ = await a_workload(world, int(server.sockets[0].getsockname()[1]))
        asked = f"GET /proxy/{id_}/ HTTP/1.1\r\nHost: localhost\r\n{key}{upgrade}Cookie: name=日本語\r\n\r\n"
        assert (await exchanged(api, asked.encode())).startswith(b"HTTP/1.1 404")
    assert "name=日本語".encode() in heads[0]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"304 Not Modified\r\nContent-Length: 4", b""),
        (b"204 No Content\r\nContent-Length: 4", b""),
        (b"200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", b"8\r\n12345678\r\n0\r\n\r\n"),
    ],
    ids=["304", "204", "chunks"],
)
async def test_a_length_that_is_none_is_left_out(world: ApiWorld, head: bytes, body: bytes) -> None:
    """Programs send it all the same: the answer is whole, and the connection can be used for the next request."""
    async with a_raw_server(b"HTTP/1.1 " + head + b"\r\nX-Here: 1\r\n\r\n" + body) as port, served(world.app) as api:
        asked = f"GET /proxy/{await a_workload(world, port)}/ HTTP/1.1\r\nHost: localhost\r\n"
        answer = await exchanged(api, f"{asked}\r\n{asked}Connection: close\r\n\r\n".encode())
    assert answer.count(b"x-here: 1") == 2
    assert b"content-length: 4" not in answer
    assert answer.count(b"12345678") == 2 * (b"8" in body)


@pytest.mark.parametrize("upgrade", ["", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"], ids=["http", "socket"])
async def test_a_fragment_is_no_part_of_what_is_asked(world: ApiWorld, upgrade: str) -> None:
    """Some programs send a fragment: the workload gets the request without it, and nothing fails here."""
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" if upgrade else ""
    how = f"Connection: Upgrade\r\n{upgrade}{key}" if upgrade else "Connection: close\r\n"
    async with a_raw_server(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as port, served(world.app) as api:
        asked = f"GET /proxy/{await a_workload(world, port)}/a#b HTTP/1.1\r\nHost: localhost\r\n{how}\r\n"
        assert (await exchanged(api, asked.encode())).startswith(b"HTTP/1.1 404")


async def test_interim_answers_without_end_are_the_workload_s_fault(world: ApiWorld) -> None:
    """Interim answers are read once each, up to a limit; then the client gets 502."""
    async with a_raw_server(b"HTTP/1.1 100 Continue\r\n\r\n" * 100_000) as port, served(world.app) as api:
        asked = f"POST /proxy/{await a_workload(world, port)}/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        answer = await exchanged(api, f"{asked}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502")


@pytest.mark.parametrize("status", [b"999 What", b"099 What"])
async def test_a_status_that_may_not_be_is_the_workload_s_fault(world: ApiWorld, status: bytes) -> None:
    """The answer is 502: the workload has failed, not the API server."""
    async with a_raw_server(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n") as port:
        answer = await world.http.get(f"/proxy/{await a_workload(world, port)}/")
    assert answer.status_code == 502


async def test_a_field_that_may_not_be_is_the_workload_s_fault(world: ApiWorld) -> None:
    """The answer is 502: the workload has failed, not the API server."""
    async with a_raw_server(b"HTTP/1.1 200 OK\r\nX-Bad: a\x7fb\r\nContent-Length: 0\r\n\r\n") as port:
        answer = await world.http.get(f"/proxy/{await a_workload(world, port)}/")
    assert answer.status_code == 502


async def echo(socket: WebSocket) -> None:
    """Echo each message, of any size, with one byte more on `/more`; `/refused` and `/elsewhere` deny the handshake."""
    if socket.url.path == "/refused":
        denied = Response(
            '{"detail": "no"}', status_code=403, headers={"x-why": "übung", "content-type": "application/json"}
        )
        denied.set_cookie("a", "1", path="/x")
        await socket.send_denial_response(denied)
        return
    if socket.url.path == "/elsewhere":
        away = Response("", status_code=307, headers={"location": "http://127.0.0.1:1/"})
        await socket.send_denial_response(away)
        return
    await socket.accept(headers=[(b"x-own", b"1"), (b"set-cookie", b"a=1; Path=/x")])
    while (message := await socket.receive())["type"] == "websocket.receive":
        data: bytes = message["bytes"]
        await socket.send_bytes(data + b"x" if socket.url.path == "/more" else data)


ECHO = Starlette(routes=[WebSocketRoute("/{path:path}", echo)])


async def test_large_messages_go_both_ways(world: ApiWorld) -> None:
    """Messages may be as large as the documentation states."""
    async with served(ECHO) as port, served(world.app) as api:
        url = f"ws://127.0.0.1:{api}/proxy/{await a_workload(world, port)}/"
        async with connect(url, proxy=None, max_size=None, compression=None) as socket:
            for size in (17_000_000, WS_MESSAGE_BYTES_MAX):
                await socket.send(b"x" * size)
                assert len(await socket.recv()) == size


@pytest.mark.parametrize(("path", "size"), [("", WS_MESSAGE_BYTES_MAX + 1), ("more", WS_MESSAGE_BYTES_MAX)])
async def test_a_message_that_is_too_large_says_so(world: ApiWorld, path: str, size: int) -> None:
    """The socket closes with 1009, whichever side sent the message."""
    async with served(ECHO) as port, served(world.app) as api:
        url = f"ws://127.0.0.1:{api}/proxy/{await a_workload(world, port)}/{path}"
        async with connect(url, proxy=None, max_size=None, compression=None) as socket:
            with contextlib.suppress(ConnectionClosed):
                await socket.send(b"x" * size)
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


async def test_what_a_workload_says_to_a_handshake_is_passed_on(world: ApiWorld) -> None:
    """The client gets its fields beside the 101, and its refusal with status, fields and body; a redirect is the
    client's to follow."""
    async with served(ECHO) as port, served(world.app) as api:
        id_ = await a_workload(world, port)
        url = f"ws://127.0.0.1:{api}/proxy/{id_}"
        async with connect(f"{url}/", proxy=None) as socket:
            assert socket.response is not None
            assert socket.response.headers["x-own"] == "1"
            assert socket.response.headers["set-cookie"] == f"a=1; Path=/proxy/{id_}/x"
        refused = await refusal(f"{url}/refused")
        assert (refused.status_code, refused.body) == (403, b'{"detail": "no"}')
        assert refused.headers["x-why"] == "übung"
        assert refused.headers["content-type"] == "application/json"
        assert f"Path=/proxy/{id_}/x" in refused.headers["set-cookie"]
        assert (await refusal(f"{url}/elsewhere", follows=False)).status_code == 307


async def refusal(url: str, *, follows: bool = True) -> Any:
    """The answer to a handshake that is refused."""

    class Once(connect):
        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    with pytest.raises(InvalidStatus) as refused:
        async with (connect if follows else Once)(url, proxy=None):
            pass
    return refused.value.response


REFUSAL = b"HTTP/1.1 413 Too Much\r\nContent-Length: 8\r\nX-Own: 1\r\n\r\ntoo much"


@asynccontextmanager
async def an_upload(
    world: ApiWorld, said: bytes, *, stays: bool, expects: str = ""
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client that has sent the head of an upload of 60 MB to a workload that answers each head with `said`; the
    workload then does not read the rest, or closes."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        if stays:
            await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=4096)
    try:
        async with served(world.app) as api:
            id_ = await a_workload(world, int(server.sockets[0].getsockname()[1]))
            reader, writer = await asyncio.open_connection("127.0.0.1", api)
            head = f"POST /proxy/{id_}/ HTTP/1.1\r\nHost: localhost\r\n{expects}Content-Length: 60000000\r\n\r\n"
            writer.write(head.encode())
            async with asyncio.timeout(15):
                yield reader, writer
            writer.transport.abort()
            over.set()
    finally:
        server.close()


@pytest.mark.parametrize("sent", [0, 1000, 20_000_000], ids=["head only", "pauses", "sends on"])
@pytest.mark.parametrize("stays", [True, False], ids=["does not read the rest", "closes"])
async def test_an_early_refusal_of_an_upload(world: ApiWorld, stays: bool, sent: int) -> None:
    """The client gets the workload's 413 at once, though most of its body was never read; also while it pauses."""
    async with an_upload(world, REFUSAL, stays=stays) as (reader, writer):
        writer.write(b"x" * sent)
        answer = await reader.readuntil(b"too much")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"x-own: 1" in answer


@pytest.mark.parametrize("stays", [True, False], ids=["does not read the rest", "closes"])
async def test_a_refusal_of_a_head_that_expects_100(world: ApiWorld, stays: bool) -> None:
    """The client that waits with its body for `100 Continue` gets the refusal instead."""
    async with an_upload(world, REFUSAL, stays=stays, expects="Expect: 100-continue\r\n") as (reader, _):
        answer = await reader.readuntil(b"too much")
    assert answer.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("said", [b"HTTP/1.1 100 Continue\r\n\r\n", b""], ids=["says so", "says nothing"])
async def test_a_workload_that_takes_what_expects_100(world: ApiWorld, said: bytes) -> None:
    """The client is told to go on, once, whether or not the workload knows the field; then comes the answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        body = await reader.readexactly(6)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with served(world.app) as api, asyncio.timeout(15):
            id_ = await a_workload(world, int(server.sockets[0].getsockname()[1]))
            reader, writer = await asyncio.open_connection("127.0.0.1", api)
            head = (
                f"POST /proxy/{id_}/ HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 6\r\n\r\n"
            )
            writer.write(head.encode())
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            await writer.drain()
            writer.write(b"def")
            answer = await reader.readuntil(b"abcdef")
            writer.close()
    finally:
        server.close()
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_an_upload_goes_on_after_an_early_answer(world: ApiWorld) -> None:
    """A workload that says 200 to the head and reads on gets the whole body, also of a client that pauses."""
    taken = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n")
        first = await reader.readexactly(3)
        taken.set()
        writer.write(first + await reader.readexactly(3))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with served(world.app) as api, asyncio.timeout(15):
            id_ = await a_workload(world, int(server.sockets[0].getsockname()[1]))
            reader, writer = await asyncio.open_connection("127.0.0.1", api)
            writer.write(f"POST /proxy/{id_}/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\nabc".encode())
            await taken.wait()
            writer.write(b"def")
            answer = await reader.readuntil(b"abcdef")
            writer.close()
    finally:
        server.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
