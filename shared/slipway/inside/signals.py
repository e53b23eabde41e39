"""Passes signals of this process on to the program that it runs.

This module owns the handlers. They are set before the program starts. A signal that arrives during the start is passed
on when the program runs. Otherwise the signal would end only this process. In the first process of a container, it
would have no effect at all. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterable


def started(start: Callable[[], subprocess.Popen[bytes]], numbers: Iterable[signal.Signals]) -> subprocess.Popen[bytes]:
    """Start a program with `start`. From now on it receives each signal of `numbers` that this process receives.

    Raises what `start` raises; then the earlier handlers are restored.
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
