"""Time for tests: a clock that moves only when a caller sleeps, and waiting for a condition."""

import asyncio
from collections.abc import Callable

from slipway.runtime.clock import SystemClock


class FakeClock:
    """Sleeping moves the time at once; `slept` lists each sleep. Only one task at a time may sleep."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._epoch = now
        self._elapsed_s = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self._epoch + self._elapsed_s

    def monotonic(self) -> float:
        return self._elapsed_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))
        await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        self._elapsed_s += seconds


class ShiftedClock(SystemClock):
    """The real time plus an offset that a test sets; sleeps take real time."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self._ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds


async def wait_until(condition: Callable[[], object], what: str, *, timeout_s: float = 5.0) -> None:
    """Poll until `condition` is true; a timeout fails with the name `what`."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - a condition of the world has no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s} s for: {what}") from None
