"""WebSockets to the API server: how one is opened for a command in a container, and what a refusal says.

Owns the WebSocket library of the Kubernetes client, which it imports when it is first used. Must not know credentials
or what a status means. A refused handshake is a value with its body, because the body has the server's reason.

Promises: messages are passed on once and in order; at most `QUEUE_MAX` messages are held while nobody reads, then the
server has to wait; a message larger than `MESSAGE_BYTES_MAX` ends the connection.
Not promised: that a connection which breaks without a word is noticed. Both sides would answer pings only as fast as
the command reads its input, so that a missing answer proves nothing; whoever uses a connection limits its silence.
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
"""How often a connection without traffic is used, so that nothing on the way takes it for dead."""


class SocketOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the API server is reached; empty text: as the URL says."""

    tls: ssl.SSLContext | None = None
    server_hostname: str = ""
    proxy: str = ""
    user_agent: str = "slipway"


class RefusedUpgrade(msgspec.Struct, frozen=True, kw_only=True):
    """An answer other than the WebSocket that was asked for."""

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
            # The command has ended without reading all: how it ended is still to be received.
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
        """Closes the connection, within `CLOSE_S`: the other side may read nothing more, and answer nothing."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_S):
                await self._socket.close()
        self._socket.transport.abort()


async def open_channels(
    url: str, headers: Mapping[str, str], options: SocketOptions, *, timeout_s: float
) -> SocketChannels | RefusedUpgrade:
    """A connection, or the server's refusal. Raises TimeoutError and OSError."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.typing import Subprotocol

    class Once(connect):
        """A redirect is a refusal: credentials go to the server that was configured."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    secure = {"ssl": options.tls} if url.startswith("https:") and options.tls is not None else {}
    if secure and options.server_hostname:
        secure["server_hostname"] = options.server_hostname  # pyright: ignore[reportArgumentType]
    try:
        async with asyncio.timeout(timeout_s):
            socket = await Once(
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
        raise ConnectionError(f"the server speaks another protocol than {PROTOCOL}: {socket.subprotocol}")
    return SocketChannels(socket)
