"""Secrets are hidden by key, in URLs and in Authorization headers; everything else passes unchanged."""

import pytest

from slipway.runtime.redaction import HIDDEN, is_secret_key, redact, redact_text


@pytest.mark.parametrize(
    "key", ["password", "REDIS_PASSWORD", "client_secret", "token", "Authorization", "set-cookie", "api-key", "apiKey"]
)
def test_secret_keys_hide_any_value(key: str):
    """A secret key hides any value."""
    assert is_secret_key(key)
    assert redact(key, "hunter2") == HIDDEN
    assert redact(key, ["hunter2"]) == HIDDEN


@pytest.mark.parametrize("key", ["allocation", "queue", "key", "idempotency_key", "author"])
def test_ordinary_keys_pass(key: str):
    """Ordinary keys pass, so that ids stay readable."""
    assert redact(key, "hunter2") == "hunter2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:pw@host:6379/0", "redis://user:***@host:6379/0"),
        ("cannot reach rediss://:p%40w@host", "cannot reach rediss://:***@host"),
        ("http://host:80/a@b", "http://host:80/a@b"),
        ("Authorization: Bearer abcdefghijkl", "Authorization: Bearer ***"),
        ("a bearer of news", "a bearer of news"),
        ("nothing", "nothing"),
    ],
)
def test_text_is_cleaned(text: str, shown: str):
    """Passwords of URLs and credentials of headers are removed from text; hosts, ports and prose stay."""
    assert redact_text(text) == shown


def test_looks_into_structures():
    """A secret is hidden also below a harmless key in a structure."""
    value = {"env": [{"token": "t", "url": "redis://:pw@h"}], "count": 2}
    assert redact("spec", value) == {"env": [{"token": HIDDEN, "url": "redis://:***@h"}], "count": 2}
