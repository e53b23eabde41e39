"""Changes of jobs and of queue positions, one or many at once.

Owns the effect of a change on running allocations. A change here never ends a running allocation that cannot be
preempted: such a change is refused, and the error names the allocations. Every write of a job carries its
resourceVersion and uid.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from slipway.api.allocations.changes import check_queue_change, has_ended
from slipway.api.deps import ApiDeps
from slipway.api.http.errors import ConflictError, MalformedError, PreconditionError
from slipway.api.http.etags import held_to
from slipway.api.http.problems import row_of
from slipway.api.queues.job_schemas import BatchView, JobChange, MoveBody, QueueUpdate, Updated
from slipway.api.queues.job_view import has_place
from slipway.api.queues.queue_position import Subject, members_of, name_of, place_beside
from slipway.api.queues.queue_view import is_waiting, priority_of
from slipway.crd.transitions import id_of, stop_reason
from slipway.crd.v1alpha1 import Allocation, Job, JobSpec, Queue
from slipway.errors import ControlPlaneError, FieldError, InvariantError, NotFoundError, StaleError
from slipway.kube.resources import ALLOCATIONS, JOBS
from slipway.model.lifecycle import Phase

NAMED_MAX = 5
TRIES_MAX = 4
"""Limit of tries of a change that conflicts with concurrent changes of the same object."""
WHY_PREEMPTED = "the priority of its job has changed"


Permit = Callable[[str, str], Awaitable[None]]
"""Checks `patch` on a kind of resource in a workspace. Raises when the caller does not have the permission."""


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """A changed job, and the effect of the change on its members: ids, and sentences about unchanged members."""

    job: Job
    preempted: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()


async def change_job(parts: ApiDeps, job: Job, change: JobChange, permit: Permit, *, version: str = "") -> Effects:
    """Change a job. `permit` is called first when members change too, because they move or have to restart.

    Raises:
        ForbiddenError: members would change, and the caller may not change allocations there.
        ConflictError: a member would have to restart, but runs and cannot be preempted.
        InvalidError: the queue does not exist, or members could move, and none of them is in its pool.
    """
    fields = _fields(change)
    members = await _members(parts, job)
    queue = await _queue_of(parts, members, change.queue) if isinstance(change.queue, str) else None
    after = _after(job.spec, fields)
    moved = _running_at_another_priority(members, job, after) if change.interrupt else []
    fixed = [each for each in moved if not each.spec.preemptible]
    if fixed:
        raise ConflictError(
            f"{_named(fixed)} of job {job.metadata.name} runs and cannot be preempted, and a new priority would "
            "restart it; wait until it ends, or apply the priority from its next attempt on: interrupt: false "
            "(--no-interrupt)"
        )
    if queue is not None or moved:
        await permit("allocations", job.metadata.namespace)
    if fields:
        job = await _write(parts, job, fields, version=version)
    unchanged = await _to_queue(parts, members, queue) if queue is not None else []
    for each in moved:
        await parts.changes.preempt(each, WHY_PREEMPTED, requeue=True)
    return Effects(job=job, preempted=tuple(map(id_of, moved)), unchanged=tuple(unchanged))


async def delete_job(parts: ApiDeps, job: Job, *, version: str = "") -> None:
    """Delete a job. With `version`, it is deleted only while it has this version.

    Raises:
        ConflictError: a member has not ended.
        PreconditionError: the job has another version by now.
    """
    members = await _members(parts, job)
    if members:
        raise ConflictError(
            f"job {job.metadata.name} is in use by {_named(members)}, which would lose its limits; kill them "
            f"first: POST /api/v1/jobs/{job.metadata.name}/kill, slipway job kill {job.metadata.name}"
        )
    meta = job.metadata
    with held_to(version, name_of(job)):
        await parts.kube.delete(
            JOBS, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=version or None
        )
    parts.announcer.changed()


async def kill_job(parts: ApiDeps, job: Job) -> list[str]:
    """Cancel all members of a job. Return the ids of the members that had not ended."""
    members = await _members(parts, job)
    for each in members:
        await parts.changes.kill(each)
    return [id_of(each) for each in members]


async def change_job_now(parts: ApiDeps, job: Job, change: JobChange, permit: Permit) -> Effects:
    """Change a job, and retry when another writer changes the job at the same moment."""
    for _ in range(TRIES_MAX - 1):
        try:
            return await change_job(parts, job, change, permit)
        except PreconditionError:
            job = await find_job(parts, job.metadata.name, job.metadata.namespace)
    return await change_job(parts, job, change, permit)


async def move(parts: ApiDeps, subject: Subject, body: MoveBody, permit: Permit) -> Effects | Allocation:
    """Move a subject directly before or behind another; nothing is written when it is already there.

    The move is retried when another writer changes the subject at the same moment.
    """
    for _ in range(TRIES_MAX - 1):
        try:
            return await _move(parts, subject, body, permit)
        except PreconditionError:
            meta = subject.metadata
            if isinstance(subject, Job):
                subject = await find_job(parts, meta.name, meta.namespace)
            else:
                subject = await parts.lookup.reload(subject)
    return await _move(parts, subject, body, permit)


async def _move(parts: ApiDeps, subject: Subject, body: MoveBody, permit: Permit) -> Effects | Allocation:
    ahead = isinstance(body.ahead_of, str)
    target = body.ahead_of if ahead else body.behind
    if not isinstance(target, str) or (ahead and isinstance(body.behind, str)):
        raise MalformedError(
            "set one of aheadOf and behind",
            fields=(FieldError("/aheadOf", "set one of aheadOf and behind: a job, or the id of an allocation"),),
        )
    anchor = await find_anchor(parts, target, subject.metadata.namespace)
    pending = [each for each in await parts.seen.live() if each.status.phase is Phase.PENDING]
    jobs = await all_jobs(parts)
    place = place_beside(subject, anchor, pending, jobs, ahead=ahead)
    if isinstance(subject, Job):
        if place is None:
            return Effects(job=subject)
        priority = msgspec.UNSET if place.priority is None else place.priority
        change = JobChange(queue_position=place.position, priority=priority, interrupt=body.interrupt)
        return await change_job(parts, subject, change, permit)
    if place is None:
        return subject
    fields: dict[str, Any] = {"queuePosition": place.position}
    if place.priority is not None:
        job = jobs.get((subject.metadata.namespace, subject.spec.job)) if subject.spec.job else None
        if job is not None and job.spec.priority is not None:
            raise ConflictError(f"job {job.metadata.name} gives it priority {job.spec.priority}; move the job instead")
        fields["priority"] = place.priority
    return await parts.changes.write(subject, fields, version=subject.metadata.resource_version)


async def batch(parts: ApiDeps, updates: Iterable[QueueUpdate], permit: Permit) -> tuple[BatchView, list[str]]:
    """Make every update in order; a refused update does not stop the others. `permit` is called for each.

    Return (the outcomes, the workspace of each subject that was changed; empty for a refused update).
    """
    tried = [await _tried(parts, number, update, permit) for number, update in enumerate(updates)]
    items = [item for item, _ in tried]
    failed = [item for item in items if not item.ok]
    view = BatchView(
        items=items, failed=len(failed), error="; ".join(f"{item.subject}: {item.error}" for item in failed)
    )
    return view, [workspace for _, workspace in tried]


async def find_job(parts: ApiDeps, name: str, workspace: str) -> Job:
    """Return the job. Raises NotFoundError, with the path of the list."""
    try:
        return await parts.kube.get(JOBS, name, namespace=workspace)
    except NotFoundError as error:
        detail = f"there is no job {name[:80]!r} in workspace {workspace[:80]}; GET /api/v1/jobs lists them"
        raise NotFoundError(detail) from error


async def find_anchor(parts: ApiDeps, text: str, workspace: str) -> Subject:
    """Return the target of a move: `workspace/job`, a job of the same workspace, or an allocation."""
    if "/" in text:
        where, _, name = text.partition("/")
        return await find_job(parts, name, where)
    try:
        return await find_job(parts, text, workspace)
    except NotFoundError:
        pass
    try:
        return await parts.lookup.find(text)
    except NotFoundError as error:
        raise NotFoundError(f"there is no job or allocation {text[:80]!r} to move next to") from error


async def all_jobs(parts: ApiDeps) -> dict[tuple[str, str], Job]:
    """Return the jobs of all workspaces, which the order of queues needs."""
    listed = await parts.whole.list(JOBS)
    return {(job.metadata.namespace, job.metadata.name): job for job in listed.items}


async def _tried(parts: ApiDeps, number: int, update: QueueUpdate, permit: Permit) -> tuple[Updated, str]:
    is_job = isinstance(update.job, str)
    subject = str(update.job if is_job else update.allocation)
    try:
        if is_job == isinstance(update.allocation, str):
            subject = f"update {number}"
            raise MalformedError("set one of job and allocation")
        make = _update_job if is_job else _update_allocation
        workspace = await make(parts, update, permit)
    except InvariantError:
        raise
    except ControlPlaneError as error:
        return Updated(subject=subject, ok=False, error=str(error), code=row_of(error).code), ""
    return Updated(subject=subject, ok=True), workspace


async def _update_job(parts: ApiDeps, update: QueueUpdate, permit: Permit) -> str:
    """Make the update and return the workspace of the job."""
    await permit("jobs", update.workspace)
    job = await find_job(parts, str(update.job), update.workspace)
    change = JobChange(
        max_slots=update.max_slots,
        priority=update.priority,
        weight=update.weight,
        queue=update.queue,
        interrupt=update.interrupt,
    )
    changes = msgspec.to_builtins(change).keys() - {"interrupt"}
    if changes:
        job = (await change_job_now(parts, job, change, permit)).job
    await _maybe_move(parts, job, update, permit, is_changed=bool(changes))
    return update.workspace


async def _update_allocation(parts: ApiDeps, update: QueueUpdate, permit: Permit) -> str:
    """Make the update and return the workspace of the allocation."""
    if isinstance(update.weight, int) or update.max_slots is not msgspec.UNSET:
        raise MalformedError("only jobs have weight and maxSlots, not allocations")
    found = await parts.lookup.find(str(update.allocation))
    await permit("allocations", found.metadata.namespace)
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; nothing of it can change")
    given = {"priority": update.priority, "queue": update.queue}
    fields = {name: value for name, value in given.items() if value is not msgspec.UNSET}
    if fields:
        await check_queue_change(parts.catalog, found, fields)
        found = await parts.changes.write(found, fields)
    await _maybe_move(parts, found, update, permit, is_changed=bool(fields))
    return found.metadata.namespace


async def _maybe_move(
    parts: ApiDeps, subject: Subject, update: QueueUpdate, permit: Permit, *, is_changed: bool
) -> None:
    body = MoveBody(ahead_of=update.ahead_of, behind=update.behind, interrupt=update.interrupt)
    if isinstance(body.ahead_of, str) or isinstance(body.behind, str):
        await move(parts, subject, body, permit)
    elif not is_changed:
        raise MalformedError("empty patch: set at least one of priority, queue, maxSlots, weight, aheadOf, behind")


def _fields(change: JobChange) -> dict[str, Any]:
    """Return the fields to write to the job's spec."""
    found: dict[str, Any] = msgspec.to_builtins(change)
    return {name: value for name, value in found.items() if name not in ("queue", "interrupt")}


