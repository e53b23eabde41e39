"""Routes of one allocation: read, change, kill, explain, and its timeline, trace and pods."""

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations import verbs
from slipway.api.allocations.change_schemas import ChangeBody, KillBody
from slipway.api.allocations.changes import check_limits, check_queue_change, has_ended, is_beyond_queue, queue_limit
from slipway.api.allocations.explain import Seen, explain, is_watched
from slipway.api.allocations.forecast import forecast_of
from slipway.api.allocations.holders import holders, waits_for_others
from slipway.api.allocations.view import allocation_path, allocation_view, pod_view, timeline
from slipway.api.auth.middleware import visible_workspaces_of
from slipway.api.auth.principal import LIMITS, VisibleWorkspaces, principal_of
from slipway.api.cluster.cluster_view import is_node_ready, is_node_silent
from slipway.api.cluster.seen_nodes import nodes_now
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http.decoding import checked, read_object
from slipway.api.http.endpoint import Endpoint, Query, flag_param, json_response
from slipway.api.http.errors import ConflictError
from slipway.api.http.etags import is_known, required_version, tag_of
from slipway.api.http.streaming import holder_of
from slipway.api.launch.admission import changed_work
from slipway.api.queues.queue_view import NONE_FIRST, Precedence, aged, is_waiting
from slipway.api.schemas import (
    AllocationView,
    ExplainView,
    Items,
    PodView,
    PreemptBody,
    PriorityBody,
    TimelineView,
    TraceSpan,
    TraceView,
)
from slipway.api.usage.fair_share_view import turn_sentence
from slipway.api.usage.past_usage import gpus_by_user, levels, levels_of, past_use_of
from slipway.crd.meta import LABEL_ALLOCATION_UID
from slipway.crd.transitions import id_of, user_of
from slipway.crd.v1alpha1 import Allocation, Job, ResourcePool
from slipway.errors import FieldError, InvalidError, NotFoundError, TransientError
from slipway.kube.resources import JOBS, PODS, QUEUES, RESOURCE_POOLS
from slipway.kube.tracing import traceparent_of
from slipway.model.lifecycle import Kind, Phase
from slipway.model.reasons import Gate
from slipway.runtime.traceparent import parse_traceparent
from slipway.streams.ports import SpanRecord

TAG = "allocations"
ROOT = "/api/v1/allocations/{id}"
FORESEE = Query(
    "foresee",
    "true: also compute the smallest change that would let it start and the estimated start; takes longer",
    "boolean",
)
NODES_SHOWN_MAX = 4
CHANGEABLE_LIMITS = ("maxRuntime", "idleTimeout", "pendingTimeout")
WORK = frozenset({"image", "command", "args", "env", "resources"})
"""Fields that can change while the allocation is held, until it is admitted."""


async def get(request: Request, kind: Kind | None = None) -> Response:
    """Return the allocation, with its resource version as ETag."""
    found = await _found(request, kind)
    tag = tag_of(found.metadata.resource_version)
    if is_known(request, tag):
        return Response(status_code=304, headers={"ETag": tag})
    return _answer(request, found)


async def change(request: Request) -> Response:
    """Change priority, queue (before admission), position, hold or desired.

    The limits can also change while the allocation runs; the fields in `WORK` only while it is held.
    """
    parts, found = parts_of(request), await _found(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), ChangeBody)
    fields: dict[str, Any] = msgspec.to_builtins(body)
    version = required_version(request, found.metadata.resource_version, "allocation")
    if not fields:
        return _answer(request, found)
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; nothing of it can change")
    if given := {name: fields[name] for name in CHANGEABLE_LIMITS if name in fields}:
        check_limits(given, await parts.catalog.pool(found.spec.pool))
    if (asked := fields.get("maxRuntime")) and await is_beyond_queue(parts.catalog, found, asked):
        await _permit_beyond_queue(request, found)
        fields["maxRuntimeOverride"] = asked
    await check_queue_change(parts.catalog, found, fields)
    if work := WORK.intersection(fields):
        others = {name: value for name, value in fields.items() if name not in work}
        pool = await parts.catalog.pool(found.spec.pool)
        changed = await parts.changes.rework(
            found, lambda now: {**changed_work(now, body, pool), **others}, version=version
        )
        return _answer(request, changed)
    return _answer(request, await parts.changes.write(found, fields, version=version))


async def _permit_beyond_queue(request: Request, found: Allocation) -> None:
    """Raise InvalidError at `/maxRuntime` unless the caller is an administrator."""
    if await principal_of(request).may(LIMITS, found.metadata.namespace):
        return
    limit = found.spec.max_runtime_override or await queue_limit(parts_of(request).catalog, found)
    detail = f"queue {found.spec.queue} permits at most {limit}; ask for less, or ask an administrator for more"
    raise InvalidError(f"maxRuntime: {detail}", fields=(FieldError("/maxRuntime", detail),))


