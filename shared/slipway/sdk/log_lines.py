"""Log lines that are passed on once, also where the stream that brings them began anew. Pure.

Lines that come straight from pods have no ids, and a stream that breaks after them begins again: what was passed on
before is known by its number, else by its rank, time and text, as often as it was passed on.
"""

import re
from collections import Counter
from typing import Any

Json = dict[str, Any]

MISSING = re.compile(r"^\d+ lines? (?:is|are)")
"""How the mark of missing lines begins."""
REMEMBERED_MAX = 10_000
TIME_LENGTH = len("2026-01-02T03:04:05.678")


class LinesOnce:
    """What was passed on of one log."""

    def __init__(self) -> None:
        self._told, self._replayed = Counter[tuple[Any, ...]](), Counter[tuple[Any, ...]]()
        self._numbers: dict[tuple[Any, ...], int] = {}

    def reopened(self) -> None:
        """Another connection begins: lines without an id may come again."""
        self._replayed = self._told.copy()

    def is_new(self, line: Json, id_: str) -> bool:
        """Whether to pass the line on. A mark of missing lines is cut, in place, to those not counted before."""
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
        """Whether a line with a number, or a later one of its log, was told before; notes that it is now.

        After a break the server begins anew: a mark of missing lines then counts lines, too, that were told before, or
        counted. The mark is cut to the rest.
        """
        number, missing = int(line.get("number") or 0), int(line.get("missing") or 0)
        # What Kubernetes says of a pod is no line of its log, also where a server numbers it.
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
    """What a line is known by; its time in milliseconds, because not every runtime keeps more."""
    return line.get("attempt"), line.get("rank"), str(line.get("time", ""))[:TIME_LENGTH].rstrip("Z"), line.get("text")
