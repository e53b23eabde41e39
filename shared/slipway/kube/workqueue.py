"""A work queue of keys: a key is queued at most once, is processed by one worker at a time, and can be delayed.

Owns the order, the delays and the backoff of each key. Must not know what a key means or why it failed.

Promises
- A key that is added while it is queued is not added twice; the earliest of its due times is used.
- A key that is added while it is processed is queued once more after `done`, however often it was added.
- `get` returns keys in the order in which they became due, unless `put_first` has changed it; the same calls at the
  same times give the same order.
- After `shut_down` no key is accepted; `get` returns the keys that are due already, then None. Delayed keys are
  dropped: the next process lists all objects and finds their work again.

Not promised: a fixed bound. The queue contains at most one entry per key, so the number of live objects bounds it.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from slipway.runtime.clock import Random

K = TypeVar("K", bound=Hashable)

RETRY_MIN_S = 0.2
RETRY_MAX_S = 30.0
_EXPONENT_MAX = 30


class WorkQueue(Generic[K]):
    """The work queue; the module lists its promises. It belongs to one event loop and uses the loop's time, real or
    virtual."""

    def __init__(self, random: Random, *, retry_min_s: float = RETRY_MIN_S, retry_max_s: float = RETRY_MAX_S) -> None:
        self._random = random
        self._retry_min_s = retry_min_s
        self._retry_max_s = retry_max_s
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._again: dict[K, None] = {}
        self._due_at: dict[K, float] = {}
        self._delayed: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._failures: dict[K, int] = {}
        self._closed = False
        self._getters: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.added_count = 0
        self.retried_count = 0

    def __len__(self) -> int:
        """The number of keys that are due and not processed yet."""
        return len(self._ready)

    @property
    def delayed_count(self) -> int:
        """The number of keys that are not due yet."""
        return len(self._due_at)

    @property
    def active_count(self) -> int:
        """The number of keys that are being processed."""
        return len(self._active)

    @property
    def is_idle(self) -> bool:
        """Whether no key is due and none is being processed; delayed keys may exist."""
        return not self._ready and not self._active

    def add(self, key: K) -> None:
        """Make a key due now."""
        if self._closed:
            return
        self.added_count += 1
        self._due_at.pop(key, None)
        if key in self._active:
            self._again[key] = None
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wake()

    def add_after(self, key: K, delay_s: float) -> None:
        """Make a key due after `delay_s`, unless it is due earlier."""
        if delay_s <= 0:
            self.add(key)
            return
        if self._closed or key in self._waiting or key in self._again:
            return
        due_at = asyncio.get_running_loop().time() + delay_s
        if due_at >= self._due_at.get(key, float("inf")):
            return
        self._due_at[key] = due_at
        self._sequence += 1
        heapq.heappush(self._delayed, (due_at, self._sequence, key))
        self._arm()

    def put_first(self, is_first: Callable[[K], bool]) -> None:
        """Move the due keys for which `is_first` is true before the others; within both the order stays."""
        due = list(self._ready)
        self._ready = deque(sorted(due, key=lambda key: not is_first(key)))

    def retry(self, key: K, *, at_least_s: float = 0.0) -> float:
        """Make a key due after its backoff, which doubles each time until `forget`. Return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        self.retried_count += 1
        base_s = min(self._retry_min_s * 2 ** min(failures, _EXPONENT_MAX), self._retry_max_s)
        delay_s = max(base_s * self._random.uniform(0.5, 1.0), at_least_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the backoff of a key after a success."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """Return the number of `retry` calls for a key since the last `forget`."""
        return self._failures.get(key, 0)

    async def get(self) -> K | None:
        """Return the next due key, for which the caller must call `done`; None when the queue is shut down and
        empty."""
        while not self._ready:
            if self._closed:
                return None
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                if getter.done() and not getter.cancelled():
                    self._wake()  # this getter was chosen but is cancelled: wake another one
                raise
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._active.add(key)
        return key

    def done(self, key: K) -> None:
        """Report that the caller has finished a key from `get`."""
        self._active.discard(key)
        if key in self._again:
            del self._again[key]
            self._waiting.add(key)
            self._ready.append(key)
            self._wake()

    def shut_down(self) -> None:
        """Accept no more keys and drop the delayed ones; `get` still returns the due keys, then None."""
        self._closed = True
        self._due_at.clear()
        self._delayed.clear()
        self._again.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for getter in self._getters:
            if not getter.done():
                getter.set_result(None)
        self._getters.clear()

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _arm(self) -> None:
        """Set the one timer to the time of the earliest delayed key."""
        while self._delayed and self._due_at.get(self._delayed[0][2]) != self._delayed[0][0]:
            heapq.heappop(self._delayed)
        if not self._delayed:
            return
        due_at = self._delayed[0][0]
        if self._timer is not None:
            if self._timer_at <= due_at:
                return
            self._timer.cancel()
        # The handles of some loops do not know their time once it has passed, so it is stored here.
        self._timer, self._timer_at = asyncio.get_running_loop().call_at(due_at, self._fire), due_at

    def _fire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._delayed and self._delayed[0][0] <= now:
            due_at, _, key = heapq.heappop(self._delayed)
            if self._due_at.get(key) == due_at:
                self.add(key)
        self._arm()
