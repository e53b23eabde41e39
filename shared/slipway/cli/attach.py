"""Attaches this terminal to a session of a shell.

Owns the raw mode of the terminal, the size of the window, the key that detaches, and the messages about the connection.
Without a terminal, the standard input is copied until its end. The terminal's mode is restored in every case.
"""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Generator
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYetError
from contextlib import contextmanager

from slipway.cli.columns import one_line
from slipway.cli.remote import PIECE_BYTES, STDERR, SessionConnection, SessionRequest
from slipway.cli.terminal import Terminal
from slipway.sdk.address import ServerAddress

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
