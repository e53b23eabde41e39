"""Who goes first: a total order within a queue, and between the heads of queues.

Within a queue: priority, then position, then age, then uid. A job that has a priority gives it to its allocations.
Between queues: whose head would leave it least above its due, then queue priority, the head's priority, age, name.
"""

from slipway.model.facts import AllocationFact, JobFact, QueueFact

_OFFSET_MS = 10**14
WorkKey = tuple[int, int, str, int, str]
HeadKey = tuple[int, int, int, int, str]


def default_position(created: float) -> str:
    """The position of what was never moved: its creation time, so that any position compares with any other."""
    return f"{milliseconds(created) + _OFFSET_MS:015d}"


def priority_of(allocation: AllocationFact, job: JobFact | None) -> int:
    """The job's priority when it has one, else the allocation's own."""
    return allocation.priority if job is None or job.priority is None else job.priority


def work_key(allocation: AllocationFact, job: JobFact | None) -> WorkKey:
    """Ascending within a queue."""
    position = allocation.position or (job.position if job else "") or default_position(allocation.created)
    return (
        -priority_of(allocation, job),
        -allocation.priority,
        position,
        milliseconds(allocation.created),
        allocation.uid,
    )


def head_key(share: int, queue: QueueFact, head: AllocationFact, job: JobFact | None) -> HeadKey:
    """Ascending between the heads of queues."""
    return (share, -queue.priority, -priority_of(head, job), milliseconds(head.created), queue.name)


def milliseconds(seconds: float) -> int:
    """Whole milliseconds of a time in seconds: what times are compared by."""
    return round(seconds * 1000)
