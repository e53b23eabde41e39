"""Proxied WebSockets, and TCP over them: forwarded in both directions until either side closes.

The proxy connects to the workload first. So the workload chooses the subprotocol, and a refusal of the workload is
forwarded unchanged: status, header and body. A message is buffered whole, so its size is limited; the limit is the same
in both directions.

The proxy pings the workload, so that nothing between them closes a silent connection. A program that computes may
answer a ping late. So an unanswered ping ends the session only after the longest silence that a proxied request may
have.

TCP over a WebSocket carries the bytes of one connection to a declared port of a workload. The protocol is that of
`model/tcp_tunnel.py`. The proxy connects to the workload first, so that it can refuse the WebSocket when the workload
refuses the connection.

Invariants: bytes are forwarded once and in order; a side that reads slowly makes the other side wait; the end of one
direction does not cut the bytes of the other one.
"""

import asyncio
import contextlib
import functools
import socket as sockets
import ssl
from collections.abc import Awaitable, Callable
from socket import AF_INET, AF_INET6, SOCK_STREAM
from socket import socket as Socket
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from slipway.api.http.errors import BadGatewayError, NotListeningError
from slipway.api.http.streaming import first_of
from slipway.api.ports import ShutdownSignal
from slipway.api.proxy.headers import handshake_fields, socket_fields, wire_fields
from slipway.api.proxy.http import HttpForwarder
from slipway.api.proxy.target import ProxyTarget
from slipway.model.tcp_tunnel import EOF, PROTOCOL
from slipway.runtime.http_server import WS_MESSAGE_BYTES_MAX
from slipway.runtime.tasks import UnitTurns

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.http11 import Response as WireResponse


CONNECT_S = 10.0
PING_S = 20.0
CLOSE_S = 5.0
"""How long a workload may take to confirm the end of a session."""
QUEUE_MAX = 16
GOING_AWAY = 1001
NORMAL = 1000
TOO_BIG = 1009
NO_PONG = 1011
_NO_CODE = 1005
_BROKEN = (1006, 1015)
_OWN_HEADERS = ("host", "origin", "user-agent")


async def forward_socket(
    socket: WebSocket,
    target: ProxyTarget,
    *,
    stop: ShutdownSignal,
    touch: Callable[[], None],
    confirm: Callable[[], Awaitable[None]],
    forwarder: HttpForwarder,
) -> None:
    """Forward one WebSocket; `touch` is called for each message of either side.

    The token and the longest silence are those of `forwarder`. `confirm` is called on the new connection before
    anything is sent.

    Raises:
        NotListeningError, BadGatewayError: before the client's handshake is answered.
    """
    found = await _connect(socket, target, forwarder, confirm)
    if isinstance(found, Response):
        await socket.send_denial_response(found)
        return
    upstream = found
    try:
        answer = upstream.response
        await socket.accept(
            subprotocol=upstream.subprotocol, headers=_head(socket, target, answer) if answer is not None else None
        )
        with contextlib.suppress(WebSocketDisconnect):
            down = _to_client(upstream, socket, touch, forwarder.silence_s)
            await first_of(_to_workload(socket, upstream, touch), down, stop.wait())
        if stop.is_set() and socket.application_state is WebSocketState.CONNECTED:
            await socket.close(GOING_AWAY)
    finally:
        await upstream.close()


