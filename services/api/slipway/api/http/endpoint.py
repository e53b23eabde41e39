"""Routes as data: Starlette's routes and the OpenAPI document are made from the same rows.

Owns the deadline of a request and the parsing of query parameters. A row's handler answers within the deadline; a
stream that it returns has its own limits.
"""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from slipway.api.auth import middleware
from slipway.api.auth.principal import VisibleWorkspaces
from slipway.api.auth.route_rules import RouteRule, rule_of
from slipway.api.deps import PARTS_KEY, parts_of
from slipway.api.http import audit
from slipway.api.http.errors import MalformedError, TooManyStreamsOfOneError
from slipway.api.http.streaming import HOLDER_KEY, StreamHolder, holder_of
from slipway.api.tasks.task_auth import Caller
from slipway.errors import DeadlineError, FieldError, ThrottledError
from slipway.model.numbers import number_in
from slipway.model.times import parse_time

Handler = Callable[[Request], Awaitable[Response]]
JSON_TYPE = "application/json"
GZIP_BYTES_MIN = 1_400
"""Answers below this size fit into one packet and are not compressed."""
GZIP_ASIDE_BYTES = 64 * 1024
"""Answers of this size or more are compressed in a thread."""
SEARCH_CHARACTERS_MAX = 200
_TRUE, _FALSE = ("true", "1", "yes", ""), ("false", "0", "no")


class Query(msgspec.Struct, frozen=True):
    """One query parameter."""

    name: str
    description: str
    type: Literal["string", "integer", "boolean"] = "string"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `body` and `answer` are msgspec types, or None."""

    method: Literal["GET", "POST", "PATCH", "PUT", "DELETE"]
    path: str
    handler: Handler
    summary: str
    tag: str
    query: tuple[Query, ...] = ()
    body: Any = None
    answer: Any = None
    status: int = 200
    also: Mapping[int, tuple[Any, ...]] = {}
    """{status: the possible types} of further answers that are no errors"""
    media_types: tuple[str, ...] = (JSON_TYPE,)
    is_long: bool = False
    """whether the route has its own time limit, such as a long poll or an upload"""
    has_condition: bool = False
    """whether the route takes If-Match"""
    for_tasks: bool = False
    """whether the route accepts a task's token; the listener for tasks serves only these routes"""


def routes_of(endpoints: Iterable[Endpoint]) -> list[Route]:
    """Return one Starlette route per path, so that the answer to a wrong method lists all permitted methods."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [Route(path, _dispatch(rows), methods=list(rows)) for path, rows in by_path.items()]


def _dispatch(rows: dict[str, Endpoint]) -> Handler:
    rules = {method: rule_of(method, row.path) for method, row in rows.items()}

    async def serve(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        row, rule = rows[method], rules[method]
        limit_s = None if row.is_long else parts_of(request).settings.request_timeout_s
        with audit.log_call(request, row.path, is_in_query=any(each.name == "workspace" for each in row.query)):
            try:
                async with asyncio.timeout(limit_s):
                    await _admit(request, row, rule)
                    response = await _handled(request, row)
            except TooManyStreamsOfOneError:
                await parts_of(request).clock.sleep(middleware.REFUSAL_PAUSE_S)
                raise
            except TimeoutError as error:
                if limit_s is None:
                    raise
                raise DeadlineError(f"not done within {limit_s:g} s; whether it took effect is unknown") from error
            middleware.ensure_permission_checked(request)
            audit.set_status(request, response.status_code)
        return await _redacted(request, response)

    return serve


async def _handled(request: Request, row: Endpoint) -> Response:
    """Run the handler. A long poll is counted while it waits; uploads are counted in `launch/contexts.py`."""
    if not row.is_long or row.method == "PUT":
        return await row.handler(request)
    with parts_of(request).open_streams.polled(holder_of(request)):
        return await row.handler(request)


async def _admit(request: Request, row: Endpoint, rule: RouteRule) -> None:
    """Authenticate the request: by a task's token, or else by `middleware.admit`. Refuses a token not valid here."""
    parts, is_required = parts_of(request), bool(request.app.state.needs_token)
    caller = await parts.tasks.admit(request, for_tasks=row.for_tasks, is_required=is_required)
    request.state.caller = caller
    if caller is None:
        await middleware.admit(request, rule)
        return
    try:
        parts.rates.take(f"task {caller.pod}")
    except ThrottledError:
        await parts.clock.sleep(middleware.REFUSAL_PAUSE_S)
        raise
    request.scope[HOLDER_KEY] = StreamHolder(user=caller.pod, is_rank=True)
    if caller.workspace:
        seen = replace(parts, lookup=parts.lookup.within(VisibleWorkspaces(frozenset([caller.workspace]))))
        request.scope[PARTS_KEY] = seen


