"""The server's error answers: Kubernetes `Status` objects and the causes of an invalid object.

Owns the messages, codes and reasons of every refusal. Knows no resource kind and no HTTP. Invariant: clients decide by
`code`, `reason` and `details.causes`; messages are equal to the real server's messages, because programs also parse
some of them ("already assigned to node", "exceeded quota:").
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from slipway.local.apiserver.objects import Json


class StatusError(Exception):
    """A refused call. `to_json()` returns the Status object that the client receives."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self._has_details = details is not None

    def to_json(self) -> Json:
        status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self._has_details:
            status["details"] = self.details
        status["code"] = self.code
        return status


class FieldCause(msgspec.Struct, frozen=True):
    """One invalid field of an object: its path, the reason code, and the message after the field's name."""

    field: str
    reason: str
    body: str

    def __str__(self) -> str:
        return f"{self.field}: {self.body}"

    def to_json(self) -> Json:
        return {"reason": self.reason, "message": self.body, "field": self.field}


def quoted(value: Any) -> str:
    """Return a value as the server prints it inside a message: as JSON."""
    return msgspec.json.encode(value).decode()


def bad_value(field: str, value: Any, detail: str) -> FieldCause:
    return FieldCause(field, "FieldValueInvalid", f"Invalid value: {quoted(value)}: {detail}")


def bad_type(field: str, type_name: str, detail: str) -> FieldCause:
    return FieldCause(field, "FieldValueTypeInvalid", f'Invalid value: "{type_name}": {detail}')


def missing(field: str, detail: str = "") -> FieldCause:
    return FieldCause(field, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def unsupported(field: str, value: Any, allowed: list[Any]) -> FieldCause:
    listed = ", ".join(quoted(item) for item in allowed)
    body = f"Unsupported value: {quoted(value)}: supported values: {listed}"
    return FieldCause(field, "FieldValueNotSupported", body)


def not_allowed(field: str, detail: str) -> FieldCause:
    return FieldCause(field, "FieldValueForbidden", f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> FieldCause:
    return FieldCause(field, "FieldValueDuplicate", f"Duplicate value: {quoted(value)}")


def too_many(field: str, count: int, limit: int) -> FieldCause:
    return FieldCause(field, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


def too_long(field: str, limit: int) -> FieldCause:
    return FieldCause(field, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def _details(resource: str, name: str, **extra: Any) -> Json:
    plural, _, group = resource.partition(".")
    details: Json = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = plural
    details.update(extra)
    return details


def not_found(resource: str, name: str) -> StatusError:
    return StatusError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def no_such_path() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> StatusError:
    return StatusError(409, "AlreadyExists", f'{resource} "{name}" already exists', _details(resource, name))


def conflict(resource: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, name))


def modified(resource: str, name: str) -> StatusError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def forbidden(resource: str, name: str, why: str, causes: list[Json] | None = None) -> StatusError:
    extra: Json = {"causes": causes} if causes else {}
    return StatusError(403, "Forbidden", f'{resource} "{name}" is forbidden: {why}', _details(resource, name, **extra))


def refused(resource: str, name: str, words: str, reason: str) -> StatusError:
    """Return a 403 for a user without permission; `resource` is "" for a path that is not a resource."""
    what = f'{resource} "{name}" is forbidden' if name else f"{resource} is forbidden" if resource else "forbidden"
    message = f"{what}: {words}: {reason}" if reason else f"{what}: {words}"
    return StatusError(403, "Forbidden", message, _details(resource, name) if resource else {})


def invalid(kind: str, name: str, causes: Sequence[FieldCause]) -> StatusError:
    """Return a 422 for an object; `kind` is for example `Pod` or `Allocation.slipway.dev`."""
    words = str(causes[0]) if len(causes) == 1 else "[" + ", ".join(str(cause) for cause in causes) + "]"
    details = _details(kind, name, causes=[cause.to_json() for cause in causes])
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {words}', details)


def too_many_requests(message: str, causes: list[Json], retry_after_s: int = 0) -> StatusError:
    details: Json = {"causes": causes}
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    return StatusError(429, "TooManyRequests", message, details)


def invalid_options(kind: str, causes: Sequence[FieldCause]) -> StatusError:
    """Return a 422 for options of a request; `kind` is CreateOptions, PatchOptions, ..."""
    error = invalid(f"{kind}.meta.k8s.io", "", causes)
    listed = [cause.to_json() for cause in causes]
    return StatusError(422, "Invalid", error.message, {"group": "meta.k8s.io", "kind": kind, "causes": listed})


def expired(message: str) -> StatusError:
    return StatusError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> StatusError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return StatusError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def unsupported_media(accepted: list[str]) -> StatusError:
    listed = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {listed}"
    return StatusError(415, "UnsupportedMediaType", message)


def not_supported(_verb: str) -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {})


def success(details: Json | None = None, code: int | None = None) -> Json:
    answer: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details:
        answer["details"] = details
    if code is not None:
        answer["code"] = code
    return answer
