"""A limit for writes that nothing waits for: a burst, then a number per second.

Pure: the time is passed in.
"""


class RateLimit:
    """An allowance that fills up again by `per_s`, to at most `burst`."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = float(burst)
        self._at: float | None = None

    def left(self, now: float) -> int:
        """How many may be made now (seconds of a clock that does not go back)."""
        if self._at is not None:
            self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        return int(self._left)

    def spend(self, count: int) -> None:
        """So many were made, also beyond what was left: the rest is made up for later."""
        self._left -= count

    def wait_s(self) -> float:
        """How long until one may be made, from the last look on."""
        return max(0.0, (1.0 - self._left) / self._per_s)
