"""The events of one allocation, and the firehose: the events of all allocations."""

from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.event_feed import (
    PAGE_MAX,
    FirehoseFilter,
    cursor_at,
    follow_all,
    is_past_end,
    seq_of_cursor,
)
from slipway.api.auth.middleware import redactor_of, visible_workspaces_of
from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.auth.scoped_client import Redactor
from slipway.api.deps import parts_of
from slipway.api.http.cloudevents import cloud_event, page_of
from slipway.api.http.endpoint import JSON_TYPE, Endpoint, Query, accepts, flag_param, number_param
from slipway.api.http.errors import needs_redis
from slipway.api.http.streaming import SSE_TYPE, PushResponse, StreamOutput, Writer, holder_of
from slipway.model.events import AllocationEvent

TAG = "events"


async def events(request: Request) -> Response:
    """Stream the events from Last-Event-ID on; or return a JSON page when the client accepts JSON and not events."""
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    after = seq_of_cursor(found, _cursor(request))
    limit = number_param(request, "limit", default=PAGE_MAX, least=1, most=PAGE_MAX)
    if _wants_page(request):
        page = await parts.event_feed.page(found, after=after, limit=limit)
        cursor = cursor_at(found, page[-1].seq if page else after) or ""
        return Response(page_of(page, cursor), media_type=JSON_TYPE, headers={"Cache-Control": "no-store"})
    if is_past_end(found, after):
        return Response(status_code=204)  # an EventSource does not reconnect after 204

    async def write(output: StreamOutput) -> None:
        async def emit(event: AllocationEvent) -> None:
            # The event can name a workspace that is newer than this stream, so the filter is made for each event.
            told, redactor = cloud_event(event), await redactor_of(request)
            await output.event(redactor(told) if redactor else told, id_=event.entry_id)

        await parts.event_feed.follow(found, after=after, emit=emit)

    return push(request, write, kind="events")


async def all_events(request: Request) -> Response:
    """Stream the events of all allocations, each at least once; from now on, or from Last-Event-ID."""
    parts = parts_of(request)
    query = request.query_params
    wanted = FirehoseFilter(
        workspace=query.get("workspace", ""),
        types=frozenset(part for part in query.get("type", "").split(",") if part),
        allocation=query.get("allocation", ""),
    )
    # A stream beyond the limit is refused before it causes any read.
    parts.open_streams.check(holder_of(request))
    with needs_redis("the events of all allocations"):
        cursor = _cursor(request) or await parts.firehose.tail()
        # One read before the answer begins, so that a wrong cursor or a missing Redis is an error, not a broken stream.
        await parts.firehose.read(after=cursor, limit=1)

    async def look() -> tuple[VisibleWorkspaces, Redactor | None]:
        return await visible_workspaces_of(request), await redactor_of(request)

    async def write(output: StreamOutput) -> None:
        await follow_all(parts.firehose, wanted, cursor, output, look)

    return push(request, write, kind="firehose")


def push(request: Request, writer: Writer, *, kind: str, media_type: str = SSE_TYPE) -> PushResponse:
    """Return a streamed answer. Raises TooManyStreamsError."""
    parts = parts_of(request)
    return PushResponse(
        writer,
        kind=kind,
        media_type=media_type,
        clock=parts.clock,
        stop=parts.stop,
        streams=parts.open_streams,
        holder=holder_of(request),
    )


def _cursor(request: Request) -> str | None:
    return request.headers.get("last-event-id") or request.query_params.get("after") or None


def _wants_page(request: Request) -> bool:
    if "follow" in request.query_params:
        return not flag_param(request, "follow")
    return accepts(request, JSON_TYPE) and not accepts(request, SSE_TYPE)


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/allocations/{id}/events",
        handler=events,
        summary="List the transitions of an allocation, or stream them until it ends",
        tag=TAG,
        query=(
            Query("after", "continue after this event id (as Last-Event-ID)"),
            Query("limit", f"number of events in a page, at most {PAGE_MAX}", "integer"),
            Query("follow", "true: a stream; false: a page; default: by the Accept header", "boolean"),
        ),
        media_types=(SSE_TYPE, JSON_TYPE),
    ),
    Endpoint(
        method="GET",
        path="/api/v1/events",
        handler=all_events,
        summary="Stream the transitions of all allocations",
        tag=TAG,
        query=(
            Query("workspace", "only events of this workspace"),
            Query("type", "only events of these types, separated by commas: requested, assigned, running..."),
            Query("allocation", "only events of the allocation with this AllocationID"),
            Query("after", "continue after this event id (as Last-Event-ID)"),
        ),
        media_types=(SSE_TYPE,),
    ),
)
