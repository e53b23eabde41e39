"""Validates a token of an OpenID Connect issuer, and derives the user whom it names. Pure.

Owns the check of the signature with the issuer's keys, the check of the claims with the settings, and the mapping from
claims to a user's name and groups. The mapping is that of kube-apiserver. The package `joserfc` checks the signature
itself. The caller passes the time and the keys.

Invariants: only asymmetric algorithms that the settings list are accepted, whatever the token's header names. A key
that the issuer publishes for another use or algorithm is ignored, and so is every symmetric key. No content of a token
is trusted before its signature was checked. No accepted user name or group begins with `system:`, which Kubernetes
reserves for itself, or with `kubeadm:`, whose groups administer clusters. No accepted name or group has a character
that is not printable.

Source: https://openid.net/specs/openid-connect-core-1_0.html#IDTokenValidation, RFC 8725 (best practices for JWT)
"""

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from slipway.api.auth.bearer import wrong_audience
from slipway.api.http.errors import UnauthorizedError
from slipway.model.apitokens import Role
from slipway.model.numbers import seconds_in
from slipway.model.times import format_time
from slipway.runtime.listen import is_loopback

CLOCK_SKEW_S = 30
"""How much the issuer's clock may be ahead of or behind ours."""
KEYS_MAX = 64
GROUPS_MAX = 1_000
NAME_CHARS_MAX = 253
RESERVED = ("system:", "kubeadm:")
NO_PREFIX = "-"
_KINDS = ("group:", "user:")
_ASYMMETRIC = ("RSA", "EC")
_LOGOUT_EVENTS = "events"
"""A claim that only logout tokens have. Issuers sign them with the same keys and for the same audience as ID tokens."""


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """The requirements of the settings for a token."""

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    username_claim: str
    username_prefix: str
    groups_claim: str
    groups_prefix: str
    required_claims: Mapping[str, str]


class OidcUser(msgspec.Struct, frozen=True, kw_only=True):
    """The user whom a valid token names; `ends_at` is its expiry in epoch seconds."""

    name: str
    groups: tuple[str, ...] = ()
    ends_at: float


class IssuerKey(msgspec.Struct, frozen=True, kw_only=True):
    """A public key of the issuer. `kid` and `alg` are empty when the issuer does not state them."""

    kid: str
    alg: str
    key: Any
    """the key object of joserfc"""


class VerifiedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token whose signature and claims were checked."""

    user: OidcUser
    claims: Mapping[str, Any]


class TokenHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a token: it selects the key and is not trusted otherwise."""

    alg: str
    kid: str = ""


def check_issuer_url(text: str) -> str:
    """Return the address of an issuer if the settings may contain it. Raises ValueError otherwise."""
    parts = urlsplit(text)
    is_plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if not (parts.hostname and (parts.scheme == "https" or is_plain)) or parts.query or parts.fragment:
        raise ValueError(
            "must be an https:// address without query or fragment, such as https://login.example.com; http:// is "
            "accepted for a loopback address only"
        )
    return text


def check_subjects(roles: Mapping[str, object]) -> None:
    """Check that each subject in the settings is `user:NAME` or `group:NAME`. Raises ValueError."""
    for subject in roles:
        if not any(subject.startswith(kind) and len(subject) > len(kind) for kind in _KINDS):
            raise ValueError(f"{subject[:128]!r} must be group:NAME or user:NAME")


def header_of(token: str, rules: TokenRules) -> TokenHeader:
    """Return the header of a token. Raises UnauthorizedError when it is unreadable or its algorithm not accepted."""
    text = token.partition(".")[0]
    try:
        header = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=TokenHeader)
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UnauthorizedError(
            "the token cannot be read: its header is not a JSON object with an algorithm"
        ) from error
    if header.alg not in rules.algorithms:
        accepted = ", ".join(rules.algorithms)
        raise UnauthorizedError(
            f"the token is signed with {header.alg[:16]!r}; accepted is {accepted} (SLIPWAY_OIDC_SIGNING_ALGS)"
        )
    return header


def keys_of(document: object) -> tuple[IssuerKey, ...]:
    """Return the keys of a JWKS document that can check a signature. Raises ValueError when there is none."""
    from joserfc import jwk
    from joserfc.errors import JoseError

    listed = cast("Mapping[str, Any]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is not a JSON object with a list of keys")
    found: list[IssuerKey] = []
    for each in cast("list[Any]", listed)[:KEYS_MAX]:
        if not isinstance(each, dict):
            continue
        said = cast("dict[str, Any]", each)
        if said.get("kty") not in _ASYMMETRIC or said.get("use", "sig") != "sig" or "d" in said:
            continue
        try:
            key = jwk.import_key(cast("Any", said))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        found.append(IssuerKey(kid=str(said.get("kid") or ""), alg=str(said.get("alg") or ""), key=key))
    if not found:
        raise ValueError("it has no public key of a kind that is accepted (RSA, EC)")
    return tuple(found)


def key_for(header: TokenHeader, keys: Sequence[IssuerKey]) -> IssuerKey | None:
    """Return the key that the header names, or the only key when the header names none; None when no key fits."""
    if not header.kid:
        return keys[0] if len(keys) == 1 else None
    return next((key for key in keys if key.kid == header.kid), None)


