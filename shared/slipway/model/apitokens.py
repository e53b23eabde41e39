"""Tokens of the API: their format, the record that is stored of each, and its file. Pure.

A token is `slipway_<id>_<secret>`: the id identifies the record and is not secret; the secret is 256 random bits. The
record contains the SHA-256 of the whole token. A slow hash would add nothing, because it protects secrets that can be
guessed, and 256 random bits cannot. A salt would add nothing either: no two tokens share a secret, so a precomputed
table does not help an attacker.

Owns the format of a record: one JSON file `<id>.json` for each token. So a mounted Secret is a folder of such files,
and a token can be added or removed without reading the others. The module itself reads no files and uses no clock and
no random numbers.
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
"""In place of a workspace: all workspaces, and the resources that belong to no workspace."""
SUFFIX = ".json"
RECORD_BYTES_MAX = 16 * 1024
RECORDS_MAX = 4096
_TOKEN = re.compile(r"slipway_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{16}")


class Role(StrEnum):
    """The role of a token in a workspace; each role includes the permissions of the roles before it."""

    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        """Whether this role includes the permissions of `other`."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The stored record of a token. `roles` is {workspace or `*`: role}; times are RFC 3339."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$")]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the whole token, in hexadecimal digits"""
    user: Annotated[str, Meta(pattern=r"^[\x21-\x7e][\x20-\x7e]{0,127}$")]
    roles: Annotated[dict[str, Role], Meta(min_length=1, max_length=256)]
    created_at: str
    expires_at: str
    description: Annotated[str, Meta(max_length=256)] = ""
    names_users: bool = False
    """whether the caller may act as any user by name (X-Slipway-User), as it may when the api has no authentication"""

    def __post_init__(self) -> None:
        parse_time(self.created_at)
        parse_time(self.expires_at)

    def has_expired(self, now: float) -> bool:
        """Whether the token has expired at `now`, in seconds since the epoch."""
        return now >= parse_time(self.expires_at)

    def is_of(self, token: str) -> bool:
        """Whether this is the record of `token`; the duration of the comparison does not depend on the result."""
        return hmac.compare_digest(digest_of(token), self.hash)

    def role_in(self, workspace: str) -> Role | None:
        """Return its highest role in a workspace, or None; `*` stands for resources that belong to no workspace."""
        found = [self.roles[name] for name in (workspace, EVERYWHERE) if name in self.roles]
        return max(found, key=list(Role).index, default=None)


def make(id_: bytes, secret: bytes, **fields: Any) -> tuple[str, TokenRecord]:
    """Return (the token, its record). The caller has the only copy of the token.

    Raises:
        ValueError: the wrong number of random bytes, or an invalid field.
    """
    if len(secret) != SECRET_BYTES or len(id_) != ID_BYTES:
        raise ValueError(f"a token is made of {ID_BYTES} and {SECRET_BYTES} random bytes")
    token = f"{PREFIX}{id_.hex()}_{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"
    record = TokenRecord(id=id_.hex(), hash=digest_of(token), **fields)
    return token, decode(file_of(record.id), encode(record))


def digest_of(token: str) -> str:
    """Return the hash that the record of a token contains."""
    return hashlib.sha256(token.encode()).hexdigest()


def id_of(token: str) -> str:
    """Return the id of the record that a token names; empty when the token is not in our format."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else ""


def is_id(text: str) -> bool:
    """Whether `text` has the format of a token id."""
    return _ID.fullmatch(text) is not None


def file_of(id_: str) -> str:
    """Return the name of the file, which is also the key in the Secret, of the record `id_`."""
    return id_ + SUFFIX


def encode(record: TokenRecord) -> bytes:
    """Return the contents of the record's file."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def decode(name: str, raw: bytes) -> TokenRecord:
    """Return the record in the file `name`. Raises ValueError when the file is not valid."""
    if len(raw) > RECORD_BYTES_MAX:
        raise ValueError(f"{name} has more than {RECORD_BYTES_MAX} bytes")
    try:
        record = msgspec.json.decode(raw, type=TokenRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} is not the record of a token: {error}") from error
    if file_of(record.id) != name:
        raise ValueError(f"{name} holds the record of {record.id}; a file is named after its token")
    return record


def read(files: Mapping[str, bytes]) -> tuple[dict[str, TokenRecord], list[str]]:
    """Return ({id: record}, the errors of the invalid files) of the files of a folder."""
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
        wrong.append(f"there are {len(files)} tokens; only the first {RECORDS_MAX} are valid")
    return found, wrong