async def _connect(
    socket: WebSocket, target: ProxyTarget, forwarder: HttpForwarder, confirm: Callable[[], Awaitable[None]]
) -> "ClientConnection | Response":
    """Return the WebSocket to the workload, or the workload's refusal."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
    from websockets.typing import Origin, Subprotocol

    class NoRedirects(connect):
        """A connection that follows no redirects: the client gets them and follows them itself."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    fields = socket_fields(
        socket.headers.items(),
        client=socket.client.host if socket.client else "",
        scheme=socket.url.scheme,
        prefix=target.prefix,
        token=forwarder.token,
        pod_uid=target.pod_uid,
    )
    scheme = "wss" if target.is_tls else "ws"
    host = socket.headers.get("host", target.authority)
    origin = socket.headers.get("origin")
    offered = [Subprotocol(name) for name in socket.scope.get("subprotocols", ())]
    try:
        async with asyncio.timeout(CONNECT_S):
            wire = await _connected(target, confirm)
            return await NoRedirects(
                f"{scheme}://{host}{target.path.decode('latin-1')}",
                sock=wire,
                ssl=_unverified() if target.is_tls else None,
                origin=Origin(origin) if origin else None,
                subprotocols=offered or None,
                additional_headers=[field for field in fields if field[0].lower() not in _OWN_HEADERS],
                user_agent_header=socket.headers.get("user-agent"),
                compression=None,
                proxy=None,
                open_timeout=None,
                close_timeout=CLOSE_S,
                ping_interval=PING_S,
                ping_timeout=forwarder.silence_s,
                max_size=WS_MESSAGE_BYTES_MAX,
                max_queue=QUEUE_MAX,
            )
    except InvalidStatus as error:
        refusal = Response(bytes(error.response.body or b""), status_code=error.response.status_code)
        kept = [field for field in _head(socket, target, error.response) if field[0] != b"content-length"]
        refusal.raw_headers = [*kept, (b"content-length", str(len(refusal.body)).encode())]
        return refusal
    except (InvalidHandshake, InvalidURI) as error:
        raise BadGatewayError(f"{target.allocation} does not accept a WebSocket at this path") from error
    except (OSError, TimeoutError) as error:
        raise NotListeningError(f"{target.allocation} does not answer on port {target.port} yet") from error


@functools.cache
def _unverified() -> ssl.SSLContext:
    """Return a TLS context that verifies nothing: a workload has a certificate of its own, without a name to verify."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _connected(target: ProxyTarget, confirm: Callable[[], Awaitable[None]]) -> Socket:
    """Connect and call `confirm`; return the socket for the handshake. Raises OSError, and what `confirm` raises."""
    family = AF_INET6 if ":" in target.host else AF_INET
    wire = Socket(family, SOCK_STREAM)
    try:
        wire.setblocking(False)
        await asyncio.get_running_loop().sock_connect(wire, (target.host, target.port))
        await confirm()
    except BaseException:
        wire.close()
        raise
    return wire


def _head(socket: WebSocket, target: ProxyTarget, answer: "WireResponse") -> list[tuple[bytes, bytes]]:
    """Return the headers for the client, from the workload's answer to the handshake."""
    own = (target.authority, socket.headers.get("host", ""))
    try:
        return wire_fields(handshake_fields(answer.headers.raw_items(), own=own, prefix=target.prefix))
    except ValueError as error:
        raise BadGatewayError(f"{target.allocation} sent an invalid answer: {error}") from error


async def _to_workload(socket: WebSocket, upstream: "ClientConnection", touch: Callable[[], None]) -> None:
    from websockets.exceptions import ConnectionClosed

    turns = UnitTurns()
    while True:
        await turns.passed()
        message: Message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            await upstream.close(_sendable(int(message.get("code") or NORMAL)), message.get("reason") or "")
            return
        touch()
        text, data = message.get("text"), message.get("bytes")
        try:
            await upstream.send(text if text is not None else data or b"")
        except ConnectionClosed:
            return  # `_to_client` reports the end to the client


async def _to_client(
    upstream: "ClientConnection", socket: WebSocket, touch: Callable[[], None], silence_s: float
) -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        turns = UnitTurns()
        while True:
            await turns.passed()
            message = await upstream.recv()
            touch()
            if isinstance(message, str):
                await socket.send_text(message)
            else:
                await socket.send_bytes(bytes(message))
    except ConnectionClosed as error:
        if error.sent is not None and error.sent.code == TOO_BIG and not error.rcvd_then_sent:
            await socket.close(TOO_BIG, f"a message of the workload has more than {WS_MESSAGE_BYTES_MAX} bytes")
            return
        if error.sent is not None and error.sent.code == NO_PONG and error.rcvd is None:
            await socket.close(GOING_AWAY, f"the workload has answered no ping for {silence_s:g} s")
            return
    code = upstream.close_code or NORMAL
    await socket.close(_sendable(code), upstream.close_reason or "")


