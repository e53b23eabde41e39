"""The command in a process of its own on a pseudo-terminal: its output, its typed input, its end."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.support.wait import wait_until

END_S = 20.0


class PtyCommand:
    """One running command. Its methods block: call them beside the event loop that serves it."""

    def __init__(self, words: Sequence[str], *, columns: int, rows: int) -> None:
        self._mine, self._its = pty.openpty()
        fcntl.ioctl(self._its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes_before = self.modes
        env = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
        argv = [sys.executable, "-m", "slipway.cli.main", *words]
        self.process = subprocess.Popen(argv, stdin=self._its, stdout=self._its, stderr=self._its, env=env)
        self._written = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def modes(self) -> list[Any]:
        """The modes of the terminal."""
        return termios.tcgetattr(self._its)

    @property
    def written(self) -> str:
        """All output so far."""
        return self._written.decode(errors="replace")

    def wait_for(self, text: str, *, after: int = 0) -> int:
        """Wait until the command has written the text after the first `after` characters; return how many it has
        written then."""
        return wait_until(lambda: text in self.written[after:] and len(self.written), lambda: f"{text}: {self.written}")

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._mine, keys.encode())

    def end(self) -> int:
        """Wait for the end of the command; return its exit code."""
        return self.process.wait(END_S)

    def close(self) -> None:
        """End the command in any state."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_S)
        for fd in (self._its, self._mine):
            os.close(fd)
        self._reader.join(END_S)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while data := os.read(self._mine, 65536):
                self._written += data


@contextmanager
def on_a_terminal(*words: str, columns: int = 80, rows: int = 24) -> Generator[PtyCommand]:
    """The command with these arguments, until the context ends."""
    command = PtyCommand(words, columns=columns, rows=rows)
    try:
        yield command
    finally:
        command.close()
