"""A cache with a short life, and actions that run at most once in a while.

At most one load per key runs at a time, and its result is kept for a short while: for what a burst of requests needs
again and again (a pool, a workspace, an object that a thousand ranks poll). Never used for what a client is shown of
its own writes.

Invariants: at most one load per key is in progress; a failed load is not kept; the number of keys is bounded.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from slipway.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_KEYS_MAX = 4096


class Recent(Generic[K, V]):
    """`get` answers what was loaded at most `ttl_s` ago, else loads."""

    def __init__(self, clock: Clock, *, ttl_s: float, keys_max: int = _KEYS_MAX) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._keys_max = keys_max
        self._values: dict[K, tuple[float, V]] = {}
        self._loading: dict[K, asyncio.Lock] = {}

    async def get(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """The value of `key`; errors of `load` are raised to the one who loads, the others try in turn."""
        found = self._fresh(key)
        if found is not None:
            return found[1]
        lock = self._loading.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                found = self._fresh(key)
                if found is not None:
                    return found[1]
                asked_at = self._clock.monotonic()
                value = await load()
                self._keep(key, asked_at, value)
                return value
        finally:
            if not lock.locked():
                self._loading.pop(key, None)

    def forget(self, key: K) -> None:
        """Load it again next time."""
        self._values.pop(key, None)

    def is_known(self, key: K) -> bool:
        """Whether `get` would answer without a load."""
        return self._fresh(key) is not None

    def _fresh(self, key: K) -> tuple[float, V] | None:
        found = self._values.get(key)
        return found if found is not None and self._clock.monotonic() - found[0] < self._ttl_s else None

    def _keep(self, key: K, asked_at: float, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = (asked_at, value)
        while len(self._values) > self._keys_max:
            del self._values[next(iter(self._values))]


class Remembered(Generic[K, V]):
    """Values that are forgotten after `ttl_s`, and the oldest ones beyond `keys_max`."""

    def __init__(self, clock: Clock, *, ttl_s: float, keys_max: int) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._keys_max = keys_max
        self._values: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        """The value, unless it is too old."""
        found = self._values.get(key)
        return found[1] if found is not None and self._clock.monotonic() - found[0] < self._ttl_s else None

    def put(self, key: K, value: V) -> None:
        """Remember it from now on."""
        self._values.pop(key, None)
        self._values[key] = (self._clock.monotonic(), value)
        while len(self._values) > self._keys_max:
            del self._values[next(iter(self._values))]

    def forget(self, key: K) -> None:
        """It is not valid any more."""
        self._values.pop(key, None)


class Seldom:
    """Lets the same thing happen at most once in `every_s` seconds."""

    def __init__(self, clock: Clock, *, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._last: dict[str, float] = {}

    def may(self, key: str) -> bool:
        """Whether it may happen now; if so, not again for a while."""
        now = self._clock.monotonic()
        last = self._last.get(key)
        if last is not None and now - last < self._every_s:
            return False
        self._last.pop(key, None)
        self._last[key] = now
        while len(self._last) > _KEYS_MAX:
            del self._last[next(iter(self._last))]
        return True
