"""Maps each error response of the API server to our error tree: one table from (verb, code, Status).

Owns the meaning of status codes, reasons, causes, and of the few messages that contain information that no code has.
Must not know HTTP libraries, sockets or retries. Pure: `explain` returns the error, and callers raise it.

| answer | error |
|---|---|
| 400, 422, any other 4xx | InvalidError, with a pointer per cause |
| 403, 422 an admission policy is not ready: the API server does not know its parameters yet | UnavailableError |
| 400 on a log, "waiting to start" | UnavailableError: the container has no log yet |
| 401 | DeniedError |
| 403 NamespaceTerminating | TerminatingError |
| 403 "exceeded quota:", "status unknown for quota:" | QuotaExceededError |
| 403 `User "x" cannot create resource` | DeniedError: our account lacks the verb |
| 403 the default service account does not exist yet | UnavailableError: the namespace is being set up |
| other 403 (admission, pod security, limit ranges) | InvalidError, with the server's message |
| 404 | NotFoundError |
| 408 | DeadlineError |
| 409 AlreadyExists | AlreadyExistsError |
| 409 "already assigned" on a binding | BoundError |
| other 409; 422 on a JSON patch that does not apply, for instance a failed `test` | StaleError |
| 410 | ExpiredError |
| 413, 500 "request is too large", 500 ResourceExhausted | TooLargeError |
| 429, 500 "too many requests" | ThrottledError |
| other 5xx, anything unknown | UnavailableError |
"""

import re
from enum import StrEnum

import msgspec

from slipway.errors import (
    AlreadyExistsError,
    BoundError,
    ControlPlaneError,
    DeadlineError,
    DeniedError,
    ExpiredError,
    FieldError,
    InvalidError,
    NotFoundError,
    QuotaExceededError,
    StaleError,
    TerminatingError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)

MESSAGE_CHARS_MAX = 4096
RETRY_AFTER_S_MAX = 3600.0

_LACKS_VERB = re.compile(r'cannot [a-z*]+ (resource|path) "')
_FIELD_TOKEN = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")
_QUOTA_MARKS = ("exceeded quota:", "status unknown for quota:")
_NOT_APPLICABLE = "rejected our request due to an error in our request"
"""The only message of the server when the operations of a JSON patch cannot be applied to the object."""
_POLICY_NOT_READY = ("failed to configure binding:", "failed to configure policy:", "not yet ready to handle request")
"""Messages of an API server that has just started, or about a custom resource that was just created. A policy that
cannot be configured denies as "Invalid" (422), although its text contains "is forbidden". Source: apiserver,
admission/plugin/policy (v1.37)."""
_NO_DEFAULT_ACCOUNT = 'serviceaccount "default" not found'


class Verb(StrEnum):
    """The kind of request to the server."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    LOG = "log"
    EXEC = "exec"
    CREATE = "create"
    UPDATE = "update"
    PATCH = "patch"
    DELETE = "delete"
    BIND = "bind"


class StatusCause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a refusal; `field` is in the server's own notation, such as `spec.ranks[0].count`."""

    reason: str | None = None
    message: str | None = None
    field: str | None = None


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str | None = None
    kind: str | None = None
    causes: list[StatusCause] | None = None
    retry_after_seconds: int | None = None


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A `Status` object; every field of it may be missing."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: StatusDetails | None = None

    @property
    def causes(self) -> list[StatusCause]:
        """The causes; empty when there are none."""
        return (self.details.causes if self.details else None) or []


_STATUS = msgspec.json.Decoder(ServerStatus)


def read_status(body: bytes) -> ServerStatus:
    """Return the Status in an error body. Any other body (the page of a proxy, an empty one) becomes the message."""
    try:
        return _STATUS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ServerStatus(message=body[:MESSAGE_CHARS_MAX].decode(errors="replace").strip())


def read_retry_after(header: str | None) -> float | None:
    """Return the seconds of a Retry-After header, limited; None when it is missing or a date."""
    seconds = (header or "").strip(" \t")
    if not (seconds.isascii() and seconds.isdigit()):
        return None
    return min(float(seconds), RETRY_AFTER_S_MAX)


def explain(verb: Verb, code: int, status: ServerStatus, retry_after_s: float | None = None) -> ControlPlaneError:
    """Return the error for this response."""
    message = (status.message or status.reason or f"HTTP {code}")[:MESSAGE_CHARS_MAX]
    if retry_after_s is None and status.details and status.details.retry_after_seconds:
        retry_after_s = float(min(status.details.retry_after_seconds, RETRY_AFTER_S_MAX))
    match code:
        case 401:
            return DeniedError(message)
        case 403:
            return _forbidden(status, message, retry_after_s)
        case 404:
            return NotFoundError(message)
        case 408:
            return DeadlineError(message, retry_after_s=retry_after_s)
        case 409:
            return _conflict(verb, status, message)
        case 410:
            return ExpiredError(message)
        case 413:
            return TooLargeError(message)
        case 429:
            return ThrottledError(message, retry_after_s=retry_after_s)
        case _ if 400 <= code < 500:
            return _refused(verb, status, message)
        case _:
            return _failed(message, retry_after_s)


def pointer_of(field: str | None) -> str:
    """Return the JSON pointer (RFC 6901) of a field in the server's notation; the whole input when there is no
    field."""
    if not field or field == "<nil>":
        return ""
    tokens = [bracketed or plain for bracketed, plain in _FIELD_TOKEN.findall(field)]
    return "".join("/" + token.strip("\"'").replace("~", "~0").replace("/", "~1") for token in tokens)


def _forbidden(status: ServerStatus, message: str, retry_after_s: float | None) -> ControlPlaneError:
    if any(cause.reason == "NamespaceTerminating" for cause in status.causes):
        return TerminatingError(message)
    if any(mark in message for mark in _QUOTA_MARKS):
        return QuotaExceededError(message, retry_after_s=retry_after_s)
    if _LACKS_VERB.search(message):
        return DeniedError(message)
    if _NO_DEFAULT_ACCOUNT in message or _is_policy_unready(message):
        return UnavailableError(message, retry_after_s=retry_after_s)
    return InvalidError(message, fields=_fields(status))


def _conflict(verb: Verb, status: ServerStatus, message: str) -> ControlPlaneError:
    if status.reason == "AlreadyExists":
        return AlreadyExistsError(message)
    if verb is Verb.BIND and "already assigned" in message:
        return BoundError(message)
    return StaleError(message)


def _refused(verb: Verb, status: ServerStatus, message: str) -> ControlPlaneError:
    if verb is Verb.LOG and "waiting to start" in message:
        return UnavailableError(message)
    if verb is Verb.PATCH and not status.causes and _NOT_APPLICABLE in message:
        return StaleError(message)
    if _is_policy_unready(message):
        return UnavailableError(message)
    return InvalidError(message, fields=_fields(status))


def _is_policy_unready(message: str) -> bool:
    return any(mark in message for mark in _POLICY_NOT_READY)


def _failed(message: str, retry_after_s: float | None) -> ControlPlaneError:
    if "too many requests" in message:
        return ThrottledError(message, retry_after_s=retry_after_s)
    if "database space exceeded" in message:
        return UnavailableError(message, retry_after_s=retry_after_s)
    if "request is too large" in message or "ResourceExhausted" in message:
        return TooLargeError(message)
    return UnavailableError(message, retry_after_s=retry_after_s)


def _fields(status: ServerStatus) -> tuple[FieldError, ...]:
    return tuple(FieldError(pointer_of(cause.field), cause.message or "") for cause in status.causes if cause.field)
