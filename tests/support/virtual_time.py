"""An event loop on virtual time: hours pass at once, and the same program runs the same way every time.

Owns the loop's clock. When nothing is ready the time jumps to the next timer; when there is no timer either, nothing
can ever happen again and the run fails. No sockets, threads or subprocesses.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EPOCH = 1_700_000_000.0


class DeadlockError(AssertionError):
    """Every task waits for something that cannot happen."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: instead it sets the loop's time exactly to the next timer (sums of floats would miss it)."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0
        self.next_timer: Callable[[], float | None] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise DeadlockError("all tasks wait and no timer is set")
        if not ready and timeout is not None:
            target, timer = self.elapsed_s + timeout, self.next_timer()
            self.elapsed_s = timer if timer is not None and abs(timer - target) < 1e-6 else target
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.next_timer = self._next_timer

    def time(self) -> float:
        return self._jumping.elapsed_s

    def _next_timer(self) -> float | None:
        timers: list[asyncio.TimerHandle] = getattr(self, "_scheduled", [])
        return timers[0].when() if timers else None


class VirtualClock:
    """A `Clock` on the running loop; `skew_s` shifts the wall clock, `jump_s` is time that passed in a pause."""

    def __init__(self, *, skew_s: float = 0.0) -> None:
        self.skew_s = skew_s
        self.jump_s = 0.0

    def now(self) -> float:
        return EPOCH + self.skew_s + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() + self.jump_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end on a fresh virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
