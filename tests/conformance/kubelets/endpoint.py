"""The HTTPS endpoint of all kubelets: where the API server fetches the logs of containers.

Owns one listener on the loopback and just enough HTTP: `GET /containerLogs/<namespace>/<pod>/<container>` and
`/healthz`. A local API server asks in plain HTTP for `/logs/<namespace>/<uid>?container=...` instead. Knows no pods: it
asks a `LogSource`. Clients are not authenticated: it is the loopback of a test.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import trustme

from slipway.runtime.clock import Clock
from tests.conformance.kubelets.logs import LogError, Query, query_of

HOST = "127.0.0.1"
HEAD_S = 300.0
"""Seconds for which a kept connection may be idle."""
DRAIN_S = 60.0
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


class LogSource(Protocol):
    """The source of the logs."""

    def log(self, pod: str, container: str, query: Query) -> AsyncIterator[bytes]:
        """Return the log of a container of a pod (uid or `namespace/name`). Raises LogError, before the first chunk."""
        ...


class Endpoint:
    """The endpoint. Open it with `start`, which returns the port; `plain` is without TLS."""

    def __init__(self, log_source: LogSource, clock: Clock, certificate: Path | None, *, plain: bool = False) -> None:
        self._log_source = log_source
        self._clock = clock
        self._certificate = certificate
        self._plain = plain
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Listen on a free port."""
        tls = None if self._plain else _context(self._certificate)
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=tls)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End every reader."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            # Let the callbacks of aborted connections run.
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            is_kept = True
            while is_kept:
                async with asyncio.timeout(HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
                is_kept = await self._answer(reader, writer, method, target)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, target: str
    ) -> bool:
        """Answer a request. Return whether the connection can be used again."""
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if method != "GET":
            return await _say(writer, 405, "only GET")
        if parts == ["healthz"]:
            return await _say(writer, 200, "ok")
        given = dict(parse_qsl(url.query))
        match parts:
            case ["containerLogs", namespace, name, container] if not self._plain:
                pod = f"{namespace}/{name}"
            case ["logs", _, pod] if self._plain:
                container = given.get("container", "")
            case _:
                return await _say(writer, 404, "404 page not found")
        try:
            query = query_of(given, self._clock.now())
            chunks = self._log_source.log(pod, container, query)
            first = await anext(chunks, b"")
        except LogError as error:
            return await _say(writer, error.code, str(error))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        _chunk(writer, first)
        sending = asyncio.ensure_future(_send(chunks, writer))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            is_kept = sending.done() and not leaving.done()
            if is_kept:
                sending.result()
                writer.write(b"0\r\n\r\n")
                await _drain(writer)
            return is_kept
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.wait({sending, leaving})


async def _send(chunks: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for chunk in chunks:
        _chunk(writer, chunk)
        await _drain(writer)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    if data:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))


async def _say(writer: asyncio.StreamWriter, code: int, words: str) -> bool:
    body = words.encode()
    head = f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await _drain(writer)
    return True


async def _drain(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(DRAIN_S):
        await writer.drain()


def _context(certificate: Path | None) -> ssl.SSLContext:
    """The TLS context with that certificate and key (one file), or with one of a new, unknown authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate is not None:
        context.load_cert_chain(certificate)
    else:
        made = trustme.CA().issue_cert(HOST, "localhost")
        with made.private_key_and_cert_chain_pem.tempfile() as path:
            context.load_cert_chain(path)
    return context
