"""How many lines of a log one kind of event may write: the first ones of each minute, then their number.

Owns the counting, for lines that a peer without a login can cause at will. Without it, whoever can open a connection
decides how large the log is, and hides in it what else happens.

Promises: of each kind at most `lines_max` lines are admitted in `window_s`; those withheld are counted, and the count
is told once the window is over, with the next call. Not promised: more than `KINDS_MAX` kinds apart; further ones count
together.
"""

from collections.abc import Callable
from typing import Final

LINES_MAX: Final = 10
WINDOW_S: Final = 60.0
KINDS_MAX: Final = 64
OTHERS: Final = "others"


class LineLimit:
    """The lines of each kind in its current window. `now` tells seconds that only rise."""

    def __init__(self, now: Callable[[], float], *, lines_max: int = LINES_MAX, window_s: float = WINDOW_S) -> None:
        self._now = now
        self._lines_max = lines_max
        self._window_s = window_s
        self._kinds: dict[str, tuple[float, int]] = {}
        """{kind: (when its window began, lines since)}, the oldest first"""

    def admits(self, kind: str) -> bool:
        """Whether a line of this kind may be written now; it is counted in any case."""
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = OTHERS
        began, count = self._kinds.get(kind, (self._now(), 0))
        self._kinds[kind] = (began, count + 1)
        return count < self._lines_max

    def ended(self) -> list[tuple[str, int]]:
        """(kind, lines withheld) of the windows that are over and had any; each is told once."""
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
