"""Waiting in tests that are not on an event loop: polling, with a deadline and a name for the awaited condition."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.02
POLL_MAX_S = 0.2
POLL_SHARE = 0.1
"""The pause grows with the time waited, by this share of it, because polling uses the processor that the awaited
process needs. The wait ends late by this share at most."""
DEADLINE_S = 60.0
"""The deadline for short waits: many times what they take on a busy machine. A test that reaches it has failed."""


def pause_s(waited_s: float, *, first_s: float = POLL_S) -> float:
    """The pause before the next poll, after waiting `waited_s`."""
    return min(POLL_MAX_S, max(first_s, waited_s * POLL_SHARE))


def wait_until(probe: Callable[[], T], what: str | Callable[[], str], *, timeout_s: float = DEADLINE_S) -> T:
    """Poll `probe` until its answer is true, and return that; a timeout fails with `what` and the last answer.

    `what` may be a function, which is called at the timeout.
    """
    began = time.monotonic()
    while not (found := probe()):
        waited = time.monotonic() - began
        if waited > timeout_s:
            named = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {timeout_s:.0f} s for: {named}; found: {found!r}")
        time.sleep(pause_s(waited))
    return found
