"""The loop guard, which prevents loops and chains of evictions.

It protects work that was preempted too often, work that displaced the preemptor, and work that the same preemptor has
displaced repeatedly. It also stops a queue or an allocation that has just made room from reclaiming.

Owns the rules on history; knows nothing of queues or nodes. The rules apply whatever the policy of a queue is.
"""

from collections import Counter

from slipway.model.facts import AllocationFact

MANY = 3
"""The preemptions of one victim within `MANY_WITHIN_S` after which it is not preempted any more."""
MANY_WITHIN_S = 3600.0
TURN_WITHIN_S = 600.0
"""For this time a displaced allocation may not displace the allocation that displaced it (seconds)."""
REPEATS = 2
"""The number of times that the same preemptor may displace the same victim without a wait.

After that the preemptor must wait `TURN_WITHIN_S`, and twice as long after each further time. A preemptor that
displaces a victim again has lost its own place in between: without the wait, three queues could take from each other in
a circle, hour after hour. Because the waits double, running work can finish.
"""
SETTLE_S = 1.0
"""For this time a queue that has made room for another reclaims nothing, and neither does the evicted work (seconds).

Without it, evictions would pass from queue to queue in one instant.
"""


def is_preempted_too_often(fact: AllocationFact, now: float) -> bool:
    """Whether the allocation was preempted as often as is permitted within `MANY_WITHIN_S`."""
    return sum(1 for at, by in fact.evictions if by and at > now - MANY_WITHIN_S) >= MANY


def displacers(fact: AllocationFact, now: float) -> frozenset[str]:
    """Return the keys of allocations that displaced `fact` recently; `fact` must not displace them."""
    return frozenset(by for at, by in fact.evictions if by and at > now - TURN_WITHIN_S)


def repeated(fact: AllocationFact, now: float) -> frozenset[str]:
    """Return the keys of preemptors that displaced `fact` so often that they must not displace it now."""
    return frozenset(by for by, until in _repeats(fact) if until > now)


def made_room_for(fact: AllocationFact, now: float) -> list[tuple[float, str]]:
    """Return (time, key of the preemptor) of the preemptions of `fact` within `SETTLE_S`."""
    return [(at, by) for at, by in fact.evictions if by and at > now - SETTLE_S]


def restriction_ends(fact: AllocationFact) -> list[float]:
    """Return the times at which a restriction from this history may end."""
    spans = {at + span for at, by in fact.evictions if by for span in (TURN_WITHIN_S, MANY_WITHIN_S)}
    return sorted(spans | {until for _, until in _repeats(fact)})


def _repeats(fact: AllocationFact) -> list[tuple[str, float]]:
    """Return (key, end of its wait) of the preemptors that must wait before they displace `fact` again."""
    if len(fact.evictions) < REPEATS:
        return []
    counts = Counter(by for _, by in fact.evictions if by)
    last = {by: at for at, by in fact.evictions}
    return [(by, last[by] + TURN_WITHIN_S * 2 ** (n - REPEATS)) for by, n in counts.items() if n >= REPEATS]
