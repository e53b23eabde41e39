"""The order of pending work: a total order within a queue, and between the heads of queues.

Within a queue, work that has aged comes first, the longest wait first. Then the order is by priority, position, the
job's weight, the allocation's own priority, age and uid (`model/position.py`). A job that has a priority gives it to
all its allocations. A job that has a position gives it to its allocations that have none of their own.

Between queues (`fair_share.py`) the first head is the one that leaves its queue least above its deserved share. Then
the order is by queue priority, the head's priority, age and name.

The order within a queue changes with time when an allocation ages: `ages_at` returns when. Pure, integers only.
"""

from slipway.model import position
from slipway.model.facts import AllocationFact, JobFact, QueueFact
from slipway.model.position import WorkKey, milliseconds

HeadKey = tuple[int, int, int, str, str]


def priority_of(allocation: AllocationFact, job: JobFact | None) -> int:
    """Return the job's priority when it has one, else the allocation's own."""
    return allocation.priority if job is None or job.priority is None else job.priority


def waits_since(allocation: AllocationFact) -> float:
    """Return since when this attempt waits (epoch seconds)."""
    return allocation.waiting_since or allocation.created


def ages_at(allocation: AllocationFact, aging: float) -> float | None:
    """Return when it comes before all younger work of its queue (epoch seconds); None when `aging` (s) is off."""
    return position.ages_at(waits_since(allocation), aging)


def is_aged(allocation: AllocationFact, aging: float, now: float) -> bool:
    """Whether it has waited so long that it comes before all younger work of its queue."""
    at = ages_at(allocation, aging)
    return at is not None and at <= now


def work_key(allocation: AllocationFact, job: JobFact | None, aging: float = 0.0, now: float = 0.0) -> WorkKey:
    """Return the sort key of an allocation within its queue at `now`; ascending."""
    return position.work_key(
        priority_of(allocation, job),
        allocation.position or (job.position if job else ""),
        weight=job.weight if job else 1,
        own=allocation.priority,
        created=allocation.created,
        uid=allocation.uid,
        aged_since=waits_since(allocation) if aging and is_aged(allocation, aging, now) else None,
    )


def head_key(queue: QueueFact, head: AllocationFact, job: JobFact | None) -> HeadKey:
    """Return the sort key, ascending, between heads that leave their queues equally far above what they deserve."""
    return (-queue.priority, -priority_of(head, job), milliseconds(head.created), head.name, queue.name)
