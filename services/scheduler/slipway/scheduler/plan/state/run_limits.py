"""The latest end of running work, as far as it is known. Pure.

A run limit (`maxRuntime`) begins when the attempt runs. Work without a limit may run for ever, so no plan relies on its
places. Work that is being stopped leaves as soon as it can, and is treated as almost gone. What is overdue ends now.
"""

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.lifecycle import Phase

LIMIT = "maxRuntime"
"""Key of the stored deadline that ends an attempt."""
_GRACE = "preemption"


def run_limit(fact: AllocationFact, queue: QueueFact | None) -> float | None:
    """Return how long (seconds) `fact` may run: its own limit or its queue's, whichever is less; None without limit."""
    limits = [fact.max_runtime, queue.max_runtime if queue is not None and not fact.beyond_queue else None]
    return min((limit for limit in limits if limit is not None), default=None)


def ends_if_started(fact: AllocationFact, queue: QueueFact | None, now: float) -> float | None:
    """Return the latest end if it started now (epoch seconds); None when unknown."""
    limit = run_limit(fact, queue)
    return None if limit is None else now + limit


def known_end(fact: AllocationFact, queue: QueueFact | None, now: float) -> float | None:
    """Return the latest end of work that has places (epoch seconds); None when unknown.

    It is never before `now`: work whose end is overdue still has its places.
    """
    if fact.stopping or fact.deleting or fact.desired == "Stopped":
        return max(fact.deadlines.get(_GRACE) or fact.phase_since, now)
    if fact.phase is not Phase.RUNNING:
        return ends_if_started(fact, queue, now)
    stored = fact.deadlines.get(LIMIT)
    if stored:
        return max(stored, now)
    limit = run_limit(fact, queue)
    return None if limit is None else max(fact.started + limit, now)
