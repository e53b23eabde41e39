"""What passes the proxy besides pages: bytes of TCP, activity, our own files."""

import asyncio
import contextlib
import hashlib
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from slipway.api.proxy import http, sockets
from slipway.api.proxy import sockets as tunnel
from slipway.api.proxy.app import is_use
from slipway.api.settings import Settings
from slipway.api.web import assets
from slipway.model.lifecycle import Kind
from slipway.model.tcp_tunnel import EOF, PROTOCOL
from tests.support.api_world import ApiWorld, api_world
from tests.support.clock import wait_until
from tests.unit.api.proxy.test_proxy import a_running_workload, served

TUNNEL = [Subprotocol(PROTOCOL)]
CONNECTIONS = Path("/proc/net/tcp")
VENDOR = Path(assets.__file__).parents[1] / "assets" / "terminal" / "vendor"


@asynccontextmanager
async def a_tcp_server() -> AsyncGenerator[int]:
    """A server that sends its input back reversed, once the client has sent everything; then it closes."""

    async def turn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(data[::-1])
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(turn, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def a_workload_with_tcp(world: ApiWorld, port: int) -> str:
    answer = await world.launch(ports=[{"name": "http", "port": 1}, {"name": "db", "port": port, "scheme": "tcp"}])
    await world.run(answer["name"])
    return str(answer["id"])


async def test_bytes_go_both_ways_and_ends_are_told(world: ApiWorld) -> None:
    """A half-closed connection is half-closed on the other side; large data arrives whole."""
    async with a_tcp_server() as port, served(world.app) as api:
        id_ = await a_workload_with_tcp(world, port)
        sent = bytes(range(256)) * 8192
        async with connect(f"ws://127.0.0.1:{api}/proxy/{id_}/{port}/", subprotocols=TUNNEL, proxy=None) as socket:
            for start in range(0, len(sent), 100_000):
                await socket.send(sent[start : start + 100_000])
            await socket.send(EOF)
            got = bytearray()
            while isinstance(message := await socket.recv(), bytes):
                got += message
            assert message == EOF
            assert bytes(got) == sent[::-1]


@asynccontextmanager
async def a_tcp_workload(
    serve_one: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncGenerator[int]:
    """The port of a workload that serves each connection so, and then closes it."""

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await serve_one(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve_and_close, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def read_all(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """What a workload does that never answers."""
    await reader.read()


async def test_a_workload_that_has_ended_its_direction_still_gets_the_rest(world: ApiWorld) -> None:
    """It may say all that it has to say before the client has sent everything."""
    whole = asyncio.get_running_loop().create_future()

    async def greet_and_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"go")
        writer.write_eof()
        whole.set_result(await reader.read())

    async with a_tcp_workload(greet_and_read) as port, served(world.app) as api:
        id_ = await a_workload_with_tcp(world, port)
        async with connect(f"ws://127.0.0.1:{api}/proxy/{id_}/{port}/", subprotocols=TUNNEL, proxy=None) as socket:
            assert [await socket.recv(), await socket.recv()] == [b"go", EOF]
            await socket.send(b"the rest")
            await socket.send(EOF)
            async with asyncio.timeout(5):
                assert await whole == b"the rest"
                await socket.wait_closed()
            assert socket.close_code == 1000


@pytest.mark.parametrize("sends", [True, False], ids=["bytes", "nothing"])
async def test_a_workload_that_has_closed_keeps_no_tunnel_open(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, sends: bool
) -> None:
    """Its end looks like that of one direction: the next bytes show what it was, or a while without any."""
    monkeypatch.setattr(tunnel, "HALF_OPEN_S", 60.0 if sends else 0.1)

    async def leave(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        return

    async with a_tcp_workload(leave) as port, served(world.app) as api:
        id_ = await a_workload_with_tcp(world, port)
        async with connect(f"ws://127.0.0.1:{api}/proxy/{id_}/{port}/", subprotocols=TUNNEL, proxy=None) as socket:
            assert await socket.recv() == EOF
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionClosed):
                    while sends:
                        await socket.send(b"is anybody there?")
                        await (await socket.ping())
                await socket.wait_closed()
        assert world.parts.open_streams.count == 0


async def test_a_silent_connection_to_a_workload_is_probed(world: ApiWorld) -> None:
    """A node that dies closes nothing: the kernel asks now and then whether the other side is still there."""
    probed = "02"  # the timer of a connection in /proc/net/tcp that waits for its next keepalive probe
    established = "01"  # its state; an earlier connection to the same port may still be in TIME_WAIT
    async with a_tcp_workload(read_all) as port, served(world.app) as api:
        id_ = await a_workload_with_tcp(world, port)
        async with connect(f"ws://127.0.0.1:{api}/proxy/{id_}/{port}/", subprotocols=TUNNEL, proxy=None):
            rows = [line.split() for line in CONNECTIONS.read_text().splitlines()[1:]]  # noqa: ASYNC240 - no disk
            timers = [
                row[5].partition(":")[0] for row in rows if row[3] == established and row[2].endswith(f":{port:04X}")
            ]
    assert timers == [probed]


async def test_a_tcp_port_is_no_page(world: ApiWorld) -> None:
    """A request by HTTP or a WebSocket gets 422, with the command that reaches the port."""
    async with a_tcp_server() as port, served(world.app) as api:
        id_ = await a_workload_with_tcp(world, port)
        answer = await world.http.get(f"/proxy/{id_}/{port}/")
        assert answer.status_code == 422
        assert f"slipway port-forward {id_} {port}" in answer.json()["detail"]
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{api}/proxy/{id_}/{port}/", proxy=None):
                pass
        assert refused.value.response.status_code == 422


async def test_a_tunnel_to_nothing_is_refused(world: ApiWorld) -> None:
    """The handshake gets 503 where nothing listens, and where nothing was declared."""
    async with a_tcp_server() as port, served(world.app) as api:
        id_ = await a_workload_with_tcp(world, port)
        for path, status in (("1", 503), ("2", 503), ("", 503)):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(f"ws://127.0.0.1:{api}/proxy/{id_}/{path}/", subprotocols=TUNNEL, proxy=None):
                    pass
            assert refused.value.response.status_code == status


@pytest.mark.parametrize(
    ("kind", "method", "path", "counts"),
    [
        (Kind.NOTEBOOK, "GET", "/lab", True),
        (Kind.NOTEBOOK, "GET", "/api/kernels?1", False),
        (Kind.NOTEBOOK, "GET", "/lab/api/settings", False),
        (Kind.NOTEBOOK, "PUT", "/lab/api/workspaces/default", False),
        (Kind.NOTEBOOK, "websocket", "/api/events/subscribe", False),
        (Kind.NOTEBOOK, "POST", "/api/kernels", True),
        (Kind.NOTEBOOK, "websocket", "/api/kernels/1/channels", True),
        (Kind.TENSORBOARD, "GET", "/api/x", True),
        (Kind.TRAINING, "GET", "/api/x", True),
    ],
)
def test_what_a_page_asks_by_itself_is_no_use(kind: Kind, method: str, path: str, counts: bool) -> None:
    """JupyterLab polls every few seconds, with or without a user."""
    assert is_use(kind, method, path) is counts


async def test_a_silent_socket_is_no_activity(world: ApiWorld) -> None:
    """Only messages are use, in either direction."""
    speak = asyncio.Event()

    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await speak.wait()
        await socket.send_text("news")
        await socket.receive()

    async def noted() -> Any:
        await world.parts.behind.flush()
        (found,) = await world.streams.activity.read([id_])  # pyright: ignore[reportArgumentType]
        return found.get("proxy")

    async with served(Starlette(routes=[WebSocketRoute("/", talk)])) as port, served(world.app) as api:
        answer = await world.launch(ports=[{"name": "http", "port": port}])
        await world.run(answer["name"])
        id_ = answer["id"]
        async with connect(f"ws://127.0.0.1:{api}/proxy/{id_}/", proxy=None) as socket:
            assert world.parts.open_streams.count == 1
            assert await noted() is None
            speak.set()
            assert await socket.recv() == "news"
            assert await noted() is not None
        await wait_until(lambda: world.parts.open_streams.count == 0, "the socket to end")


async def test_our_pages_files_are_served(world: ApiWorld) -> None:
    """Files of our pages are compressed, with a tag. A vendored file may be cached for ever; other files of the package
    are not served."""
    first = await world.http.get("/assets/terminal/terminal.js")
    assert (first.status_code, first.headers["content-encoding"]) == (200, "gzip")
    assert "xterm" in first.text
    again = await world.http.get("/assets/terminal/terminal.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    vendored = await world.http.get("/assets/terminal/vendor/xterm-6.0.0.mjs", headers={"accept-encoding": ""})
    assert "immutable" in vendored.headers["cache-control"]
    for path in ("terminal/vendor/README.md", "../app.py", "terminal/%2e%2e/%2e%2e/app.py", ""):
        assert (await world.http.get(f"/assets/{path}")).status_code == 404


def test_vendored_files_are_what_they_say() -> None:
    """The README of the folder has each file with its hash, and each file is as it was published."""
    rows = dict(re.findall(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE))
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    del found["README.md"]
    assert rows == found


async def test_a_waiting_page_brings_what_it_needs(world: ApiWorld) -> None:
    """The script and the style are found from any depth; without scripts the page reloads."""
    answer = (await world.post("/notebooks", {})).json()
    page = await world.http.get(f"/proxy/{answer['id']}/lab/tree", headers={"accept": "text/html"})
    assert 'src="../../../assets/waiting/waiting.js"' in page.text
    assert '<li data-phase="Pending" class="now">' in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "<noscript><meta http-equiv=" in page.text


async def test_a_port_that_speaks_tls(world: ApiWorld) -> None:
    """`scheme: https` accepts any certificate of the workload, because the api cannot know its name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("somebody.example").configure_cert(context)  # pyright: ignore[reportUnknownMemberType]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret")
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    launched = await world.launch(ports=[{"name": "web", "port": port, "scheme": "https"}])
    await world.run(launched["name"])
    assert (await world.http.get(f"/proxy/{launched['id']}/")).text == "secret"
    server.close()
    await world.parts.forwarder.aclose()


async def test_a_websocket_of_a_port_that_speaks_tls(world: ApiWorld) -> None:
    """As for HTTP, the certificate of the workload may have any name and issuer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("somebody.example").configure_cert(context)  # pyright: ignore[reportUnknownMemberType]

    async def echo(socket: ServerConnection) -> None:
        await socket.send(await socket.recv())

    async with serve(echo, "127.0.0.1", 0, ssl=context) as server, served(world.app) as api:
        port = next(iter(server.sockets)).getsockname()[1]
        launched = await world.launch(ports=[{"name": "web", "port": port, "scheme": "https"}])
        await world.run(launched["name"])
        async with connect(f"ws://127.0.0.1:{api}/proxy/{launched['id']}/", proxy=None) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"


async def test_a_workload_that_answers_no_ping_is_given_up_after_the_silence_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program that computes answers late, so it gets as long as for any answer. Then its reader is told why."""
    monkeypatch.setattr(sockets, "PING_S", 0.02)
    monkeypatch.setattr(sockets, "CLOSE_S", 0.1)

    async def compute(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await connection.send("one moment")
        await connection.wait_closed()

    async with (
        api_world(Settings(proxy_timeout_s=0.2)) as world,
        serve(compute, "127.0.0.1", 0, ping_interval=None, close_timeout=0.1) as server,
        served(world.app) as api,
    ):
        answer = await world.launch(ports=[{"name": "http", "port": server.sockets[0].getsockname()[1]}])
        await world.run(answer["name"])
        async with connect(f"ws://127.0.0.1:{api}/proxy/{answer['id']}/", proxy=None) as socket:
            assert await socket.recv() == "one moment"
            async with asyncio.timeout(5):
                await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (1001, "the workload has answered no ping for 0.2 s")


async def test_a_full_connection_pool_is_not_reported_as_a_silent_workload(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says that all connections are in use, and what helps: the workload was not even asked."""
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 1)
    monkeypatch.setattr(http, "WAIT_FOR_SLOT_S", 0.05)
    async with (
        a_running_workload(world) as (id_, workload),
        served(world.app) as api,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{api}") as client,
    ):
        async with client.stream("GET", f"/proxy/{id_}/slow") as first:
            chunks = first.aiter_raw()
            assert await anext(chunks) == b"first\n"
            refused = await client.get(f"/proxy/{id_}/")
            workload.release.set()
            assert await anext(chunks) == b"second\n"
        problem = refused.json()
        assert (refused.status_code, problem["code"], "retry-after" in refused.headers) == (503, "busy", True), (
            refused.text
        )
        assert "all 1 connections of this process to workloads are in use" in problem["detail"]
        assert "try again in a moment" in problem["detail"]


async def test_a_silent_workload_is_named_with_the_limit() -> None:
    """The answer says how long was waited, by which setting, and where to look."""
    async with (
        api_world(Settings(proxy_timeout_s=0.2)) as world,
        a_tcp_workload(read_all) as port,
    ):
        answer = await world.launch(ports=[{"name": "http", "port": port}])
        await world.run(answer["name"])
        refused = await world.http.get(f"/proxy/{answer['id']}/")
        detail = refused.json()["detail"]
        assert (refused.status_code, refused.json()["code"]) == (503, "deadline")
        assert "for 0.2 s (SLIPWAY_PROXY_TIMEOUT_S); slipway logs" in detail, detail
