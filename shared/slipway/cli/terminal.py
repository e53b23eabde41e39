"""The output of the command: results, messages, colours, one line of progress, the width.

Owns these rules. Results are printed to stdout, everything else to stderr. A pipe or NO_COLOR gets plain lines. A text
of a server, a workload or another user cannot control the terminal, so `paint`'s colours are the only control sequences
in lines and notes. The output of a rank's program keeps its colours on a terminal, and is unchanged in a file or a pipe
(`passed_on`). Several threads may print.

Source: no-color.org.
"""

import os
import re
import shutil
import sys
import threading
from typing import TextIO

from slipway.cli.table import cut, escape_controls, one_line, only_colours
from slipway.model.state_words import JOB_STATE_WORDS, RANK_STATE_WORDS, STATE_WORDS, Tone

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
STATE_COLOURS = {each.word: _TONES[each.tone] for each in (*RANK_STATE_WORDS, *JOB_STATE_WORDS, *STATE_WORDS)}


class Terminal:
    """The streams of the output: `out` for results, `err` for everything else."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.is_interactive = self.err.isatty()
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._colour = {id(stream): stream.isatty() and not plain for stream in (self.out, self.err)}
        # A colour is stored as this mark until it is printed. The mark is random, so no other text can contain it.
        mark = f"\ufdd0{os.urandom(8).hex()}"
        self._mark, self._marks = mark, re.compile(rf"{mark}(\d+);")
        self._lock = threading.RLock()
        self._live = ""

    @property
    def width(self) -> int:
        """The columns of the terminal; 80 without a terminal."""
        return shutil.get_terminal_size((WIDTH, 24)).columns if self.out.isatty() else WIDTH

    @property
    def text_width(self) -> int:
        """The columns at which sentences are wrapped: the terminal's width; 0, which is never, without a terminal."""
        return self.width if self.out.isatty() else 0

    def paint(self, text: str, colour: str, *, to_err: bool = True) -> str:
        """Return `text` in a colour, if the stream shows colours: for `line`, `note`, `passed_on` and `shown`."""
        stream = self.err if to_err else self.out
        if not colour or not self._colour[id(stream)]:
            return text
        return f"{self._mark}{_CODES[colour]};{text}{self._mark}0;"

    def state(self, text: str, *, to_err: bool = False) -> str:
        """Return a phase or a result in its colour."""
        return self.paint(text, STATE_COLOURS.get(text.strip(), ""), to_err=to_err)

    def line(self, text: str = "") -> None:
        """Print a line of the result."""
        self._write(self.out, self.shown(text) + "\n")

    def passed_on(self, text: str) -> None:
        """Print a line of a rank's program unchanged; on a terminal, only its colours are kept as control sequences."""
        kept = only_colours(text) if self.out.isatty() else text
        self._write(self.out, self._coloured(kept.encode(errors="replace").decode()) + "\n")

    def raw(self, text: str) -> None:
        """Print a part of the result: unchanged to a file or a pipe, without control sequences to a terminal."""
        self._write(self.out, self.shown(text) if self.out.isatty() else text)

    def redraw(self, text: str) -> None:
        """Replace the whole page on the screen."""
        self._write(self.out, f"\x1b[H\x1b[2J{self.shown(text)}\n")

    def note(self, text: str) -> None:
        """Print a message for people: progress, warnings, the next step."""
        self._write(self.err, self.shown(text) + "\n")

    def shown(self, text: str) -> str:
        """Return `text` for printing: with the colours of `paint`, and no other control sequence."""
        return self._coloured(escape_controls(text))

    def _coloured(self, text: str) -> str:
        return self._marks.sub(lambda found: f"\x1b[{found[1]}m", text)

    def live(self, text: str) -> None:
        """Show a line of progress that replaces the previous one on a terminal; elsewhere print it when it changes."""
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
        """Remove the line of progress."""
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
