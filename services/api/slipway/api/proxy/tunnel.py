"""TCP over a proxied WebSocket: the bytes of one connection to a declared port of a workload.

The subprotocol is `PROTOCOL`. Binary messages are the bytes; the text message `eof` means that one direction has ended,
as in a half-closed connection. The proxy connects to the workload first, so that it can refuse the WebSocket when the
workload refuses the connection.

Invariants: bytes are forwarded once and in order; a side that reads slowly makes the other side wait.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from slipway.api.first_completed import first_of
from slipway.api.http_errors import NotListeningError
from slipway.api.ports import ShutdownSignal
from slipway.api.proxy.target import ProxyTarget

PROTOCOL = "tcp.v1.slipway.dev"
CONNECT_S = 10.0
CLOSE_S = 5.0
PIECE_BYTES = 64 * 1024
GOING_AWAY = 1001
EOF = "eof"


async def forward_bytes(
    socket: WebSocket,
    target: ProxyTarget,
    *,
    stop: ShutdownSignal,
    touch: Callable[[], None],
    confirm: Callable[[], Awaitable[None]],
) -> None:
    """Forward one connection until either side has left or both have ended; `touch` is called for each piece.

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
        await confirm()
        await socket.accept(subprotocol=PROTOCOL)
        with contextlib.suppress(WebSocketDisconnect):
            await first_of(_to_client(reader, socket, touch), _to_workload(socket, writer, touch), stop.wait())
        if socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(WebSocketDisconnect):
                await socket.close(GOING_AWAY if stop.is_set() else 1000)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await writer.wait_closed()


async def _to_workload(socket: WebSocket, writer: asyncio.StreamWriter, touch: Callable[[], None]) -> None:
    has_ended = False
    while True:
        message: Message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        with contextlib.suppress(OSError):  # the workload reads no more, but may still send: do not end the tunnel
            if has_ended:
                continue
            if message.get("text") == EOF:
                has_ended = True
                writer.write_eof()
                continue
            touch()
            writer.write(message.get("bytes") or b"")
            await writer.drain()


async def _to_client(reader: asyncio.StreamReader, socket: WebSocket, touch: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE_BYTES):
            touch()
            await socket.send_bytes(data)
    await socket.send_text(EOF)
