"""A command that runs next to the program of a container, for one WebSocket: on pipes, or on its own terminal.

Owns the process, its input and its output. Knows neither pods nor how the WebSocket was opened.

Promises: all output is sent before the exit status; a side that reads slowly makes the other side wait; a command ends
with the container's program. When the WebSocket breaks, the command's input ends and its output is closed, as with a
real container runtime. A command that ignores this runs on until the container ends.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Callable

from slipway.inside.sockets import BINARY, PeerClosedError, RequestRefusedError, Socket
from slipway.local.node.shim import Program, Shim, call_at_end, signal_group
from slipway.model import exec_channels
from slipway.model.exec_channels import PIECE_BYTES, RESIZE, STATUS, STDERR, STDIN, STDIN_END, STDOUT

LINGER_S = 0.2
"""Seconds to wait for more output after a command's end, when another process still has the output open."""
_NORMAL = 1000
_END_OF_FILE = b"\x04"


async def run(socket: Socket, program: Program, container_program: Shim, *, stdin: bool, tty: bool) -> None:
    """Run `program` until it has ended, the WebSocket has closed, or the container's program has ended."""
    try:
        process = _Process(program, stdin=stdin, tty=tty)
    except (OSError, ValueError) as error:
        await _say(socket, exec_channels.failure(f"failed to exec in container: failed to start: {error}"))
        return
    over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    call_at_end(process.pid, process.child, lambda: None if over.done() else over.set_result(process.code()))
    printing = asyncio.ensure_future(_print_all(socket, process))
    typing = asyncio.ensure_future(_type(socket, process))
    leaving = asyncio.ensure_future(container_program.ended())
    try:
        await asyncio.wait({over, typing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done() and not over.done():
            signal_group(process.pid, signal.SIGKILL)
            await over
        if over.done():
            # A slow reader still receives all output. If another process keeps the output open, this waits only until
            # no more output comes.
            while not printing.done() and not process.is_silent():
                await asyncio.wait({printing}, timeout=LINGER_S)
            await _say(socket, exec_channels.status_of(over.result()))
    finally:
        for task in (printing, typing, leaving):
            task.cancel()
        await asyncio.gather(printing, typing, leaving, return_exceptions=True)
        process.close()


async def _say(socket: Socket, status: bytes) -> None:
    with contextlib.suppress(PeerClosedError):
        await socket.output(STATUS, status)
    await socket.close(_NORMAL, "")


async def _print_all(socket: Socket, process: "_Process") -> None:
    ways = [asyncio.ensure_future(_print(socket, process, stream)) for stream in process.outputs]
    try:
        await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()


async def _print(socket: Socket, process: "_Process", stream: int) -> None:
    with contextlib.suppress(PeerClosedError):
        while data := await process.read(stream):
            await socket.output(stream, data)


async def _type(socket: Socket, process: "_Process") -> None:
    """Pass input on to the process until the WebSocket closes."""
    while True:
        try:
            kind, data = await socket.receive()
        except PeerClosedError:
            return
        except RequestRefusedError as refused:
            await socket.close(refused.code, str(refused))
            return
        if kind != BINARY or not data:
            continue
        if data == STDIN_END:
            process.end_input()
        elif data[0] == STDIN:
            await process.write(data[1:])
        elif data[0] == RESIZE:
            process.resize(data[1:])


class _Process:
    """One process in its own session, with non-blocking descriptors."""

    def __init__(self, program: Program, *, stdin: bool, tty: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._tty = tty
        self._stdin = -1
        self.outputs: dict[int, int] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._at_end: set[int] = set()
        self._moved = 0
        self._seen = -1
        if tty:
            self.child = self._on_terminal(program, stdin=stdin)
        else:
            self.child = self._on_pipes(program, stdin=stdin)
        self.pid = self.child.pid

    def _on_pipes(self, program: Program, *, stdin: bool) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(  # noqa: S603 - this module runs the commands that users request
            program.argv,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(program.env),
            cwd=program.cwd,
            start_new_session=True,
            bufsize=0,
        )
        for stream, end in ((STDIN, child.stdin), (STDOUT, child.stdout), (STDERR, child.stderr)):
            if end is None:
                continue
            fd = _own(end.fileno())
            end.close()
            if stream == STDIN:
                self._stdin = fd
            else:
                self.outputs[stream] = fd
        return child

    def _on_terminal(self, program: Program, *, stdin: bool) -> "subprocess.Popen[bytes]":
        master, slave = os.openpty()
        try:
            child = subprocess.Popen(  # noqa: S603
                program.argv,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env={"TERM": "xterm", **program.env},
                cwd=program.cwd,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
            )
            self.outputs[STDOUT] = _own(master)
            if stdin:
                self._stdin = _own(master)
            return child
        finally:
            os.close(master)
            os.close(slave)

    def code(self) -> int:
        """Wait for the end and return the exit code; after a signal it is 128 plus the signal's number."""
        status = self.child.wait()
        return status if status >= 0 else 128 - status

    async def read(self, stream: int) -> bytes:
        """Return the next output of the process; empty at the end."""
        while True:
            fd = self.outputs[stream]
            try:
                data = os.read(fd, PIECE_BYTES)
            except BlockingIOError:
                await self._ready(fd, self._loop.add_reader, self._loop.remove_reader)
                continue
            except OSError:  # EIO: no process has the terminal open any more
                data = b""
            self._moved += 1
            if not data:
                self._at_end.add(stream)
            return data

    def is_silent(self) -> bool:
        """Whether all output read so far has been passed on, and none was read since the previous call."""
        before, self._seen = self._seen, self._moved
        open_ends = [fd for stream, fd in self.outputs.items() if stream not in self._at_end]
        return before == self._moved and all(fd in self._waiting for fd in open_ends)

    async def write(self, data: bytes) -> None:
        """Pass input on as fast as the process reads it. After the process has closed its input, input is dropped."""
        while data and self._stdin >= 0:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                await self._ready(self._stdin, self._loop.add_writer, self._loop.remove_writer)
            except OSError:
                self._close_input()

    def end_input(self) -> None:
        """End the input: close it, or on a terminal write the control character for the end of a file."""
        if self._tty and self._stdin >= 0:
            with contextlib.suppress(OSError):
                os.write(self._stdin, _END_OF_FILE)
        else:
            self._close_input()

    def resize(self, data: bytes) -> None:
        """Set the size of the terminal to the one in a message."""
        size = exec_channels.size_of(data)
        if self._tty and size is not None:
            with contextlib.suppress(OSError):
                packed = struct.pack("HHHH", size[1], size[0], 0, 0)
                fcntl.ioctl(self.outputs[STDOUT], termios.TIOCSWINSZ, packed)

    def close(self) -> None:
        """Close input and output of the process."""
        self._close_input()
        for fd in self.outputs.values():
            os.close(fd)
        self.outputs = {}

    def _close_input(self) -> None:
        fd, self._stdin = self._stdin, -1
        if fd >= 0:
            os.close(fd)

    async def _ready(
        self, fd: int, add: "Callable[[int, Callable[[], object]], object]", remove: Callable[[int], object]
    ) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        add(fd, lambda: ready.done() or ready.set_result(None))
        self._waiting[fd] = ready
        try:
            await ready
        finally:
            del self._waiting[fd]
            remove(fd)


def _own(fd: int) -> int:
    """Return a non-blocking copy of a descriptor. No child process inherits the copy."""
    mine = os.dup(fd)
    os.set_blocking(mine, False)
    return mine
