"""Who goes first: a total order within a queue, and between the heads of queues.

Within a queue: priority, then place, then the job's weight, the allocation's own priority, age and uid
(`model/position.py`). A job that has a priority gives it to its allocations; one that has a place gives it to those
that have none of their own. Between queues: whose head would leave it least above its due, then queue priority, the
head's priority, age, name.
"""

from slipway.model import position
from slipway.model.facts import AllocationFact, JobFact, QueueFact
from slipway.model.position import WorkKey, milliseconds

HeadKey = tuple[int, int, int, int, str]


def priority_of(allocation: AllocationFact, job: JobFact | None) -> int:
    """The job's priority when it has one, else the allocation's own."""
    return allocation.priority if job is None or job.priority is None else job.priority


def work_key(allocation: AllocationFact, job: JobFact | None) -> WorkKey:
    """Ascending within a queue."""
    return position.work_key(
        priority_of(allocation, job),
        allocation.position or (job.position if job else ""),
        weight=job.weight if job else 1,
        own=allocation.priority,
        created=allocation.created,
        uid=allocation.uid,
    )


def head_key(share: int, queue: QueueFact, head: AllocationFact, job: JobFact | None) -> HeadKey:
    """Ascending between the heads of queues."""
    return (share, -queue.priority, -priority_of(head, job), milliseconds(head.created), queue.name)
