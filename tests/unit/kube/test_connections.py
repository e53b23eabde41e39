"""Our own HTTP/1.1 connections against a server whose answers the test defines byte by byte."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from slipway.kube.connections import ClosedError, KubeConnections, RawResponse

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """A server that counts its connections; `talk` handles each."""

    def __init__(self, talk: Talk) -> None:
        self.connections = 0
        self.requests = 0
        self._talk = talk
        self._open: list[asyncio.StreamWriter] = []

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.append(writer)
        try:
            await self._talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def hear(self, reader: asyncio.StreamReader) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1


@asynccontextmanager
async def serving(talk: Callable[[Server], Talk]) -> AsyncGenerator[tuple[Server, KubeConnections]]:
    server = Server(lambda reader, writer: talk(server)(reader, writer))
    listening = await asyncio.start_server(server.meet, "127.0.0.1", 0)
    connections = KubeConnections("127.0.0.1", listening.sockets[0].getsockname()[1], connect_s=10)
    try:
        yield server, connections
    finally:
        connections.close()
        listening.close()
        await listening.wait_closed()


def always(*pieces: bytes, last: bool = False) -> Callable[[Server], Talk]:
    """Answer each request with `pieces`, one write each; with `last`, close the connection then."""

    def of(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await server.hear(reader)
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if last:
                    return

        return talk

    return of


async def test_a_connection_is_used_again() -> None:
    """Successive requests use one connection, two requests at once use two."""
    async with serving(always(OK)) as (server, connections):
        for _ in range(3):
            assert await connections.ask(REQUEST, is_repeatable=False) == RawResponse(200, None, b"ok")
        assert server.connections == 1
        await asyncio.gather(*(connections.ask(REQUEST, is_repeatable=False) for _ in range(2)))
        assert server.connections == 2


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 429 No\r\nRetry-", b"After: 7\r\nContent-Length: 4\r\n\r\nla", b"te"),
        (
            b"HTTP/1.1 429 No\r\nretry-after: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nla\r\n",
            b"2\r\nte\r\n0\r\n\r\n",
        ),
    ],
)
async def test_an_answer_in_pieces(pieces: tuple[bytes, ...]) -> None:
    """An answer with a length or in chunks is read, however it is cut."""
    async with serving(always(*pieces)) as (_, connections):
        assert await connections.ask(REQUEST, is_repeatable=False) == RawResponse(429, "7", b"late")


async def test_a_server_that_wants_no_more_is_asked_on_a_new_connection() -> None:
    """After `Connection: close` the next request uses a new connection."""
    closing = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    async with serving(always(closing, last=True)) as (server, connections):
        for _ in range(2):
            await connections.ask(REQUEST, is_repeatable=False)
        assert server.connections == 2


@pytest.mark.parametrize("is_repeatable", [True, False])
async def test_a_kept_connection_that_was_closed(is_repeatable: bool) -> None:
    """When a kept connection was closed, a repeatable request is sent again on a new one; a create is not, because the
    caller must find out its outcome."""

    def of(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.hear(reader)
            writer.write(OK)
            await writer.drain()
            # The server reads the second request, so that the client cannot know whether it took effect.
            await server.hear(reader)

        return talk

    async with serving(of) as (server, connections):
        await connections.ask(REQUEST, is_repeatable=is_repeatable)
        if is_repeatable:
            assert (await connections.ask(REQUEST, is_repeatable=True)).status == 200
            assert (server.connections, server.requests) == (2, 3)
        else:
            with pytest.raises(ClosedError):
                await connections.ask(REQUEST, is_repeatable=False)
            assert (server.connections, server.requests) == (1, 2)


async def test_an_answer_that_breaks_off_is_not_asked_for_again() -> None:
    """A request whose answer breaks off is not repeated, because it has taken effect or will."""
    async with serving(always(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", last=True)) as (server, connections):
        with pytest.raises(ClosedError):
            await connections.ask(REQUEST, is_repeatable=True)
        assert server.requests == 1


async def test_a_broken_off_exchange_ends_its_connection() -> None:
    """The late answer of one call must never be taken for the answer of the next."""

    def of(server: Server) -> Talk:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await server.hear(reader)
            if server.requests > 1:
                writer.write(OK)
                await writer.drain()
            await reader.read()

        return talk

    async with serving(of) as (server, connections):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connections.ask(REQUEST, is_repeatable=True)
        assert (await connections.ask(REQUEST, is_repeatable=True)).body == b"ok"
        assert server.connections == 2


async def test_what_is_not_http_is_an_error() -> None:
    """Bytes that are not HTTP are an error of the connection, and do not end the process."""
    async with serving(always(b"nonsense\r\n\r\n")) as (_, connections):
        with pytest.raises(ConnectionError):
            await connections.ask(REQUEST, is_repeatable=True)
