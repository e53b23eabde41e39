"""Tokens of the API: how one looks, what is kept of it, and the file that keeps it. Pure.

A token is `slipway_<id>_<secret>`: the id says which record is meant and is no secret, the secret is 256 bits of
chance. Kept is the SHA-256 of the whole token. That is enough here, and a slow or salted hash would add nothing: those
make up for secrets that can be guessed, and nobody guesses 256 bits; no two tokens share a secret, so no table helps.

Owns the format of a record: one JSON file `<id>.json` for each token, so that a folder of them is what a Secret is when
it is mounted, and one token is added or taken away without reading the others. Knows no files, no clock, no chance.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from slipway.model.times import parse_time

SECRET_BYTES = 32
ID_BYTES = 8
PREFIX = "slipway_"
EVERYWHERE = "*"
"""As a workspace: all of them, and what belongs to none."""
SUFFIX = ".json"
RECORD_BYTES_MAX = 16 * 1024
RECORDS_MAX = 4096
_TOKEN = re.compile(r"slipway_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{16}")


class Role(StrEnum):
    """What a token may do where it counts; each may do what those before it may."""

    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Whether it may do what `other` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What is kept of a token. `roles` is {workspace or `*`: role}; times are RFC 3339."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the whole token, in hexadecimal digits"""
    user: Annotated[str, Meta(pattern=r"^[\x21-\x7e][\x20-\x7e]{0,127}$")]
    roles: Annotated[dict[str, Role], Meta(min_length=1, max_length=256)]
    created_at: str
    expires_at: str
    description: Annotated[str, Meta(max_length=256)] = ""
    names_users: bool = False
    """whether a caller may act as any user by name (X-Slipway-User), as at an api without authentication"""

    def __post_init__(self) -> None:
        parse_time(self.created_at)
        parse_time(self.expires_at)

    def has_expired(self, now: float) -> bool:
        """Whether its time is over; `now` in seconds since the epoch."""
        return now >= parse_time(self.expires_at)

    def is_of(self, token: str) -> bool:
        """Whether it is kept for this token; takes as long whatever the answer."""
        return hmac.compare_digest(digest_of(token), self.hash)

    def role_in(self, workspace: str) -> Role | None:
        """What it may do in a workspace; `*` asks for what belongs to none."""
        found = [self.roles[name] for name in (workspace, EVERYWHERE) if name in self.roles]
        return max(found, key=list(Role).index, default=None)


def make(id_: bytes, secret: bytes, **fields: Any) -> tuple[str, TokenRecord]:
    """(the token, its record). The token is in no other place from here on.

    Raises:
        ValueError: too little chance, or a field that cannot be.
    """
    if len(secret) != SECRET_BYTES or len(id_) != ID_BYTES:
        raise ValueError(f"a token is made of {ID_BYTES} and {SECRET_BYTES} random bytes")
    token = f"{PREFIX}{id_.hex()}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"
    record = TokenRecord(id=id_.hex(), hash=digest_of(token), **fields)
    return token, decode(file_of(record.id), encode(record))


def digest_of(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def id_of(token: str) -> str:
    """Which record a token names; empty when it is none of ours."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else ""


def is_id(text: str) -> bool:
    """Whether it can be the id of a token."""
    return _ID.fullmatch(text) is not None


def file_of(id_: str) -> str:
    """The name of the file (the key in the Secret) that keeps it."""
    return id_ + SUFFIX


def encode(record: TokenRecord) -> bytes:
    """The file."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def decode(name: str, raw: bytes) -> TokenRecord:
    """A file called `name`. Raises ValueError with what is wrong with it."""
    if len(raw) > RECORD_BYTES_MAX:
        raise ValueError(f"{name} has more than {RECORD_BYTES_MAX} bytes")
    try:
        record = msgspec.json.decode(raw, type=TokenRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is no record of a token: {error}") from error
    if file_of(record.id) != name:
        raise ValueError(f"{name} holds the record of {record.id}; a file is named after its token")
    return record


def read(files: Mapping[str, bytes]) -> tuple[dict[str, TokenRecord], list[str]]:
    """({id: record}, what is wrong with the others) of the files of a folder."""
    found: dict[str, TokenRecord] = {}
    wrong: list[str] = []
    for name in sorted(files)[:RECORDS_MAX]:
        try:
            record = decode(name, files[name])
        except ValueError as error:
            wrong.append(str(error))
        else:
            found[record.id] = record
    if len(files) > RECORDS_MAX:
        wrong.append(f"there are {len(files)} tokens; only the first {RECORDS_MAX} count")
    return found, wrong
