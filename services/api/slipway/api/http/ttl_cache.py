"""Caches with a short time to live, and a limit on how often an action may run.

A cached value is shared by a burst of requests that need the same object: a pool, a workspace, an allocation that a
thousand ranks poll. The caches are never used to show a client its own writes.

Invariants: at most one load per key is in progress; a failed load is not cached; the number of keys is bounded.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from slipway.runtime.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_KEYS_MAX = 4096


class LoadingCache(Generic[K, V]):
    """A cache whose `get` returns a value that was loaded at most `ttl_s` ago, else loads it."""

    def __init__(self, clock: Clock, *, ttl_s: float, keys_max: int = _KEYS_MAX) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._keys_max = keys_max
        self._values: dict[K, tuple[float, V]] = {}
        self._loading: WeakValueDictionary[K, _KeyLoads] = WeakValueDictionary()
        """A turn lasts as long as a caller uses it or waits for it."""

    async def get(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """Return the value of `key`. A caller whose `load` fails gets the error; waiting callers then try in turn."""
        found = self._fresh(key)
        if found is not None:
            return found[1]
        turn = self._loading.setdefault(key, _KeyLoads())
        async with turn.lock:
            found = self._fresh(key)
            if found is not None:
                return found[1]
            asked_at = self._clock.monotonic()
            turn.is_outdated = False
            value = await load()
            if not turn.is_outdated:
                self._keep(key, asked_at, value)
            return value

    def forget(self, key: K) -> None:
        """Remove the value, so that the next `get` loads it again. The value of a load in progress is not kept."""
        self._values.pop(key, None)
        if (turn := self._loading.get(key)) is not None:
            turn.is_outdated = True

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


class _KeyLoads:
    """The loads of one key, one at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.is_outdated = False
        """the value was forgotten after the load had begun"""


class TtlCache(Generic[K, V]):
    """A cache of values that expire after `ttl_s`; beyond `keys_max` values the oldest are removed."""

    def __init__(self, clock: Clock, *, ttl_s: float, keys_max: int) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._keys_max = keys_max
        self._values: dict[K, tuple[float, V]] = {}

    def get(self, key: K) -> V | None:
        """Return the value; None when there is none, or it has expired."""
        found = self._values.get(key)
        return found[1] if found is not None and self._clock.monotonic() - found[0] < self._ttl_s else None

    def put(self, key: K, value: V) -> None:
        """Store the value; its time to live begins now."""
        self._values.pop(key, None)
        self._values[key] = (self._clock.monotonic(), value)
        while len(self._values) > self._keys_max:
            del self._values[next(iter(self._values))]

    def forget(self, key: K) -> None:
        """Remove the value, which is not valid any more."""
        self._values.pop(key, None)


class Throttle:
    """Allows an action at most once in `every_s` seconds for each key."""

    def __init__(self, clock: Clock, *, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._last: dict[str, float] = {}

    def may(self, key: str) -> bool:
        """Whether the action may run now; if so, it may not run again for `every_s` seconds."""
        now = self._clock.monotonic()
        last = self._last.get(key)
        if last is not None and now - last < self._every_s:
            return False
        self._last.pop(key, None)
        self._last[key] = now
        while len(self._last) > _KEYS_MAX:
            del self._last[next(iter(self._last))]
        return True
