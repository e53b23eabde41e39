"""Who waits in which order: positions of pending allocations, as the scheduler orders them within a queue. Pure.

The order is the scheduler's own (`model/position.py`). What keeps each waiting is the scheduler's own word, read from
the object's condition.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from slipway.api.schemas import Waiting
from slipway.crd import facts, transitions
from slipway.crd.resolve import role_requests, template_of
from slipway.crd.transitions import id_of, ring_of, user_of
from slipway.crd.v1alpha1 import Allocation, Job, ResourcePool
from slipway.model.lifecycle import Event, Phase
from slipway.model.mig import whole_gpus
from slipway.model.position import WorkKey, ages_at, default_position, work_key
from slipway.model.reasons import Gate
from slipway.model.resources import Resources, total
from slipway.model.times import parse_time

Jobs = Mapping[tuple[str, str], Job]
"""{(namespace, name): job}"""


class Precedence(NamedTuple):
    """What goes before the order of submission."""

    aged: Mapping[str, float] = MappingProxyType({})
    """{uid: since when it waits} of what goes before all younger work of its queue"""
    levels: Mapping[tuple[str, str], Mapping[str, int]] = MappingProxyType({})
    """{(pool, queue): {user: what they have used}} of queues whose users take turns"""


NONE_FIRST = Precedence()
LineKey = tuple[int, int, int, WorkKey]
"""(the first two of the order, what the user has used, the order): ascending in a queue"""
SlotsBy = Callable[[Allocation], int]
"""Answers as `slots_of` does, from what it has worked out before."""
UnitsBy = Callable[[Allocation], int]
"""Answers as `gpu_units_of` does, from what it has worked out before."""


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


def aged(allocations: Iterable[Allocation], pools: Iterable[ResourcePool], now: float) -> Precedence:
    """What has waited longer than its pool lets it."""
    agings = {pool.metadata.name: facts.pool_fact(pool).aging for pool in pools}
    found: dict[str, float] = {}
    for each in allocations:
        aging, since = agings.get(each.spec.pool, 0.0), transitions.waiting_since(each)
        at = ages_at(since, aging) if since is not None else None
        if since is not None and at is not None and at <= now:
            found[each.metadata.uid] = since
    return Precedence(aged=found)


def in_order(allocations: Iterable[Allocation], jobs: Jobs, first: Precedence = NONE_FIRST) -> list[Allocation]:
    """The waiting ones, first to go first."""
    return sorted(filter(is_waiting, allocations), key=lambda allocation: _key(allocation, jobs, first))


class QueuePlace(NamedTuple):
    """A waiting allocation, and what of its queue is before it."""

    allocation: Allocation
    key: LineKey
    ahead: int
    jobs_ahead: int
    """jobs, and allocations without one"""
    slots_ahead: int
    """whole devices that those before it ask for"""


def slots_of(allocation: Allocation) -> int:
    """Whole devices that all its ranks ask for."""
    return whole_gpus(gpu_units_of(allocation))


def gpu_units_of(allocation: Allocation) -> int:
    """The same in `GPU_UNITS`: a slice counts as the part of a GPU that it is."""
    asks = _asks_by_role(allocation)
    return sum(role.count * asks[role.name].gpu_units() for role in allocation.spec.ranks) if asks else 0


def gpu_count_of(allocation: Allocation) -> float:
    """How many GPUs its ranks ask for together, a part of one as that part; 0 for what cannot be read."""
    asks = _asks_by_role(allocation)
    return total(asks[role.name] * role.count for role in allocation.spec.ranks).gpu_count() if asks else 0.0


def gpus_by_role(allocation: Allocation) -> dict[str, int]:
    """{role: whole devices that one rank of it asks for}; empty for what cannot be read."""
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
    """The waiting ones with their places, queue by queue, first to go first."""
    counts: dict[tuple[str, str], int] = {}
    slots: dict[tuple[str, str], int] = {}
    units: dict[tuple[str, str], dict[tuple[str, str], int]] = {}
    """{queue: {unit: how many units are before it}}"""
    keyed = ((_key(each, jobs, first), each) for each in allocations if is_waiting(each))
    for key, allocation in sorted(keyed, key=lambda pair: pair[0]):
        queue = (allocation.spec.pool, allocation.spec.queue)
        ahead, slots_ahead = counts.get(queue, 0), slots.get(queue, 0)
        counts[queue], slots[queue] = ahead + 1, slots_ahead + slots_by(allocation)
        before = units.setdefault(queue, {})
        jobs_ahead = before.setdefault(_unit(allocation), len(before))
        yield QueuePlace(allocation, key, ahead, jobs_ahead, slots_ahead)


def waiting_of(allocations: Iterable[Allocation], jobs: Jobs, first: Precedence = NONE_FIRST) -> list[Waiting]:
    """The waiting ones with their places, queue by queue."""
    return [waiting_view(place, jobs) for place in places_of(allocations, jobs, first)]


def waiting_view(place: QueuePlace, jobs: Jobs) -> Waiting:
    """One of them as the REST API shows it."""
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
    """When its current attempt began to wait."""
    ring = ring_of(allocation)
    begun = [entry.time for entry in ring if entry.type in (Event.REQUESTED, Event.RESTARTED)]
    return begun[-1] if begun else ring[-1].time


def place_of(allocation: Allocation, jobs: Jobs) -> str:
    """Its place among those of its priority: its own, else its job's, else its time of creation."""
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
    """What moves as one: its job, or itself."""
    name = allocation.spec.job
    return (allocation.metadata.namespace, name) if name else ("", allocation.metadata.uid)


def priority_of(allocation: Allocation, job: Job | None) -> int:
    """What counts: the job's, when it gives one."""
    return allocation.spec.priority if job is None or job.spec.priority is None else job.spec.priority


def job_of(allocation: Allocation, jobs: Jobs) -> Job | None:
    """Its job, if it names one that exists."""
    name = allocation.spec.job
    return jobs.get((allocation.metadata.namespace, name)) if name else None
