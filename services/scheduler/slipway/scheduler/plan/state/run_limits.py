"""When running work ends at the latest, as far as anybody knows. Pure.

A run limit (`maxRuntime`) counts from when the attempt runs. What has none may run for ever: its places are never
counted on. What is being stopped goes as soon as it can, and is counted as good as gone.
"""

from slipway.model.facts import AllocationFact, QueueFact
from slipway.model.lifecycle import Phase

LIMIT = "maxRuntime"
"""The stored deadline that ends an attempt."""
_GRACE = "preemption"


def run_limit(fact: AllocationFact, queue: QueueFact | None) -> float | None:
    """How long (seconds) `fact` may run once it runs: its own limit or its queue's, whichever is less."""
    limits = [fact.max_runtime, queue.max_runtime if queue is not None and not fact.beyond_queue else None]
    return min((limit for limit in limits if limit is not None), default=None)


def ends_if_started(fact: AllocationFact, queue: QueueFact | None, now: float) -> float | None:
    """When it would end at the latest if it started now; None: nobody knows."""
    limit = run_limit(fact, queue)
    return None if limit is None else now + limit


def known_end(fact: AllocationFact, queue: QueueFact | None, now: float) -> float | None:
    """When what has places ends at the latest, perhaps in the past; None: nobody knows."""
    if fact.stopping or fact.deleting or fact.desired == "Stopped":
        return fact.deadlines.get(_GRACE) or fact.phase_since
    if fact.phase is not Phase.RUNNING:
        return ends_if_started(fact, queue, now)
    stored = fact.deadlines.get(LIMIT)
    if stored:
        return stored
    limit = run_limit(fact, queue)
    return None if limit is None else fact.started + limit