def _after(spec: JobSpec, fields: Mapping[str, Any]) -> JobSpec:
    kept = {name: value for name, value in {**msgspec.to_builtins(spec), **fields}.items() if value is not None}
    return msgspec.convert(kept, JobSpec)


async def _members(parts: ApiDeps, job: Job) -> list[Allocation]:
    """Return the members that have not ended."""
    listed = await parts.kube.list(
        ALLOCATIONS, namespace=job.metadata.namespace, field_selector=f"status.phase!={Phase.TERMINATED}"
    )
    return members_of(job, listed.items)


def _running_at_another_priority(members: Iterable[Allocation], job: Job, after: JobSpec) -> list[Allocation]:
    changed = msgspec.structs.replace(job, spec=after)
    return [
        each
        for each in members
        if has_place(each) and stop_reason(each) is None and priority_of(each, job) != priority_of(each, changed)
    ]


async def _queue_of(parts: ApiDeps, members: Iterable[Allocation], name: str) -> Queue:
    """Return the queue. Raises InvalidError at `/queue` if members could move, and none of them is in its pool."""
    queue = await parts.catalog.queue(name)
    pools = sorted({each.spec.pool for each in members if _may_move(each)})
    if pools and queue.spec.pool not in pools:
        await parts.catalog.check_queue(name, pools[0])
    return queue


