"""The positions of pending allocations, as the scheduler orders them within a queue. Pure.

The order is the scheduler's own (`model/position.py`). The reason why an allocation waits is the one that the scheduler
wrote into its condition.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from slipway.api.schemas import Waiting
from slipway.crd import transitions
from slipway.crd.resolve import role_requests, template_of
from slipway.crd.transitions import id_of, ring_of, user_of
from slipway.crd.v1alpha1 import Allocation, Job, ResourcePool
from slipway.facts import custom_resources
from slipway.model.lifecycle import Event, Phase
from slipway.model.mig import whole_gpus
from slipway.model.position import WorkKey, ages_at, default_position, work_key
from slipway.model.reasons import Gate
from slipway.model.resources import Resources, total
from slipway.model.times import parse_time

Jobs = Mapping[tuple[str, str], Job]
"""{(namespace, name): job}"""


class Precedence(NamedTuple):
    """The rules that precede the order of submission."""

    aged: Mapping[str, float] = MappingProxyType({})
    """{uid: since when it waits, epoch seconds} of aged allocations: they precede all younger ones of their queue"""
    levels: Mapping[tuple[str, str], Mapping[str, int]] = MappingProxyType({})
    """{(pool, queue): {user: level of past usage}} of queues where the user who has used less goes first"""


NONE_FIRST = Precedence()
LineKey = tuple[int, int, int, WorkKey]
"""The sort key of a queue, ascending: (the first two parts of the order, the user's past usage, the whole order)."""
SlotsBy = Callable[[Allocation], int]
"""Returns the same as `slots_of`, from a cache."""
UnitsBy = Callable[[Allocation], int]
"""Returns the same as `gpu_units_of`, from a cache."""


def gate_of(allocation: Allocation) -> tuple[str, str]:
    """Return (code, message): why the current attempt waits, as the scheduler wrote it; empty if it is not pending."""
    if allocation.status.phase is not Phase.PENDING:
        return "", ""
    code, message = custom_resources.gate_of(allocation)
    return (code, message) if code else (Gate.NOT_YET_CONSIDERED.value, "the scheduler has not examined it yet")


def is_waiting(allocation: Allocation) -> bool:
    """Whether the allocation waits in a queue: it is pending, and neither stopped nor being deleted."""
    is_stopped = allocation.spec.desired == "Stopped" or allocation.metadata.deletion_timestamp is not None
    return allocation.status.phase is Phase.PENDING and not is_stopped


def aged(allocations: Iterable[Allocation], pools: Iterable[ResourcePool], now: float) -> Precedence:
    """Return the precedence of the allocations that have waited longer than the aging limit of their pool."""
    agings = {pool.metadata.name: custom_resources.pool_fact(pool).aging for pool in pools}
    found: dict[str, float] = {}
    for each in allocations:
        aging, since = agings.get(each.spec.pool, 0.0), transitions.waiting_since(each)
        at = ages_at(since, aging) if since is not None else None
        if since is not None and at is not None and at <= now:
            found[each.metadata.uid] = since
    return Precedence(aged=found)


def in_order(allocations: Iterable[Allocation], jobs: Jobs, first: Precedence = NONE_FIRST) -> list[Allocation]:
    """Return the waiting allocations; those of one queue are in the order of that queue."""
    return sorted(filter(is_waiting, allocations), key=lambda allocation: _key(allocation, jobs, first))


class QueuePlace(NamedTuple):
    """A waiting allocation, and how much work of its queue is before it."""

    allocation: Allocation
    key: LineKey
    ahead: int
    jobs_ahead: int
    """number of jobs, and of allocations without a job, before it"""
    slots_ahead: int
    """whole devices that the allocations before it request"""


def slots_of(allocation: Allocation) -> int:
    """Return the number of whole devices that all its ranks request."""
    return whole_gpus(gpu_units_of(allocation))


def gpu_units_of(allocation: Allocation) -> int:
    """Return the GPUs that all its ranks request, in `GPU_UNITS`: a slice is counted as its part of a GPU.

    0 when the request cannot be read.
    """
    asks = _asks_by_role(allocation)
    return sum(role.count * asks[role.name].gpu_units() for role in allocation.spec.ranks) if asks else 0


def gpu_count_of(allocation: Allocation) -> float:
    """Return the GPUs that its ranks request together, with fractions; 0 when the request cannot be read."""
    asks = _asks_by_role(allocation)
    return total(asks[role.name] * role.count for role in allocation.spec.ranks).gpu_count() if asks else 0.0


def gpus_by_role(allocation: Allocation) -> dict[str, int]:
    """Return {role: whole devices that one of its ranks requests}; empty when the request cannot be read."""
    return {name: asked.gpus() for name, asked in _asks_by_role(allocation).items()}


def _asks_by_role(allocation: Allocation) -> dict[str, Resources]:
    spec = allocation.spec
    try:
        return {role.name: role_requests(role, template_of(spec, role)) for role in spec.ranks}
    except ValueError:
        return {}


def places_of(
    allocations: Iterable[Allocation], jobs: Jobs, first: Precedence = NONE_FIRST, *, slots_by: SlotsBy = slots_of
) -> Iterator[QueuePlace]:
    """Yield the waiting allocations with their places; those of one queue are in the order of that queue."""
    counts: dict[tuple[str, str], int] = {}
    slots: dict[tuple[str, str], int] = {}
    units: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
    """{queue: {unit: how many units are before it}}; a unit is a job, or an allocation without a job"""
    keyed = ((_key(each, jobs, first), each) for each in allocations if is_waiting(each))
    for key, allocation in sorted(keyed, key=lambda pair: pair[0]):
        queue = (allocation.spec.pool, allocation.spec.queue)
        ahead, slots_ahead = counts.get(queue, 0), slots.get(queue, 0)
        counts[queue], slots[queue] = ahead + 1, slots_ahead + slots_by(allocation)
        before = units.setdefault(queue, {})
        jobs_ahead = before.setdefault(_unit(allocation), len(before))
        yield QueuePlace(allocation, key, ahead, jobs_ahead, slots_ahead)


def waiting_of(allocations: Iterable[Allocation], jobs: Jobs, first: Precedence = NONE_FIRST) -> list[Waiting]:
    """Return the waiting allocations as the REST API shows them; those of one queue are in the order of that queue."""
    return [waiting_view(place, jobs) for place in places_of(allocations, jobs, first)]


def waiting_view(place: QueuePlace, jobs: Jobs) -> Waiting:
    """Return a waiting allocation as the REST API shows it."""
    allocation = place.allocation
    code, message = gate_of(allocation)
    return Waiting(
        id=id_of(allocation),
        name=allocation.metadata.name,
        workspace=allocation.metadata.namespace,
        user=user_of(allocation),
        kind=allocation.spec.kind,
        queue=allocation.spec.queue,
        priority=priority_of(allocation, job_of(allocation, jobs)),
        position=place.ahead + 1,
        ahead=place.ahead,
        slots_ahead=place.slots_ahead,
        code=code,
        message=message,
        slots=slots_of(allocation),
        since=waiting_since(allocation),
        job=allocation.spec.job or "",
        jobs_ahead=place.jobs_ahead,
        place=place_of(allocation, jobs),
    )


def waiting_since(allocation: Allocation) -> str:
    """Return the time (RFC 3339) when the current attempt began to wait."""
    ring = ring_of(allocation)
    begun = [entry.time for entry in ring if entry.type in (Event.REQUESTED, Event.RESTARTED)]
    return begun[-1] if begun else ring[-1].time


def place_of(allocation: Allocation, jobs: Jobs) -> str:
    """Return its position among work of its priority: its own, else its job's, else one from its time of creation."""
    job = job_of(allocation, jobs)
    own = allocation.spec.queue_position or (job.spec.queue_position if job else "")
    return own or default_position(_created(allocation), allocation.metadata.uid)


def _key(allocation: Allocation, jobs: Jobs, first: Precedence) -> LineKey:
    job = job_of(allocation, jobs)
    order = work_key(
        priority_of(allocation, job),
        allocation.spec.queue_position or (job.spec.queue_position if job else ""),
        weight=job.spec.weight if job else 1,
        own=allocation.spec.priority,
        created=_created(allocation),
        uid=allocation.metadata.uid,
        aged_since=first.aged.get(allocation.metadata.uid),
    )
    spec = allocation.spec
    used = first.levels.get((spec.pool, spec.queue)) if first.levels else None
    return (order[0], order[1], used.get(user_of(allocation), 0) if used else 0, order)


def _created(allocation: Allocation) -> float:
    stamp = allocation.metadata.creation_timestamp
    return parse_time(stamp) if stamp else 0.0


def _unit(allocation: Allocation) -> tuple[str, str]:
    """Return the key of the unit that moves together: its job, or the allocation itself."""
    name = allocation.spec.job
    return (allocation.metadata.namespace, name) if name else ("", allocation.metadata.uid)


def priority_of(allocation: Allocation, job: Job | None) -> int:
    """Return the effective priority: that of the job, if the job sets one, else the allocation's own."""
    return allocation.spec.priority if job is None or job.spec.priority is None else job.spec.priority


def job_of(allocation: Allocation, jobs: Jobs) -> Job | None:
    """Return the job that the allocation names; None when it names none, or the job does not exist."""
    name = allocation.spec.job
    return jobs.get((allocation.metadata.namespace, name)) if name else None
