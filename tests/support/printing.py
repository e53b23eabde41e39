"""What a simulated rank prints: numbered lines in bursts, a flood, a line that goes on with carriage returns.

Owns the lines, their times and the bytes in which a node sends them. Each line begins with `line <number>`, each state
of one that goes on with `state <number>`: that is how the audit tells them apart. A function of time; reads no clock.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from slipway.model.times import format_time

CHUNK_BYTES = 10_007
"""A node sends pieces that end anywhere."""
STATES = ("10%", "60%", "100%")
NEVER_S = float("inf")


class Burst(msgspec.Struct, frozen=True):
    """So long after the start: that many lines at once, or the next state of a line that goes on."""

    after_s: float
    lines: int = 0
    state: str = ""
    width: int = 24
    """how long each line is"""


QUIET = (
    Burst(0.0, 3),
    Burst(0.15, 1),
    Burst(0.4, state=STATES[0]),
    Burst(0.5, state=STATES[1]),
    Burst(1.7, state=STATES[2]),
    Burst(1.9, 2),
)
"""What every rank prints."""
LOUD = (*QUIET[:2], Burst(0.3, 400, width=100), *QUIET[2:])
"""What one rank in each attempt prints: more than is stored together."""
LAST_WORDS = 2
"""Lines that come with the end; the very last one of odd ranks has no line end."""


class Talk:
    """The log of one start. `advance` before anything is read."""

    def __init__(self, bursts: tuple[Burst, ...], started_at: float, *, is_odd: bool) -> None:
        self.count = 0
        self.states = 0
        self._bursts = bursts
        self._started_at = started_at
        self._is_odd = is_odd
        self._next = 0
        self._lines: list[tuple[float, bytearray]] = []
        self._is_open = False
        self._is_over = False

    def advance(self, now: float) -> None:
        """What is due by then has been printed."""
        while not self._is_over and self.due_at <= now + 1e-9:
            burst, at = self._bursts[self._next], self.due_at
            self._next += 1
            if burst.state:
                self._go_on(at, burst.state)
            else:
                self._print(at, burst.lines, burst.width)

    def end(self, at: float, *, is_lost: bool) -> None:
        """The program ends; unless its machine is lost, it has last words."""
        self.advance(at)
        self._is_over = True
        if is_lost:
            return
        self._print(at, LAST_WORDS, QUIET[0].width)
        if self._is_odd:
            del self._lines[-1][1][-1:]

    @property
    def due_at(self) -> float:
        """When it prints again by itself."""
        if self._is_over or self._next == len(self._bursts):
            return NEVER_S
        return self._started_at + self._bursts[self._next].after_s

    @property
    def size(self) -> int:
        """What it has printed."""
        return sum(len(line) for _, line in self._lines)

    def read(self, place: tuple[int, int], since: float) -> tuple[tuple[int, int], Iterator[bytes]]:
        """What was printed behind a place (line, byte in it), of lines since a time; and the place behind it."""
        index, offset = place
        parts = [
            bytes(line[offset if number == index else 0 :])
            for number, (at, line) in enumerate(self._lines[index:], index)
            if at >= since
        ]
        end = (len(self._lines) - 1, len(self._lines[-1][1])) if self._lines else place
        text = b"".join(parts)
        return end, (text[start : start + CHUNK_BYTES] for start in range(0, len(text), CHUNK_BYTES))

    def _print(self, at: float, lines: int, width: int) -> None:
        if self._is_open:
            self._lines[-1][1].extend(b"\n")
            self._is_open = False
        stamp = _stamp(at)
        for _ in range(lines):
            self.count += 1
            text = f"line {self.count} "
            self._lines.append((at, bytearray(f"{stamp} {text}{_filling(self.count, width - len(text))}\n".encode())))

    def _go_on(self, at: float, state: str) -> None:
        self.states += 1
        if self._is_open:
            self._lines[-1][1].extend(f"\rstate {self.count} {state}".encode())
        else:
            self.count += 1
            self._lines.append((at, bytearray(f"{_stamp(at)} state {self.count} {state}".encode())))
        self._is_open = state != STATES[-1]
        if not self._is_open:
            self._lines[-1][1].extend(b"\n")


def _stamp(at: float) -> str:
    return format_time(at, "microseconds").replace("Z", "000Z")


def _filling(number: int, width: int) -> str:
    """What compresses badly, as real output does."""
    if width <= 16:
        return "x" * max(width, 0)
    return hashlib.shake_128(b"%d" % number).hexdigest((width + 1) // 2)[:width]