async def _to_queue(parts: ApiDeps, members: Iterable[Allocation], queue: Queue) -> list[str]:
    """Move the waiting members that were never admitted and are in the queue's pool. Return why each other stays."""
    stays: list[str] = []
    name = queue.metadata.name
    for each in members:
        if each.spec.queue == name:
            continue
        if not _may_move(each):
            stays.append(f"{id_of(each)} was admitted in queue {each.spec.queue} and stays there")
            continue
        if each.spec.pool != queue.spec.pool:
            stays.append(f"{id_of(each)} is of pool {each.spec.pool}; queue {name} belongs to pool {queue.spec.pool}")
            continue
        await _attempt(stays, each, lambda one=each: parts.changes.write(one, {"queue": name}))
    return stays


def _may_move(member: Allocation) -> bool:
    return is_waiting(member) and member.status.admission is None


async def _attempt(stays: list[str], member: Allocation, write: Callable[[], Awaitable[Allocation]]) -> None:
    try:
        await write()
    except (NotFoundError, StaleError) as error:
        stays.append(f"{id_of(member)}: {error}")


async def _write(parts: ApiDeps, job: Job, fields: Mapping[str, Any], *, version: str) -> Job:
    meta = job.metadata
    patch = {"metadata": {"uid": meta.uid, "resourceVersion": version or meta.resource_version}, "spec": dict(fields)}
    try:
        changed = await parts.kube.patch(JOBS, meta.name, patch, namespace=meta.namespace)
    except StaleError as error:
        raise PreconditionError(
            f"{name_of(job)} has changed since it was read; GET it again and decide again"
        ) from error
    parts.announcer.changed()
    return changed


def _named(allocations: Iterable[Allocation]) -> str:
    ids = [id_of(each) for each in allocations]
    more = f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else ""
    return ", ".join(ids[:NAMED_MAX]) + more
