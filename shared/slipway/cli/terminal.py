"""What the command prints, and how: colours, one live line of progress, the width.

Owns the rules: results go to stdout, everything else to stderr; a pipe or NO_COLOR gets plain lines; what a server,
a workload or another user wrote gives no orders to the terminal. So the colours of `paint` are the only control
sequences that lines and notes can have. What a rank's own program prints keeps its colours on a terminal, and is passed
on as it is to a file or a pipe (`passed_on`). Several threads may print.

Source: no-color.org.
"""

import os
import re
import shutil
import sys
import threading
from typing import TextIO

from slipway.cli.columns import cut, harmless, one_line, only_colours
from slipway.model.standing import JOB_STANDINGS, RANK_STANDINGS, STANDINGS, Tone

WIDTH = 80
_CODES = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "dim": 2, "bold": 1}
RANK_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
_TONES = {
    Tone.GOOD: "green",
    Tone.RUNS: "green",
    Tone.STARTS: "cyan",
    Tone.WAITS: "yellow",
    Tone.ENDS: "yellow",
    Tone.BAD: "red",
    Tone.NEUTRAL: "",
}
STATE_COLOURS = {each.word: _TONES[each.tone] for each in (*RANK_STANDINGS, *JOB_STANDINGS, *STANDINGS)}


class Terminal:
    """Where output goes. `out` holds results, `err` everything else."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.is_interactive = self.err.isatty()
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._colour = {id(stream): stream.isatty() and not plain for stream in (self.out, self.err)}
        # A colour is written as this mark until it is printed. Nothing that others wrote can hold it: it is drawn anew.
        mark = f"\ufdd0{os.urandom(8).hex()}"
        self._mark, self._marks = mark, re.compile(rf"{mark}(\d+);")
        self._lock = threading.RLock()
        self._live = ""

    @property
    def width(self) -> int:
        """Columns of the terminal; 80 when there is none."""
        return shutil.get_terminal_size((WIDTH, 24)).columns if self.out.isatty() else WIDTH

    @property
    def text_width(self) -> int:
        """At how many columns sentences are broken: those of the terminal; 0, which is never, where there is none."""
        return self.width if self.out.isatty() else 0

    def paint(self, text: str, colour: str, *, to_err: bool = True) -> str:
        """`text` in a colour, where the stream shows colours: for `line`, `note`, `passed_on` and `shown`."""
        stream = self.err if to_err else self.out
        if not colour or not self._colour[id(stream)]:
            return text
        return f"{self._mark}{_CODES[colour]};{text}{self._mark}0;"

    def state(self, text: str, *, to_err: bool = False) -> str:
        """A phase or a result in its colour."""
        return self.paint(text, STATE_COLOURS.get(text.strip(), ""), to_err=to_err)

    def line(self, text: str = "") -> None:
        """A line of the result."""
        self._write(self.out, self.shown(text) + "\n")

    def passed_on(self, text: str) -> None:
        """A line that a program of a rank has printed, as it is; on a terminal its colours, no other order to it."""
        kept = only_colours(text) if self.out.isatty() else text
        self._write(self.out, self._coloured(kept.encode(errors="replace").decode()) + "\n")

    def raw(self, text: str) -> None:
        """Part of the result, as it is to a file or a pipe, and harmless on a terminal."""
        self._write(self.out, self.shown(text) if self.out.isatty() else text)

    def redraw(self, text: str) -> None:
        """A whole page in the place of the one before."""
        self._write(self.out, f"\x1b[H\x1b[2J{self.shown(text)}\n")

    def note(self, text: str) -> None:
        """A line for people: progress, warnings, what to do next."""
        self._write(self.err, self.shown(text) + "\n")

    def shown(self, text: str) -> str:
        """`text` as it is printed: with the colours of `paint`, and no other control sequence."""
        return self._coloured(harmless(text))

    def _coloured(self, text: str) -> str:
        return self._marks.sub(lambda found: f"\x1b[{found[1]}m", text)

    def live(self, text: str) -> None:
        """Progress that replaces itself on a terminal; elsewhere a line each time it says something new."""
        with self._lock:
            if text == self._live:
                return
            self._live = text
            text = one_line(text)
            if self.is_interactive:
                columns = shutil.get_terminal_size((WIDTH, 24)).columns
                self.err.write(f"\r\x1b[2K{cut(text, columns - 1)}")
                self.err.flush()
            else:
                self.err.write(text + "\n")
                self.err.flush()

    def clear(self) -> None:
        """End the live line."""
        with self._lock:
            if self._live and self.is_interactive:
                self.err.write("\r\x1b[2K")
                self.err.flush()
            self._live = ""

    def _write(self, stream: TextIO, text: str) -> None:
        with self._lock:
            live = self._live if self.is_interactive else ""
            if live:
                self.err.write("\r\x1b[2K")
                self.err.flush()
            stream.write(text)
            stream.flush()
            if live:
                self._live = ""
                self.live(live)
