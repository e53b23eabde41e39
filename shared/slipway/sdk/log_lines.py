"""Deduplicates log lines: each line is delivered once, also when the stream restarts from its beginning. Pure.

Lines that are read directly from pods have no ids, and after a lost connection their stream starts from the beginning.
A line that was already delivered is recognised by its number. Without a number it is recognised by its rank, time and
text, as many times as it was delivered.
"""

import re
from collections import Counter
from typing import Any

Json = dict[str, Any]

MISSING = re.compile(r"^\d+ lines? (?:is|are)")
"""The beginning of the text that marks missing lines."""
REMEMBERED_MAX = 10_000
TIME_LENGTH = len("2026-01-02T03:04:05.678")


class LineDeduplicator:
    """The lines of one log that were delivered."""

    def __init__(self) -> None:
        self._told, self._replayed = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
        self._numbers: dict[tuple[Any, ...], int] = {}

    def reopened(self) -> None:
        """Note that another connection begins, so lines without an id may be repeated."""
        self._replayed = self._told.copy()

    def is_new(self, line: Json, id_: str) -> bool:
        """Whether to deliver the line. A mark of missing lines is shortened, in place, to the lines not yet counted."""
        if self._is_told(line):
            return False
        mark = _mark(line)
        if self._replayed[mark] > 0:
            self._replayed[mark] -= 1
            return False
        if not id_ and len(self._told) < REMEMBERED_MAX:
            self._told[mark] += 1
        return True

    def _is_told(self, line: Json) -> bool:
        """Whether a numbered line, or a later line of its log, was delivered before; if not, record it as delivered.

        After a lost connection the server starts again. Its mark of missing lines then includes lines that were already
        delivered or counted. The mark is shortened to the rest.
        """
        number, missing = int(line.get("number") or 0), int(line.get("missing") or 0)
        # An event of Kubernetes about a pod is not a line of the pod's log, even when a server numbers it.
        if not number or line.get("stream") == "event":
            return False
        source = (line.get("attempt"), line.get("rank"), line.get("container"))
        last, told = number + max(missing, 1) - 1, self._numbers.get(source, 0)
        if last <= told:
            return True
        if missing and number <= told:
            rest = last - told
            line |= {"number": told + 1, "missing": rest}
            line["text"] = MISSING.sub(
                "1 line is" if rest == 1 else f"{rest} lines are", str(line.get("text", "")), count=1
            )
        self._numbers[source] = last
        return False


def _mark(line: Json) -> tuple[Any, ...]:
    """Return the key that identifies a line. Its time is in milliseconds, because not every runtime is more precise."""
    return line.get("attempt"), line.get("rank"), str(line.get("time", ""))[:TIME_LENGTH].rstrip("Z"), line.get("text")
