"""The guard against loops and chains: who has been preempted too often, who may not be displaced by whom it displaced,
who has been displaced by the same work again and again, and who has made room just now.

Owns the rules on history; knows nothing of queues or nodes. They hold whatever the policy of a queue says.
"""

from collections import Counter

from slipway.model.facts import AllocationFact

MANY = 3
"""Preemptions of one victim within `MANY_WITHIN_S`, after which it is left alone."""
MANY_WITHIN_S = 3600.0
TURN_WITHIN_S = 600.0
"""For so long nobody may displace whoever displaced it."""
REPEATS = 2
"""So often the same work may displace the same victim without a wait. After that it waits `TURN_WITHIN_S`, and twice as
long after each time more. Work that displaces a victim again has lost its own place in between: three queues can take
from each other in a circle that way, hour after hour. As the waits double, whatever runs comes to its end."""
SETTLE_S = 1.0
"""For so long a queue that has made room for another takes nothing from others, and neither does what was evicted:
evictions do not ripple from queue to queue in one instant."""


def is_worn(fact: AllocationFact, now: float) -> bool:
    """Whether it was preempted as often as anybody may be in so short a time."""
    return sum(1 for at, by in fact.evictions if by and at > now - MANY_WITHIN_S) >= MANY


def displacers(fact: AllocationFact, now: float) -> frozenset[str]:
    """Keys of those that took the place of `fact` lately: it does not take it back from them."""
    return frozenset(by for at, by in fact.evictions if by and at > now - TURN_WITHIN_S)


def repeated(fact: AllocationFact, now: float) -> frozenset[str]:
    """Keys of those that displaced `fact` so often that they have to leave it alone now."""
    return frozenset(by for by, until in _repeats(fact) if until > now)


def made_room_for(fact: AllocationFact, now: float) -> list[tuple[float, str]]:
    """(when, the key of whom it made room for) of its preemptions just now."""
    return [(at, by) for at, by in fact.evictions if by and at > now - SETTLE_S]


def ends(fact: AllocationFact) -> list[float]:
    """When what the guard holds back because of this history may come to be allowed."""
    spans = {at + span for at, by in fact.evictions if by for span in (TURN_WITHIN_S, MANY_WITHIN_S)}
    return sorted(spans | {until for _, until in _repeats(fact)})


def _repeats(fact: AllocationFact) -> list[tuple[str, float]]:
    """(who, until when it has to wait) of those that displaced `fact` more often than they may without a wait."""
    if len(fact.evictions) < REPEATS:
        return []
    counts = Counter(by for _, by in fact.evictions if by)
    last = {by: at for at, by in fact.evictions}
    return [(by, last[by] + TURN_WITHIN_S * 2 ** (n - REPEATS)) for by, n in counts.items() if n >= REPEATS]
