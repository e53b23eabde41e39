"""Launch and list allocations."""

import asyncio
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.listing import FilterNames, ListFilter, TimeRange, check_filter_names, list_all, list_page
from slipway.api.allocations.sorted_listing import Sorting, ordered_page
from slipway.api.allocations.view import allocation_path, allocation_view
from slipway.api.auth.middleware import permit, visible_workspaces_of, workspaces_of
from slipway.api.auth.principal import CREATE, user_of
from slipway.api.deps import parts_of
from slipway.api.http import audit
from slipway.api.http.decoding import read_object
from slipway.api.http.endpoint import (
    Endpoint,
    Query,
    bad_param,
    flag_param,
    json_response,
    number_param,
    time_param,
    words_of,
)
from slipway.api.http.etags import tag_of
from slipway.api.http.field_mask import FIELDS, FieldMask
from slipway.api.http.request_telemetry import SPAN_KEY, unique_id
from slipway.api.launch import preview, replicas
from slipway.api.launch.launcher import LaunchRequest
from slipway.api.launch.secret_values import split
from slipway.api.schemas import (
    DEFAULT_WORKSPACE,
    AllocationList,
    AllocationView,
    LaunchBody,
    ListMetadata,
    MaskedList,
)
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.kube.ports import Listed
from slipway.model.lifecycle import Kind, Phase
from slipway.model.reasons import Result
from slipway.runtime import telemetry

PAGE_MAX = 500
TAG = "allocations"

LIST_QUERY = (
    Query("workspace", "only allocations of this workspace"),
    Query("queue", "only allocations of this queue"),
    Query("pool", "only allocations of this pool"),
    Query("user", "only allocations of this user"),
    Query("phase", "only allocations in these phases, separated by commas"),
    Query("kind", "only allocations of this kind"),
    Query("active", "true: only allocations that have not ended", "boolean"),
    Query("job", "only allocations of this job"),
    Query("result", "only allocations with these results, separated by commas"),
    Query("createdAfter", "only allocations created at this time (RFC 3339) or later"),
    Query("createdBefore", "only allocations created before this time"),
    Query("endedAfter", "only allocations that ended at this time or later"),
    Query("endedBefore", "only allocations that ended before this time"),
    Query("search", "only allocations with each of these words in the id, the name or the user"),
    Query("sort", "fields to sort by, separated by commas, with - for descending, such as -endedAt,name"),
    Query("labelSelector", "Kubernetes label selector"),
    FIELDS,
    Query("limit", f"number of items in a page, at most {PAGE_MAX}", "integer"),
    Query("continue", "metadata.continue of the previous page"),
)
LAUNCH_QUERY = (
    Query(
        "dryRun",
        "true: launch nothing; return the complete spec, its sources, the objects and the free capacity",
        "boolean",
    ),
)


LAUNCH_ALSO = {200: (AllocationView, dict[str, Any])}
"""Further answers: the allocation that the same Idempotency-Key launched before, and the result of a dry run."""


async def launch(request: Request, kind: Kind | None = None) -> Response:
    """Launch a workload. Answers 201, or 200 when the same Idempotency-Key launched it before."""
    parts = parts_of(request)
    body, values = split(await read_object(request, parts.settings.body_bytes_max))
    named = body.get("workspace")
    workspace = named if isinstance(named, str) else DEFAULT_WORKSPACE
    audit.note_object(request, {}, workspace=workspace)
    await permit(request, CREATE, workspace)
    is_dry = flag_param(request, "dryRun")
    launch_request = LaunchRequest(
        body=replicas.first_of(body) if is_dry else body,
        values=values,
        workspace=workspace if named is None or isinstance(named, str) else "",
        user=user_of(request),
        request_id=unique_id(request, parts.random.token_hex(4)),
        key=request.headers.get("idempotency-key", ""),
        kind=kind,
        traceparent=telemetry.current_traceparent(),
    )
    if is_dry:
        launch_preview = await parts.launcher.preview(launch_request, parts.seen.live)
        # The cost grows with the gang, the cluster and its allocations, so this runs in a thread.
        return json_response(await asyncio.to_thread(preview.answer, launch_preview, parts.settings.task_options))
    launched = await parts.launcher.launch(launch_request)
    allocation_id = id_of(launched.allocation)
    made = launched.allocation.metadata
    audit.note_object(request, {"id": allocation_id, "name": made.name}, workspace=made.namespace)
    parts.lookup.remember(launched.allocation)
    request.scope[SPAN_KEY].set(slipway__allocation__id=allocation_id)
    view = allocation_view(launched.allocation, outside=parts.settings.outside(), warnings=launched.warnings)
    headers = {"Location": allocation_path(allocation_id), "ETag": tag_of(view.resource_version)}
    return json_response(view, status=201 if launched.created else 200, headers=headers)


