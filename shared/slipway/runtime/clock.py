"""Time and randomness, as values that are passed in.

This module owns the `Clock` and `Random` ports, their real versions and the format of times on the wire. Other code
never asks the operating system for the time or for random numbers. So the simulation runs the same code on virtual time
from one seed.

Invariants: `now` is for values that people and other processes read; it may jump. `monotonic` is for measurements and
for deadlines inside one process; it never goes back.
"""

import math
import random
import secrets
import time
from typing import Protocol

SLACK_S = 0.5
"""How many seconds the machine's clock may differ from the server's time before it is corrected."""
DRIFT = 0.0005
"""By how many seconds per second two clocks may drift apart: an NTP-disciplined clock drifts by 500 ppm at most."""


class Clock(Protocol):
    """A source of the time, and a way to wait."""

    def now(self) -> float:
        """Return the seconds since the epoch, UTC. The value may jump."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since a fixed point of this process. The value never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`. Zero or less only lets other tasks run."""
        ...


class Random(Protocol):
    """The only source of randomness: for jitter, names and sampling."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...

    def uniform(self, a: float, b: float, /) -> float:
        """Return a float between `a` and `b`."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return an int in [0, stop)."""
        ...

    def token_hex(self, nbytes: int, /) -> str:
        """Return `2 * nbytes` hexadecimal digits. Only those of `SystemRandom` cannot be guessed."""
        ...


class SystemClock:
    """The machine's clocks and the running event loop's sleep."""

    def now(self) -> float:
        return time.time()  # noqa: TID251 - this is the clock that everybody else is given

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        # A caller of `sleep` has an event loop, so asyncio is loaded already. The command only reads the time and
        # starts faster without asyncio.
        import asyncio

        await asyncio.sleep(max(0.0, seconds))


class DisciplinedClock:
    """The machine's clock, corrected where it is wrong: `now` differs by at most `SLACK_S` from a time that the server
    may have.

    The server is the Kubernetes API server, which stores our objects; each of its answers has a Date header. So
    processes on machines with different clocks agree when a time limit has passed. A clock that is right is not
    corrected.

    Take an answer with the Date D, requested at `sent` and read at `received` (both monotonic). The server's time was
    in [D, D + 1) at some moment between the two. The intervals from several answers are intersected. The intersection
    widens with time, because clocks drift apart. An answer that contradicts the known interval replaces it; this
    happens after a step of the server's clock.
    """

    def __init__(self, machine: Clock | None = None) -> None:
        self._machine: Clock = SystemClock() if machine is None else machine
        self._low, self._high = -math.inf, math.inf
        """Lower and upper bound of the server's time minus our monotonic time, in seconds."""
        self._learned_at: float | None = None

    def now(self) -> float:
        return self._times()[1]

    def monotonic(self) -> float:
        return self._machine.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._machine.sleep(seconds)

    @property
    def off_s(self) -> float:
        """Seconds by which the machine's clock is ahead of the corrected clock; negative when it is behind."""
        wall, corrected = self._times()
        return wall - corrected

    def learn(self, server_s: int, *, sent: float, received: float) -> None:
        """Record one answer of the server.

        `server_s` is its Date in whole epoch seconds. `sent` and `received` are the monotonic times of the request and
        of the answer.
        """
        wider = 0.0 if self._learned_at is None else (received - self._learned_at) * DRIFT
        low, high = server_s - received, server_s + 1.0 - sent
        self._low, self._high = max(self._low - wider, low), min(self._high + wider, high)
        if self._low > self._high:
            self._low, self._high = low, high
        self._learned_at = received

    def _times(self) -> tuple[float, float]:
        """Return (the machine's time, the corrected time)."""
        wall, monotonic = self._machine.now(), self._machine.monotonic()
        offset = wall - monotonic
        if self._low - SLACK_S <= offset <= self._high + SLACK_S:
            return wall, wall
        return wall, monotonic + (self._low if offset < self._low else self._high)


class SeededRandom:
    """A generator that gives the same sequence for the same seed, on every machine."""

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
    """Random numbers from the operating system's entropy."""

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
