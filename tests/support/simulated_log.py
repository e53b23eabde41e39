"""The output of a simulated rank: numbered lines in bursts, a flood, a line that is rewritten with carriage returns.

Owns the lines, their times and the bytes in which a node sends them. Each line begins with `line <number>`, each state
of a rewritten line with `state <number>`, so that the audit can distinguish them. The output is a function of time;
this module reads no clock.
"""

import hashlib
from collections.abc import Iterator

import msgspec

from slipway.model.times import format_time

CHUNK_BYTES = 10_007
"""The size of the pieces that a node sends; a piece may end anywhere in a line."""
STATES = ("10%", "60%", "100%")
NEVER_S = float("inf")


class Burst(msgspec.Struct, frozen=True):
    """`after_s` after the start, print `lines` lines at once, or the next state of a rewritten line."""

    after_s: float
    lines: int = 0
    state: str = ""
    width: int = 24
    """length of each line"""


QUIET = (
    Burst(0.0, 3),
    Burst(0.15, 1),
    Burst(0.4, state=STATES[0]),
    Burst(0.5, state=STATES[1]),
    Burst(1.7, state=STATES[2]),
    Burst(1.9, 2),
)
"""The output of every rank."""
LOUD = (*QUIET[:2], Burst(0.3, 400, width=100), *QUIET[2:])
"""The output of one rank in each attempt: more than is stored at once."""
LAST_WORDS = 2
"""Number of lines that are printed at the end; the very last line of odd ranks has no line end."""


class SimulatedLog:
    """The log of one start. Call `advance` before reading."""

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
        """Print everything that is due by then."""
        while not self._is_over and self.due_at <= now + 1e-9:
            burst, at = self._bursts[self._next], self.due_at
            self._next += 1
            if burst.state:
                self._go_on(at, burst.state)
            else:
                self._print(at, burst.lines, burst.width)

    def end(self, at: float, *, is_lost: bool) -> None:
        """End the program; unless its machine is lost, it prints its last lines."""
        self.advance(at)
        self._is_over = True
        if is_lost:
            return
        self._print(at, LAST_WORDS, QUIET[0].width)
        if self._is_odd:
            del self._lines[-1][1][-1:]

    @property
    def due_at(self) -> float:
        """The time at which it prints next; NEVER_S after its last burst."""
        if self._is_over or self._next == len(self._bursts):
            return NEVER_S
        return self._started_at + self._bursts[self._next].after_s

    @property
    def size(self) -> int:
        """The number of bytes printed so far."""
        return sum(len(line) for _, line in self._lines)

    def read(self, place: tuple[int, int], since: float) -> tuple[tuple[int, int], Iterator[bytes]]:
        """Read the output after a place (line, byte in it), of lines since a time; return the place after it and the
        output."""
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
    """Text that compresses badly, like real output."""
    if width <= 16:
        return "x" * max(width, 0)
    return hashlib.shake_128(b"%d" % number).hexdigest((width + 1) // 2)[:width]