def verified(token: str, header: TokenHeader, key: IssuerKey, rules: TokenRules, *, now: float) -> VerifiedToken:
    """Check a token and return its user and claims. `now` is in epoch seconds.

    Raises UnauthorizedError with the reason when the token is not valid.
    """
    from joserfc import jwt
    from joserfc.errors import JoseError

    if key.alg and key.alg != header.alg:
        raise UnauthorizedError(f"the token is signed with {header.alg}, and its key is for {key.alg[:16]}")
    try:
        claims = jwt.decode(token, key.key, algorithms=[header.alg]).claims
    except (JoseError, ValueError, TypeError, RecursionError) as error:
        raise UnauthorizedError("the signature of the token is not valid") from error
    ends_at = _check_claims(claims, rules, now)
    return VerifiedToken(user=_user(claims, rules, ends_at), claims=claims)


def has_expired(ends_at: float, now: float) -> bool:
    """Whether a token with this expiry is no longer accepted; the issuer's clock may be behind by CLOCK_SKEW_S."""
    return now >= ends_at + CLOCK_SKEW_S


def check_nonce(found: VerifiedToken, nonce: str) -> None:
    """Check that the token was issued for this sign-in, by its nonce. Raises UnauthorizedError."""
    said = found.claims.get("nonce")
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
        raise UnauthorizedError("the issuer's answer is not for this sign-in: its nonce is missing or differs")


def roles_for(user: OidcUser, roles: Mapping[str, Mapping[str, Role]]) -> dict[str, Role]:
    """Return {workspace or `*`: role} of a user: the highest role that the user's name and groups have."""
    found: dict[str, Role] = {}
    for subject in (f"user:{user.name}", *(f"group:{group}" for group in user.groups)):
        for workspace, role in roles.get(subject, {}).items():
            if workspace not in found or role.includes(found[workspace]):
                found[workspace] = role
    return found


def _check_claims(claims: Mapping[str, Any], rules: TokenRules, now: float) -> float:
    """Check the claims and return the token's expiry in epoch seconds. Raises UnauthorizedError with the reason."""
    if claims.get("iss") != rules.issuer:
        raise UnauthorizedError(f"the token was not issued by {rules.issuer}")
    audiences = _texts(claims.get("aud"))
    if not set(audiences) & set(rules.audiences):
        raise UnauthorizedError(wrong_audience(audiences, " or ".join(rules.audiences)))
    ends_at, from_at = _time(claims, "exp"), _time(claims, "nbf")
    if ends_at is None:
        raise UnauthorizedError("the token has no expiry (claim exp)")
    if has_expired(ends_at, now):
        raise UnauthorizedError(f"the token has expired at {format_time(ends_at)}")
    if from_at is not None and now < from_at - CLOCK_SKEW_S:
        raise UnauthorizedError(f"the token is not valid before {format_time(from_at)}; is the clock right?")
    if _LOGOUT_EVENTS in claims:
        raise UnauthorizedError("the token is a logout token, which cannot be used to log in")
    for name, wanted in rules.required_claims.items():
        if claims.get(name) != wanted:
            raise UnauthorizedError(f"the token lacks the claim {name}={wanted} (SLIPWAY_OIDC_REQUIRED_CLAIMS)")
    return ends_at


def _user(claims: Mapping[str, Any], rules: TokenRules, ends_at: float) -> OidcUser:
    name = claims.get(rules.username_claim)
    if not isinstance(name, str) or not name:
        raise UnauthorizedError(
            f"the token has no claim {rules.username_claim} with a name (SLIPWAY_OIDC_USERNAME_CLAIM)"
        )
    if rules.username_claim == "email" and claims.get("email_verified", True) is not True:
        raise UnauthorizedError("the issuer has not verified the user's email address (claim email_verified)")
    whole = _prefix(rules) + name
    if whole.startswith(RESERVED):
        raise UnauthorizedError(
            f"the user's name begins with {' or '.join(RESERVED)}, which Kubernetes reserves; set "
            "SLIPWAY_OIDC_USERNAME_PREFIX"
        )
    if not whole.isprintable():
        raise UnauthorizedError("the user's name has characters that cannot be shown")
    if len(whole) > NAME_CHARS_MAX:
        raise UnauthorizedError(f"the user's name has more than {NAME_CHARS_MAX} characters")
    listed = _texts(claims.get(rules.groups_claim)) if rules.groups_claim else ()
    groups = (rules.groups_prefix + group for group in listed[:GROUPS_MAX] if group)
    kept = tuple(each for each in groups if each.isprintable() and not each.startswith(RESERVED))
    return OidcUser(name=whole, groups=kept, ends_at=ends_at)


def _prefix(rules: TokenRules) -> str:
    if rules.username_prefix:
        return "" if rules.username_prefix == NO_PREFIX else rules.username_prefix
    return "" if rules.username_claim == "email" else f"{rules.issuer}#"


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    """Return a time claim in epoch seconds; None when it is missing. Raises UnauthorizedError when it is no time."""
    said = claims.get(name)
    if said is None:
        return None
    found = seconds_in(said)
    if found is None:
        raise UnauthorizedError(f"the token's claim {name} is not a time")
    return found


def _texts(said: object) -> tuple[str, ...]:
    """Return the texts of a claim that is a list of texts or one text; other values are ignored."""
    if isinstance(said, str):
        return (said,)
    listed: Iterable[Any] = cast("list[Any]", said) if isinstance(said, list) else ()
    return tuple(each for each in listed if isinstance(each, str))