async def _redacted(request: Request, response: Response) -> Response:
    """Return the final answer: without names that the caller may not see, and compressed if the client accepts it."""
    if response.media_type != JSON_TYPE or not response.body:
        return response
    redactor = await middleware.redactor_of(request)
    if redactor is not None:
        response.body = redactor(bytes(response.body))
    if len(response.body) >= GZIP_BYTES_MIN:
        response.headers["vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            response.body = await _compressed(bytes(response.body))
            response.headers["content-encoding"] = "gzip"
    response.headers["content-length"] = str(len(response.body))
    return response


async def _compressed(body: bytes) -> bytes:
    """Compress at level 1: a list shrinks to an eighth. Level 6 takes twice as long for a result a tenth smaller."""
    if len(body) < GZIP_ASIDE_BYTES:
        return gzip.compress(body, 1, mtime=0)
    # zlib releases the interpreter lock, so the event loop serves other requests during the compression.
    return await asyncio.to_thread(gzip.compress, body, 1, mtime=0)


def caller_of(request: Request) -> Caller | None:
    """Return the rank that calls, by its token; None for any other caller."""
    caller: Caller | None = request.state.caller
    return caller


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response with `value` as JSON."""
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type=JSON_TYPE,
    )


def location(path: str, workspace: str) -> str:
    """Return the address of an object whose workspace is not in its path."""
    return f"{path}?{urlencode({'workspace': workspace})}"


def number_param(request: Request, name: str, *, default: int, most: int, least: int = 0) -> int:
    """Return an integer parameter. Raises MalformedError when it is no integer, or out of bounds."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    number = number_in(text)
    if number is None or not least <= number <= most:
        raise bad_param(name, f"must be a whole number from {least} to {most}, not {text[:64]!r}")
    return number


def optional_number(request: Request, name: str) -> int | None:
    """Return an integer parameter; None when it is absent."""
    return number_param(request, name, default=0, most=10**9 - 1) if request.query_params.get(name) else None


def words_of(request: Request, name: str = "search") -> tuple[str, ...]:
    """Return the words of a search. Raises MalformedError when it is too long."""
    text = request.query_params.get(name, "")
    if len(text) > SEARCH_CHARACTERS_MAX:
        raise bad_param(name, f"at most {SEARCH_CHARACTERS_MAX} characters, not {len(text)}")
    return tuple(text.split())


def flag_param(request: Request, name: str, *, default: bool = False) -> bool:
    """Return a boolean parameter; a parameter without a value is true."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    raise bad_param(name, f"must be true or false, not {text[:64]!r}")


def time_param(request: Request, name: str) -> float | None:
    """Return an RFC 3339 time in epoch seconds; None when it is absent."""
    text = request.query_params.get(name, "")
    try:
        return parse_time(text) if text else None
    except ValueError as error:
        raise bad_param(name, f"must be a time such as 2026-01-02T03:04:05Z, not {text[:64]!r}") from error


def bad_param(name: str, detail: str) -> MalformedError:
    """Return the error for a query parameter that is not valid."""
    return MalformedError(f"parameter {name}: {detail}", fields=(FieldError("", f"?{name}= {detail}"),))


def accepts(request: Request, media_type: str) -> bool:
    """Whether the client's Accept names `media_type` (a wildcard does not name it)."""
    return any(part.partition(";")[0].strip().lower() == media_type for part in _accepted(request))


def _accepted(request: Request) -> list[str]:
    return request.headers.get("accept", "").split(",")
