"""A session of a terminal server, over several connections.

Owns the positions in the output and in the input. After a lost connection it attaches again, requests the output after
its position, and resends the input that the server has not received. Knows the protocol of `slipway.inside.terminal`,
and no real terminal.

Invariants: output and input are delivered once and in order. The amount of sent input that the server has not confirmed
is bounded.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from slipway.cli import sockets
from slipway.errors import NotFoundError, PermanentError, UnavailableError
from slipway.sdk.address import ServerAddress

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

Json = dict[str, Any]

PROTOCOL = "terminal.v1.slipway.dev"
UNSENT_BYTES_MAX = 256 * 1024
PIECE_BYTES = 32 * 1024
ACK_BYTES = 32 * 1024
"""Bytes that are read before they are acknowledged; far less than the server allows a reader to lag behind."""
PATIENCE_S = 600.0
"""Seconds of retries after a lost connection: long enough for a laptop to change its network."""
PAUSE_S, PAUSE_S_MAX = 0.1, 3.0
_GONE, _NO_SESSION = (401, 403, 404, 410), 4404
STDOUT, STDERR = 1, 2


class SessionRequest(NamedTuple):
    """The session to open: an existing one, or a new one."""

    session: str = ""
    command: tuple[str, ...] = ()
    tty: bool = True


class SessionConnection:
    """One session. `show` receives (stream, bytes); `lost` is called at the loss of a connection, `found` after it."""

    def __init__(
        self, server: ServerAddress, path: str, wanted: SessionRequest, show: Callable[[int, bytes], None]
    ) -> None:
        self._server = server
        self._url = sockets.url_of(server, f"{path}terminal")
        self._wanted = wanted
        self._show = show
        self._client = secrets.token_hex(8)
        self._seen = self._taken = 0
        self._unsent = bytearray()
        self._sent = 0
        self._at_end = False
        self._room = asyncio.Event()
        self._news = asyncio.Event()
        self.session = wanted.session
        self.size = (24, 80)
        self.code: int | None = None
        self.lost: Callable[[str], None] = lambda why: None
        self.found: Callable[[bool], None] = lambda is_cut: None

    # --- what the user does

    async def send(self, data: bytes) -> None:
        """Send input; wait while too much input is unconfirmed."""
        while len(self._unsent) > UNSENT_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
        self._unsent += data
        self._news.set()

    def end_input(self) -> None:
        """End the input."""
        self._at_end = True
        self._news.set()

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the window."""
        self.size = (rows, cols)
        self._news.set()

    # --- the connections

    async def run(self) -> int:
        """Run until the program has ended; return its exit code.

        Raises:
            NotFoundError: the session does not exist any more. PermanentError: it was refused, or the allocation ended.
            UnavailableError: the connection was lost and could not be restored.
        """
        loop = asyncio.get_running_loop()
        pause_s, until = PAUSE_S, loop.time() + PATIENCE_S
        while self.code is None:
            try:
                async with await self._connect() as socket:
                    await self._attach(socket)
                    pause_s, until = PAUSE_S, loop.time() + PATIENCE_S
                    await self._converse(socket)
            except _LostError as error:
                if loop.time() > until:
                    raise UnavailableError(f"the connection was lost and could not be restored: {error}") from error
                self.lost(str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        return self.code

    async def _connect(self) -> "ClientConnection":
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        try:
            async with asyncio.timeout(sockets.CONNECT_S):
                return await sockets.connect(self._server, self._url, PROTOCOL)
        except InvalidStatus as error:
            if error.response.status_code in _GONE:
                raise PermanentError(detail_of(error.response.body)) from error
            raise _LostError(detail_of(error.response.body)) from error
        except (InvalidHandshake, OSError, TimeoutError) as error:
            raise _LostError(str(error) or type(error).__name__) from error

    async def _attach(self, socket: "ClientConnection") -> None:
        rows, cols = self.size
        opening: Json = {"type": "open", "client": self._client, "session": self.session, "from": self._seen}
        opening |= {"rows": rows, "cols": cols, "tty": self._wanted.tty, "command": list(self._wanted.command)}
        opening["acks"] = True
        told = await self._receive(socket, opening)
        is_new = not self.session
        self.session = str(told["id"])
        # Input that the server has received is not resent, even when its confirmation was lost.
        self._forget(int(told["received"]))
        self._sent = 0
        self._seen = int(told["offset"])
        self.found(bool(told["truncated"]) and not is_new)

    async def _receive(self, socket: "ClientConnection", opening: Json) -> Json:
        from websockets.exceptions import ConnectionClosed

        try:
            async with asyncio.timeout(sockets.CONNECT_S):
                await socket.send(json.dumps(opening))
                told: Json = json.loads(await socket.recv())
        except (ConnectionClosed, TimeoutError) as error:
            raise _LostError(str(error) or "no answer") from error
        if told["type"] != "error":
            return told
        with contextlib.suppress(ConnectionClosed):
            await socket.recv()
        words = str(told["message"])
        raise NotFoundError(words) if socket.close_code == _NO_SESSION else PermanentError(words)

    async def _converse(self, socket: "ClientConnection") -> None:
        sending = asyncio.ensure_future(self._send_news(socket))
        try:
            await self._read(socket)
        finally:
            sending.cancel()
            await asyncio.wait({sending})

    async def _read(self, socket: "ClientConnection") -> None:
        from websockets.exceptions import ConnectionClosed

        told_until = self._seen
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    self._seen += len(message) - 1
                    self._show(message[0], message[1:])
                    if self._seen - told_until >= ACK_BYTES:
                        told_until = self._seen
                        with contextlib.suppress(ConnectionClosed):  # output that has arrived is read to its end
                            await socket.send(json.dumps({"type": "seen", "offset": self._seen}))
                    continue
                told: Json = json.loads(message)
                if told["type"] == "received":
                    self._forget(int(told["bytes"]))
                elif told["type"] == "exit":
                    self.code = int(told["code"])
                    return
                elif told["type"] == "error":
                    raise PermanentError(str(told["message"]))
        except ConnectionClosed as error:
            raise _LostError(str(error)) from error
        raise _LostError("closed")

    async def _send_news(self, socket: "ClientConnection") -> None:
        """Send new sizes, input and the end of the input, as they occur."""
        from websockets.exceptions import ConnectionClosed

        size, has_ended = (0, 0), False
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._news.clear()
                if size != self.size:
                    size = self.size
                    await socket.send(json.dumps({"type": "resize", "rows": size[0], "cols": size[1]}))
                while self._sent < len(self._unsent):
                    piece = bytes(self._unsent[self._sent : self._sent + PIECE_BYTES])
                    self._sent += len(piece)
                    await socket.send(piece)
                if self._at_end and not has_ended:
                    has_ended = True
                    await socket.send(json.dumps({"type": "eof"}))
                await self._news.wait()

    def _forget(self, taken: int) -> None:
        """Drop the input before `taken`, which the server has received."""
        count = max(0, taken - self._taken)
        self._taken += count
        del self._unsent[:count]
        self._sent = max(0, self._sent - count)
        self._room.set()


class _LostError(Exception):
    """The connection was lost or could not be opened; a retry is possible."""


def detail_of(body: bytes | bytearray | None) -> str:
    """Return the detail of a refusal's problem document."""
    try:
        told: Json = json.loads(body or b"{}")
        return str(told.get("detail") or told.get("title") or "refused")
    except (ValueError, AttributeError):
        return "refused"
