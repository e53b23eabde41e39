"""The HTTP endpoint where the API server fetches container logs and runs commands in containers.

Owns a listener on the loopback address and the part of HTTP that one GET needs. For the local API server it uses plain
HTTP at `/<key>/logs/<namespace>/<pod uid>?container=...`, and WebSockets at
`/<key>/exec/<namespace>/<pod uid>?command=...`. The key is in the Node object and excludes other accounts of the
machine: a request without it gets a 401. Requests from a browser's page are refused too. For a real API server it uses
TLS at a kubelet's own path `/containerLogs/<namespace>/<pod>/<container>`; there the client's certificate replaces the
key, and only logs are available. Knows no pods: a `PodAccess` finds them.

Invariants: at most CONNECTIONS_MAX readers; a request's head has the limits of `runtime/connections.py`; each answer
ends by closing its connection.
"""

import asyncio
import contextlib
import hmac
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from slipway.errors import ControlPlaneError, InvalidError, NotFoundError
from slipway.inside.sockets import Socket, accept_of
from slipway.local.node import commands
from slipway.local.node.logs import LogQuery, normal_time
from slipway.local.node.shim import Program, Shim
from slipway.model import exec_channels
from slipway.model.numbers import LONG_DIGITS_MAX, number_in
from slipway.model.times import format_time
from slipway.runtime import web_guard
from slipway.runtime.clock import Clock, Random
from slipway.runtime.connections import (
    HEAD_BYTES_MAX,
    HEAD_FIELDS_MAX,
    HEAD_S,
    ListenerConnection,
    ListenerConnections,
    ListenerLimits,
)
from slipway.runtime.tasks import TaskGroup

HOST = "127.0.0.1"
CONNECTIONS_MAX = 512
_DRAIN_S = 60.0
_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    421: "Misdirected Request",
    503: "Service Unavailable",
}


class PodAccess(Protocol):
    """The source of logs and the place to run commands."""

    def uid_of(self, namespace: str, name: str) -> str:
        """Return the uid of the pod with that name. Raises: NotFoundError."""
        ...

    def lines(self, uid: str, container: str, query: LogQuery, *, previous: bool) -> AsyncGenerator[bytes, None]:
        """Return the log of a pod's container. Raises: NotFoundError or InvalidError, only before the first chunk."""
        ...

    def exec_program(self, uid: str, container: str, command: Sequence[str]) -> tuple[Program, Shim]:
        """Return a command for a running container, and the container's program.

        Raises: NotFoundError or InvalidError.
        """
        ...


