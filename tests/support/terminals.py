"""A person at a terminal: a program on a PTY of its own, typed to and read from.

Owns the PTY and the process; all output is kept.
"""

import contextlib
import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

WAIT_S = 40.0
_PIECE_BYTES = 65_536


class TerminalUser:
    """A user at a terminal; `seen` is the output read so far."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid, self._fd = pid, fd
        self.seen = b""

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """Read until the text appears."""
        deadline = time.monotonic() + WAIT_S
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, f"waited for {text!r}; seen: {self.seen.decode(errors='replace')}"
            if not self._read():
                assert text.encode() in self.seen, f"it ended; seen: {self.seen.decode(errors='replace')}"
        return self.seen.decode(errors="replace")

    def to_end(self) -> int:
        """Read to the end of the output; return the exit code."""
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the window."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def _read(self) -> bool:
        readable, _, _ = select.select([self._fd], [], [], 0.2)
        if not readable:
            return True
        try:
            data = os.read(self._fd, _PIECE_BYTES)
        except OSError:
            data = b""
        self.seen += data
        return bool(data)


@contextmanager
def at_terminal(argv: Sequence[str], env: Mapping[str, str]) -> Generator[TerminalUser]:
    """Start `argv` on a terminal of 24 rows; it is killed at the end when it still runs."""
    pid, fd = pty.fork()
    if not pid:
        os.execve(argv[0], list(argv), dict(env))
    person = TerminalUser(pid, fd)
    person.resize(24, 80)
    try:
        yield person
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        os.close(fd)
