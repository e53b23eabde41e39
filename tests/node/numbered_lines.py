"""Programs that print numbered lines, and the check of the shown lines: each once and in order, or reported as missing.

Lines that a node removed before they were read cannot be counted. The log of the rank then shows that lines are or may
be missing.
"""

import re
from itertools import pairwise

_LINE = re.compile(r"(?:\[(\d+)\] )?line (\d+)\b")
_COUNTED = re.compile(r"(?:\[(\d+)\] )?-- (\d+) lines? (?:is|are) missing here")
_SAID = re.compile(
    r"(?:\[(\d+)\] )?-- (?:the (?:end of the )?log|lines) of this rank .*"
    r"(?:could not be read|removed them, unread|not stored to its end)|"
    r"(?:\[(\d+)\] )?-- (?:older|newer) lines of this rank are not shown here"
)


class NumberedOutput:
    """The output of one rank, as `out` and `err` of the command show it; `rank` is empty for a single rank."""

    def __init__(self, out: str, err: str, rank: str = "") -> None:
        self.numbers = [int(number) for of, number in _found(_LINE, out) if of == rank]
        self.counted = sum(int(count) for of, count in _found(_COUNTED, out + "\n" + err) if of == rank)
        self.said = [
            line for line in (out + "\n" + err).splitlines() if (at := _SAID.match(line)) and (at[1] or "") == rank
        ]

    def check(self, total: int) -> None:
        """Check that of `total` lines none is shown twice or out of order, and none is missing without a mark.

        Raises:
            AssertionError: with the positions of missing lines.
        """
        assert self.numbers == sorted(set(self.numbers))
        jumps = [(low, high) for low, high in pairwise([-1, *self.numbers, total]) if high - low != 1]
        assert self.said or len(self.numbers) + self.counted == total, (jumps, self.counted)


def _found(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    return [(at[1] or "", at[2]) for line in text.splitlines() if (at := pattern.match(line))]
