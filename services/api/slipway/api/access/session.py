"""Browsers: the cookie that carries a token, for those who cannot send a header of their own.

Owns the cookie: its name, its life, where it counts. It holds the token itself, so that there is no state and no key of
ours, and whoever takes the token away ends the login with it. Pure.

Invariants: a script cannot read it (HttpOnly); no other site makes a browser send it (SameSite); it belongs to one
host name and never to its subdomains or parents, so the pages of workloads, which have origins of their own, neither
see nor send it; it changes nothing but from a page of the very same origin.
"""

import re

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from slipway.api.bearer import bearer

NAME = "slipway_session"
SECURE_NAME = "__Host-slipway_session"
"""Under TLS: a browser then takes it from this very host only, never from a page of a subdomain."""
TOKEN_CHARS_MAX = 3_800
"""Browsers keep 4,096 bytes."""
BY_COOKIE_KEY = "slipway.by_cookie"
_VALUE = re.compile(r"(\d{1,12})\.([\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+)")


class LoginSession(msgspec.Struct, frozen=True):
    """A login: whose token it is, and until when (epoch seconds) the browser was told to keep it."""

    token: str
    ends_at: float


def credential(connection: HTTPConnection, now: float) -> str:
    """The token of a request: that of its header, else that of its cookie; empty when there is none."""
    token = bearer(connection)
    if token:
        return token
    session = session_of(connection)
    if session is None or session.ends_at <= now:
        return ""
    connection.scope[BY_COOKIE_KEY] = True
    return session.token


def is_by_cookie(connection: HTTPConnection) -> bool:
    """Whether the browser itself has brought the token along."""
    return bool(connection.scope.get(BY_COOKIE_KEY))


def session_of(connection: HTTPConnection) -> LoginSession | None:
    """What the cookie says. With both, the one that only this host can have set counts."""
    for name in (SECURE_NAME, NAME):
        found = _VALUE.fullmatch(connection.cookies.get(name, ""))
        if found is not None:
            return LoginSession(token=found[2], ends_at=float(found[1]))
    return None


def begin(
    response: Response, token: str, *, now: float, life_s: float, is_secure: bool, is_strict: bool = True
) -> None:
    """Let the browser keep it. One that is not strict is also sent when a page of another site leads here."""
    response.set_cookie(
        SECURE_NAME if is_secure else NAME,
        f"{int(now + life_s)}.{token}",
        max_age=int(life_s),
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="strict" if is_strict else "lax",
    )


def end(response: Response) -> None:
    """Let the browser forget it, by either name."""
    for name, is_secure in ((SECURE_NAME, True), (NAME, False)):
        response.set_cookie(name, "", max_age=0, path="/", secure=is_secure, httponly=True, samesite="strict")


def is_secure(connection: HTTPConnection) -> bool:
    """Whether the browser sees us under TLS, which may end in front of us: then its Origin says so."""
    return connection.url.scheme in ("https", "wss") or connection.headers.get("origin", "").startswith("https://")
