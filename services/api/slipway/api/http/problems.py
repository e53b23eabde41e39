"""The one table from the error tree to HTTP answers, as RFC 9457 `application/problem+json`.

Owns status, code and title of every refusal, and whether a client may retry. No error text of a library arrives here:
the adapters have translated it.

Source: RFC 9457.
"""

import re
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from slipway.api.http import errors
from slipway.api.schemas import Problem
from slipway.errors import (
    AlreadyExistsError,
    BusyError,
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    ExpiredError,
    FieldError,
    InvalidError,
    InvariantError,
    NotFoundError,
    PermanentError,
    QuotaExceededError,
    StaleError,
    TerminatingError,
    ThrottledError,
    TooLargeError,
    TransientError,
    UnavailableError,
)
from slipway.runtime import telemetry

PROBLEM_TYPE = "application/problem+json"
CODE_PREFIX = "urn:slipway:problem:"
RETRY_AFTER_S = 2.0
_RETRY_AFTER_S_MAX = 600


class ProblemRow(NamedTuple):
    """The HTTP answer for one class of errors."""

    status: int
    code: str
    title: str
    retry: bool = False


TABLE: dict[type[BaseException], ProblemRow] = {
    errors.MalformedError: ProblemRow(400, "malformed", "The request cannot be read"),
    errors.UnsupportedMediaError: ProblemRow(415, "unsupported-media-type", "The body has a type that is not accepted"),
    errors.NotAcceptableError: ProblemRow(406, "not-acceptable", "No representation of an accepted type"),
    errors.BodyTooLargeError: ProblemRow(413, "body-too-large", "The body is too large"),
    errors.ArchiveRefusedError: ProblemRow(422, "invalid-archive", "The archive is refused"),
    errors.PreconditionError: ProblemRow(412, "precondition-failed", "The object has changed"),
    errors.PageExpiredError: ProblemRow(410, "page-expired", "The page of the list has expired"),
    errors.KeyReusedError: ProblemRow(
        422, "idempotency-key-reused", "The Idempotency-Key was used for another request"
    ),
    errors.AmbiguousError: ProblemRow(409, "ambiguous-id", "The id fits several allocations"),
    errors.UnauthorizedError: ProblemRow(401, "unauthorized", "A valid token is needed"),
    errors.UpgradeRequiredError: ProblemRow(426, "upgrade-required", "A WebSocket is needed here"),
    errors.ForbiddenError: ProblemRow(403, "forbidden", "This token does not permit the request"),
    errors.ReplacedError: ProblemRow(409, "replaced", "The same request was sent again"),
    errors.PeersMissingError: ProblemRow(408, "peers-missing", "Not all peers have arrived", retry=True),
    errors.ConflictError: ProblemRow(409, "conflict", "The request contradicts the state of the object"),
    errors.TooManyStreamsError: ProblemRow(503, "too-many-streams", "Too many open streams", retry=True),
    errors.TooManyStreamsOfOneError: ProblemRow(
        429, "stream-limit", "Too many open streams of one user or workspace", retry=True
    ),
    errors.BadGatewayError: ProblemRow(502, "bad-gateway", "The answer of the workload is not valid"),
    errors.NotListeningError: ProblemRow(503, "not-running", "The workload does not answer yet", retry=True),
    errors.IssuerUnavailableError: ProblemRow(
        503, "issuer-unavailable", "The issuer of single sign-on cannot be used", retry=True
    ),
    errors.RedisUnavailableError: ProblemRow(503, "redis-unavailable", "Redis cannot be reached", retry=True),
    InvalidError: ProblemRow(422, "invalid", "The request is not valid"),
    NotFoundError: ProblemRow(404, "not-found", "There is no such object"),
    AlreadyExistsError: ProblemRow(409, "already-exists", "The name is taken"),
    DeniedError: ProblemRow(502, "not-permitted", "Slipway's account lacks a permission"),
    TerminatingError: ProblemRow(409, "terminating", "The object is being deleted", retry=True),
    TooLargeError: ProblemRow(413, "too-large", "The object is too large"),
    StaleError: ProblemRow(409, "stale", "The object was changed at the same time", retry=True),
    ExpiredError: ProblemRow(503, "not-now", "Not possible right now", retry=True),
    ThrottledError: ProblemRow(429, "throttled", "Too many requests", retry=True),
    QuotaExceededError: ProblemRow(429, "quota-exceeded", "A quota of the workspace is used up", retry=True),
    DeadlineError: ProblemRow(503, "deadline", "No answer within the time limit", retry=True),
    BusyError: ProblemRow(503, "busy", "All connections of this process are in use", retry=True),
    UnavailableError: ProblemRow(503, "unavailable", "A service that the request needs cannot be reached", retry=True),
    TransientError: ProblemRow(503, "not-now", "Not possible right now", retry=True),
    PermanentError: ProblemRow(422, "refused", "The request is refused"),
    InvariantError: ProblemRow(500, "internal", "An internal error"),
    ControlPlaneError: ProblemRow(500, "internal", "An internal error"),
}
"""The row of an error is looked up along its class hierarchy: the most derived class wins."""

