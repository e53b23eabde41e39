"""Refusals that only an HTTP edge knows, as parts of the one error tree.

`problems.py` says which status each one is answered with.
"""

from slipway.errors import DeadlineError, InvalidError, PermanentError, StaleError, ThrottledError, UnavailableError


class MalformedError(InvalidError):
    """The body or a parameter cannot even be read."""


class UnsupportedMediaError(InvalidError):
    """The body is of a type that is not taken."""


class NotAcceptableError(InvalidError):
    """Nothing that this resource has is of a type that the client accepts."""


class BodyTooLargeError(PermanentError):
    """The request body is longer than the limit."""


class ArchiveRefusedError(InvalidError):
    """An uploaded archive is damaged, or holds what it may not."""


class PreconditionError(StaleError):
    """If-Match names another version than the current one."""


class PageExpiredError(StaleError):
    """A list is asked to go on from a page that is too old."""


class KeyReusedError(InvalidError):
    """An Idempotency-Key came again with another body."""


class AmbiguousError(PermanentError):
    """An abbreviated id fits several allocations."""


class ConflictError(PermanentError):
    """The request contradicts where the object stands now."""


class TooManyStreamsError(ThrottledError):
    """This process serves as many open streams as it may."""


class TooManyStreamsOfOneError(TooManyStreamsError):
    """One user, workspace or rank has as many open streams as it may; others still get theirs."""


class BadGatewayError(UnavailableError):
    """A workload gave the proxy no proper answer."""


class NotListeningError(UnavailableError):
    """A workload runs, and does not accept connections on its port yet."""


class UnauthorizedError(PermanentError):
    """The caller must authenticate with a valid token."""


class UpgradeRequiredError(InvalidError):
    """The path serves WebSockets, and the request is none."""


class ForbiddenError(PermanentError):
    """It is known who calls, and this is not theirs."""


class ReplacedError(ConflictError):
    """The same request came again and took the place of this one."""


class PeersMissingError(DeadlineError):
    """Not all peers came in time."""


class IssuerAwayError(UnavailableError):
    """The issuer of single sign-on cannot be reached, or answers what cannot be used."""


class RedisAwayError(UnavailableError):
    """What was asked for is kept in Redis only, and Redis cannot be reached."""
