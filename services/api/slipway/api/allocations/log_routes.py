"""The log of an allocation: plain text, JSON or server-sent events."""

from collections.abc import Sequence
from contextlib import aclosing

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from slipway.api.allocations.event_routes import push
from slipway.api.allocations.log_feed import LINES_MAX, LogFilter, next_cursor
from slipway.api.allocations.lookup import find_logged
from slipway.api.allocations.pattern import Pattern, PatternError
from slipway.api.deps import ApiDeps, parts_of
from slipway.api.http.endpoint import (
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
from slipway.api.http.streaming import SSE_TYPE, StreamOutput
from slipway.api.schemas import LogLineView
from slipway.crd.roleresources import (
    FETCHING_CONTAINER,
    MAIN_CONTAINER,
    WAITING_CONTAINER,
    containers_of,
    main_container,
    object_of,
    objects_of,
)
from slipway.crd.v1alpha1 import Allocation
from slipway.model.numbers import number_in
from slipway.model.times import parse_duration, parse_time
from slipway.streams.codec import cursor_parts

TAG = "logs"
TEXT_TYPE = "text/plain"
SEARCH_MAX = 256
RANKS_MAX = 4096
EVENT = "event"
EVENT_MARK = "-- "
STREAMS = ("stdout", EVENT)
"""`stdout`: the output of the ranks (Kubernetes merges stdout and stderr). EVENT: Kubernetes events of their pods."""


async def logs(request: Request) -> Response:
    """Return the log lines of all ranks, oldest first; with `follow` also new lines, until the allocation has ended."""
    parts = parts_of(request)
    found = await find_logged(parts.lookup, parts.log_archive, str(request.path_params["id"]))
    container = await _container(parts, request.query_params.get("container", ""), found)
    wanted = _wanted(request, parts.clock.now(), container)
    has_prefix = flag_param(
        request, "prefix", default=_ranks(found) > 1 and (wanted.ranks is None or len(wanted.ranks) > 1)
    )
    is_sse = accepts(request, SSE_TYPE)
    if flag_param(request, "follow", default=is_sse):
        if wanted.is_reversed:
            raise bad_param("order", "a followed log is always in order; leave out order=desc")
        if wanted.head is not None:
            raise bad_param("head", "a followed log has no last line yet; leave out head or follow")

        async def write(output: StreamOutput) -> None:
            async def emit(lines: Sequence[LogLineView]) -> None:
                if is_sse:
                    await output.events([(line.cursor, msgspec.json.encode(line)) for line in lines])
                else:
                    await output.write(b"".join(_text(line, has_prefix) for line in lines))

            await parts.log_feed.follow(found, wanted, emit, output.stands_at if is_sse else None)

        return push(request, write, kind="logs", media_type=SSE_TYPE if is_sse else TEXT_TYPE)
    lines = await parts.log_feed.page(found, wanted)
    if accepts(request, JSON_TYPE):
        return json_response({"items": lines, "metadata": {"continue": next_cursor(lines, wanted)}})
    if len(lines) < LINES_MAX or wanted.is_reversed or wanted.head is not None or wanted.tail is not None:
        body = b"".join(_text(line, has_prefix) for line in lines)
        return Response(body, media_type=TEXT_TYPE, headers={"Cache-Control": "no-store"})

    async def write_all(output: StreamOutput) -> None:
        open_ = await parts.log_feed.marks_of_open(found, wanted)
        async with aclosing(parts.log_feed.pages(found, wanted)) as pages:
            async for page in pages:
                if page:
                    await output.write(b"".join(_text(line, has_prefix) for line in page))
        if open_:
            await output.write(b"".join(_text(line, has_prefix) for line in open_))

    return push(request, write_all, kind="logs", media_type=TEXT_TYPE)


def _wanted(request: Request, now: float, container: str) -> LogFilter:
    query = request.query_params
    after = request.headers.get("last-event-id") or query.get("after") or None
    if after is not None:
        cursor_parts(after)  # a wrong cursor is refused before a stream begins
    is_reversed = _is_reversed(query.get("order", ""))
    goes_back = is_reversed and not query.get("head")
    return LogFilter(
        ranks=_several_ranks(",".join(query.getlist("rank"))),
        attempt=optional_number(request, "attempt"),
        container=container,
        streams=_streams(",".join(query.getlist("stream"))),
        search=_search(query.get("search", ""), is_pattern=flag_param(request, "regex")),
        is_reversed=is_reversed,
        since=_moment("since", query.get("since", ""), now),
        until=_moment("until", query.get("until", ""), now),
        tail=number_param(request, "tail", default=0, most=LINES_MAX) if query.get("tail") else None,
        head=number_param(request, "head", default=0, most=LINES_MAX) if query.get("head") else None,
        after=None if goes_back else after,
        before=after if goes_back else None,
    )


def _search(text: str, *, is_pattern: bool) -> str | Pattern | None:
    if len(text) > SEARCH_MAX:
        raise bad_param("search", f"must be at most {SEARCH_MAX} characters, not {len(text)}")
    if not (text and is_pattern):
        return text or None
    try:
        return Pattern(text)
    except PatternError as error:
        raise bad_param("search", f"is not a regular expression that RE2 accepts: {error}") from error


def _several_ranks(text: str) -> frozenset[int] | None:
    """Parse a list of ranks such as `0,2,4-7`; None when it is empty."""
    found: set[int] = set()
    for part in filter(None, (each.strip() for each in text.split(","))):
        low, dash, high = part.partition("-")
        first = number_in(low)
        last = number_in(high) if dash else first
        if first is None or last is None:
            raise bad_param("rank", f"must be ranks such as 3, 0,2 or 4-7, not {text[:64]!r}")
        if last < first or last - first > RANKS_MAX:
            raise bad_param("rank", f"the range {part[:16]} must ascend, over at most {RANKS_MAX} ranks")
        found.update(range(first, last + 1))
    return frozenset(found) or None


async def _container(parts: ApiDeps, name: str, allocation: Allocation) -> str:
    """Return the container as log lines name it: empty for the main container.

    A container that another system has added to the pods is known only by its log lines.
    """
    if not name:
        return ""
    spec = allocation.spec
    templates = [spec.template, *(object_of(role.template) for role in spec.ranks if role.template)]
    mains, there = list[str](), list[str]()
    for template in templates:
        containers = [str(each.get("name")) for each in containers_of(template)]
        mains.append(containers[main_container(template)] if containers else MAIN_CONTAINER)
        there += containers
        there += (str(each.get("name")) for each in objects_of(object_of(template.get("spec")).get("initContainers")))
    there += [FETCHING_CONTAINER] if spec.context else []
    there += [WAITING_CONTAINER] if any(role.depends_on for role in spec.ranks) else []
    if name in mains:
        return ""
    if name in there:
        return name
    added = await parts.log_feed.containers(allocation)
    if name not in added:
        names = ", ".join(dict.fromkeys([*mains, *there, *sorted(added)]))
        raise bad_param(
            "container", f"{name[:64]!r} is not a container of its pods, or has no output yet; they have {names}"
        )
    return name


def _streams(text: str) -> frozenset[str] | None:
    found = frozenset(filter(None, (each.strip() for each in text.split(","))))
    unknown = sorted(found - set(STREAMS))
    if unknown:
        raise bad_param("stream", f"{unknown[0][:64]!r} is not a stream; the streams are {' and '.join(STREAMS)}")
    return found or None


def _is_reversed(text: str) -> bool:
    if text not in ("", "asc", "desc"):
        raise bad_param("order", f"must be asc (oldest first) or desc, not {text[:64]!r}")
    return text == "desc"


def _moment(name: str, text: str, now: float) -> float | None:
    """Parse a time, or a duration before now, into epoch seconds; None when the text is empty."""
    if not text:
        return None
    try:
        return parse_time(text) if "T" in text else now - parse_duration(text)
    except ValueError as error:
        raise bad_param(name, f"must be a duration such as 10m, or an RFC 3339 time, not {text[:64]!r}") from error


def _text(line: LogLineView, has_prefix: bool) -> bytes:
    """Return a line as text. A Kubernetes event is marked, so that it does not look like output of the rank."""
    text = f"{EVENT_MARK}{line.text}" if line.stream == EVENT or line.missing else line.text
    return f"[{line.rank}] {text}\n".encode() if has_prefix else f"{text}\n".encode()


def _ranks(allocation: Allocation) -> int:
    return sum(role.count for role in allocation.spec.ranks) or 1


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/api/v1/allocations/{id}/logs",
        handler=logs,
        summary="Read the log of an allocation: as text, a JSON page, or a stream",
        tag=TAG,
        query=(
            Query("follow", "true: follow new lines until the allocation has ended", "boolean"),
            Query(
                "tail",
                (
                    f"only this number of last lines, at most {LINES_MAX}; default: all as text, {LINES_MAX} in a "
                    "JSON page"
                ),
                "integer",
            ),
            Query("head", "only this number of first lines", "integer"),
            Query("since", "only newer lines: a duration such as 10m, or an RFC 3339 time"),
            Query("until", "only older lines: a duration such as 10m, or an RFC 3339 time"),
            Query("search", f"only lines with this text, in any case; at most {SEARCH_MAX} characters"),
            Query("regex", "true: search is a regular expression; (?i) at its start ignores the case", "boolean"),
            Query("rank", "only lines of these ranks: 3, or 0,2, or 4-7"),
            Query("container", "lines of this init container or sidecar instead of the main container"),
            Query("stream", "only stdout (output of the ranks) or event (events of Kubernetes about their pods)"),
            Query("order", "asc: oldest first; desc: newest first"),
            Query("attempt", "only lines of this attempt", "integer"),
            Query("prefix", "true: [rank] before each line of text; default when there are several ranks", "boolean"),
            Query(
                "after",
                "continue after this line's cursor (as Last-Event-ID); with order=desc, with the older lines",
            ),
        ),
        media_types=(TEXT_TYPE, JSON_TYPE, SSE_TYPE),
    ),
)
