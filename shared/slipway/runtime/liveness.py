"""Liveness of loops: each loop declares how long its work may stand still, and reports each move of its work.

This module owns the declaration (`Loop`) and the record of one running loop (`Pulse`). It knows no concrete loop. It
also does not know what happens when a loop stands still: `health.py` and the probes decide that.

A loop moves when a piece of its work has ended, with success or failure. An answer "not now" is also a move, because a
restart would not bring back an unavailable dependency. A loop that waits for work calls `rest`. It may wait for ever,
but only while there is no work. Between two steps, a loop may pause for as long as it announced.

`beat` and `rest` act on the loop that runs the caller, in any function, task or library. So nothing has to be passed
down. A task that a loop starts belongs to that loop, unless the task runs as a loop of its own.

Promises: a loop without a finite bound cannot be declared. A move of one loop is never a move of another, unless the
first is a part of the second.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from slipway.errors import InvariantError
from slipway.runtime.clock import Clock
from slipway.runtime.redaction import redact_text

BOUND_MAX_S = 900.0
"""The upper limit for the bound of any loop, in seconds: an operator would look at the process by then."""

HasWork = Callable[[], object]


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a loop: its work moves at least every `bound_s` seconds, not counting announced pauses.

    `moves` states in a few words what is a move. `rests` states what the loop waits for when it has no work; empty
    means that it always has work. Both are for the operator, and the reference page is made from them.
    """

    name: str
    bound_s: float
    moves: str
    rests: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.bound_s <= BOUND_MAX_S:
            raise InvariantError(f"loop {self.name!r} needs a bound of at most {BOUND_MAX_S:g} s, not {self.bound_s}")

    def of(self, part: object) -> "Loop":
        """Return the same declaration for one of several loops: `reconcile:3`."""
        return msgspec.structs.replace(self, name=f"{self.name}:{part}")


def _always() -> float:
    return 0.0


class Pulse:
    """One running loop. `since` returns the time from which standstill is counted, when a dependency excuses it until
    then.
    """

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        *,
        required: bool = False,
        since: Callable[[], float] = _always,
        whole: "Pulse | None" = None,
    ) -> None:
        """`whole` is the loop that this one is a part of; each move of a part is also a move of `whole`."""
        self.loop = loop
        self._whole = whole
        self.required = required
        self.failures = 0
        self.last_error = ""
        self._clock = clock
        self._since = since
        self._due_at = clock.monotonic()
        self._has_work: HasWork | None = None
        """Set while the loop rests."""
        self._work_seen_at: float | None = None

    def beat(self, next_in_s: float = 0.0) -> None:
        """Record that a piece of the loop's work has ended; the next begins after `next_in_s`."""
        self._due_at = self._clock.monotonic() + next_in_s
        self._work_seen_at = None
        if self._whole is not None:
            self._whole.beat(next_in_s)

    def progress(self, next_in_s: float = 0.0) -> None:
        """Record that a step has succeeded; the next begins after `next_in_s`."""
        self.beat(next_in_s)
        self.failures, self.last_error = 0, ""

    def failed(self, error: str, next_in_s: float = 0.0) -> None:
        """Record that a step has failed; the loop goes on after `next_in_s`."""
        self.beat(next_in_s)
        self.failures, self.last_error = self.failures + 1, redact_text(error)

    @contextmanager
    def rest(self, has_work: HasWork | None = None) -> Generator[None]:
        """Mark the loop as waiting for work in the `with` block.

        When `has_work` returns true, the loop should not wait any longer.
        """
        before, self._has_work = self._has_work, has_work or _none
        self._work_seen_at = None
        try:
            yield
        finally:
            self._has_work = before
            self.beat()

    def still_s(self) -> float:
        """Return for how many seconds the loop's work has stood still.

        For a resting loop, the age of waiting work starts at the first call that saw it. So two calls are needed to
        notice it.
        """
        now = self._clock.monotonic()
        if self._has_work is None:
            return max(0.0, now - max(self._due_at, self._since()))
        if not self._has_work():
            self._work_seen_at = None
            return 0.0
        if self._work_seen_at is None:
            self._work_seen_at = now
        return now - max(self._work_seen_at, self._since())


CURRENT: ContextVar[Pulse | None] = ContextVar("slipway_pulse", default=None)
"""The loop that the running code belongs to."""


def beat(next_in_s: float = 0.0) -> None:
    """Record that a piece of work of the running loop has ended: a key, a page, a batch, a write."""
    pulse = CURRENT.get()
    if pulse is not None:
        pulse.beat(next_in_s)


@contextmanager
def rest(has_work: HasWork | None = None) -> Generator[None]:
    """Mark the running loop as waiting for work in the `with` block; see `Pulse.rest`."""
    pulse = CURRENT.get()
    if pulse is None:
        yield
        return
    with pulse.rest(has_work):
        yield


def leave() -> None:
    """Detach the running task from the loop that started it, because something else bounds the task."""
    CURRENT.set(None)


def _none() -> bool:
    return False
