"""A rate limit without waiting: a burst, then a number per second.

Pure: the time is passed in.
"""


class RateLimit:
    """A token bucket that fills by `per_s` a second, up to `burst`."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = float(burst)
        self._at: float | None = None

    def left(self, now: float) -> int:
        """Return how many operations are allowed at `now` (monotonic seconds)."""
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        return int(self._left)

    def spend(self, count: int) -> None:
        """Subtract `count` operations. `count` may exceed what is left: then more time passes until one is allowed."""
        self._left -= count

    def wait_s(self) -> float:
        """Return the seconds from the last call of `left` until one operation is allowed."""
        return max(0.0, (1.0 - self._left) / self._per_s)