async def delete(request: Request) -> Response:
    """Delete the object, which cancels the workload. Answers 202; the object disappears after the teardown."""
    parts, found = parts_of(request), await _found(request)
    await parts.changes.delete(found, version=required_version(request, found.metadata.resource_version, "allocation"))
    try:
        return _answer(request, await parts.lookup.reload(found), status=202)
    except NotFoundError:
        return _answer(request, found, status=202)


async def kill(request: Request, kind: Kind | None = None) -> Response:
    """Cancel the allocation; a second kill, or `force`, ends the grace period of the pods.

    Answers 200 if it has already ended.
    """
    parts, found = parts_of(request), await _found(request, kind)
    body = checked(await read_object(request, parts.settings.body_bytes_max), KillBody)
    grace_s = verbs.grace_of(body.grace)
    if has_ended(found):
        return _answer(request, found)
    return _answer(request, await verbs.kill(parts, found, grace_s=grace_s, force=body.force), status=202)


async def set_priority(request: Request, kind: Kind | None = None) -> Response:
    """Change the priority."""
    parts, found = parts_of(request), await _found(request, kind)
    body = checked(await read_object(request, parts.settings.body_bytes_max), PriorityBody)
    verbs.check_change(found)
    return _answer(request, await parts.changes.write(found, {"priority": body.priority}))


async def preempt(request: Request) -> Response:
    """Signal every rank to save its work and end."""
    parts, found = parts_of(request), await _found(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), PreemptBody)
    return _answer(request, await parts.changes.preempt(found, body.reason or "asked for by a user"), status=202)


async def terminate(request: Request) -> Response:
    """End the allocation: preempt it if it is preemptible and ready, else kill it.

    Answers 200 if it has already ended.
    """
    parts, found = parts_of(request), await _found(request)
    body = checked(await read_object(request, parts.settings.body_bytes_max), PreemptBody)
    if has_ended(found):
        return _answer(request, found)
    return _answer(request, await parts.changes.terminate(found, body.reason or "terminated by a user"), status=202)


async def hold(request: Request) -> Response:
    """Hold the allocation. A running allocation is preempted and held, if its kind can be paused."""
    parts, found = parts_of(request), await _found(request)
    verbs.check_hold(found)
    return _answer(request, await verbs.hold(parts, found))


async def forget(request: Request) -> Response:
    """Mark the ranks on nodes that do not answer as lost: for an admin who knows that those machines are off."""
    parts, found = parts_of(request), await _found(request)
    if has_ended(found):
        raise ConflictError(f"allocation {id_of(found)} has ended; there is nothing to forget")
    on = verbs.occupied_nodes(found)
    silent = await nodes_now(parts.kube, on, lambda node: not is_node_ready(node))
    if not silent:
        where = f" ({', '.join(sorted(on)[:NODES_SHOWN_MAX])})" if on else ""
        raise ConflictError(
            f"every node that allocation {id_of(found)} is on{where} answers: none of its ranks is lost; to "
            "end it, kill it"
        )
    return _answer(request, await parts.changes.forget(found, silent), status=202)


async def resume(request: Request) -> Response:
    """Undo a hold: the allocation can start again."""
    parts, found = parts_of(request), await _found(request)
    verbs.check_resume(found)
    return _answer(request, await verbs.resume(parts, found))


async def explained(request: Request) -> Response:
    """Explain the allocation's state: why it waits, or what it does now."""
    parts, found = parts_of(request), await _found(request)
    parts.seen.saw(found)
    pending, jobs = await pending_of(parts, found.spec.pool)
    first = await first_of(parts, pending)
    seen = await _seen(parts, found) if is_watched(found) else None
    missing = await _missing_pool(parts, found.spec.pool)
    silent = await _silent_nodes(parts, verbs.occupied_nodes(found))
    now = parts.clock.now()
    view = explain(found, pending, jobs, first=first, seen=seen, silent_nodes=silent, now=now, missing_pool=missing)
    visible = await visible_workspaces_of(request)
    if waits_for_others(view.code, view.message):
        live, parents = await live_of(parts, found.spec.pool), await _parents_of_queues(parts, view.code)
        held, more = holders(found, view.code, live, visible.has, message=view.message, parents=parents)
        view = msgspec.structs.replace(view, holders=held, others_holding=more)
    if not visible.is_whole:
        own = {id_of(each) for each in pending if visible.has(each.metadata.namespace)}
        view = msgspec.structs.replace(view, jobs_ahead=[each for each in view.jobs_ahead if each in own])
    if is_waiting(found):
        view = msgspec.structs.replace(view, fair_share=await _turn(parts, found, pending, visible))
    if flag_param(request, FORESEE.name):
        view = msgspec.structs.replace(
            view, foreseen=await forecast_of(parts.simulator, parts.seen, found, user=holder_of(request).user)
        )
    return json_response(view)


