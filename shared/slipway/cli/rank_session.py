"""A command in a rank, over one WebSocket: bytes in both directions until the command has ended.

Owns the connections to the API, their addresses, and the meaning of a refusal. Knows no terminal and no files. The
library for WebSockets is imported at the first use.

Promises: input is sent once and in order, as fast as the command reads it. Output arrives as it is printed, as fast as
the caller reads it. A lost connection is an error: unlike a shell session, a command cannot be attached again.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from slipway.cli.http import ApiResponse, error_of
from slipway.errors import UnavailableError
from slipway.model import exec_channels
from slipway.model.exec_channels import PIECE_BYTES, PROTOCOL, STATUS, STDERR, STDIN, STDIN_END, STDOUT, CommandEnd
from slipway.sdk import commands
from slipway.sdk.address import ServerAddress
from slipway.sdk.commands import RankCommand

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


CONNECT_S = 15.0
"""The deadline that a caller sets for `connect`."""
PONG_S = 20.0
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""The most bytes of one message, which is kept in memory. Our server sends at most half a mebibyte."""


def url_of(server: ServerAddress, path: str) -> str:
    """Return the address of `path` (with its slash) at the server."""
    scheme = "wss" if server.scheme == "https" else "ws"
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{scheme}://{host}:{server.port}{server.prefix}{path}"


async def connect(
    server: ServerAddress, url: str, protocol: str, *, user: str = "", answers_pings: bool = True
) -> "ClientConnection":
    """Open a connection with the subprotocol, without an own deadline. Raises the library's errors.

    `user` is sent to servers without authentication. With `answers_pings` False, a missing pong does not close the
    connection: the other side reads only as fast as a command or a workload takes the bytes.
    """
    from websockets.asyncio.client import connect as open_socket
    from websockets.typing import Subprotocol

    class NoRedirects(open_socket):
        """Refuses redirects: a workload may send one, but the user's input must be sent to the server only."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    credential = server.credential
    headers = {"X-Slipway-User": user} if user else {}
    if credential is not None:
        headers["Authorization"] = f"Bearer {credential.token()}"
    return await NoRedirects(
        url,
        additional_headers=headers,
        subprotocols=[Subprotocol(protocol)],
        compression=None,
        proxy=None,
        open_timeout=None,
        close_timeout=1.0,
        ping_timeout=PONG_S if answers_pings else None,
        max_size=MESSAGE_BYTES_MAX,
    )


class RankSession:
    """One running command. `end` is how it ended, after `output` is exhausted."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket
        self.end: CommandEnd | None = None

    async def send(self, data: bytes) -> None:
        """Send input. Input that the command no longer reads is dropped."""
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            for start in range(0, len(data), PIECE_BYTES):
                await self._socket.send(bytes((STDIN,)) + data[start : start + PIECE_BYTES])

    async def end_input(self) -> None:
        """End the input."""
        await self._say(STDIN_END)

    async def resize(self, columns: int, rows: int) -> None:
        """Report a new size of the window."""
        await self._say(exec_channels.resize(columns, rows))

    async def output(self) -> AsyncGenerator[tuple[int, bytes]]:
        """Yield (1 or 2, bytes) as the output arrives.

        Raises:
            UnavailableError: the connection was lost.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            while self.end is None:
                message = await self._socket.recv()
                data = message.encode() if isinstance(message, str) else bytes(message)
                if data and data[0] in (STDOUT, STDERR):
                    yield data[0], data[1:]
                elif data and data[0] == STATUS:
                    self.end = exec_channels.end_of(data[1:])
        except ConnectionClosed as error:
            raise commands.lost() from error

    async def _say(self, message: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(message)


@asynccontextmanager
async def running(server: ServerAddress, wanted: RankCommand, user: str) -> AsyncGenerator[RankSession]:
    """Run the command while the context is open.

    Raises:
        ControlPlaneError: the API refused the command. UnavailableError: the API cannot be reached.
    """
    from websockets.exceptions import InvalidHandshake, InvalidStatus

    try:
        async with asyncio.timeout(CONNECT_S):
            socket = await connect(server, url_of(server, wanted.path), PROTOCOL, user=user, answers_pings=False)
    except InvalidStatus as error:
        answer = error.response
        said = ApiResponse(answer.status_code, bytes(answer.body or b""), dict(answer.headers.raw_items()))
        raise error_of(said) from None
    except (InvalidHandshake, OSError, TimeoutError) as error:
        raise UnavailableError(f"no connection to {server.url}: {error or type(error).__name__}") from error
    async with socket:
        yield RankSession(socket)
