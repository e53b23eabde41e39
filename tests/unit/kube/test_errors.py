"""The answer table: every answer of the API server means exactly one error of ours."""

import msgspec
import pytest

from slipway import errors
from slipway.errors import ControlPlaneError, FieldError, InvalidError, TransientError
from slipway.kube.errors import (
    RETRY_AFTER_S_MAX,
    ServerStatus,
    StatusCause,
    StatusDetails,
    Verb,
    explain,
    pointer_of,
    read_retry_after,
    read_status,
)

FORBIDDEN = 'pods "p" is forbidden: '
CONFLICT = 'Operation cannot be fulfilled on pods "p": '
TABLE: list[tuple[Verb, int, str, str, type[ControlPlaneError]]] = [
    (Verb.GET, 400, "BadRequest", "bad", errors.InvalidError),
    (Verb.LOG, 400, "BadRequest", 'container "main" in pod "p" is waiting to start: ContainerCreating',
     errors.UnavailableError),
    (Verb.GET, 400, "BadRequest", 'container "main" is waiting to start', errors.InvalidError),
    (Verb.GET, 401, "Unauthorized", "Unauthorized", errors.DeniedError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
     errors.QuotaExceededError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + "status unknown for quota: q, resources: pods",
     errors.QuotaExceededError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + "failed quota: q: must specify limits.cpu", errors.InvalidError),
    (Verb.CREATE, 403, "Forbidden",
     'pods is forbidden: User "system:serviceaccount:s:w" cannot create resource "pods" in API group "" in the '
     'namespace "x"', errors.DeniedError),
    (Verb.BIND, 403, "Forbidden", 'pods "p" is forbidden: User "u" cannot create resource "pods/binding" in API group '
     '"" in the namespace "x"', errors.DeniedError),
    (Verb.GET, 403, "Forbidden", 'forbidden: User "system:anonymous" cannot get path "/"', errors.DeniedError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + 'violates PodSecurity "restricted:latest": privileged',
     errors.InvalidError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + "maximum cpu usage per Container is 1, but limit is 2",
     errors.InvalidError),
    (Verb.CREATE, 403, "Forbidden", 'admission webhook "w" denied the request: User "x" cannot do that',
     errors.InvalidError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + 'error looking up service account x/default: serviceaccount "default" '
     "not found", errors.UnavailableError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: "
     "failed to configure binding: paramKind kind `slipway.dev/v1alpha1, Kind=ResourcePool` not yet synced "
     "to use for admission", errors.UnavailableError),
    (Verb.CREATE, 422, "Invalid", FORBIDDEN + "ValidatingAdmissionPolicy 'p' denied request: failed to configure "
     "policy: failed to find resource referenced by paramKind: 'slipway.dev/v1alpha1, Kind=ResourcePool'",
     errors.UnavailableError),
    (Verb.CREATE, 403, "Forbidden", FORBIDDEN + 'error looking up service account x/mine: serviceaccount "mine" '
     "not found", errors.InvalidError),
    (Verb.GET, 404, "NotFound", 'pods "p" not found', errors.NotFoundError),
    (Verb.GET, 405, "MethodNotAllowed", "no", errors.InvalidError),
    (Verb.LIST, 406, "NotAcceptable", "no", errors.InvalidError),
    (Verb.GET, 408, "Timeout", "slow", errors.DeadlineError),
    (Verb.CREATE, 409, "AlreadyExists", 'pods "p" already exists', errors.AlreadyExistsError),
    (Verb.CREATE, 409, "AlreadyExists", 'object is being deleted: pods "p" already exists', errors.AlreadyExistsError),
    (Verb.CREATE, 409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified',
     errors.StaleError),
    (Verb.UPDATE, 409, "Conflict", CONFLICT + "the object has been modified; please apply", errors.StaleError),
    (Verb.DELETE, 409, "Conflict", CONFLICT + "Precondition failed: UID in precondition: a, UID in object meta: b",
     errors.StaleError),
    (Verb.BIND, 409, "Conflict", CONFLICT + 'pod p is already assigned to node "n"', errors.BoundError),
    (Verb.BIND, 409, "Conflict", CONFLICT + "pod p has non-empty .spec.schedulingGates", errors.StaleError),
    (Verb.BIND, 409, "Conflict", CONFLICT + "pod p is being deleted, cannot be assigned to a host", errors.StaleError),
    (Verb.UPDATE, 409, "Conflict", CONFLICT + "already assigned", errors.StaleError),
    (Verb.WATCH, 410, "Expired", "too old resource version: 1 (2)", errors.ExpiredError),
    (Verb.LIST, 410, "Gone", "The provided continue parameter is too old", errors.ExpiredError),
    (Verb.CREATE, 413, "RequestEntityTooLarge", "limit is 3145728", errors.TooLargeError),
    (Verb.CREATE, 415, "UnsupportedMediaType", "no", errors.InvalidError),
    (Verb.CREATE, 422, "Invalid", 'Pod "p" is invalid: spec: Required value', errors.InvalidError),
    (Verb.PATCH, 422, "Invalid", "the server rejected our request due to an error in our request", errors.StaleError),
    (Verb.PATCH, 422, "Invalid", 'Pod "p" is invalid: spec: Forbidden', errors.InvalidError),
    (Verb.CREATE, 422, "Invalid", "the server rejected our request due to an error in our request",
     errors.InvalidError),
    (Verb.GET, 429, "TooManyRequests", "slow down", errors.ThrottledError),
    (Verb.CREATE, 500, "InternalError", "etcdserver: request is too large", errors.TooLargeError),
    (Verb.CREATE, 500, "InternalError", "rpc error: code = ResourceExhausted desc = trying to send message larger",
     errors.TooLargeError),
    (Verb.CREATE, 500, "InternalError", "rpc error: code = ResourceExhausted desc = etcdserver: too many requests",
     errors.ThrottledError),
    (Verb.CREATE, 500, "InternalError", "code = ResourceExhausted desc = etcdserver: mvcc: database space exceeded",
     errors.UnavailableError),
    (Verb.CREATE, 500, "InternalError", "Internal error occurred", errors.UnavailableError),
    (Verb.CREATE, 500, "ServerTimeout", "The create operation could not be completed at this time",
     errors.UnavailableError),
    (Verb.LIST, 501, "", "", errors.UnavailableError),
    (Verb.GET, 502, "", "<html>bad gateway</html>", errors.UnavailableError),
    (Verb.GET, 503, "ServiceUnavailable", "apiserver is shutting down", errors.UnavailableError),
    (Verb.LIST, 504, "Timeout", "Timeout: Too large resource version: 9, current: 8", errors.UnavailableError),
    (Verb.GET, 302, "", "moved", errors.UnavailableError),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "code", "reason", "message", "meaning"), TABLE)
