"""How often work may be evicted for other work: token buckets, as values. Pure.

A bucket holds `burst` evictions and gets `count` more in each `per_s`, never above `burst`. So in any span of time
there are at most burst + count * span / per_s evictions. What is kept is how far the bucket is below full, and since
when; it stands in the ledger and is written with the evictions themselves, so that no other scheduler starts it anew.

Invariant: whole numbers. Nothing is lost by rounding while a limit stays as it is; where it changes, a bucket never
holds more than it should.
"""

from collections.abc import Iterable, Mapping

import msgspec

POOL_SCOPE = ""
"""The bucket of the whole pool; all others are called like their queue."""


class EvictionLevel(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How far a bucket was below full at one time."""

    scope: str
    """the queue; empty for the pool"""
    used: int
    """in parts of an eviction, `per_ms` to one: so much is refilled in each millisecond as the limit counts"""
    per_ms: int
    """the period of the limit then (milliseconds)"""
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
        """How far the bucket is below full at `now` (epoch seconds), `per_ms` to an eviction."""
        if level is None:
            return 0
        refilled = max(0, _ms(now) - level.at_ms) * self.count
        return max(0, self._owed(level) - refilled)

    def left(self, level: EvictionLevel | None, now: float) -> int:
        """Whole evictions that the bucket holds."""
        return (self.burst * self.per_ms - self.used(level, now)) // self.per_ms

    def next_at(self, level: EvictionLevel | None, now: float) -> float:
        """When the bucket holds one more than now (epoch seconds); 0 when it is full."""
        if level is None or not self.used(level, now):
            return 0.0
        most = (self.burst - self.left(level, now) - 1) * self.per_ms
        return (level.at_ms - (most - self._owed(level)) // self.count) / 1000

    def _owed(self, level: EvictionLevel) -> int:
        """What was used at the time of `level`, in the parts of this limit; never more than the bucket."""
        used = level.used if level.per_ms == self.per_ms else -(-level.used * self.per_ms // level.per_ms)
        return min(used, self.burst * self.per_ms)


def charged(
    levels: Iterable[EvictionLevel], limits: Mapping[str, EvictionLimit], made: Mapping[str, int], now: float
) -> tuple[EvictionLevel, ...]:
    """The levels after `made` evictions ({scope: how many}) at `now`; full buckets, and those without a limit, are left
    out."""
    known = {level.scope: level for level in levels}
    found: list[EvictionLevel] = []
    for scope, limit in sorted(limits.items()):
        level, more = known.get(scope), made.get(scope, 0)
        if more:
            # A clock that is behind that of the scheduler before refills nothing twice.
            at_ms = max(_ms(now), level.at_ms if level is not None else 0)
            used = limit.used(level, now) + more * limit.per_ms
            found.append(EvictionLevel(scope=scope, used=used, per_ms=limit.per_ms, at_ms=at_ms))
        elif level is not None and limit.used(level, now):
            found.append(level)
    return tuple(found)


def _ms(at: float) -> int:
    return int(at * 1000 // 1)
