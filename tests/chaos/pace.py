"""The share of the machine that we get: deadlines are counted in that time.

A promise in seconds assumes a machine that does only our work. On a shared machine the same work takes longer, and that
is no violation. So deadlines are counted in seconds in which a process that needs a processor has one. Printed
measurements are in seconds of the clock.

Owns the measuring. Invariant: this time never goes back, is never faster than the clock, and at least SHARE_MIN as
fast, so that a system that keeps the machine busy by itself is found too.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from slipway.runtime.clock import Clock, SystemClock

BEAT_S = 0.5
SHARE_MIN = 0.35
_ROUNDS = 40_000
"""About a hundredth of a second of work without the interpreter's lock."""


class Pace:
    """Counts time while `run` runs."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.lowest = 1.0
        """the smallest share that was measured"""
        self._clock: Clock = clock or SystemClock()
        self._began_s = self._last_s = self._clock.monotonic()
        self._counted_s = 0.0
        self._share = 1.0
        self._limits: dict[asyncio.Timeout, float] = {}

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self.note(await asyncio.to_thread(share))
            await self._clock.sleep(BEAT_S)

    def note(self, measured: float) -> None:
        """Use that share from now on. Expired limits strike."""
        self._counted_s = self.now()
        self._last_s = self._clock.monotonic()
        self._share = min(1.0, max(SHARE_MIN, measured))
        self.lowest = min(self.lowest, self._share)
        for timeout in [each for each, deadline in self._limits.items() if deadline <= self._counted_s]:
            del self._limits[timeout]
            timeout.reschedule(asyncio.get_running_loop().time())

    def now(self) -> float:
        """Seconds of this time since the beginning."""
        return self._counted_s + (self._clock.monotonic() - self._last_s) * self._share

    @property
    def mean(self) -> float:
        """The average share over all the time."""
        passed = self._clock.monotonic() - self._began_s
        return self.now() / passed if passed else 1.0

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncGenerator[None]:
        """Like `asyncio.timeout`, in seconds of this time; raises TimeoutError at the next measurement."""
        async with asyncio.timeout(None) as timeout:
            self._limits[timeout] = self.now() + seconds
            try:
                yield
            finally:
                self._limits.pop(timeout, None)


def share() -> float:
    """The part of a processor that a process gets now: above 0, at most 1."""
    clock = SystemClock()
    began, worked = clock.monotonic(), time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"", b"", _ROUNDS)
    took, worked = clock.monotonic() - began, time.thread_time() - worked
    return min(1.0, worked / took)
