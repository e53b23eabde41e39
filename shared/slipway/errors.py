"""The one error tree of Slipway.

```
ControlPlaneError
├── TransientError            try again later; `retry_after_s` is set when the other side stated a time
│   ├── UnavailableError      the other side could not be reached, or answered 5xx
│   │   └── BusyError         nothing was sent: all our connections to the other side are in use
│   ├── ThrottledError        429, or a limit of our own
│   ├── QuotaExceededError    403 "exceeded quota": wait for quota, never the user's failure
│   ├── ClaimPendingError     a volume claim is not bound yet, or does not exist
│   └── DeadlineError         no answer in time; the outcome is unknown
├── PermanentError            the same call will never succeed
│   ├── InvalidError          bad input; carries the fields
│   ├── NotFoundError
│   ├── AlreadyExistsError
│   ├── BoundError            the pod is bound already
│   ├── DeniedError           the account lacks the permission
│   ├── TerminatingError      the namespace or object is being deleted
│   └── TooLargeError
├── StaleError                another writer was first: observe again, decide again
│   └── ExpiredError          the resource version is no longer in the watch history: LIST again
└── InvariantError            a bug of ours; the process ends
```

Adapters translate the errors of libraries into this tree at the edge (`raise ... from exc`); nothing above
an adapter names an exception of redis, kubernetes or httpx2.
"""

from dataclasses import dataclass


class ControlPlaneError(Exception):
    """Base class of all errors that Slipway raises on purpose; `attempts` is the number of tries that a retry policy
    made.

    A client that raises an error for a refusal of the API also sets the fields of the problem document. These are its
    `code` (`not-found`), the HTTP `status`, the `trace_id` under which the server logged it, and the `next_step` that
    helps.
    """

    attempts: int = 1
    code: str = ""
    status: int = 0
    trace_id: str = ""
    next_step: str = ""


class TransientError(ControlPlaneError):
    """The call may succeed later; `retry_after_s` (seconds) is set when the other side stated a time."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class UnavailableError(TransientError):
    """The other side could not be reached or answered with a server error; the outcome may be unknown."""


class BusyError(UnavailableError):
    """All our own connections to the other side are in use; nothing was sent, and the other side may be healthy."""


class ThrottledError(TransientError):
    """The other side, or a limit of our own, requires fewer calls."""


class QuotaExceededError(TransientError):
    """A Kubernetes ResourceQuota refuses the object for now."""


class ClaimPendingError(TransientError):
    """A volume claim that a pod needs does not exist, or is not bound yet."""


class DeadlineError(TransientError):
    """No answer within the deadline; whether the call took effect is unknown."""


class PermanentError(ControlPlaneError):
    """The same call will never succeed."""


@dataclass(frozen=True)
class FieldError:
    """One bad field: `pointer` is a JSON pointer (RFC 6901) into the input, `detail` states what to change."""

    pointer: str
    detail: str


class InvalidError(PermanentError):
    """Bad input; `fields` names each offending field."""

    def __init__(self, message: str, *, fields: tuple[FieldError, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields


class NotFoundError(PermanentError):
    """The object does not exist, or the caller may not see it. Both cases must look the same."""


class BoundError(PermanentError):
    """The pod is bound already: read it to see where."""


class AlreadyExistsError(PermanentError):
    """An object of that name exists."""


class DeniedError(PermanentError):
    """The account lacks the permission."""


class TerminatingError(PermanentError):
    """The namespace or the object is being deleted."""


class TooLargeError(PermanentError):
    """The object is larger than the server accepts."""


class StaleError(ControlPlaneError):
    """A fence refused the write: observe again, decide again."""


class ExpiredError(StaleError):
    """The resource version is no longer in the watch history (410): LIST again."""


class InvariantError(ControlPlaneError):
    """A promise between our own parts is broken: a bug. The process ends and is started again."""
