"""A full-screen view of a terminal, redrawn in place; the terminal is restored at the end.

Owns the alternate screen, the cursor, the echo of keys and the handling of SIGTERM. The terminal cuts lines at its last
column. Promise: the terminal is restored however the block ends, also after SIGTERM.

Source: xterm control sequences (private modes 7, 25 and 1049).
"""

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_FALLBACK = os.terminal_size((80, 24))
_OF_SIGNAL = 128


class Screen:
    """The shown lines. `size` is read from the terminal each time."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown: tuple[object, ...] = ()

    @property
    def size(self) -> os.terminal_size:
        """The columns and lines of the terminal."""
        try:
            return os.get_terminal_size(self._out.fileno())
        except OSError:
            return _FALLBACK

    def draw(self, lines: Sequence[str]) -> None:
        """Show as many of these lines as fit; write nothing when they are already shown."""
        size = self.size
        news = (size, tuple(lines))
        if news == self._shown:
            return
        self._shown = news
        rows = "\r\n".join(line + _CLEAR_LINE for line in lines[: size.lines])
        self._out.write(f"{_HOME}{rows}{_CLEAR_BELOW}")
        self._out.flush()

    def key(self, timeout_s: float) -> str:
        """Return the key that is pressed within this time; empty when there is none, or no keyboard."""
        if not sys.stdin.isatty():
            time.sleep(timeout_s)
            return ""
        ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
        return os.read(sys.stdin.fileno(), 1).decode("latin-1") if ready else ""


@contextmanager
def whole_screen(out: TextIO) -> Generator[Screen]:
    """Provide the full screen until the block ends."""
    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with _silent_keys():
            out.write(_ENTER)
            out.flush()
            try:
                yield Screen(out)
            finally:
                with contextlib.suppress(OSError):  # the terminal itself is closed
                    out.write(_LEAVE)
                    out.flush()
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(_OF_SIGNAL + number)


@contextmanager
def _silent_keys() -> Generator[None]:
    """Read keys one by one without showing them.

    Ctrl-C still interrupts. Ctrl-Z does nothing, because a stopped command would leave the screen unrestored."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    mode = termios.tcgetattr(fd)
    mode[3] &= ~(termios.ECHO | termios.ICANON)
    mode[6][termios.VSUSP] = b"\x00"
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(fd, termios.TCSADRAIN, mode)
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal itself is closed
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
