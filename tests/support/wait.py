"""Waiting in tests that are not on an event loop: polled, with a deadline and a name for what is waited for."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02
POLL_MAX_S = 0.2
POLL_SHARE = 0.1
"""Who has waited for long asks less often, and is late by so much of the time at most: asking takes the processor of
what is waited for."""
DEADLINE_S = 60.0
"""For what takes a moment: many times what it takes on a busy machine. A test that waits for it in vain has failed."""


def pause_s(waited_s: float, *, first_s: float = POLL_S) -> float:
    """How long to rest before the next question, after so long a wait."""
    return min(POLL_MAX_S, max(first_s, waited_s * POLL_SHARE))


def wait_until(probe: Callable[[], T], what: str | Callable[[], str], *, timeout_s: float = DEADLINE_S) -> T:
    """Ask until the answer is true, and give it back; fails naming `what` it waited for, with the last answer.

    `what` may be asked at the end: what is lacking then.
    """
    began = time.monotonic()
    while not (found := probe()):
        waited = time.monotonic() - began
        if waited > timeout_s:
            named = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {timeout_s:.0f} s for: {named}; found: {found!r}")
        time.sleep(pause_s(waited))
    return found
