"""Time and chance, as values that are passed in.

Owns the `Clock` and `Random` ports, their real versions and the spelling of times on the wire. Logic never asks the
operating system for either, so that the simulation runs the very same code on virtual time from one seed.

Invariants: `now` is for what people and other processes read and may jump; `monotonic` is for measuring and for
deadlines inside one process, and never goes back.
"""

import math
import random
import secrets
import time
from typing import Protocol

SLACK_S = 0.5
"""How far from the server's time the machine's clock may be without being corrected."""
DRIFT = 0.0005
"""By how much two clocks may drift apart, in seconds a second: a kept clock moves by 500 ppm at most."""


class Clock(Protocol):
    """What time it is, and how to wait."""

    def now(self) -> float:
        """Seconds since the epoch, UTC; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed point of this process; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits; zero or less only lets other tasks run."""
        ...


class Random(Protocol):
    """The only source of chance: jitter, names, sampling."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def uniform(self, a: float, b: float, /) -> float:
        """A float between `a` and `b`."""
        ...

    def randrange(self, stop: int, /) -> int:
        """An int in [0, stop)."""
        ...

    def token_hex(self, nbytes: int, /) -> str:
        """`2 * nbytes` hexadecimal digits; unguessable from `SystemRandom` only."""
        ...


class SystemClock:
    """The machine's clocks and the running event loop's sleep."""

    def now(self) -> float:
        return time.time()  # noqa: TID251 - this is the clock that everybody else is given

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        # Who sleeps here has a loop and so asyncio; the command only reads the time, and starts faster without it.
        import asyncio

        await asyncio.sleep(max(0.0, seconds))


class DisciplinedClock:
    """A machine's clock, corrected where it is wrong: `now` stays within `SLACK_S` of what a server's clock may show.

    The server is the one that keeps our objects, the Kubernetes API server: each of its answers has a Date. So
    processes on machines whose clocks differ agree on when a time limit is over. A clock that is right is not touched.

    An answer of the second D, asked for at `sent` and read at `received` (both monotonic), says that the server's time
    was in [D, D + 1) at some moment between the two. What several answers say is intersected, and grows wider with
    time, because clocks drift apart. An answer that contradicts what is known, as after a step of the server's clock,
    replaces it.
    """

    def __init__(self, machine: Clock | None = None) -> None:
        self._machine: Clock = SystemClock() if machine is None else machine
        self._low, self._high = -math.inf, math.inf
        """the server's time minus our monotonic one, at least and at most"""
        self._learned_at: float | None = None

    def now(self) -> float:
        return self._times()[1]

    def monotonic(self) -> float:
        return self._machine.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._machine.sleep(seconds)

    @property
    def off_s(self) -> float:
        """Seconds by which the machine's clock is ahead of the corrected one (below 0: behind)."""
        wall, corrected = self._times()
        return wall - corrected

    def learn(self, server_s: int, *, sent: float, received: float) -> None:
        """Takes in an answer of the server: its Date in whole epoch seconds, when it was asked, when it answered."""
        wider = 0.0 if self._learned_at is None else (received - self._learned_at) * DRIFT
        low, high = server_s - received, server_s + 1.0 - sent
        self._low, self._high = max(self._low - wider, low), min(self._high + wider, high)
        if self._low > self._high:
            self._low, self._high = low, high
        self._learned_at = received

    def _times(self) -> tuple[float, float]:
        """The machine's time, and the corrected one."""
        wall, monotonic = self._machine.now(), self._machine.monotonic()
        offset = wall - monotonic
        if self._low - SLACK_S <= offset <= self._high + SLACK_S:
            return wall, wall
        return wall, monotonic + (self._low if offset < self._low else self._high)


class SeededRandom:
    """The same sequence for the same seed, on every machine."""

    def __init__(self, seed: int | str) -> None:
        self._source = random.Random(seed)  # noqa: S311 - reproducible on purpose; secrets come from SystemRandom

    def random(self) -> float:
        return self._source.random()

    def uniform(self, a: float, b: float, /) -> float:
        return self._source.uniform(a, b)

    def randrange(self, stop: int, /) -> int:
        return self._source.randrange(stop)

    def token_hex(self, nbytes: int, /) -> str:
        return self._source.randbytes(nbytes).hex()


class SystemRandom:
    """The operating system's entropy."""

    def __init__(self) -> None:
        self._source = secrets.SystemRandom()

    def random(self) -> float:
        return self._source.random()

    def uniform(self, a: float, b: float, /) -> float:
        return self._source.uniform(a, b)

    def randrange(self, stop: int, /) -> int:
        return self._source.randrange(stop)

    def token_hex(self, nbytes: int, /) -> str:
        return secrets.token_hex(nbytes)
