"""A proxy in front of an API server without TLS, which breaks watches in the ways that networks and servers do.

Owns the connections on both sides. It reads only the head of a request, which clients send in one piece.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

CHUNK_BYTES = 64 * 1024
_EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,'
    b'"message":"too old resource version: 1 (2)"}}\n'
)


class WatchProxy:
    """Relays everything unless a fault is set; `asked` counts {(plural, is_watch): requests}.

    expires: kinds whose watches get an error event, inside of a 200, that their version is gone. closes: kinds whose
    watches end at once. stale: {plural: body of a LIST}, sent instead of the server's own.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._open = dict[asyncio.StreamWriter, asyncio.Event]()
        self.asked = Counter[tuple[str, bool]]()
        self.expires = set[str]()
        self.closes = set[str]()
        self.stale = dict[str, bytes]()
        self.url = ""

    def black_hole(self) -> None:
        """From now on pass nothing on the open connections, and close none of them."""
        for hole in self._open.values():
            hole.set()

    def sever(self) -> None:
        """Close the connections that are open."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        hole = asyncio.Event()
        self._open[writer] = hole
        upstream_reader, upstream = await asyncio.open_connection(*self._upstream)
        try:
            async with asyncio.TaskGroup() as tasks:
                back = tasks.create_task(_relay(upstream_reader, writer, hole))
                while data := await reader.read(CHUNK_BYTES):
                    canned = self._canned(data)
                    if hole.is_set():
                        continue
                    if canned is None:
                        upstream.write(data)
                        await upstream.drain()
                    else:
                        writer.write(canned)
                        await writer.drain()
                        break
                back.cancel()
        except* (ConnectionError, OSError):
            pass
        finally:
            del self._open[writer]
            upstream.close()
            writer.close()

    def _canned(self, data: bytes) -> bytes | None:
        if not data.startswith(b"GET "):
            return None
        path, _, query = data.split(b" ", 2)[1].decode().partition("?")
        plural, is_watch = path.rpartition("/")[2], "watch=" in query
        self.asked[plural, is_watch] += 1
        if is_watch and plural in self.expires:
            return _answer(_EXPIRED)
        if is_watch and plural in self.closes:
            return _answer(b"")
        return _answer(self.stale[plural]) if not is_watch and plural in self.stale else None


@asynccontextmanager
async def watch_proxy(url: str) -> AsyncGenerator[WatchProxy, None]:
    """A proxy on a free port of the loopback."""
    proxy = WatchProxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hole: asyncio.Event) -> None:
    while data := await reader.read(CHUNK_BYTES):
        if not hole.is_set():
            writer.write(data)
            await writer.drain()
    if not hole.is_set():
        writer.close()


def _answer(body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
