"""Who calls. In mode `none` (loopback only) it is whoever the caller says, and nobody is refused."""

import re

from starlette.requests import HTTPConnection

from slipway.api.refusals import MalformedError

USER_HEADER = "x-slipway-user"
UNKNOWN = "unknown"
_USER = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,127}")


def user_of(connection: HTTPConnection) -> str:
    """The caller's name. Raises MalformedError when the header can not be one."""
    given = connection.headers.get(USER_HEADER, "").strip()
    if not given:
        return UNKNOWN
    if _USER.fullmatch(given) is None:
        raise MalformedError("X-Slipway-User: 1 to 128 printable ASCII characters are taken")
    return given
