"""Converts a refusal of the API (a problem document) into an error of our error tree, with the next step. Pure.

Owns the table from status and code to the error class, and the next steps. Must not know how the answer was received.

Source: RFC 9457.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from slipway.errors import (
    AlreadyExistsError,
    ControlPlaneError,
    DeniedError,
    ExpiredError,
    FieldError,
    InvalidError,
    NotFoundError,
    PermanentError,
    StaleError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)

Json = dict[str, Any]

NEXT_STEPS = {
    "unauthorized": "log in with `slipway login URL`, set SLIPWAY_API_TOKEN, or give the client a token",
    "forbidden": "ask an administrator of the workspace for a role; client.me() says which ones you have",
    "not-found": "list the existing objects; an id may be shortened as long as it matches only one allocation",
    "ambiguous-id": "write more characters of the id",
    "already-exists": "choose another name",
    "idempotency-key-reused": "use another key for another launch",
    "page-expired": "begin the list again",
    "stale": "read the object again, then repeat the change",
    "conflict": "read the object: its state does not allow the call",
    "quota-exceeded": "end other work of the workspace, or ask for a higher quota",
    "too-large": "send less; the message names the limit",
    "body-too-large": "send less; the message names the limit",
    "no-such-path": "compare the versions of client and server: this server does not know the call",
}
"""{code of a problem: what to do}"""


def error_of(
    status: int, headers: Mapping[str, str], body: bytes, *, phrase: Callable[[str], str] = str
) -> ControlPlaneError:
    """Return the error for an answer with status 300 or more; `phrase` rewords the server's sentences."""
    problem = _problem(body)
    code = str(problem.get("code") or "")
    trace_id = str(problem.get("traceId") or "")
    detail = phrase(str(problem.get("detail") or problem.get("title") or f"the server answered {status}"))
    if status >= 500 and trace_id:
        detail = f"{detail} (trace {trace_id})"
    retry_after_s = _retry_after_s(headers)
    error = _error(status, code, detail, retry_after_s, _fields(problem, phrase))
    error.status, error.code, error.trace_id = status, code, trace_id
    error.next_step = _next_step(error, retry_after_s)
    if error.next_step:
        error.add_note(f"next step: {error.next_step}")
    return error


def _problem(body: bytes) -> Json:
    try:
        found: Any = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        return {}
    return cast("Json", found) if isinstance(found, dict) else {}


def _fields(problem: Json, phrase: Callable[[str], str]) -> tuple[FieldError, ...]:
    told: Any = problem.get("errors")
    listed = cast("list[Any]", told) if isinstance(told, list) else []
    errors = [cast("Json", each) for each in listed if isinstance(each, dict)]
    return tuple(FieldError(str(each.get("pointer", "")), phrase(str(each.get("detail", "")))) for each in errors)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    text = {name.lower(): value for name, value in headers.items()}.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _error(
    status: int, code: str, detail: str, retry_after_s: float | None, fields: tuple[FieldError, ...]
) -> ControlPlaneError:
    match status:
        case 401 | 403:
            return DeniedError(detail)
        case 404:
            return NotFoundError(detail)
        case 409 if code == "ambiguous-id":
            return InvalidError(detail)
        case 409 if code == "already-exists":
            return AlreadyExistsError(detail)
        case 409 | 412:
            return StaleError(detail) if code == "stale" else PermanentError(detail)
        case 410:
            return ExpiredError(detail)
        case 413:
            return TooLargeError(detail)
        case 429:
            return ThrottledError(detail, retry_after_s=retry_after_s)
        case _ if status >= 500:
            return UnavailableError(detail, retry_after_s=retry_after_s)
        case _:
            return InvalidError(detail, fields=fields)


def _next_step(error: ControlPlaneError, retry_after_s: float | None) -> str:
    if error.code in NEXT_STEPS:
        return NEXT_STEPS[error.code]
    if isinstance(error, InvalidError) and error.fields:
        return f"correct {', '.join(field.pointer or 'the body' for field in error.fields)}"
    if error.status in (429, 502, 503, 504):
        return f"try again in {retry_after_s:.0f} s" if retry_after_s is not None else "try again later"
    return ""
