"""Signals to this process are for the program that it runs.

Owns the handlers. They are set before the program is started: a signal that comes while it starts is passed on once it
is there. Without that it would end this process alone, or, in the first process of a container, do nothing at all.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable


def started(start: Callable[[], subprocess.Popen[bytes]], numbers: Iterable[signal.Signals]) -> subprocess.Popen[bytes]:
    """The program that `start` starts; from now on it gets each signal of `numbers` that this process gets.

    Raises what `start` raises; the handlers are those of before then.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if child is None:
            early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, number)

    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        child = start()
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in early:
        pass_on(number, None)
    return child