async def _turn(parts: ApiDeps, found: Allocation, pending: Sequence[Allocation], visible: VisibleWorkspaces) -> str:
    """Return the sentence about the order of users by fair share; empty when the pool counts no past use.

    The sentence names other users, so it is empty for a caller who may not see all workspaces.
    """
    pool = await _pool_that_counts(parts, found.spec.pool)
    if pool is None or not visible.is_whole:
        return ""
    try:
        queue = await parts.kube.get(QUEUES, found.spec.queue)
    except NotFoundError:
        return ""
    name = queue.metadata.name
    used = (await past_use_of(parts, pool)).get(name, {})
    held = gpus_by_user(await live_of(parts, found.spec.pool)).get(name, {})
    others = {user_of(each) for each in pending if each.spec.queue == name and is_waiting(each)}
    return turn_sentence(user_of(found), others, queue, pool, used=used, levels=levels(used, held))


async def _pool_that_counts(parts: ApiDeps, name: str) -> ResourcePool | None:
    """Return the pool if it counts past use; None if it does not, or does not exist."""
    try:
        pool = await parts.catalog.pool(name)
    except InvalidError:
        return None
    return pool if pool.spec.fair_share is not None else None


async def _parents_of_queues(parts: ApiDeps, code: str) -> dict[str, str]:
    """Return {queue: its parent queue} for an allocation that waits for quota; empty for other codes."""
    if code != Gate.WAITING_FOR_QUOTA:
        return {}
    return {each.metadata.name: each.spec.parent or "" for each in (await parts.kube.list(QUEUES)).items}


async def _missing_pool(parts: ApiDeps, name: str) -> str:
    """Return the error that the pool does not exist, with the names of the pools; empty when the pool exists."""
    try:
        await parts.catalog.pool(name)
    except InvalidError as error:
        return error.fields[0].detail
    return ""


async def timed(request: Request) -> Response:
    """Return the time that the allocation spent in each phase."""
    parts, found = parts_of(request), await _found(request)
    events = await parts.event_feed.page(found)
    return json_response(timeline(id_of(found), events, parts.clock.now()))


async def traced(request: Request) -> Response:
    """Return the spans of the allocation, for a waterfall; none while Redis is unavailable."""
    parts, found = parts_of(request), await _found(request)
    trace = traceparent_of(found.metadata)
    ref = parse_traceparent(trace)
    warnings: list[str] = []
    try:
        spans = await parts.traces.read(id_of(found))
    except TransientError:
        spans, warnings = [], ["the spans are kept in Redis, which cannot be reached"]
    return json_response(
        TraceView(
            id=id_of(found),
            trace_id=f"{ref.trace_id:032x}" if ref else "",
            spans=[_span(span) for span in sorted(spans, key=lambda span: span.start_ns)],
            warnings=warnings,
        )
    )


async def pods(request: Request) -> Response:
    """Return the pods of the allocation, as they are in the cluster now."""
    parts, found = parts_of(request), await _found(request)
    selector = f"{LABEL_ALLOCATION_UID}={found.metadata.uid}"
    listed = await parts.kube.list(PODS, namespace=found.metadata.namespace, label_selector=selector)
    states = {rank.pod_uid: rank.phase for rank in found.status.ranks or ()}
    views = [pod_view(pod, states.get(pod.metadata.uid)) for pod in listed.items]
    return json_response(Items(items=sorted(views, key=lambda view: (view.attempt, view.rank))))


async def pending_of(
    parts: ApiDeps, pool: str, live: Sequence[Allocation] | None = None
) -> tuple[list[Allocation], dict[tuple[str, str], Job]]:
    """Return (the pending allocations of a pool, the jobs that order them).

    `live` are all allocations that have not ended, if the caller has just listed them.
    """
    if live is None:
        live = await parts.seen.live()
    pending = [each for each in live if each.status.phase is Phase.PENDING and each.spec.pool == pool]
    if not any(each.spec.job for each in pending):
        return pending, {}
    jobs = await parts.whole.list(JOBS)
    return pending, {(job.metadata.namespace, job.metadata.name): job for job in jobs.items}


async def live_of(parts: ApiDeps, pool: str) -> list[Allocation]:
    """Return the started, not ended allocations of a pool in all workspaces; the caller has to filter what it shows."""
    return [
        each for each in await parts.seen.live() if each.status.phase is not Phase.PENDING and each.spec.pool == pool
    ]


