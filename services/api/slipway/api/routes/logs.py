"""The log of an allocation: plain text, JSON or server-sent events."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.endpoint import (
    JSON_TYPE,
    Endpoint,
    Query,
    accepts,
    bad_param,
    flag_param,
    json_response,
    number_param,
    optional_number,
)
from slipway.api.log_feed import LINES_MAX, Wanted
from slipway.api.parts import parts_of
from slipway.api.routes.events import push
from slipway.api.schemas import LogLineView
from slipway.api.sse import SSE_TYPE, Outlet
from slipway.crd.v1alpha1 import Allocation
from slipway.model.duration import parse_duration
from slipway.model.times import parse_time

TAG = "logs"
TEXT_TYPE = "text/plain"
SEARCH_MAX = 256


async def logs(request: Request) -> Response:
    """The lines of all ranks, oldest first; with `follow` also those that come, until it has ended."""
    parts = parts_of(request)
    found = await parts.lookup.find(request.path_params["id"])
    wanted = _wanted(request, parts.clock.now())
    has_prefix = flag_param(request, "prefix", default=_ranks(found) > 1 and wanted.rank is None)
    is_sse = accepts(request, SSE_TYPE)
    if flag_param(request, "follow", default=is_sse):

        async def write(outlet: Outlet) -> None:
            async def emit(line: LogLineView) -> None:
                if is_sse:
                    await outlet.event(msgspec.json.encode(line), id_=line.cursor)
                else:
                    await outlet.write(_text(line, has_prefix))

            await parts.log_feed.follow(found, wanted, emit)

        return push(parts, write, kind="logs", media_type=SSE_TYPE if is_sse else TEXT_TYPE)
    lines = await parts.log_feed.page(found, wanted)
    if accepts(request, JSON_TYPE):
        cursor = lines[-1].cursor if lines else wanted.after or ""
        return json_response({"items": lines, "metadata": {"continue": cursor}})
    body = b"".join(_text(line, has_prefix) for line in lines)
    return Response(body, media_type=TEXT_TYPE, headers={"Cache-Control": "no-store"})


def _wanted(request: Request, now: float) -> Wanted:
    query = request.query_params
    return Wanted(
        rank=optional_number(request, "rank"),
        attempt=optional_number(request, "attempt"),
        search=_search(query.get("search", "")),
        since=_moment("since", query.get("since", ""), now),
        until=_moment("until", query.get("until", ""), now),
        tail=number_param(request, "tail", default=0, most=LINES_MAX) if query.get("tail") else None,
        after=request.headers.get("last-event-id") or query.get("after") or None,
    )


def _search(text: str) -> str | None:
    if len(text) > SEARCH_MAX:
        raise bad_param("search", f"must be at most {SEARCH_MAX} characters, not {len(text)}")
    return text or None


def _moment(name: str, text: str, now: float) -> float | None:
    """A time, or a duration back from now."""
    if not text:
        return None
    try:
        return parse_time(text) if "T" in text else now - parse_duration(text)
    except ValueError as error:
        raise bad_param(name, f"must be a duration such as 10m, or an RFC 3339 time, not {text[:64]!r}") from error


def _text(line: LogLineView, has_prefix: bool) -> bytes:
    return f"[{line.rank}] {line.text}\n".encode() if has_prefix else f"{line.text}\n".encode()


def _ranks(allocation: Allocation) -> int:
    return sum(role.count for role in allocation.spec.ranks) or 1


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/allocations/{id}/logs",
        handler=logs,
        summary="Its log lines: text, a JSON page, or a stream",
        tag=TAG,
        query=(
            Query("follow", "true: go on as lines come, until it has ended", "boolean"),
            Query("tail", f"only the last lines, at most {LINES_MAX}", "integer"),
            Query("since", "only younger lines: a duration such as 10m, or an RFC 3339 time"),
            Query("until", "only older lines: a duration such as 10m, or an RFC 3339 time"),
            Query("search", f"only lines with this text, in any case; at most {SEARCH_MAX} characters"),
            Query("rank", "only of this rank", "integer"),
            Query("attempt", "only of this attempt", "integer"),
            Query("prefix", "true: [rank] before each line of text; default when there are several ranks", "boolean"),
            Query("after", "go on after this line's cursor (as Last-Event-ID)"),
        ),
        media_types=(TEXT_TYPE, JSON_TYPE, SSE_TYPE),
    ),
)
