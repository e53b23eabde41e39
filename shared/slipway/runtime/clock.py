"""Time and chance, as values that are passed in.

Owns the `Clock` and `Random` ports, their real versions and the spelling of times on the wire. Logic never asks the
operating system for either, so that the simulation runs the very same code on virtual time from one seed.

Invariants: `now` is for what people and other processes read and may jump; `monotonic` is for measuring and for
deadlines inside one process, and never goes back.
"""

import asyncio
import random
import secrets
import time
from typing import Protocol


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
        await asyncio.sleep(max(0.0, seconds))


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
