"""Who calls, as the handlers need it: the name that stands in what is made. It is never taken from the request itself,
but for mode `none`, where everybody may say who they are."""

import re

from starlette.requests import HTTPConnection

from slipway.api.access.principal import SAID, USER_NAME_RULE, Anybody, Principal
from slipway.api.http_errors import ForbiddenError, MalformedError
from slipway.errors import InvariantError

PRINCIPAL_KEY = "slipway.principal"
_KNOWN = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,252}")
"""Accounts of Kubernetes have long names."""


def principal_of(connection: HTTPConnection) -> Principal:
    """Who calls. Raises InvariantError where nobody has asked: that must not be served."""
    found: Principal | None = connection.scope.get(PRINCIPAL_KEY)
    if found is None:
        raise InvariantError(f"{connection.scope['path']} is served without asking who calls")
    return found


def user_of(connection: HTTPConnection) -> str:
    """The caller's name. Raises MalformedError when it cannot be one."""
    principal = principal_of(connection)
    if isinstance(principal, Anybody):
        if SAID.fullmatch(principal.name) is None:
            raise MalformedError(USER_NAME_RULE)
    elif _KNOWN.fullmatch(principal.name) is None:
        raise ForbiddenError("a user whose name is not of at most 253 printable ASCII characters can own nothing here")
    return principal.name
