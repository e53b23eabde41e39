"""WebSockets to the API server for commands in containers: opens one, or returns the server's refusal.

Owns the WebSocket library of the Kubernetes client, which it imports when it is first used. Must not know credentials
or what a status means. A refused handshake is returned as a value with its body, because the body contains the server's
reason.

Promises: messages are delivered once and in order. At most `QUEUE_MAX` messages are buffered while the caller does not
read; then the server must wait. A message larger than `MESSAGE_BYTES_MAX` ends the connection. Not promised: that a
connection which breaks without a close message is detected. Both sides answer pings only as fast as the command reads
its input, so a missing pong proves nothing; the caller must limit the silence of a connection.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from slipway.errors import UnavailableError
from slipway.model.exec_channels import MESSAGE_BYTES_MAX, PROTOCOL

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

QUEUE_MAX = 16
CLOSE_S = 5.0
PING_S = 20.0
"""Seconds between pings on an idle connection, so that no proxy or firewall closes it."""


class SocketOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to connect to the API server; an empty text means that the URL decides."""

    tls: ssl.SSLContext | None = None
    server_hostname: str = ""
    proxy: str = ""
    user_agent: str = "slipway"


class RefusedUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """A response of the server other than the requested WebSocket."""

    status: int
    body: bytes = b""
    retry_after: str | None = None


class SocketChannels:
    """`ContainerChannels` over one WebSocket."""

    status = 101

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket

    async def send(self, message: bytes) -> None:
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

        try:
            await self._socket.send(message)
        except ConnectionClosedOK:
            # The command has ended without reading all its input; its end can still be received.
            return
        except ConnectionClosed as error:
            raise UnavailableError(f"the connection to the container was lost: {error}") from error

    async def receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                message = await self._socket.recv()
                data = message.encode() if isinstance(message, str) else bytes(message)
                if data:
                    return data
        except ConnectionClosed:
            return b""

    async def close(self) -> None:
        """Close the connection, within `CLOSE_S`, because the other side may no longer read or answer."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close()
        self._socket.transport.abort()


async def open_channels(
    url: str, headers: Mapping[str, str], options: SocketOptions, *, timeout_s: float
) -> SocketChannels | RefusedUpgrade:
    """Return a connection, or the server's refusal. Raises TimeoutError and OSError."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.typing import Subprotocol

    class NoRedirects(connect):
        """A connect that treats a redirect as a refusal, because credentials may be sent only to the configured
        server."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    secure = {"ssl": options.tls} if url.startswith("https:") and options.tls is not None else {}
    if secure and options.server_hostname:
        secure["server_hostname"] = options.server_hostname  # pyright: ignore[reportArgumentType]
    try:
        async with asyncio.timeout(timeout_s):
            socket = await NoRedirects(
                url.replace("http", "ws", 1),
                subprotocols=[Subprotocol(PROTOCOL)],
                additional_headers=dict(headers),
                user_agent_header=options.user_agent,
                compression=None,
                proxy=options.proxy or None,
                open_timeout=None,
                close_timeout=CLOSE_S,
                ping_interval=PING_S,
                ping_timeout=None,
                max_size=MESSAGE_BYTES_MAX,
                max_queue=QUEUE_MAX,
                **secure,  # pyright: ignore[reportArgumentType]
            )
    except InvalidStatus as error:
        answer = error.response
        return RefusedUpgrade(
            status=answer.status_code, body=bytes(answer.body or b""), retry_after=answer.headers.get("Retry-After")
        )
    except InvalidHandshake as error:
        raise ConnectionError(f"no WebSocket: {error}") from error
    if socket.subprotocol != PROTOCOL:
        await socket.close()
        raise ConnectionError(f"the server uses another protocol than {PROTOCOL}: {socket.subprotocol}")
    return SocketChannels(socket)
