"""Tokens of the API: what is stored of a token, and what a role permits in which workspace."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipway.model import apitokens
from slipway.model.apitokens import Role, TokenRecord

TIMES = {"created_at": "2026-01-02T03:04:05Z", "expires_at": "2026-02-02T03:04:05Z"}


def a_token(**fields: object) -> tuple[str, TokenRecord]:
    given_fields = {"user": "ada", "roles": {"red": Role.EDITOR}, **TIMES, **fields}
    return apitokens.make(b"\x01" * 8, bytes(range(32)), **given_fields)


def test_the_secret_is_kept_nowhere() -> None:
    """The secret is stored nowhere: only the digest of a token of 256 bits is stored, and the token names its
    record."""
    token, record = a_token()
    assert re.fullmatch(r"slipway_0101010101010101_[\w-]{43}", token)
    assert apitokens.id_of(token) == record.id
    assert record.is_of(token)
    assert token.split("_", 2)[2] not in apitokens.encode(record).decode()
    assert apitokens.decode(f"{record.id}.json", apitokens.encode(record)) == record


@given(some.text(max_size=80))
def test_nothing_else_is_the_token(text: str) -> None:
    """Only the exact token matches its record, whatever another text looks like."""
    token, record = a_token()
    assert record.is_of(text) is (text == token)
    assert apitokens.id_of(text) in ("", record.id)


@pytest.mark.parametrize(
    ("roles", "workspace", "role"),
    [
        ({"red": "viewer"}, "red", "viewer"),
        ({"red": "viewer"}, "blue", None),
        ({"red": "admin"}, "*", None),
        ({"*": "viewer"}, "red", "viewer"),
        ({"*": "viewer"}, "*", "viewer"),
        ({"*": "viewer", "red": "admin"}, "red", "admin"),
        ({"*": "admin", "red": "viewer"}, "red", "admin"),
    ],
)
def test_the_highest_role_counts(roles: dict[str, str], workspace: str, role: str | None) -> None:
    """The higher role of the workspace's own and the one for all workspaces applies; a role in one workspace is no role
    for objects outside of workspaces."""
    _, record = a_token(roles={name: Role(value) for name, value in roles.items()})
    assert record.role_in(workspace) == role


def test_roles_include_each_other() -> None:
    """An admin may do everything that an editor may, and an editor everything that a viewer may."""
    assert [[one.includes(other) for other in Role] for one in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_it_expires() -> None:
    """A token expires at exactly its second."""
    _, record = a_token()
    assert not record.has_expired(1_769_999_999)
    assert record.has_expired(1_770_001_445)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hash": "plain"}, "hash"),
        ({"roles": {}}, "roles"),
        ({"roles": {"red": "owner"}}, "owner"),
        ({"user": "a\nb"}, "user"),
        ({"expiresAt": "soon"}, "soon"),
        ({"secret": "x"}, "secret"),
        ({"id": "0" * 16}, "named after its token"),
    ],
)
def test_a_bad_record_is_none(change: dict[str, object], words: str) -> None:
    """A bad record is reported with its file and the reason; the other records are valid."""
    _, record = a_token()
    name = f"{record.id}.json"
    bad = msgspec.json.encode({**msgspec.to_builtins(record), **change})
    with pytest.raises(ValueError, match=words):
        apitokens.decode(name, bad)
    found, wrong = apitokens.read({name: bad, "x.json": b"{"})
    assert (found, len(wrong)) == ({}, 2)
    assert name in wrong[0]
