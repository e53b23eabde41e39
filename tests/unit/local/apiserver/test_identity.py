"""How the administrator is identified."""

import pytest

from slipway.local.apiserver.identity import is_admin_token


@pytest.mark.parametrize(
    ("given", "token", "is_admin"),
    [("t", "t", True), ("tt", "t", False), ("", "", False), ("t", "", False), ("ü", "ü", True), ("\ud800", "t", False)],
)
def test_the_administrators_token_is_the_whole_of_it(given: str, token: str, is_admin: bool) -> None:
    """Only the exact token is the administrator's. A server without a token has no administrator; text that is not
    UTF-8 is another token."""
    assert is_admin_token(given, token) is is_admin