def _sendable(code: int) -> int:
    """Return a close code that may be sent: 1005, 1006 and 1015 only describe a local end and must not be sent.

    A broken connection becomes 1001 (going away), because it was not closed normally.
    """
    return NORMAL if code == _NO_CODE else GOING_AWAY if code in _BROKEN else code


HALF_OPEN_S = 120.0
"""How long a client may send nothing after the workload has ended its direction. A workload that has closed the whole
connection looks the same until the next byte is sent to it."""
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Options of the connection to the workload, where the system has them. When the node of the workload dies, nothing
closes the connection, and without these options a client that only reads would wait without end."""
PIECE_BYTES = 64 * 1024


async def forward_bytes(
    socket: WebSocket,
    target: ProxyTarget,
    *,
    stop: ShutdownSignal,
    touch: Callable[[], None],
    confirm: Callable[[], Awaitable[None]],
) -> None:
    """Forward one connection until the client has left or both directions have ended; `touch` is called for each piece.

    `confirm` is called on the new connection before anything is sent.

    Raises:
        NotListeningError: before the client's handshake is answered.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(target.host, target.port)
    except (OSError, TimeoutError) as error:
        raise NotListeningError(f"{target.allocation} does not answer on port {target.port} yet") from error
    try:
        _keep_alive(writer)
        await confirm()
        await socket.accept(subprotocol=PROTOCOL)
        connection = _Forwarding(socket, reader, writer, touch)
        with contextlib.suppress(WebSocketDisconnect):
            await first_of(connection.to_client(), connection.to_workload(), stop.wait())
        if socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(WebSocketDisconnect):
                await socket.close(GOING_AWAY if stop.is_set() else 1000)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await writer.wait_closed()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    wire: sockets.socket = writer.get_extra_info("socket")
    wire.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(sockets, name):
            wire.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)


class _Forwarding:
    """Both directions of one connection."""

    def __init__(
        self,
        socket: WebSocket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        touch: Callable[[], None],
    ) -> None:
        self._socket = socket
        self._reader = reader
        self._writer = writer
        self._touch = touch
        self._is_sent = asyncio.Event()
        """the workload gets no more bytes: the client has ended its direction, or the workload refuses them"""
        self._pieces = 0
        self._is_writing = False

    async def to_workload(self) -> None:
        """Forward until the client has left. The end of its direction alone is no reason to return."""
        while True:
            message: Message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if self._is_sent.is_set():
                continue
            try:
                if message.get("text") == EOF:
                    self._writer.write_eof()
                    self._is_sent.set()
                else:
                    await self._write(message.get("bytes") or b"")
            except OSError:
                self._is_sent.set()  # the workload reads no more, but may still send: do not end the tunnel

    async def to_client(self) -> None:
        """Forward until the workload has ended its direction, and then until the other direction has ended too."""
        with contextlib.suppress(OSError):
            while data := await self._reader.read(PIECE_BYTES):
                self._touch()
                await self._socket.send_bytes(data)
        await self._socket.send_text(EOF)
        if self._reader.exception() is None:  # otherwise the connection is lost, in both directions
            await self._until_sent()

    async def _write(self, data: bytes) -> None:
        self._touch()
        self._pieces += 1
        self._is_writing = True
        self._writer.write(data)
        await self._writer.drain()
        self._is_writing = False

    async def _until_sent(self) -> None:
        """Wait until the workload gets no more bytes, or the client has been silent for `HALF_OPEN_S`."""
        while not self._is_sent.is_set():
            pieces = self._pieces
            try:
                async with asyncio.timeout(HALF_OPEN_S):
                    await self._is_sent.wait()
            except TimeoutError:
                if pieces == self._pieces and not self._is_writing:
                    return
