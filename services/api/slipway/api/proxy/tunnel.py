"""TCP over a proxied WebSocket: the bytes of one connection to a declared port of a workload.

The protocol is that of `model/tcp_tunnel.py`. The proxy connects to the workload first, so that it can refuse the
WebSocket when the workload refuses the connection.

Invariants: bytes are forwarded once and in order; a side that reads slowly makes the other side wait; the end of one
direction does not cut the bytes of the other one.
"""

import asyncio
import contextlib
import socket as sockets
from collections.abc import Awaitable, Callable

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from slipway.api.first_completed import first_of
from slipway.api.http_errors import NotListeningError
from slipway.api.ports import ShutdownSignal
from slipway.api.proxy.target import ProxyTarget
from slipway.model.tcp_tunnel import EOF, PROTOCOL

CONNECT_S = 10.0
CLOSE_S = 5.0
HALF_OPEN_S = 120.0
"""How long a client may send nothing after the workload has ended its direction. A workload that has closed the whole
connection looks the same until the next byte is sent to it."""
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Options of the connection to the workload, where the system has them: its node may die, which closes no connection,
and then a client that only waits would wait for ever."""
PIECE_BYTES = 64 * 1024
GOING_AWAY = 1001


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