def test_each_answer_has_one_meaning(
    verb: Verb, code: int, reason: str, message: str, meaning: type[ControlPlaneError]
) -> None:
    """Each answer has one exact error class, which contains the server's own message."""
    error = explain(verb, code, ServerStatus(code=code, reason=reason, message=message))
    assert type(error) is meaning
    assert (message or reason or f"HTTP {code}") in str(error)


def test_every_code_means_something() -> None:
    """Every code of every verb has an error, and only 409 and 410 fence."""
    for verb in Verb:
        for code in range(300, 600):
            error = explain(verb, code, ServerStatus(message="m"))
            assert isinstance(error, ControlPlaneError)
            assert isinstance(error, errors.StaleError) == (code in (409, 410))
            assert not isinstance(error, errors.InvariantError)
            if code >= 500 or code == 429:
                assert isinstance(error, TransientError)


def test_a_terminating_namespace_is_known_by_its_cause() -> None:
    """A terminating namespace is recognized by its cause, whatever the message is."""
    causes = [StatusCause(reason="NamespaceTerminating", message="m", field="metadata.namespace")]
    status = ServerStatus(
        reason="Forbidden", message="is forbidden: exceeded quota:", details=StatusDetails(causes=causes)
    )
    assert type(explain(Verb.CREATE, 403, status)) is errors.TerminatingError


def test_invalid_carries_its_fields() -> None:
    """Each cause with a field becomes a pointer with the server's message."""
    causes = [
        StatusCause(reason="FieldValueInvalid", message="Invalid value: -1", field="spec.ranks[0].count"),
        StatusCause(reason="FieldValueRequired", message="Required value", field="spec.template"),
        StatusCause(reason="Other", message="without a field"),
    ]
    error = explain(Verb.CREATE, 422, ServerStatus(message="bad", details=StatusDetails(causes=causes)))
    assert isinstance(error, InvalidError)
    assert error.fields == (
        FieldError("/spec/ranks/0/count", "Invalid value: -1"),
        FieldError("/spec/template", "Required value"),
    )


@pytest.mark.parametrize(
    ("field", "pointer"),
    [
        (None, ""),
        ("", ""),
        ("<nil>", ""),
        ("spec", "/spec"),
        ("spec.ranks[12].count", "/spec/ranks/12/count"),
        ("metadata.labels[a.b/c]", "/metadata/labels/a.b~1c"),
        ("spec.limits[nvidia.com/gpu]", "/spec/limits/nvidia.com~1gpu"),
        ("data[x~y]", "/data/x~0y"),
        ('spec.env["A"].value', "/spec/env/A/value"),
    ],
)
def test_pointers(field: str | None, pointer: str) -> None:
    """Field paths in the server's notation become JSON pointers (RFC 6901)."""
    assert pointer_of(field) == pointer


def test_retry_after_comes_from_the_header_then_the_body() -> None:
    """The header wins; the body's hint is used without one; both are bounded."""
    hinted = ServerStatus(message="m", details=StatusDetails(retry_after_seconds=7))

    def seconds(code: int, status: ServerStatus, header: str | None) -> float | None:
        error = explain(Verb.GET, code, status, read_retry_after(header))
        assert isinstance(error, TransientError)
        return error.retry_after_s

    assert seconds(429, hinted, "3") == 3
    assert seconds(429, hinted, None) == 7
    assert seconds(503, hinted, "Wed, 21 Oct 2026 07:28:00 GMT") == 7
    assert seconds(503, ServerStatus(message="m"), None) is None
    assert seconds(503, ServerStatus(message="m"), "999999") == RETRY_AFTER_S_MAX


@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b"[1]", b'{"code":"x"}', b"\xff\xfe", b"{"])
def test_any_body_is_a_status(body: bytes) -> None:
    """A proxy's page or garbage becomes a message, never another exception."""
    assert isinstance(read_status(body), ServerStatus)


def test_a_status_body_is_read() -> None:
    """Details and causes survive; nulls are allowed."""
    body = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "m",
            "details": {"name": None, "causes": [{"field": "a.b", "message": "c", "reason": None}]}}  # fmt: skip
    status = read_status(msgspec.json.encode(body))
    assert (status.code, status.reason, status.causes[0].field) == (422, "Invalid", "a.b")