_NOT_FOUND = re.compile(r'^(?P<plural>\w+)\.slipway\.dev "(?P<name>[^"]*)" not found$')
_KINDS = {"queues": "queue", "templates": "template", "resourcepools": "pool", "jobs": "job"}
_LEFT = ProblemRow(499, "client-left", "The caller has closed the connection")
"""499 is not a status of HTTP: nginx logs it in such a case."""
UNEXPECTED = ProblemRow(500, "internal", "An internal error")
_SEE_LOG = "see the log of the api under the request id, which is in the header X-Request-Id"
_HTTP_CODES = {404: "no-such-path", 405: "method-not-allowed"}
_HTTP_TITLES = {404: "There is nothing at this path", 405: "This method is not allowed here"}


def row_of(error: BaseException) -> ProblemRow:
    """The row for `error`."""
    return next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), UNEXPECTED)


def status_of(code: str) -> int:
    """The status of a problem code."""
    return next((row.status for row in TABLE.values() if row.code == code), UNEXPECTED.status)


def response_of(error: ControlPlaneError, instance: str) -> Response:
    """The answer for an error of the tree."""
    row = row_of(error)
    fields = error.fields if isinstance(error, InvalidError) else ()
    retry_after_s = error.retry_after_s if isinstance(error, TransientError) else None
    detail = _in_words(str(error)) if row.status != UNEXPECTED.status else _SEE_LOG
    return problem_response(
        row,
        detail,
        instance,
        fields=fields,
        retry_after_s=(retry_after_s or RETRY_AFTER_S) if row.retry else None,
        headers={"WWW-Authenticate": "Bearer"} if row.status == 401 else None,
    )


def problem_of(error: ControlPlaneError) -> Problem:
    """Return an error of the tree as a problem inside another answer, such as that of a batch."""
    row = row_of(error)
    fields = error.fields if isinstance(error, InvalidError) else ()
    return Problem(
        type=CODE_PREFIX + row.code,
        title=row.title,
        status=row.status,
        detail=_in_words(str(error)),
        code=row.code,
        errors=[{"pointer": field.pointer, "detail": field.detail} for field in fields],
    )


def _in_words(text: str) -> str:
    """Return the text; a "not found" of Kubernetes for one of our objects is put into the words of the API."""
    found = _NOT_FOUND.match(text)
    kind = _KINDS.get(found["plural"]) if found is not None else None
    if found is None or kind is None:
        return text
    return f"there is no {kind} {found['name']!r}; GET /api/v1/{kind}s lists them"


def problem_response(
    row: ProblemRow,
    detail: str,
    instance: str,
    *,
    fields: tuple[FieldError, ...] = (),
    retry_after_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """Make an answer as problem+json."""
    ids = telemetry.current_ids()
    problem = Problem(
        type=CODE_PREFIX + row.code,
        title=row.title,
        status=row.status,
        detail=detail,
        instance=instance,
        code=row.code,
        errors=[{"pointer": field.pointer, "detail": field.detail} for field in fields],
        trace_id=ids[0] if ids else "",
    )
    extra = dict(headers or {})
    if retry_after_s is not None:
        extra["Retry-After"] = str(min(_RETRY_AFTER_S_MAX, max(1, round(retry_after_s))))
    extra["Cache-Control"] = "no-store"
    return Response(msgspec.json.encode(problem), status_code=row.status, headers=extra, media_type=PROBLEM_TYPE)


async def on_control_plane_error(request: Request, error: Exception) -> Response:
    """Starlette's handler for the error tree."""
    assert isinstance(error, ControlPlaneError)  # noqa: S101 - registered for this class only
    if isinstance(error, InvariantError):
        request.app.state.on_broken(error)
    return response_of(error, request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's handler for its own refusals: unknown paths and methods."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this class only
    code = _HTTP_CODES.get(error.status_code, "http")
    row = ProblemRow(error.status_code, code, _HTTP_TITLES.get(error.status_code, error.detail))
    headers = dict(error.headers or {})
    detail = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = "the paths are listed in /openapi.json and shown at /docs"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (allowed := headers.get("Allow")):
        detail = f"{request.method} is not possible on this path: use {allowed}"
    return problem_response(row, detail, request.url.path, headers=headers)


async def on_client_left(request: Request, error: Exception) -> Response:
    """The answer when the client closed the connection before its body was complete.

    No client reads it; the log and the metrics show its status.
    """
    return problem_response(_LEFT, "the connection was closed before the body was complete", request.url.path)


async def on_unexpected(request: Request, error: Exception) -> Response:
    """The answer to an unexpected error, a bug of ours; the error itself is written to the log."""
    return problem_response(UNEXPECTED, _SEE_LOG, request.url.path)


HANDLERS: dict[Any, Any] = {
    ControlPlaneError: on_control_plane_error,
    HTTPException: on_http_exception,
    ClientDisconnect: on_client_left,
    Exception: on_unexpected,
}
