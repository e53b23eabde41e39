"""Limits the requests of each user, or of each address: one token bucket for each, refilled at a constant rate.

Owns the buckets. Their number is bounded: the least recently used bucket is dropped first. A dropped bucket starts full
again, so a user whose bucket was full loses nothing. The limit is per process: N replicas allow N times the rate.
"""

from collections import OrderedDict

from slipway.errors import ThrottledError
from slipway.runtime.clock import Clock

USERS_MAX = 10_000


class RateLimiter:
    """The buckets of all users; `rate_per_s` 0 means no limit."""

    def __init__(self, clock: Clock, *, rate_per_s: float, burst: int, users_max: int = USERS_MAX) -> None:
        self._clock = clock
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._users_max = users_max
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """{user: (calls that remain, monotonic time of that count)}, the user who called last at the end"""

    def take(self, user: str) -> None:
        """Count one call. Raises ThrottledError, with the time after which a retry is accepted."""
        wait_s = self.try_take(user)
        if wait_s:
            raise ThrottledError(
                f"{user[:128]} calls more often than {self._rate_per_s:g} times a second, and has used up a burst of "
                f"{self._burst} (SLIPWAY_RATE_PER_S, SLIPWAY_RATE_BURST)",
                retry_after_s=wait_s,
            )

    def try_take(self, user: str) -> float:
        """Count one call if the bucket allows it. Return 0 if so, else the seconds until the bucket allows it."""
        if not self._rate_per_s:
            return 0.0
        now = self._clock.monotonic()
        left, at = self._buckets.pop(user, (float(self._burst), now))
        left = min(float(self._burst), left + (now - at) * self._rate_per_s)
        taken = left >= 1.0
        self._buckets[user] = (left - 1.0 if taken else left, now)
        while len(self._buckets) > self._users_max:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate_per_s

    def give_back(self, user: str) -> None:
        """Refund one call."""
        if user in self._buckets:
            left, at = self._buckets[user]
            self._buckets[user] = (min(float(self._burst), left + 1.0), at)
