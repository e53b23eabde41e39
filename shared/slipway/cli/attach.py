"""Attaches this terminal to a session of a shell.

Of the terminal it owns the raw mode, the size of the window, the key that detaches, and the messages about the
connection. Without a terminal, the standard input is copied until its end. The terminal's mode is restored in every
case.

`SessionConnection` is a session of a terminal server, over several connections. After a lost connection it attaches
again, requests the output after its position, and resends the input that the server has not received. Knows the
protocol of `slipway.inside.terminal`, and no real terminal.

Invariants: output and input are delivered once and in order. The amount of sent input that the server has not confirmed
is bounded.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from slipway.cli import rank_session
from slipway.cli.table import one_line
from slipway.cli.terminal import Terminal
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
        self._url = rank_session.url_of(server, f"{path}terminal")
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
            async with asyncio.timeout(rank_session.CONNECT_S):
                return await rank_session.connect(self._server, self._url, PROTOCOL)
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
            async with asyncio.timeout(rank_session.CONNECT_S):
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


DETACH_KEY = b"\x1d"
DETACH_NAME = "Ctrl-]"
_FALLBACK = (80, 24)
_LOOK_S = 0.2


class Attachment:
    """One session that is attached to this terminal."""

    def __init__(self, terminal: Terminal, server: ServerAddress, path: str, wanted: SessionRequest) -> None:
        self._terminal = terminal
        self._is_tty = wanted.tty
        self._remote = SessionConnection(server, path, wanted, write_out)
        self._remote.lost, self._remote.found = self._on_lost, self._on_found
        self._is_lost = False
        self._detached = asyncio.Event()

    @property
    def session(self) -> str:
        """The id of the attached session."""
        return self._remote.session

    def run(self) -> int | None:
        """Run until the program has ended or the user detaches; return the exit code, or None after a detach.

        Raises:
            ControlPlaneError: see `SessionConnection.run`.
        """
        with raw_terminal() if self._is_tty else contextlib.nullcontext():
            return asyncio.run(self._run())

    async def _run(self) -> int | None:
        loop = asyncio.get_running_loop()
        if self._is_tty:
            self._resize()
            loop.add_signal_handler(signal.SIGWINCH, self._resize)
        threading.Thread(target=self._read, args=(loop,), daemon=True, name="stdin").start()
        program = asyncio.ensure_future(self._remote.run())
        leaving = asyncio.ensure_future(self._detached.wait())
        try:
            await asyncio.wait({program, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return program.result() if program.done() else None
        finally:
            program.cancel()
            leaving.cancel()
            await asyncio.gather(program, leaving, return_exceptions=True)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read the standard input on a thread of its own, because the loop cannot wait for every file or pipe."""
        stdin = sys.stdin.fileno()
        with contextlib.suppress(RuntimeError, CancelledError):  # the loop is closed: the attachment has ended
            while True:
                data = os.read(stdin, PIECE_BYTES)
                before, key, _ = data.partition(DETACH_KEY) if self._is_tty else (data, b"", b"")
                if before:
                    sending = asyncio.run_coroutine_threadsafe(self._remote.send(before), loop)
                    while not sending.done() and loop.is_running():
                        with contextlib.suppress(NotYetError):
                            sending.result(_LOOK_S)
                if key:
                    loop.call_soon_threadsafe(self._detached.set)
                    return
                if not data:
                    loop.call_soon_threadsafe(self._remote.end_input)
                    return

    def _resize(self) -> None:
        # The size comes from the terminal itself. COLUMNS and LINES of the environment may be out of date.
        columns, rows = _FALLBACK
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(sys.stdin.fileno())
        self._remote.resize(rows, columns)

    def _on_lost(self, why: str) -> None:
        if not self._is_lost:
            self._is_lost = True
            hint = f"; {DETACH_NAME} detaches" if self._is_tty else ""
            self._say(f"connection lost ({why[:100]}); reconnecting{hint}")

    def _on_found(self, is_cut: bool) -> None:
        if self._is_lost:
            self._is_lost = False
            self._say("reconnected" + ("; some output in between is lost" if is_cut else ""))

    def _say(self, words: str) -> None:
        end = "\r\n" if self._is_tty else "\n"
        text = self._terminal.shown(self._terminal.paint(f"[slipway: {one_line(words)}]", "dim"))
        self._terminal.err.write(f"{end if self._is_tty else ''}{text}{end}")
        self._terminal.err.flush()


def write_out(stream: int, data: bytes) -> None:
    """Write all the data to the standard output (1) or the standard error (2)."""
    target = sys.stderr if stream == STDERR else sys.stdout
    target.flush()
    fd, rest = target.fileno(), memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


@contextmanager
def raw_terminal() -> Generator[None]:
    """Set the terminal to raw mode: every key is sent to the program unchanged. The old mode is restored at the end."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        # TCSADRAIN keeps the keys that the user typed in advance.
        tty.setraw(fd, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
