"""Jobs: groups of allocations, their limits, and their order in the queue."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from slipway.accounting.daily_totals import KeyUsage
from slipway.api.allocations import verbs
from slipway.api.allocations.allocation_routes import first_of
from slipway.api.allocations.listing import FilterNames, check_filter_names
from slipway.api.allocations.view import allocation_view
from slipway.api.auth.middleware import (
    permit,
    permit_member,
    permit_patch,
    visible_workspaces_of,
    workspace_in_query,
    workspaces_of,
)
from slipway.api.auth.principal import PermissionCheck, Role, user_of
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http import audit
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, Query, bad_param, flag_param, json_response, location
from slipway.api.http.etags import required_version, tag_of
from slipway.api.http.problems import status_of
from slipway.api.queues import job_changes
from slipway.api.queues.job_changes import Effects
from slipway.api.queues.job_schemas import (
    BatchBody,
    BatchView,
    DayWaits,
    JobBody,
    JobChange,
    JobChanged,
    JobList,
    JobView,
    Killed,
    MoveBody,
    StatsView,
)
from slipway.api.queues.job_view import STATES, job_views, pool_stats, queue_stats
from slipway.api.schemas import DEFAULT_WORKSPACE, AllocationView, ListMetadata
from slipway.api.usage import usage_view
from slipway.api.usage.usage_routes import days_of, in_totals, spent_on
from slipway.crd.meta import ANNOTATION_USER
from slipway.crd.v1alpha1 import Allocation, Job
from slipway.errors import AlreadyExistsError
from slipway.kube.resources import JOBS
from slipway.model.lifecycle import Phase

TAG = "jobs"
ROOT = "/api/v1/jobs"
_WORKSPACE = (Query("workspace", f"workspace of the job; default: {DEFAULT_WORKSPACE}"),)


async def list_jobs(request: Request) -> Response:
    """Return the jobs in this order: running jobs, waiting jobs in the order of the queue, idle jobs."""
    parts, query = parts_of(request), request.query_params
    state = query.get("state", "")
    if state and state not in STATES:
        raise bad_param("state", f"must be one of {', '.join(STATES)}, not {state[:64]!r}")
    jobs = await job_changes.all_jobs(parts)
    workspace, queue = query.get("workspace", ""), query.get("queue", "")
    visible = await visible_workspaces_of(request, PermissionCheck("list", "jobs"))
    seen = [job for job in jobs.values() if visible.has(job.metadata.namespace)]
    wanted = [job for job in seen if workspace in ("", job.metadata.namespace)]
    allocations = await parts.seen.brief()
    views = job_views(wanted, allocations, jobs, first=await first_of(parts, allocations))
    shown = [each for each in views if state in ("", each.state) and (not queue or queue in each.queues)]
    if not shown:
        await check_filter_names(
            parts.kube, FilterNames(workspace=workspace, queue=queue), partial(workspaces_of, request)
        )
    shown.sort(key=lambda each: (-STATES.index(each.state), each.ahead, each.workspace, each.name))
    return json_response(JobList(items=shown, metadata=ListMetadata()))


async def create(request: Request) -> Response:
    """Create a job."""
    parts = parts_of(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), JobBody)
    await permit(request, PermissionCheck("create", "jobs", Role.EDITOR), body.workspace)
    await parts.catalog.check_workspace(body.workspace)
    meta = {"name": body.name, "namespace": body.workspace, "annotations": {ANNOTATION_USER: user_of(request)}}
    given = {"maxSlots": body.max_slots, "priority": body.priority}
    spec: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    spec["weight"] = body.weight
    if body.queue_position:
        spec["queuePosition"] = body.queue_position
    try:
        created = await parts.kube.create(JOBS, {"metadata": meta, "spec": spec})
    except AlreadyExistsError as error:
        raise AlreadyExistsError(f"job {body.name} exists; PATCH {ROOT}/{body.name} changes it") from error
    parts.announcer.changed()
    return await _answer(parts, created, status=201)


async def get(request: Request) -> Response:
    """Return one job with its members."""
    return await _answer(parts_of(request), await _found(request))


async def change(request: Request) -> Response:
    """Change limits, priority, weight, position, or the queue of the waiting members."""
    parts, job = parts_of(request), await _found(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), JobChange)
    version = required_version(request, job.metadata.resource_version, "job")
    if version:
        effects = await job_changes.change_job(parts, job, body, permit_patch(request), version=version)
    else:
        effects = await job_changes.change_job_now(parts, job, body, permit_patch(request))
    return await _changed(parts, effects)


async def delete(request: Request) -> Response:
    """Delete a job. Raises ConflictError while a member has not ended."""
    job = await _found(request)
    version = required_version(request, job.metadata.resource_version, "job")
    await job_changes.delete_job(parts_of(request), job, version=version)
    return Response(status_code=204)


async def kill(request: Request) -> Response:
    """Cancel all members of a job."""
    parts, job = parts_of(request), await _found(request)
    killed = await job_changes.kill_job(parts, job)
    return json_response(Killed(killed=killed), status=202 if killed else 200)


async def move(request: Request) -> Response:
    """Move a job before or behind another job or allocation."""
    parts, job = parts_of(request), await _found(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), MoveBody)
    effects = await job_changes.move(parts, job, body, permit_patch(request))
    return await _changed(parts, effects if isinstance(effects, Effects) else Effects(job=job))


async def move_allocation(request: Request) -> Response:
    """Move an allocation before or behind another allocation or a job."""
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    body = checked(await read_object(request, parts.settings.body_bytes_max), MoveBody)
    verbs.check_change(found)
    moved = await job_changes.move(parts, found, body, permit_patch(request))
    view = allocation_view(moved if isinstance(moved, Allocation) else found, outside=parts.settings.outside())
    return json_response(view, headers={"ETag": tag_of(view.resource_version)})


async def batch(request: Request) -> Response:
    """Make many changes; a refused change does not prevent the others."""
    parts = parts_of(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), BatchBody)
    await permit_member(request)
    # The workspaces come with the changes, because an allocation may be deleted by now.
    answer, workspaces = await job_changes.batch(parts, body.updates, permit_patch(request))
    for update, item, changed_in in zip(body.updates, answer.items, workspaces, strict=True):
        is_job = isinstance(update.job, str)
        names = {"name" if is_job else "id": item.subject}
        workspace = update.workspace if is_job else changed_in
        audit.log_item(request, "change", names, workspace, 200 if item.ok else status_of(item.code))
    return json_response(answer)


async def stats(request: Request) -> Response:
    """Return what waits and runs in each queue and pool, and how long admitted allocations had waited, by day."""
    parts, now = parts_of(request), parts_of(request).clock.now()
    with_days, days = flag_param(request, "days", default=True), days_of(request, now)
    # Ended allocations are needed for the days only, and there may be a hundred times as many as live ones.
    allocations = await parts.seen.brief() if with_days else await parts.seen.live()
    live = [each for each in allocations if each.status.phase is not Phase.TERMINATED]
    pool = request.query_params.get("pool", "")
    live = [each for each in live if pool in ("", each.spec.pool)]
    spent = await spent_on(request, days, allocations) if with_days else []
    spent = [each for each in spent if pool in ("", each.key[2])]
    if not live and not spent:
        remembered = in_totals(request, await visible_workspaces_of(request))
        await check_filter_names(parts.kube, FilterNames(pool=pool), partial(workspaces_of, request), remembered)
    queues = queue_stats(live, now, units_by=parts.seen.gpu_units_of)
    return json_response(StatsView(queues=queues, pools=pool_stats(queues), days=_waits(spent)))


def _waits(spent: Iterable[KeyUsage]) -> list[DayWaits]:
    rows = usage_view.grouped(spent, ("day", "pool", "queue"))
    return [
        DayWaits(
            day=row.by["day"],
            pool=row.by["pool"],
            queue=row.by["queue"],
            admitted=row.admitted,
            queued_seconds=row.waited_seconds,
            average_queued_seconds=round(row.waited_seconds / row.admitted, 3),
        )
        for row in rows
        if row.admitted
    ]


async def _found(request: Request) -> Job:
    workspace = workspace_in_query(request)
    return await job_changes.find_job(parts_of(request), request.path_params["name"], workspace)


async def _view(parts: ApiDeps, job: Job) -> JobView:
    jobs = {**await job_changes.all_jobs(parts), (job.metadata.namespace, job.metadata.name): job}
    allocations = await parts.seen.brief()
    first = await first_of(parts, allocations)
    (view,) = job_views([job], allocations, jobs, first=first, with_members=True)
    return view


async def _answer(parts: ApiDeps, job: Job, *, status: int = 200) -> Response:
    view = await _view(parts, job)
    headers = {"ETag": tag_of(view.resource_version), "Location": location(f"{ROOT}/{view.name}", view.workspace)}
    return json_response(view, status=status, headers=headers)


async def _changed(parts: ApiDeps, effects: Effects) -> Response:
    view = await _view(parts, effects.job)
    answer = JobChanged(job=view, preempted=list(effects.preempted), unchanged=list(effects.unchanged))
    return json_response(answer, headers={"ETag": tag_of(view.resource_version)})


ENDPOINTS = (
    Endpoint(
        method="GET",
        path=ROOT,
        handler=list_jobs,
        summary="List the jobs, with their places in the queue",
        tag=TAG,
        query=(
            Query("workspace", "only jobs of this workspace"),
            Query("queue", "only jobs with allocations in this queue"),
            Query("state", f"only jobs in this state, one of {', '.join(STATES)}"),
        ),
        answer=JobList,
    ),
    Endpoint(
        method="POST",
        path=ROOT,
        handler=create,
        summary="Create a job",
        tag=TAG,
        body=JobBody,
        answer=JobView,
        status=201,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/batch",
        handler=batch,
        summary="Change many jobs and allocations; a refused change does not stop the others",
        tag=TAG,
        body=BatchBody,
        answer=BatchView,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/{{name}}",
        handler=get,
        summary="Show a job with its allocations",
        tag=TAG,
        query=_WORKSPACE,
        answer=JobView,
    ),
    Endpoint(
        method="PATCH",
        path=f"{ROOT}/{{name}}",
        handler=change,
        summary="Change the limit of GPUs, priority, weight, place or queue of a job",
        tag=TAG,
        query=_WORKSPACE,
        body=JobChange,
        answer=JobChanged,
        has_condition=True,
    ),
    Endpoint(
        method="DELETE",
        path=f"{ROOT}/{{name}}",
        handler=delete,
        summary="Delete a job that no allocation uses",
        tag=TAG,
        has_condition=True,
        query=_WORKSPACE,
        status=204,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/{{name}}/move",
        handler=move,
        summary="Move a job ahead of or behind another job or allocation",
        tag=TAG,
        query=_WORKSPACE,
        body=MoveBody,
        answer=JobChanged,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/{{name}}/kill",
        handler=kill,
        summary="Cancel every allocation of a job",
        tag=TAG,
        query=_WORKSPACE,
        answer=Killed,
        status=202,
        also={200: (Killed,)},
    ),
    Endpoint(
        method="POST",
        path="/api/v1/allocations/{id}/move",
        handler=move_allocation,
        summary="Move an allocation ahead of or behind another allocation or job",
        tag="allocations",
        body=MoveBody,
        answer=AllocationView,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/queue-stats",
        handler=stats,
        summary="Count the waiting and running allocations per queue and pool, and their waiting times",
        tag="cluster",
        query=(
            Query("pool", "only queues of this pool"),
            Query("from", "first day of the waiting times (UTC); default: 30 days ago"),
            Query("to", "last day, inclusive; default: today"),
            Query(
                "days", "false: without the waiting times of past days, which is much faster; default: true", "boolean"
            ),
        ),
        answer=StatsView,
    ),
)
