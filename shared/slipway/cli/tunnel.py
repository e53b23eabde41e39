"""Forwards a port of this machine to a port of a workload, through the proxy.

Owns the listening socket and one WebSocket per connection. The protocol is that of `model/tcp_tunnel.py`. Listens on
this machine only.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from slipway.cli import rank_session
from slipway.errors import UnavailableError
from slipway.model.tcp_tunnel import EOF, PROTOCOL
from slipway.sdk.address import ServerAddress

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

HOST = "127.0.0.1"
PAUSE_S = 0.2
PIECE_BYTES = 64 * 1024
CONNECTIONS_MAX = 256


class Tunnel:
    """Forwards connections to `local` to the workload's port at `path`. `say` receives the error of a connection."""

    def __init__(self, server: ServerAddress, path: str, say: Callable[[str], None]) -> None:
        self._server = server
        self._url = rank_session.url_of(server, path)
        self._say = say
        self._open = 0

    async def run(self, local: int, ready: Callable[[int], None]) -> None:
        """Serve until the task is cancelled; `ready` receives the local port.

        Raises:
            UnavailableError: the local port cannot be opened.
        """
        try:
            listening = await asyncio.start_server(self._serve, HOST, local)
        except OSError as error:
            raise UnavailableError(f"port {local} of this machine cannot be opened: {error.strerror}") from error
        ready(int(listening.sockets[0].getsockname()[1]))
        try:
            await asyncio.Event().wait()
        finally:
            listening.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > CONNECTIONS_MAX:
                self._say(f"more than {CONNECTIONS_MAX} connections; one was refused")
                return
            socket = await self._connect()
            if socket is None:
                return
            async with socket:
                up, down = asyncio.ensure_future(_up(reader, socket)), asyncio.ensure_future(_down(socket, writer))
                try:
                    await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
                    if up.done() and up.result():
                        # The local side has ended its direction, and still reads the other one.
                        await down
                finally:
                    up.cancel()
                    down.cancel()
                    await asyncio.gather(up, down, return_exceptions=True)
        finally:
            self._open -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _connect(self) -> "ClientConnection | None":
        """Connect to the workload; wait for an API that is restarting. Return None when it fails."""
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        from slipway.cli.attach import detail_of

        loop = asyncio.get_running_loop()
        until = loop.time() + rank_session.CONNECT_S
        while True:
            try:
                async with asyncio.timeout_at(until):
                    return await rank_session.connect(self._server, self._url, PROTOCOL, answers_pings=False)
            except InvalidStatus as error:
                self._say(detail_of(error.response.body))
                return None
            except (InvalidHandshake, OSError, TimeoutError) as error:
                if loop.time() + PAUSE_S > until:
                    self._say(f"no connection: {error or type(error).__name__}")
                    return None
            await asyncio.sleep(PAUSE_S)


async def _up(reader: asyncio.StreamReader, socket: "ClientConnection") -> bool:
    """Send what the local side sends; return whether it has ended its direction only, and is not lost."""
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed, OSError):
        while data := await reader.read(PIECE_BYTES):
            await socket.send(data)
        await socket.send(EOF)
        return True
    return False


async def _down(socket: "ClientConnection", writer: asyncio.StreamWriter) -> None:
    """Write what the workload sends, until one of the connections ends."""
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed, OSError):
        async for message in socket:
            if isinstance(message, bytes):
                writer.write(message)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()
