"""The bearer token of a request, and the unverified claims of a JWT. Pure.

Nothing that is read here gives access, because anybody can write a token with any claims. The claims may only lead to
an earlier refusal, or select the check of the token.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec
from starlette.requests import HTTPConnection

from slipway.model.numbers import seconds_in

TOKEN_LENGTH_MAX = 16_384
_AUDIENCE_CHARS_MAX = 160
_JWT = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*")
"""The form of a JWT. The signature may be empty, so that such a token is refused later with the exact reason."""


class TokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The unverified claims of a token."""

    audiences: tuple[str, ...]
    issuer: str
    ends_at: float
    """the claim `exp` in epoch seconds; 0 when it is missing or no time"""
    is_account: bool
    """whether the token claims to be a service account token of Kubernetes"""


def bearer(connection: HTTPConnection) -> str:
    """Return the token in the Authorization header; empty when there is none."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def claims_of(token: str) -> TokenClaims | None:
    """Return the unverified claims of a token; None when it is no JWT."""
    found = _JWT.fullmatch(token) if len(token) <= TOKEN_LENGTH_MAX else None
    if found is None:
        return None
    try:
        text = base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4))
        said: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    audiences = said.get("aud")
    listed = cast("list[Any]", audiences) if isinstance(audiences, list) else [audiences]
    return TokenClaims(
        audiences=tuple(each for each in listed if isinstance(each, str)),
        issuer=issuer if isinstance(issuer := said.get("iss"), str) else "",
        ends_at=seconds_in(said.get("exp")) or 0.0,
        is_account="kubernetes.io" in said,
    )


def wrong_audience(named: Iterable[str], accepted: str) -> str:
    """Return the refusal of a token whose audiences do not include the accepted one."""
    text = ", ".join(named)[:_AUDIENCE_CHARS_MAX]
    if not text:
        return f"the token names no audience; it must name {accepted!r}"
    return f"the token is for {text!r}, not for {accepted!r}"
