"""The clocks of a simulated world: the true clock, and the clock of each process, which may be wrong.

Owns the errors of the clocks. A new process has the right time; its wall clock can jump, and both of its clocks can run
at another rate. The event loop's own timers (`asyncio.timeout`) keep true time: they belong to the machine, and
represent the limits of the network.
"""

from tests.support.loop import EPOCH, SimLoop

TICK_S = 1e-6


class WorldClock:
    """The clock of the world: no skew."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return EPOCH + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await self._loop.sleep(seconds)


class ProcessClock:
    """The clock of one process. `jump` moves the wall clock; `run_at` changes the rate of both from now on."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._skew_s = 0.0
        self._rate = 1.0
        self._ahead_s = 0.0
        """How far `monotonic` is ahead of the world's clock, as of `_since`."""
        self._since = 0.0

    def now(self) -> float:
        return EPOCH + self.monotonic() + self._skew_s

    def monotonic(self) -> float:
        if self._rate == 1.0 and not self._ahead_s:
            return self._loop.time()
        elapsed = self._loop.time() - self._since
        # Rounded to whole ticks: without it, a task that waits by the loop's timers for a time of this clock could be
        # early for ever.
        return round((self._since + self._ahead_s + elapsed * self._rate) / TICK_S) * TICK_S

    async def sleep(self, seconds: float) -> None:
        # Every wait lasts at least one tick, however little is left after rounding.
        await self._loop.sleep(max(TICK_S, seconds / self._rate) if seconds > 0 else 0.0)

    def jump(self, seconds: float) -> None:
        """Move the wall clock."""
        self._skew_s += seconds

    def set_right(self) -> None:
        """Set the wall clock to the true time again."""
        self._skew_s = self._loop.time() - self.monotonic()

    def run_at(self, rate: float) -> None:
        """From now on run both clocks `rate` times as fast as true time."""
        told = self.monotonic()
        self._since = self._loop.time()
        self._ahead_s = told - self._since
        self._rate = rate
