"""Jobs as the REST API shows them: state, members, and positions in the queue. Pure."""

from collections.abc import Iterable, Sequence

from slipway.api.allocations.view import shown
from slipway.api.queues.job_schemas import JobView, Member, QueueStats
from slipway.api.queues.queue_view import (
    NONE_FIRST,
    Jobs,
    Precedence,
    UnitsBy,
    gpu_units_of,
    is_waiting,
    slots_of,
    waiting_of,
    waiting_since,
)
from slipway.api.schemas import Waiting
from slipway.crd.transitions import id_of, is_admitted
from slipway.crd.v1alpha1 import Allocation, Job
from slipway.model.lifecycle import Phase, has_reached
from slipway.model.mig import whole_gpus
from slipway.model.state_words import JOB_STATE_OF, JobState
from slipway.model.times import parse_time

STATES = tuple(JobState)


def job_views(
    wanted: Iterable[Job],
    allocations: Sequence[Allocation],
    jobs: Jobs,
    *,
    first: Precedence = NONE_FIRST,
    with_members: bool = False,
) -> list[JobView]:
    """Return the views of the jobs in `wanted`.

    `allocations` are all allocations, or all that have not ended; `jobs` are all jobs, which order them.
    """
    waiting = {each.id: each for each in waiting_of(allocations, jobs, first)}
    members: dict[tuple[str, str], list[Allocation]] = {}
    for each in allocations:
        if each.spec.job:
            members.setdefault((each.metadata.namespace, each.spec.job), []).append(each)
    return [
        _view(job, members.get((job.metadata.namespace, job.metadata.name), []), waiting, with_members=with_members)
        for job in wanted
    ]


def has_place(allocation: Allocation) -> bool:
    """Whether the allocation is admitted and has not ended."""
    return is_admitted(allocation) and allocation.status.phase is not Phase.TERMINATED


def _view(job: Job, members: list[Allocation], waiting: dict[str, Waiting], *, with_members: bool) -> JobView:
    meta, spec = job.metadata, job.spec
    queued = sorted((waiting[id_of(each)] for each in members if id_of(each) in waiting), key=lambda one: one.ahead)
    first = queued[0] if queued else None
    live = [each for each in members if has_place(each)]
    open_ones = [each for each in members if each.status.phase is not Phase.TERMINATED]
    return JobView(
        name=meta.name,
        workspace=meta.namespace,
        state=_state(members),
        queues=sorted({each.spec.queue for each in open_ones}),
        position=first.position if first else 0,
        ahead=first.ahead if first else 0,
        jobs_ahead=first.jobs_ahead if first else 0,
        pending=len(queued),
        live=len(live),
        ended=len(members) - len(open_ones),
        slots_in_use=sum(map(slots_of, live)),
        max_slots=spec.max_slots,
        priority=spec.priority,
        weight=spec.weight,
        place=spec.queue_position,
        created_at=meta.creation_timestamp or "",
        resource_version=meta.resource_version,
        spec=shown(spec),
        members=[_member(each, waiting.get(id_of(each))) for each in _sorted(members)] if with_members else [],
    )


def _state(members: Iterable[Allocation]) -> JobState:
    # A member that was cancelled before its admission neither waits nor runs, so it does not matter here.
    counted = (each for each in members if is_waiting(each) or has_place(each))
    return max((JOB_STATE_OF[each.status.phase] for each in counted), key=STATES.index, default=JobState.IDLE)


def _sorted(members: Iterable[Allocation]) -> list[Allocation]:
    return sorted(members, key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name))


def _member(allocation: Allocation, waits: Waiting | None) -> Member:
    status, spec = allocation.status, allocation.spec
    return Member(
        id=id_of(allocation),
        kind=spec.kind,
        phase=status.phase,
        queue=spec.queue,
        # An ended allocation is cached without its requests, so its slots are those that it had.
        slots=status.slots if status.phase is Phase.TERMINATED else slots_of(allocation),
        preemptible=spec.preemptible,
        position=waits.position if waits else 0,
        ahead=waits.ahead if waits else 0,
        code=waits.code if waits else "",
        message=waits.message if waits else "",
        result=status.result.value if status.result else "",
    )


def queue_stats(live: Iterable[Allocation], now: float, *, units_by: UnitsBy = gpu_units_of) -> list[QueueStats]:
    """Return the waiting and running allocations, by queue of each pool."""
    groups: dict[tuple[str, str], list[Allocation]] = {}
    for each in live:
        groups.setdefault((each.spec.pool, each.spec.queue), []).append(each)
    return [_stats(pool, queue, members, now, units_by) for (pool, queue), members in sorted(groups.items())]


def pool_stats(queues: Iterable[QueueStats]) -> list[QueueStats]:
    """Return the sums over the queues of each pool."""

    pools: dict[str, list[QueueStats]] = {}
    for each in queues:
        pools.setdefault(each.pool, []).append(each)
    return [
        QueueStats(
            pool=pool,
            queue="",
            queued=sum(each.queued for each in own),
            scheduled=sum(each.scheduled for each in own),
            running=sum(each.running for each in own),
            slots_queued=sum(each.slots_queued for each in own),
            slots_in_use=sum(each.slots_in_use for each in own),
            oldest_s=max(each.oldest_s for each in own),
        )
        for pool, own in sorted(pools.items())
    ]


def _stats(pool: str, queue: str, members: list[Allocation], now: float, units_by: UnitsBy) -> QueueStats:
    waiting = [each for each in members if is_waiting(each)]
    placed = [each for each in members if has_place(each)]
    running = [each for each in placed if has_reached(each.status.phase, Phase.RUNNING)]
    since = [parse_time(time) for each in waiting if (time := waiting_since(each))]
    return QueueStats(
        pool=pool,
        queue=queue,
        queued=len(waiting),
        scheduled=len(placed) - len(running),
        running=len(running),
        slots_queued=whole_gpus(sum(map(units_by, waiting))),
        slots_in_use=whole_gpus(sum(map(units_by, placed))),
        oldest_s=round(max(0.0, now - min(since)), 3) if since else 0.0,
    )
