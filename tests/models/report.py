"""What a differential run found, and how far it is."""

import sys
from collections.abc import Sequence

import msgspec


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one model beside the real server."""

    operations: int
    """how many were done on both"""
    differences: Sequence[str] = ()
    """each a text of several lines: what differed, the shortest sequence that shows it, how to replay it"""
    notes: Sequence[str] = ()
    """figures that belong to the run, one line each"""


def progress(line: str) -> None:
    """One line of a run under way, on stderr and at once: long runs take many minutes."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
