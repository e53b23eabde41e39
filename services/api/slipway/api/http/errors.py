"""Errors that only the HTTP edge needs, as parts of the one error tree.

`problems.py` maps each error to its HTTP status.

Data that is stored only in Redis is refused clearly while Redis cannot be reached.
"""

import contextlib
from collections.abc import Generator

from slipway.errors import (
    BusyError,
    DeadlineError,
    InvalidError,
    PermanentError,
    StaleError,
    ThrottledError,
    UnavailableError,
)


class MalformedError(InvalidError):
    """The body or a parameter cannot be parsed."""


class UnsupportedMediaError(InvalidError):
    """The media type of the body is not accepted."""


class NotAcceptableError(InvalidError):
    """The resource has no media type that the client accepts."""


class BodyTooLargeError(PermanentError):
    """The request body is longer than the limit."""


class ArchiveRefusedError(InvalidError):
    """An uploaded archive is damaged, or contains something that is not allowed."""


class PreconditionError(StaleError):
    """If-Match names another version than the current one."""


class PageExpiredError(StaleError):
    """The `continue` of a list names a page that is too old."""


class KeyReusedError(InvalidError):
    """An Idempotency-Key was used again with another body."""


class AmbiguousError(PermanentError):
    """An abbreviated id fits several allocations."""


class ConflictError(PermanentError):
    """The request contradicts the present state of the object."""


class TooManyStreamsError(ThrottledError):
    """This process has reached its limit of open streams."""


class TooManyStreamsOfOneError(TooManyStreamsError):
    """One user, workspace or rank has reached its limit of open streams; other callers are not affected."""


class BadGatewayError(UnavailableError):
    """A workload gave the proxy no valid answer."""


class NotListeningError(UnavailableError):
    """A workload runs, but does not accept connections on its port yet."""


class UnauthorizedError(PermanentError):
    """The caller must authenticate with a valid token."""


class UpgradeRequiredError(InvalidError):
    """The path serves WebSockets only, and the request is no WebSocket."""


class ForbiddenError(PermanentError):
    """The caller is authenticated, but does not have the permission."""


class ReplacedError(ConflictError):
    """A newer request with the same id has replaced this one."""


class PeersMissingError(DeadlineError):
    """Not all peers arrived in time."""


class IssuerUnavailableError(UnavailableError):
    """The issuer of single sign-on cannot be reached, or its answer cannot be used."""


class RedisUnavailableError(UnavailableError):
    """The requested data are in Redis only, and Redis cannot be reached."""


@contextlib.contextmanager
def needs_redis(what: str) -> Generator[None]:
    """Turn an error of an unreachable Redis into RedisUnavailableError; `what` names the missing data (plural)."""
    try:
        yield
    except BusyError:
        raise  # Redis is reachable; only the connections of this process are all in use
    except (UnavailableError, DeadlineError) as error:
        raise RedisUnavailableError(f"{what} are stored in Redis, which cannot be reached right now") from error
