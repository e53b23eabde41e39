"""Proxied WebSockets: messages both ways until either side closes.

The workload is connected to first, so that a refusal of its is a refusal of ours, and the subprotocol is its choice.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from slipway.api.ports import Stop
from slipway.api.proxy.headers import socket_fields
from slipway.api.proxy.target import Target
from slipway.api.race import first_of
from slipway.api.refusals import BadGatewayError, NotListeningError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

CONNECT_S = 10.0
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
QUEUE_MAX = 16
GOING_AWAY = 1001
NORMAL = 1000
_NO_CODE = 1005
_BROKEN = (1006, 1015)
_OWN_HEADERS = ("host", "origin", "user-agent")


async def forward_socket(
    socket: WebSocket, target: Target, *, stop: Stop, touch: Callable[[], None], token: str = ""
) -> None:
    """One WebSocket; `touch` is called for each message, of either side. `token` tells the workload that it is us.

    Raises:
        NotListeningError, BadGatewayError: before the client's handshake is answered.
    """
    upstream = await _connect(socket, target, token)
    try:
        await socket.accept(subprotocol=upstream.subprotocol)
        with contextlib.suppress(WebSocketDisconnect):
            await first_of(_to_workload(socket, upstream, touch), _to_client(upstream, socket, touch), stop.wait())
        if stop.is_set() and socket.application_state is WebSocketState.CONNECTED:
            await socket.close(GOING_AWAY)
    finally:
        await upstream.close()


async def _connect(socket: WebSocket, target: Target, token: str) -> "ClientConnection":
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.typing import Origin, Subprotocol

    fields = socket_fields(
        socket.headers.items(),
        client=socket.client.host if socket.client else "",
        scheme=socket.url.scheme,
        prefix=target.prefix,
        token=token,
    )
    scheme = "wss" if target.is_tls else "ws"
    host = socket.headers.get("host", target.authority)
    origin = socket.headers.get("origin")
    offered = [Subprotocol(name) for name in socket.scope.get("subprotocols", ())]
    try:
        async with asyncio.timeout(CONNECT_S):
            return await connect(
                f"{scheme}://{host}{target.path.decode('latin-1')}",
                host=target.host,
                port=target.port,
                origin=Origin(origin) if origin else None,
                subprotocols=offered or None,
                additional_headers=[field for field in fields if field[0].lower() not in _OWN_HEADERS],
                user_agent_header=socket.headers.get("user-agent"),
                compression=None,
                proxy=None,
                open_timeout=None,
                max_size=MESSAGE_BYTES_MAX,
                max_queue=QUEUE_MAX,
            )
    except InvalidStatus as error:
        status = error.response.status_code
        raise BadGatewayError(f"{target.allocation} refused the WebSocket with status {status}") from error
    except InvalidHandshake as error:
        raise BadGatewayError(f"{target.allocation} speaks no WebSocket here") from error
    except (OSError, TimeoutError) as error:
        raise NotListeningError(f"{target.allocation} does not answer on port {target.port} yet") from error


async def _to_workload(socket: WebSocket, upstream: "ClientConnection", touch: Callable[[], None]) -> None:
    from websockets.exceptions import ConnectionClosed

    while True:
        message: Message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            await upstream.close(_sendable(int(message.get("code") or NORMAL)))
            return
        touch()
        text, data = message.get("text"), message.get("bytes")
        try:
            await upstream.send(text if text is not None else data or b"")
        except ConnectionClosed:
            return  # the other direction tells the client


async def _to_client(upstream: "ClientConnection", socket: WebSocket, touch: Callable[[], None]) -> None:
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed):
        async for message in upstream:
            touch()
            if isinstance(message, str):
                await socket.send_text(message)
            else:
                await socket.send_bytes(bytes(message))
    code = upstream.close_code or NORMAL
    await socket.close(_sendable(code), upstream.close_reason or "")


def _sendable(code: int) -> int:
    """A close code that may be sent: some only say how a connection ended. A broken one is no proper leave."""
    return NORMAL if code == _NO_CODE else GOING_AWAY if code in _BROKEN else code
