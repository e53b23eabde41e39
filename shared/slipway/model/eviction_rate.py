"""Limits on the rate of evictions that make room for other allocations: token buckets, as values. Pure.

A bucket contains at most `burst` evictions, and is refilled with `count` in each `per_s`. So in any span of time there
are at most burst + count * span / per_s evictions. The ledger stores how far each bucket is below full, and at which
time. It is written together with the evictions, so that a new leader does not start with full buckets.

Invariant: whole numbers. Rounding loses nothing while a limit does not change; when a limit changes, a bucket never
contains more than it should.
"""

from collections.abc import Iterable, Mapping

import msgspec

POOL_SCOPE = ""
"""The scope of the bucket of the whole pool; every other bucket has the name of its queue."""


class EvictionLevel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a bucket was below full at one time."""

    scope: str
    """the queue; empty for the pool"""
    used: int
    """in parts of an eviction: `per_ms` parts are one eviction, and each millisecond refills `count` parts"""
    per_ms: int
    """the period of the limit at that time, in milliseconds"""
    at_ms: int
    """epoch milliseconds"""


class EvictionLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `burst` evictions at once, and `count` in each `per_s` (seconds) over time."""

    count: int
    per_s: float
    burst: int

    @property
    def per_ms(self) -> int:
        """The period in milliseconds."""
        return max(1, round(self.per_s * 1000))

    def used(self, level: EvictionLevel | None, now: float) -> int:
        """Return how far the bucket is below full at `now` (epoch seconds); `per_ms` parts are one eviction."""
        if level is None:
            return 0
        refilled = max(0, _ms(now) - level.at_ms) * self.count
        return max(0, self._owed(level) - refilled)

    def left(self, level: EvictionLevel | None, now: float) -> int:
        """Return the whole evictions in the bucket."""
        return (self.burst * self.per_ms - self.used(level, now)) // self.per_ms

    def next_at(self, level: EvictionLevel | None, now: float) -> float:
        """Return the time (epoch seconds) at which the bucket contains one eviction more than now; 0 when it is
        full."""
        if level is None or not self.used(level, now):
            return 0.0
        most = (self.burst - self.left(level, now) - 1) * self.per_ms
        return (level.at_ms - (most - self._owed(level)) // self.count) / 1000

    def _owed(self, level: EvictionLevel) -> int:
        """Return the use at the time of `level`, converted to the parts of this limit; at most the whole bucket."""
        used = level.used if level.per_ms == self.per_ms else -(-level.used * self.per_ms // level.per_ms)
        return min(used, self.burst * self.per_ms)


def charged(
    levels: Iterable[EvictionLevel], limits: Mapping[str, EvictionLimit], made: Mapping[str, int], now: float
) -> tuple[EvictionLevel, ...]:
    """Return the levels after `made` evictions ({scope: number}) at `now`.

    Full buckets, and buckets without a limit, are left out.
    """
    known = {level.scope: level for level in levels}
    found: list[EvictionLevel] = []
    for scope, limit in sorted(limits.items()):
        level, more = known.get(scope), made.get(scope, 0)
        if more:
            # The clock of this leader may be behind that of the last leader; the bucket must not be refilled twice.
            at_ms = max(_ms(now), level.at_ms if level is not None else 0)
            used = limit.used(level, now) + more * limit.per_ms
            found.append(EvictionLevel(scope=scope, used=used, per_ms=limit.per_ms, at_ms=at_ms))
        elif level is not None and limit.used(level, now):
            found.append(level)
    return tuple(found)


def _ms(at: float) -> int:
    return int(at * 1000 // 1)