async def first_of(parts: ApiDeps, pending: Sequence[Allocation]) -> Precedence:
    """Return which pending allocations go first by their age, and the past use of users in pools that count it."""
    if not pending:
        return NONE_FIRST
    names = {each.spec.pool for each in pending}
    pools = [pool for pool in (await parts.kube.list(RESOURCE_POOLS)).items if pool.metadata.name in names]
    first = aged(pending, pools, parts.clock.now())
    return first._replace(levels=await levels_of(parts, pools))


async def _seen(parts: ApiDeps, allocation: Allocation) -> Seen | None:
    """Return when the allocation was last in use, by source; None while Redis is unavailable."""
    try:
        (times,) = await parts.activity.read([id_of(allocation)])
    except TransientError:
        return None
    return times


async def _silent_nodes(parts: ApiDeps, names: set[str]) -> set[str]:
    """Return those of the named nodes that do not answer."""
    found = await parts.nodes.items() if names else []
    return {node.metadata.name for node in found if node.metadata.name in names and is_node_silent(node)}


async def _found(request: Request, kind: Kind | None = None) -> Allocation:
    given = request.path_params["id"]
    found = await parts_of(request).lookup.find(given)
    if kind is not None and found.spec.kind is not kind:
        where = allocation_path(id_of(found))
        raise NotFoundError(f"{id_of(found)} is a {found.spec.kind}, not a {kind}; see {where}")
    return found


def _answer(request: Request, allocation: Allocation, *, status: int = 200) -> Response:
    view = allocation_view(allocation, outside=parts_of(request).settings.outside())
    return json_response(view, status=status, headers={"ETag": tag_of(allocation.metadata.resource_version)})


def _span(span: SpanRecord) -> TraceSpan:
    return TraceSpan(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_id,
        name=span.name,
        service=span.service,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        ok=span.ok,
        attributes=span.attributes,
        kind=span.kind,
        links=list(span.links),
    )


ONCE_ENDED = {200: (AllocationView,)}
"""Further answers of the verbs that end an allocation: 200 when it has already ended."""

ENDPOINTS = (
    Endpoint(method="GET", path=ROOT, handler=get, summary="Show an allocation", tag=TAG, answer=AllocationView),
    Endpoint(
        method="PATCH",
        path=ROOT,
        handler=change,
        summary="Change priority, queue, position, hold, desired, limits, or the program of a held allocation",
        tag=TAG,
        body=ChangeBody,
        answer=AllocationView,
        has_condition=True,
    ),
    Endpoint(
        method="DELETE",
        path=ROOT,
        handler=delete,
        summary="Delete an allocation; deletion cancels it",
        tag=TAG,
        has_condition=True,
        answer=AllocationView,
        status=202,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/kill",
        handler=kill,
        summary="Cancel an allocation; a second call, or force, ends it at once",
        tag=TAG,
        body=KillBody,
        answer=AllocationView,
        status=202,
        also=ONCE_ENDED,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/terminate",
        handler=terminate,
        summary="End an allocation: preempt it if it can save its work, else kill it",
        tag=TAG,
        body=PreemptBody,
        answer=AllocationView,
        status=202,
        also=ONCE_ENDED,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/priority",
        handler=set_priority,
        summary="Change the priority of an allocation",
        tag=TAG,
        body=PriorityBody,
        answer=AllocationView,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/preempt",
        handler=preempt,
        summary="Ask an allocation to save its work and end",
        tag=TAG,
        body=PreemptBody,
        answer=AllocationView,
        status=202,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/forget",
        handler=forget,
        summary="Mark the ranks on nodes that do not answer as lost",
        tag=TAG,
        answer=AllocationView,
        status=202,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/hold",
        handler=hold,
        summary="Hold or pause an allocation",
        tag=TAG,
        answer=AllocationView,
    ),
    Endpoint(
        method="POST",
        path=f"{ROOT}/resume",
        handler=resume,
        summary="Release an allocation from a hold",
        tag=TAG,
        answer=AllocationView,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/explain",
        handler=explained,
        summary="Explain the state of an allocation",
        tag=TAG,
        query=(FORESEE,),
        answer=ExplainView,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/timeline",
        handler=timed,
        summary="List the time spent in each phase",
        tag=TAG,
        answer=TimelineView,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/trace",
        handler=traced,
        summary="List the trace spans of an allocation",
        tag=TAG,
        answer=TraceView,
    ),
    Endpoint(
        method="GET",
        path=f"{ROOT}/pods",
        handler=pods,
        summary="List the pods of an allocation",
        tag=TAG,
        answer=Items[PodView],
    ),
)
