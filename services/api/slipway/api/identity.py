"""The caller's name, which handlers write into the objects that they create.

The name comes from the authentication and never from the request itself, except in mode `none`.
"""

import re

from starlette.requests import HTTPConnection

from slipway.api.access.principal import SAID, USER_NAME_RULE, Principal, UnauthenticatedCaller
from slipway.api.http_errors import ForbiddenError, MalformedError
from slipway.errors import InvariantError

PRINCIPAL_KEY = "slipway.principal"
_KNOWN = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,252}")
"""Permitted names of authenticated users; longer than in mode `none`, because Kubernetes accounts have long names."""


def principal_of(connection: HTTPConnection) -> Principal:
    """Return the caller. Raises InvariantError when the request was not authenticated: it must not be served."""
    found: Principal | None = connection.scope.get(PRINCIPAL_KEY)
    if found is None:
        raise InvariantError(f"{connection.scope['path']} is served without authentication")
    return found


def user_of(connection: HTTPConnection) -> str:
    """Return the caller's name. Raises MalformedError or ForbiddenError when it is no valid name."""
    principal = principal_of(connection)
    if isinstance(principal, UnauthenticatedCaller):
        if SAID.fullmatch(principal.name) is None:
            raise MalformedError(USER_NAME_RULE)
    elif _KNOWN.fullmatch(principal.name) is None:
        raise ForbiddenError(
            "the user's name must have at most 253 characters, all printable ASCII, to own objects here"
        )
    return principal.name
