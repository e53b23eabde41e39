"""The eviction limits of a pool and its queues: what they permit in one tick, and what a tick uses of them.

One eviction is one allocation that is evicted or moved for another, whole or in part. It is charged to the limit of its
queue, of every queue above, and of the pool. An eviction that is for no other work (a gang below its minimum, a
disabled node, `kill`) is not charged. Knows nothing of preemptors; `model/eviction_rate.py` defines how a bucket fills.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from slipway.model.eviction_rate import POOL_SCOPE, EvictionLevel, EvictionLimit, charged
from slipway.model.facts import AllocationFact, PoolFact, QueueFact
from slipway.model.times import format_duration, format_time
from slipway.scheduler.plan.state.plan_types import Evict
from slipway.scheduler.plan.state.snapshot import PoolSnapshot


class EvictionBudget:
    """The buckets of one tick, with what the tick has used of them."""

    def __init__(self, snapshot: PoolSnapshot, now: float) -> None:
        self._pool = snapshot.pool.name
        self._now = now
        self._limits = limits_of(snapshot)
        self._levels = {level.scope: level for level in snapshot.evicted}
        self._left = {scope: limit.left(self._levels.get(scope), now) for scope, limit in self._limits.items()}
        self._queues = {queue.name: queue for queue in snapshot.queues}
        self._scopes: dict[str, tuple[str, ...]] = {}

    def empty_scope(self, queue: str) -> str | None:
        """Return the first limit that permits no eviction from `queue` now; None when every limit permits one."""
        return next((scope for scope in self.scopes_of(queue) if self._left[scope] <= 0), None)

    def scopes_of(self, queue: str) -> tuple[str, ...]:
        """Return the limits to which an eviction from `queue` is charged, the narrowest first."""
        known = self._scopes.get(queue)
        if known is None:
            known = self._scopes[queue] = tuple(_scopes(queue, self._queues, self._limits))
        return known

    def exceeded(self, gone: Iterable[AllocationFact], one_more: AllocationFact) -> str | None:
        """Return the limit that does not permit the eviction of `one_more` after `gone`; None when all permit it."""
        limits = self.scopes_of(one_more.queue)
        if not limits:
            return None
        queue_of = {fact.uid: fact.queue for fact in gone} | {one_more.uid: one_more.queue}
        made = Counter(scope for queue in queue_of.values() for scope in self.scopes_of(queue))
        return next((scope for scope in limits if made[scope] > self._left[scope]), None)

    def take(self, queue: str) -> None:
        """Charge one eviction from `queue`."""
        for scope in self.scopes_of(queue):
            self._left[scope] -= 1

    def next_at(self, scope: str) -> float:
        """Return when the limit of `scope` permits one more eviction (epoch seconds); 0 when its bucket is full."""
        return self._limits[scope].next_at(self._levels.get(scope), self._now)

    def used_up(self, scope: str) -> str:
        """Return the sentence that the limit of `scope` is used up, and when it permits the next eviction."""
        at = self.next_at(scope)
        until = f"; the next eviction is possible at {format_time(at, 'seconds')}" if at else ""
        return f"the eviction limit of {self._called(scope)} is used up ({self._spelled(scope)}){until}"

    def too_many(self, scope: str) -> str:
        """Return the sentence that more evictions are needed than the limit of `scope` permits now."""
        name, rate = self._called(scope), self._spelled(scope)
        return f"it needs more evictions than the eviction limit of {name} allows now ({rate})"

    def _called(self, scope: str) -> str:
        return f"pool {self._pool}" if scope == POOL_SCOPE else f"queue {scope}"

    def _spelled(self, scope: str) -> str:
        limit = self._limits[scope]
        return f"{limit.burst} at once, {limit.count} per {format_duration(limit.per_s)}"


def limits_of(snapshot: PoolSnapshot) -> dict[str, EvictionLimit]:
    """Return {queue, or "" for the pool: its limit}."""
    return _limits(snapshot.pool, snapshot.queues)


def made_by(snapshot: PoolSnapshot, evictions: Iterable[Evict]) -> Counter[str]:
    """Return {queue, or "" for the pool: evictions that are charged to its limit}."""
    limits = limits_of(snapshot)
    if not limits:
        return Counter()
    queues = {queue.name: queue for queue in snapshot.queues}
    gone = {evict.uid for evict in evictions if evict.by and evict.uid in snapshot.holdings}
    names = [snapshot.holdings[uid].allocation.queue for uid in gone]
    return Counter(scope for name in names for scope in _scopes(name, queues, limits))


def levels_after(snapshot: PoolSnapshot, evictions: Iterable[Evict], now: float) -> tuple[EvictionLevel, ...]:
    """Return the use of the limits after `evictions` are decided at `now`."""
    limits = limits_of(snapshot)
    return charged(snapshot.evicted, limits, made_by(snapshot, evictions), now) if limits else ()


def remembered(
    pool: PoolFact, queues: Iterable[QueueFact], work: Iterable[AllocationFact]
) -> tuple[EvictionLevel, ...]:
    """Return the use of the limits as far as the allocations record their evictions.

    For callers without a ledger, such as a forecast.
    """
    by_name = {queue.name: queue for queue in queues}
    limits = _limits(pool, by_name.values())
    levels: tuple[EvictionLevel, ...] = ()
    told = sorted((at, fact.uid, fact.queue) for fact in work for at, by in fact.evictions if by) if limits else []
    for at, _, queue in told:
        levels = charged(levels, limits, Counter(_scopes(queue, by_name, limits)), at)
    return levels


def _limits(pool: PoolFact, queues: Iterable[QueueFact]) -> dict[str, EvictionLimit]:
    limits = {queue.name: queue.eviction_limit for queue in queues if queue.eviction_limit is not None}
    return limits if pool.eviction_limit is None else {POOL_SCOPE: pool.eviction_limit, **limits}


def _scopes(queue: str, queues: Mapping[str, QueueFact], limits: Mapping[str, EvictionLimit]) -> Iterator[str]:
    """Yield the queue, the queues above it, and the pool, as far as they have limits."""
    seen: set[str] = set()
    name = queue
    while name and name not in seen:
        seen.add(name)
        if name in limits:
            yield name
        name = queues[name].parent if name in queues else ""
    if POOL_SCOPE in limits:
        yield POOL_SCOPE