async def list_allocations(request: Request, kind: Kind | None = None) -> Response:
    """Return a page of allocations."""
    parts = parts_of(request)
    query = request.query_params
    wanted = ListFilter(
        workspace=query.get("workspace", ""),
        queue=query.get("queue", ""),
        pool=query.get("pool", ""),
        user=query.get("user", ""),
        phases=_phases(query.get("phase", "")),
        kind=kind or _kind(query.get("kind", "")),
        is_active=flag_param(request, "active"),
        label_selector=query.get("labelSelector", ""),
        words=words_of(request),
        job=query.get("job", ""),
        results=_results(query.get("result", "")),
        created=_span(request, "created"),
        ended=_span(request, "ended"),
    )
    limit = number_param(request, "limit", default=PAGE_MAX, least=1, most=PAGE_MAX)
    order, continue_ = Sorting.parse(query.get("sort", "")), query.get("continue", "")
    if not order.fields and not wanted.workspace and not (await visible_workspaces_of(request)).is_whole:
        # A page token of the cluster contains the name of an item, which the caller may not be allowed to see.
        order = Sorting.parse("workspace,name")
    mask = FieldMask.parse(query.get("fields", ""), of=AllocationView)
    if order.fields:
        page = await _ordered(request, wanted, order, limit=limit, continue_=continue_)
    else:
        page = await list_page(parts.kube, wanted, limit=limit, continue_=continue_)
    if not page.items and not page.continue_ and not continue_:
        named = FilterNames(pool=wanted.pool, queue=wanted.queue, job=wanted.job, workspace=wanted.workspace)
        await check_filter_names(parts.kube, named, partial(workspaces_of, request))
    return json_response(
        MaskedList(
            items=[mask.of(allocation_view(each, outside=parts.settings.outside())) for each in page.items],
            metadata=ListMetadata(
                continue_=page.continue_,
                resource_version=page.resource_version,
                remaining_item_count=page.remaining_item_count,
            ),
        )
    )


async def _ordered(
    request: Request, wanted: ListFilter, order: Sorting, *, limit: int, continue_: str
) -> Listed[Allocation]:
    """Return the next page in this order, from the api's cache, or from a LIST when the cache cannot answer."""
    parts = parts_of(request)
    seen = await parts.seen.all() if wanted.is_of_view else None
    if seen is not None:
        visible = await visible_workspaces_of(request)
        items = (
            seen.items if visible.is_whole else [each for each in seen.items if visible.has(each.metadata.namespace)]
        )
        listed = msgspec.structs.replace(seen, items=items)
        page = ordered_page(listed, wanted, order, limit=limit, continue_=continue_)
        whole = await parts.seen.whole(page.items)
        if whole is not None:
            return msgspec.structs.replace(page, items=whole)
    listed = await list_all(parts.kube, wanted)
    return ordered_page(listed, wanted, order, limit=limit, continue_=continue_)


def _phases(text: str) -> frozenset[Phase]:
    try:
        return frozenset(Phase(part) for part in text.split(",") if part)
    except ValueError as error:
        raise bad_param("phase", f"must be one of {', '.join(Phase)}, not {text[:64]!r}") from error


def _results(text: str) -> frozenset[Result]:
    try:
        return frozenset(Result(part) for part in text.split(",") if part)
    except ValueError as error:
        raise bad_param("result", f"must be one of {', '.join(Result)}, not {text[:64]!r}") from error


def _span(request: Request, what: str) -> TimeRange:
    return TimeRange(after=time_param(request, f"{what}After"), before=time_param(request, f"{what}Before"))


def _kind(text: str) -> Kind | None:
    try:
        return Kind(text) if text else None
    except ValueError as error:
        raise bad_param("kind", f"must be one of {', '.join(Kind)}, not {text[:64]!r}") from error


ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/api/v1/allocations",
        handler=launch,
        summary="Launch a workload",
        tag=TAG,
        query=LAUNCH_QUERY,
        body=LaunchBody,
        answer=AllocationView,
        status=201,
        also=LAUNCH_ALSO,
    ),
    Endpoint(
        method="GET",
        path="/api/v1/allocations",
        handler=list_allocations,
        summary="List allocations",
        tag=TAG,
        query=LIST_QUERY,
        answer=AllocationList,
    ),
)
