"""A program on a PTY or on pipes that outlives its connections, with a bounded buffer of its output.

This module owns the program, its input and output, and the position of each reader. It must not know the wire protocol.
Standard library only, Python 3.9 or newer.

Invariants: a reader that is at most `REPLAY_BYTES` behind receives every byte once. A program that prints faster than
its readers read is paused; for a reader with a lost connection, the pause lasts at most `COME_BACK_S`. Without readers
it is never paused. Input is written once and in order. The end is reported only after all output.

Source: pty(7); credentials(7) on sessions and controlling terminals.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import os
import secrets
import signal
import struct
import subprocess
import termios
import time

REPLAY_BYTES = 512 * 1024
LAG_BYTES_MAX = 256 * 1024
PIECE_BYTES = 32 * 1024
CLIENTS_MAX = 32
LINGER_S = 0.1
COME_BACK_S = 30.0
"""Seconds that a program is paused for a reader with a lost connection that is too far behind."""
STDOUT, STDERR = 1, 2


class Replay:
    """The last `REPLAY_BYTES` of output, each byte with its offset since the beginning."""

    def __init__(self) -> None:
        self._pieces: collections.deque[tuple[int, int, bytes]] = collections.deque()
        self.first = self.end = 0

    def add(self, stream: int, data: bytes) -> None:
        self._pieces.append((self.end, stream, data))
        self.end += len(data)
        while self._pieces and self.end - self.first > REPLAY_BYTES:
            start, _, dropped = self._pieces.popleft()
            self.first = start + len(dropped)

    def after(self, offset: int) -> list[tuple[int, int, bytes]]:
        """Return (offset, stream, bytes) of all stored output from `offset` on."""
        found: list[tuple[int, int, bytes]] = []
        for start, stream, data in self._pieces:
            if start + len(data) > offset:
                found.append((max(start, offset), stream, data[max(0, offset - start) :]))
        return found


class ShellSession:
    """One program and its output."""

    def __init__(self, argv: list[str], env: dict[str, str], *, opener: str, tty: bool, size: tuple[int, int]) -> None:
        self.id = secrets.token_hex(6)
        self.opener = opener
        self.argv, self.tty, self.size = argv, tty, size
        self.replay = Replay()
        self.received: collections.OrderedDict[str, int] = collections.OrderedDict()
        self.cursors: dict[object, int] = {}
        self.code: int | None = None
        self.is_over = False
        self.ended_at = 0.0
        self.used_at = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._streams: dict[int, int] = {}
        self._is_paused = False
        self._stdin = self._start(env | {"SLIPWAY_TERMINAL_SESSION": self.id})
        self._resume()

    def _start(self, env: dict[str, str]) -> int:
        if not self.tty:
            pipes = subprocess.Popen(  # noqa: S603 - running what its user types is what a terminal is for
                self.argv, stdin=-1, stdout=-1, stderr=-1, env=env, start_new_session=True, bufsize=0
            )
            assert pipes.stdin is not None and pipes.stdout is not None and pipes.stderr is not None  # noqa: S101,PT018
            self.process = pipes
            ends = {0: pipes.stdin, STDOUT: pipes.stdout, STDERR: pipes.stderr}
            fds = {stream: os.dup(end.fileno()) for stream, end in ends.items()}
            for end in ends.values():
                end.close()
        else:
            master, slave = os.openpty()
            try:
                _set_size(slave, self.size)
                self.process = subprocess.Popen(  # noqa: S603
                    self.argv,
                    stdin=slave,
                    stdout=slave,
                    stderr=slave,
                    env=env,
                    start_new_session=True,
                    preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
                )
            except BaseException:
                os.close(master)
                raise
            finally:
                os.close(slave)
            fds = {0: os.dup(master), STDOUT: master}
        for fd in fds.values():
            os.set_blocking(fd, False)
            os.set_inheritable(fd, False)
        stdin = fds.pop(0)
        self._streams = fds
        return stdin

    # --- output

    def _read(self, stream: int) -> bool:
        """Read output of the program. Return False when there is none now."""
        try:
            data = os.read(self._streams[stream], PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:  # EIO: no process has the terminal open any more
            data = b""
        if data:
            self.replay.add(stream, data)
            if self.lag() > LAG_BYTES_MAX:
                self._pause()
        else:
            fd = self._streams.pop(stream)
            self._loop.remove_reader(fd)
            os.close(fd)
        self.tell()
        return bool(data)

    def lag(self) -> int:
        """Return how many bytes the slowest reader is behind; 0 without readers."""
        return self.replay.end - min(self.cursors.values(), default=self.replay.end)

    def moved(self, reader: object, offset: int) -> None:
        """Record that a reader has received everything before `offset`."""
        self.cursors[reader] = offset
        if self._is_paused and self.lag() <= LAG_BYTES_MAX // 2:
            self._resume()

    def left(self, reader: object, *, comes_back: str = "") -> None:
        """Remove a reader. With a name in `comes_back`, it is expected back for `COME_BACK_S`, and its unseen output is
        kept.
        """
        offset = self.cursors.pop(reader, None)
        if comes_back and offset is not None and self.code is None:
            self.cursors[comes_back] = offset
            self._loop.call_later(COME_BACK_S, self.left, comes_back)
        if self._is_paused and self.lag() <= LAG_BYTES_MAX // 2:
            self._resume()

    @property
    def viewers(self) -> int:
        """Number of connected readers."""
        return sum(not isinstance(reader, str) for reader in self.cursors)

    def _pause(self) -> None:
        self._is_paused = True
        for fd in self._streams.values():
            self._loop.remove_reader(fd)

    def _resume(self) -> None:
        self._is_paused = False
        for stream, fd in self._streams.items():
            self._loop.add_reader(fd, self._read, stream)

    def tell(self) -> None:
        """Wake the tasks that wait for news."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self) -> None:
        await self._news.wait()

    # --- input

    async def write(self, client: str, data: bytes) -> int:
        """Pass input on, as fast as the program reads it. Return the bytes of this client that were accepted so far."""
        async with self._turn:
            done = self.received.pop(client, 0)
            self.received[client] = done
            while len(self.received) > CLIENTS_MAX:
                self.received.popitem(last=False)
            self.used_at = time.monotonic()
            while data and self._stdin >= 0:
                try:
                    count = os.write(self._stdin, data)
                except BlockingIOError:
                    await self._writable()
                    continue
                except OSError:
                    count = len(data)  # the program reads no more, so the input is lost, as in a pipe
                data = data[count:]
                done += count
                self.received[client] = done
            self.received[client] = done + len(data)
            return done + len(data)

    async def _writable(self) -> None:
        ready = self._loop.create_future()
        fd = self._stdin
        self._loop.add_writer(fd, lambda: ready.done() or ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_writer(fd)

    async def end_input(self) -> None:
        """Send the end of file after earlier input. On a terminal, that is a control character."""
        async with self._turn:
            if self._stdin < 0:
                return
            if self.tty:
                with contextlib.suppress(OSError):
                    os.write(self._stdin, b"\x04")
            else:
                os.close(self._stdin)
                self._stdin = -1

    def resize(self, rows: int, cols: int) -> None:
        self.size = (rows, cols)
        if self.tty and self._stdin >= 0:
            _set_size(self._stdin, self.size)

    def redraw(self) -> None:
        """Make a full-screen program redraw for a new reader."""
        if self.tty and self.is_busy():
            with contextlib.suppress(OSError):
                os.killpg(os.tcgetpgrp(self._stdin), signal.SIGWINCH)

    def is_busy(self) -> bool:
        """Whether a process other than the shell itself uses the terminal."""
        if not self.tty or self.code is not None:
            return self.code is None
        try:
            return os.tcgetpgrp(self._stdin) != self.process.pid
        except OSError:
            return False

    # --- the end

    def kill(self, how: int) -> None:
        if self.code is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, how)

    def exited(self, code: int) -> None:
        """Record the exit of the program. Its remaining output is read before the end is reported."""
        self.code = self.process.returncode = code
        if self._is_paused:
            self._resume()
        self._loop.call_later(LINGER_S, self._finish)

    def _finish(self) -> None:
        if self._is_paused:  # a reader is behind and must receive everything first
            self._loop.call_later(LINGER_S, self._finish)
            return
        for stream in list(self._streams):
            while stream in self._streams and self.lag() <= LAG_BYTES_MAX and self._read(stream):
                pass
        if self._is_paused:
            self._loop.call_later(LINGER_S, self._finish)
            return
        for fd in self._streams.values():
            self._loop.remove_reader(fd)
            os.close(fd)
        self._streams = {}
        if self._stdin >= 0:
            self._loop.remove_writer(self._stdin)
            os.close(self._stdin)
            self._stdin = -1
        self.is_over, self.ended_at = True, time.monotonic()
        self.tell()


def _set_size(fd: int, size: tuple[int, int]) -> None:
    rows, cols = (min(max(each, 1), 4096) for each in size)
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
