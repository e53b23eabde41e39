"""The guard against loops and chains: who has been preempted too often, who may not be displaced by whom it displaced,
and who has made room just now.

Owns the rules on history; knows nothing of queues or nodes. They hold whatever the policy of a queue says.
"""

from slipway.model.facts import AllocationFact

MANY = 3
"""Preemptions of one victim within `MANY_WITHIN_S`, after which it is left alone."""
MANY_WITHIN_S = 3600.0
TURN_WITHIN_S = 600.0
"""For so long nobody may displace whoever displaced it."""
SETTLE_S = 1.0
"""For so long a queue that has made room for another takes nothing from others, and neither does what was evicted:
evictions do not ripple from queue to queue in one instant."""


def is_worn(fact: AllocationFact, now: float) -> bool:
    """Whether it was preempted as often as anybody may be in so short a time."""
    return sum(1 for at, by in fact.evictions if by and at > now - MANY_WITHIN_S) >= MANY


def displacers(fact: AllocationFact, now: float) -> frozenset[str]:
    """Keys of those that took the place of `fact` lately: it does not take it back from them."""
    return frozenset(by for at, by in fact.evictions if by and at > now - TURN_WITHIN_S)


def made_room_for(fact: AllocationFact, now: float) -> list[tuple[float, str]]:
    """(when, the key of whom it made room for) of its preemptions just now."""
    return [(at, by) for at, by in fact.evictions if by and at > now - SETTLE_S]


def ends(fact: AllocationFact) -> list[float]:
    """When what the guard holds back because of this history may come to be allowed."""
    return sorted({at + span for at, by in fact.evictions if by for span in (TURN_WITHIN_S, MANY_WITHIN_S)})
