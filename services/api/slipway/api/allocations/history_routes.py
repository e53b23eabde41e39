"""The allocations, with their phases, at a past moment."""

import asyncio
import math
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations import history
from slipway.api.allocations.history import UNKNOWN, HistoryView, PastAllocation
from slipway.api.allocations.listing import FilterNames, check_filter_names
from slipway.api.auth.middleware import visible_workspaces_of, workspaces_of
from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http.endpoint import Endpoint, Query, bad_param, json_response, time_param
from slipway.api.http.streaming import holder_of
from slipway.api.usage.usage_routes import in_totals
from slipway.crd.transitions import id_of
from slipway.crd.v1alpha1 import Allocation
from slipway.errors import TransientError
from slipway.kube.resources import ALLOCATIONS
from slipway.model.events import AllocationEvent
from slipway.model.times import format_time, parse_time

PAGE = 200
EVENTS_MAX = 50_000
STREAMS_AT_ONCE = 16
TOLD_LATE_S = 600.0
"""The largest assumed delay between an event and its entry in the firehose. When all events of a page are later than
`at` by more than this, the search ends: further pages have no event from before `at`."""
AHEAD_S = 60.0
"""How much the clock of a client may be ahead of ours."""


async def at_moment(request: Request) -> Response:
    """Return the allocations and their phases at the moment `at`."""
    parts = parts_of(request)
    now = parts.clock.now()
    at = time_param(request, "at")
    at = now if at is None else at
    if at > now + AHEAD_S:
        raise bad_param("at", "is in the future")
    with parts.history_places.held(holder_of(request).user):
        return await _answer(request, at)


async def _answer(request: Request, at: float) -> Response:
    parts, query, visible = parts_of(request), request.query_params, await visible_workspaces_of(request)
    workspace = query.get("workspace", "")
    listed = await parts.kube.list(ALLOCATIONS, namespace=workspace or None)
    lossy: list[str] = []
    items = await _of_objects(parts, [each for each in listed.items if history.existed(each, at)], at)
    known = frozenset(id_of(each) for each in listed.items)
    try:
        events, oldest, is_whole = await _firehose(parts, at, visible)
        gone = history.of_deleted(events, known, at)
        items += [each for each in gone if workspace in ("", each.workspace)]
        if not is_whole or oldest > at:
            lossy.append(
                "allocations that were deleted since then may be missing: the event streams do not go back that far"
            )
    except TransientError:
        lossy.append(
            "allocations that were deleted since then are not shown: the event streams are in Redis, which cannot "
            "be reached"
        )
    if any(each.phase == UNKNOWN for each in items):
        lossy.append("for some allocations the transitions of that time are no longer stored: their phase is Unknown")
    queue = query.get("queue", "")
    has_gone = any(each.source == "firehose" for each in items)
    if queue and has_gone:
        lossy.append("allocations that were deleted since then are left out, because their queue is not recorded")
    items = [each for each in items if queue in ("", each.queue)]
    items = [each for each in items if query.get("pool", "") in ("", each.pool)]
    items = [each for each in items if visible.has(each.workspace)]
    if not items:
        # The queue of a deleted allocation is unknown, and may be the requested one. So the queue is not checked.
        named = FilterNames(workspace=workspace, pool=query.get("pool", ""), queue="" if has_gone else queue)
        await check_filter_names(parts.kube, named, partial(workspaces_of, request), in_totals(request, visible))
    items.sort(key=lambda each: (each.workspace, each.name, each.id))
    return json_response(HistoryView(at=format_time(at), items=items, counts=history.counts(items), lossy=lossy))


async def _of_objects(parts: ApiDeps, allocations: list[Allocation], at: float) -> list[PastAllocation]:
    slots = asyncio.Semaphore(STREAMS_AT_ONCE)

    async def standing(allocation: Allocation) -> PastAllocation | None:
        if not history.needs_stream(allocation, at):
            return history.of_object(allocation, at)
        async with slots:
            return history.of_object(allocation, at, await parts.event_feed.page(allocation))

    found = await asyncio.gather(*map(standing, allocations))
    return [each for each in found if each is not None]


async def _firehose(parts: ApiDeps, at: float, visible: VisibleWorkspaces) -> tuple[list[AllocationEvent], float, bool]:
    """Read the firehose up to the time `at`.

    Return (the events that the caller may see, the time of the oldest event, whether the search was complete).
    """
    found: list[AllocationEvent] = []
    cursor: str | None = None
    oldest, read = math.inf, 0
    while read < EVENTS_MAX:
        page = await parts.firehose.read(after=cursor, limit=PAGE)
        if not page:
            return found, oldest, True
        read += len(page)
        found += [each.event for each in page if visible.has(each.event.namespace)]
        cursor = page[-1].cursor
        times = [parse_time(each.event.time) for each in page if each.event.time]
        oldest = min([oldest, *times])
        if len(times) == len(page) and min(times) > at + TOLD_LATE_S:
            return found, oldest, True
    return found, oldest, False


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/history",
        handler=at_moment,
        summary="List the allocations and their phases at a past time",
        tag="allocations",
        query=(
            Query("at", "the time (RFC 3339); default: now"),
            Query("workspace", "only allocations of this workspace"),
            Query("queue", "only allocations of this queue"),
            Query("pool", "only allocations of this pool"),
        ),
        answer=HistoryView,
    ),
)