class LogEndpoint:
    """The endpoint; `start` opens it. `port`: its port. `url`: its URL for a local API server (empty with TLS)."""

    def __init__(self, pods: PodAccess, clock: Clock, random: Random, *, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self.port = 0
        self._tls = tls
        self._pods = pods
        self._clock = clock
        self._key = random.token_hex(16)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        # The API server reads all logs from one address, so that address gets the limit of all connections.
        self._visits = ListenerConnections(
            ListenerLimits(connections=2 * CONNECTIONS_MAX, connections_per_address=2 * CONNECTIONS_MAX)
        )

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._meet,
            HOST,
            0,
            limit=HEAD_BYTES_MAX,
            ssl=self._tls,
            ssl_handshake_timeout=HEAD_S if self._tls else None,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        if self._tls is None:
            self.url = f"http://{HOST}:{self.port}/{self._key}"

    async def close(self) -> None:
        """Close the endpoint and the connections of all readers."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await self._server.wait_closed()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = self._visits.admit(str(writer.get_extra_info("peername", ("",))[0]))
        if visit is None:
            writer.transport.abort()
            return
        visit.drop = writer.transport.abort
        try:
            await self._answer(visit, reader, writer)
        finally:
            visit.closed()

    async def _answer(
        self, visit: ListenerConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._open.add(writer)
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            visit.head_done()
            first, *lines = head[:-4].decode("latin-1").split("\r\n")
            if len(lines) > HEAD_FIELDS_MAX:
                await self._refuse(writer, 431, f"at most {HEAD_FIELDS_MAX} fields")
                return
            method, target, _ = first.split(" ", 2)
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            # With TLS clients use the node's name, and browsers have no client certificate, so no check is needed.
            foreign = web_guard.check(lambda name: fields.get(name, "")) if self._tls is None else None
            if foreign is not None:
                await self._refuse(writer, foreign.status, foreign.detail)
            elif len(self._open) > CONNECTIONS_MAX:
                await self._refuse(writer, 503, "too many readers")
            elif method != "GET":
                await self._refuse(writer, 405, "only GET")
            elif fields.get("upgrade", "").lower() == "websocket" and self._tls is None:
                await self._run_command(reader, writer, target, fields.get("sec-websocket-key", ""))
            else:
                await self._serve(reader, writer, target)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if self._tls is None and not hmac.compare_digest(parts[0].encode(), self._key.encode()):
            await self._refuse(writer, 401, "the first part of the path must be the key of this endpoint")
            return
        if len(parts) != 4 or (parts[0] != "containerLogs" if self._tls else parts[1] != "logs"):
            await self._refuse(writer, 404, "not found")
            return
        given = {name: values[-1] for name, values in parse_qs(url.query).items()}
        try:
            query = query_of(given, self._clock.now())
            uid, container = parts[3], given.get("container", "")
            if self._tls:
                uid, container = self._pods.uid_of(parts[1], parts[2]), parts[3]
            chunks = self._pods.lines(uid, container, query, previous=_is_true(given.get("previous", "")))
            first = await anext(chunks, b"") if not query.follow else b""
        except ControlPlaneError as error:
            await self._refuse(writer, 404 if isinstance(error, NotFoundError) else 400, str(error))
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" + first)
        async with TaskGroup() as tasks:
            sending = tasks.create_task(_send(chunks, writer))
            leaving = tasks.create_task(reader.read(1))
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            sending.cancel()
            leaving.cancel()

    async def _run_command(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str, key: str
    ) -> None:
        url = urlsplit(target)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        if not hmac.compare_digest(parts[0].encode(), self._key.encode()):
            await self._refuse(writer, 401, "the first part of the path must be the key of this endpoint")
            return
        given = parse_qs(url.query)
        command, flags = given.get("command", []), {name: values[-1] for name, values in given.items()}
        if len(parts) != 4 or parts[1] != "exec" or not command:
            await self._refuse(writer, 404, "not found")
            return
        try:
            program, container_program = self._pods.exec_program(parts[3], flags.get("container", ""), command)
        except ControlPlaneError as error:
            await self._refuse(writer, 404 if isinstance(error, NotFoundError) else 400, str(error))
            return
        head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        head += f"Sec-WebSocket-Accept: {accept_of(key)}\r\nSec-WebSocket-Protocol: {exec_channels.PROTOCOL}\r\n\r\n"
        writer.write(head.encode())
        tty, stdin = _is_true(flags.get("tty", "")), _is_true(flags.get("stdin", ""))
        await commands.run(Socket(reader, writer), program, container_program, stdin=stdin, tty=tty)

    async def _refuse(self, writer: asyncio.StreamWriter, code: int, words: str) -> None:
        body = words.encode()
        head = f"HTTP/1.1 {code} {_PHRASES[code]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        async with asyncio.timeout(_DRAIN_S):
            await writer.drain()


def query_of(given: Mapping[str, str], now: float) -> LogQuery:
    """Return the query that the parameters of `pods/log` describe.

    Raises:
        InvalidError: a value is not a number or not a time.
    """
    since = given.get("sinceTime", "")
    seconds = _number(given, "sinceSeconds")
    if seconds is not None:
        since = format_time(now - seconds, "microseconds")
    try:
        since = normal_time(since) if since else ""
    except ValueError as error:
        raise InvalidError(f"sinceTime: {error}") from error
    return LogQuery(
        follow=_is_true(given.get("follow", "")),
        timestamps=_is_true(given.get("timestamps", "")),
        tail=_number(given, "tailLines"),
        since=since,
        limit_bytes=_number(given, "limitBytes"),
    )


async def _send(chunks: AsyncGenerator[bytes, None], writer: asyncio.StreamWriter) -> None:
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            writer.write(chunk)
            async with asyncio.timeout(_DRAIN_S):
                await writer.drain()


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name, "")
    if not text:
        return None
    number = number_in(text, LONG_DIGITS_MAX)
    if number is None:
        raise InvalidError(f"{name}: {text[:64]!r} is not a number")
    return number


def _is_true(text: str) -> bool:
    return text in ("1", "true", "True")
