"""The bearer token of a request, and what a JWT says of itself. Pure.

Nothing that is read here opens anything: a token is whatever somebody has written, until it was confirmed. What it says
may only refuse sooner, or choose who is asked.
"""

import base64
import binascii
import re
from typing import Any, cast

import msgspec
from starlette.requests import HTTPConnection

TOKEN_LENGTH_MAX = 16_384
_JWT = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*")
"""The signature may be missing: such a token is refused, and with what is wrong with it."""


class TokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """What a token says of itself; anybody can write that."""

    audiences: tuple[str, ...]
    issuer: str
    ends_at: float
    is_account: bool
    """of a service account, as Kubernetes makes them"""


def bearer(connection: HTTPConnection) -> str:
    """The token in the Authorization header; empty when there is none."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def claims_of(token: str) -> TokenClaims | None:
    """What a token says of itself; None when it is no JWT."""
    found = _JWT.fullmatch(token) if len(token) <= TOKEN_LENGTH_MAX else None
    if found is None:
        return None
    try:
        text = base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4))
        said: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    audiences, ends_at = said.get("aud"), said.get("exp")
    listed = cast("list[Any]", audiences) if isinstance(audiences, list) else [audiences]
    return TokenClaims(
        audiences=tuple(each for each in listed if isinstance(each, str)),
        issuer=issuer if isinstance(issuer := said.get("iss"), str) else "",
        ends_at=float(ends_at) if isinstance(ends_at, int | float) else 0.0,
        is_account="kubernetes.io" in said,
    )
