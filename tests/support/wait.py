"""Waiting in tests that are not on an event loop: polled, with a deadline and a name for what is waited for."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02
DEADLINE_S = 60.0
"""For what takes a moment: many times what it takes on a busy machine. A test that waits for it in vain has failed."""


def wait_until(probe: Callable[[], T], what: str | Callable[[], str], *, timeout_s: float = DEADLINE_S) -> T:
    """Ask until the answer is true, and give it back; fails naming `what` it waited for, with the last answer.

    `what` may be asked at the end: what is lacking then.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := probe()):
        if time.monotonic() > deadline:
            named = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {timeout_s:.0f} s for: {named}; found: {found!r}")
        time.sleep(POLL_S)
    return found
