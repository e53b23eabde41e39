"""A limit on log lines per kind of event: the first lines of each minute are written, then only their number.

This module counts lines that a peer without a login can cause at will. Without a limit, any client that can open a
connection decides how large the log is, and can hide other events in it.

Promises: at most `lines_max` lines of each kind are admitted per `window_s`. Withheld lines are counted, and the first
call after the end of the window reports their number. Not promised: more than `KINDS_MAX` separate kinds; further kinds
are counted together.
"""

from collections.abc import Callable
from typing import Final

LINES_MAX: Final = 10
WINDOW_S: Final = 60.0
KINDS_MAX: Final = 64
OTHERS: Final = "others"


class LineLimit:
    """The lines of each kind in its current window. `now` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float], *, lines_max: int = LINES_MAX, window_s: float = WINDOW_S) -> None:
        self._now = now
        self._lines_max = lines_max
        self._window_s = window_s
        self._kinds: dict[str, tuple[float, int]] = {}
        """{kind: (start of its window, lines since)}, the oldest first."""

    def admits(self, kind: str) -> bool:
        """Whether a line of this kind may be written now. The line is counted in any case."""
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = OTHERS
        began, count = self._kinds.get(kind, (self._now(), 0))
        self._kinds[kind] = (began, count + 1)
        return count < self._lines_max

    def ended(self) -> list[tuple[str, int]]:
        """Return (kind, lines withheld) of each window that has ended and withheld lines. Each window is reported
        once.
        """
        now = self._now()
        told: list[tuple[str, int]] = []
        while self._kinds:
            kind, (began, count) = next(iter(self._kinds.items()))
            if now - began < self._window_s:
                break
            del self._kinds[kind]
            if count > self._lines_max:
                told.append((kind, count - self._lines_max))
        return told
