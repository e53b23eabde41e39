"""Liveness of loops: each loop states how long its work may stand still, and says when the work has moved.

Owns the statement (`Loop`), and the record of one running loop (`Pulse`). Must not know any loop, nor what is done
about one that stands still: that is `health.py` and the probes that ask it.

A loop moves when something of its work has ended, well or badly: an answer that says "not now" is a move, because a
restart would not bring back what is away. A loop that waits for work says so (`rest`); it may wait for ever, but only
while there is no work. A loop between two steps is given the pause that it announced.

`beat` and `rest` act on the loop that runs the caller, in whatever function, task or library it is called: nothing has
to be passed down. A task that a loop starts belongs to that loop, unless it runs under a name of its own.

Promises: a loop without a finite bound cannot be stated. One loop never counts as moved because another has, unless
that one is a part of it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

from slipway.errors import InvariantError
from slipway.runtime.clock import Clock
from slipway.runtime.redaction import redact_text

BOUND_MAX_S = 900.0
"""No loop may stand still for longer, whatever it does: an operator would have looked by then."""

HasWork = Callable[[], object]


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """What a loop promises: its work moves at least every `bound_s` seconds, its announced pauses not counted.

    `moves` says in a few words what counts as a move, and `rests` what the loop waits for when it has no work (empty:
    it always has work). Both are for the operator; the reference page is made from them.
    """

    name: str
    bound_s: float
    moves: str
    rests: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.bound_s <= BOUND_MAX_S:
            raise InvariantError(f"loop {self.name!r} needs a bound of at most {BOUND_MAX_S:g} s, not {self.bound_s}")

    def of(self, part: object) -> "Loop":
        """The same promise for one of several: `reconcile:3`."""
        return msgspec.structs.replace(self, name=f"{self.name}:{part}")


def _always() -> float:
    return 0.0


class Pulse:
    """One running loop. `since` answers from when on its silence counts, where a dependency excuses it."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        *,
        required: bool = False,
        since: Callable[[], float] = _always,
        whole: "Pulse | None" = None,
    ) -> None:
        """`whole` is the loop that this is a part of: it moves with each move of its parts."""
        self.loop = loop
        self._whole = whole
        self.required = required
        self.failures = 0
        self.last_error = ""
        self._clock = clock
        self._since = since
        self._due_at = clock.monotonic()
        self._has_work: HasWork | None = None
        """set while it rests"""
        self._work_seen_at: float | None = None

    def beat(self, next_in_s: float = 0.0) -> None:
        """Something of its work has ended; more begins after `next_in_s`."""
        self._due_at = self._clock.monotonic() + next_in_s
        self._work_seen_at = None
        if self._whole is not None:
            self._whole.beat(next_in_s)

    def progress(self, next_in_s: float = 0.0) -> None:
        """A step has ended well; the next begins after `next_in_s`."""
        self.beat(next_in_s)
        self.failures, self.last_error = 0, ""

    def failed(self, error: str, next_in_s: float = 0.0) -> None:
        """A step has failed, and the loop lives on."""
        self.beat(next_in_s)
        self.failures, self.last_error = self.failures + 1, redact_text(error)

    @contextmanager
    def rest(self, has_work: HasWork | None = None) -> Generator[None]:
        """The loop waits for work, inside. `has_work` says that there is some: then it may not wait any longer."""
        before, self._has_work = self._has_work, has_work or _none
        self._work_seen_at = None
        try:
            yield
        finally:
            self._has_work = before
            self.beat()

    def still_s(self) -> float:
        """For how long its work has stood still, in seconds.

        Work beside a loop that rests is as old as the first look that saw it: two looks are needed to notice it.
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

    @property
    def is_alive(self) -> bool:
        """Whether it keeps its promise."""
        return self.still_s() <= self.loop.bound_s


CURRENT: ContextVar[Pulse | None] = ContextVar("slipway_pulse", default=None)
"""The loop that the running code belongs to."""


def beat(next_in_s: float = 0.0) -> None:
    """Something of the work of the running loop has ended: a key, a page, a batch, a write."""
    pulse = CURRENT.get()
    if pulse is not None:
        pulse.beat(next_in_s)


@contextmanager
def rest(has_work: HasWork | None = None) -> Generator[None]:
    """The running loop waits for work, inside; see `Pulse.rest`."""
    pulse = CURRENT.get()
    if pulse is None:
        yield
        return
    with pulse.rest(has_work):
        yield


def leave() -> None:
    """The running task belongs to no loop from now on, though one has started it: something else bounds it."""
    CURRENT.set(None)


def _none() -> bool:
    return False
