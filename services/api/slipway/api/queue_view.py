"""Who waits in which order: positions of pending allocations, as the scheduler orders them within a queue. Pure.

The order is the one that `docs` and the scheduler state: priority (the job's, when it has one), then position, then
age, then uid. What keeps each waiting is the scheduler's own word, read from the object's condition.
"""

from collections.abc import Iterable, Mapping

from slipway.api.schemas import Waiting
from slipway.crd import facts
from slipway.crd.resolve import role_requests, template_of
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation, Job
from slipway.model.lifecycle import Phase
from slipway.model.reasons import Gate
from slipway.model.times import parse_time

_POSITION_OFFSET_MS = 10**14
"""Positions that were never set sort by creation time among those that were: 15 digits, as in the scheduler."""

Jobs = Mapping[tuple[str, str], Job]
"""{(namespace, name): job}"""


def gate_of(allocation: Allocation) -> tuple[str, str]:
    """(code, message): what keeps the current attempt waiting, as the scheduler wrote it; empty when nothing does."""
    if allocation.status.phase is not Phase.PENDING:
        return "", ""
    code, message = facts.gate_of(allocation)
    return (code, message) if code else (Gate.NOT_YET_CONSIDERED.value, "the scheduler has not looked at it yet")


def is_waiting(allocation: Allocation) -> bool:
    """Whether it stands in a queue."""
    is_stopped = allocation.spec.desired == "Stopped" or allocation.metadata.deletion_timestamp is not None
    return allocation.status.phase is Phase.PENDING and not is_stopped


def in_order(allocations: Iterable[Allocation], jobs: Jobs) -> list[Allocation]:
    """The waiting ones, first to go first."""
    return sorted(filter(is_waiting, allocations), key=lambda allocation: _key(allocation, jobs))


def waiting_of(allocations: Iterable[Allocation], jobs: Jobs) -> list[Waiting]:
    """The waiting ones with their places, queue by queue."""
    counts: dict[tuple[str, str], int] = {}
    found: list[Waiting] = []
    for allocation in in_order(allocations, jobs):
        queue = (allocation.spec.pool, allocation.spec.queue)
        ahead = counts.get(queue, 0)
        counts[queue] = ahead + 1
        code, message = gate_of(allocation)
        found.append(
            Waiting(
                id=id_of(allocation),
                name=allocation.metadata.name,
                workspace=allocation.metadata.namespace,
                user=user_of(allocation),
                kind=allocation.spec.kind,
                queue=allocation.spec.queue,
                priority=_priority(allocation, _job(allocation, jobs)),
                position=ahead + 1,
                ahead=ahead,
                code=code,
                message=message,
                slots=slots_of(allocation),
                since=allocation.metadata.creation_timestamp or "",
            )
        )
    return found


def slots_of(allocation: Allocation) -> int:
    """Whole devices that all its ranks ask for."""
    spec = allocation.spec
    try:
        return sum(role.count * role_requests(role, template_of(spec, role)).gpus() for role in spec.ranks)
    except ValueError:
        return 0


def _key(allocation: Allocation, jobs: Jobs) -> tuple[int, int, str, int, str]:
    job = _job(allocation, jobs)
    stamp = allocation.metadata.creation_timestamp
    created_ms = round(parse_time(stamp) * 1000) if stamp else 0
    position = allocation.spec.queue_position or (job.spec.queue_position if job else "")
    return (
        -_priority(allocation, job),
        -allocation.spec.priority,
        position or f"{created_ms + _POSITION_OFFSET_MS:015d}",
        created_ms,
        allocation.metadata.uid,
    )


def _priority(allocation: Allocation, job: Job | None) -> int:
    return allocation.spec.priority if job is None or job.spec.priority is None else job.spec.priority


def _job(allocation: Allocation, jobs: Jobs) -> Job | None:
    name = allocation.spec.job
    return jobs.get((allocation.metadata.namespace, name)) if name else None
