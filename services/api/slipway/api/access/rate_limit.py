"""Limits the requests of each user: one token bucket per user, refilled evenly.

Owns the buckets. Their number is bounded: the bucket that was unused for longest is dropped first, and a user whose
bucket is full loses nothing by it. The limit is per process; with several replicas it is that many times as high.
"""

from collections import OrderedDict

from slipway.errors import ThrottledError
from slipway.runtime.clock import Clock

USERS_MAX = 10_000


class Rates:
    """`rate_per_s` 0 limits nobody."""

    def __init__(self, clock: Clock, *, rate_per_s: float, burst: int, users_max: int = USERS_MAX) -> None:
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._users_max = users_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """{user: (what is left, when it was counted)}, who called last at the end"""

    def take(self, user: str) -> None:
        """Count one call. Raises ThrottledError, with when the next one is taken."""
        if not self._rate_per_s:
            return
        now = self._clock.monotonic()
        left, at = self._buckets.pop(user, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate_per_s)
        taken = left >= 1.0
        self._buckets[user] = (left - 1.0 if taken else left, now)
        while len(self._buckets) > self._users_max:
            self._buckets.popitem(last=False)
        if not taken:
            raise ThrottledError(
                f"{user[:128]} calls more often than {self._rate_per_s:g} times a second, and has used up a burst of "
                f"{self._burst} (SLIPWAY_RATE_PER_S, SLIPWAY_RATE_BURST)",
                retry_after_s=(1.0 - left) / self._rate_per_s,
            )
