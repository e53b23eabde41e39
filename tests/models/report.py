"""The result and the progress of a differential run."""

import sys
from collections.abc import Sequence

import msgspec


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one model beside the real server."""

    operations: int
    """number of operations on both"""
    differences: Sequence[str] = ()
    """each a text of several lines: the difference, the shortest sequence that shows it, how to replay it"""
    notes: Sequence[str] = ()
    """figures of the run, one line each"""


def progress(line: str) -> None:
    """Print one progress line on stderr at once, because long runs take many minutes."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
