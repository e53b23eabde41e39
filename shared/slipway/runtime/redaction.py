"""Hides secrets in everything that is written: values under secret keys, and passwords inside URLs.

This module owns the one rule by which logs, spans and printed settings hide secrets. It is pure. It is the last line of
defence, not a licence to log secrets.
"""

import re
from typing import cast

HIDDEN = "***"

_SECRET_KEY = re.compile(r"passw|secret|token|authorization|cookie|credential|api_?key|private_?key", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?P<head>\b[a-z][a-z0-9+.-]*://[^\s/?#:@]*):[^\s/?#]*@", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def is_secret_key(key: str) -> bool:
    """Whether every value under this key is hidden."""
    return _SECRET_KEY.search(key.replace("-", "_")) is not None


def redact_text(text: str) -> str:
    """Return `text` without passwords in URLs and without credentials of an Authorization header."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\g<head>:{HIDDEN}@", text)
    if "earer" in text or "asic" in text or "EARER" in text or "ASIC" in text:
        text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return text


def redact(key: str, value: object) -> object:
    """Return the value that may be written for `key`. Nested mappings and lists are redacted too, and so is text."""
    if is_secret_key(key) and value not in (None, "", False, True):
        return HIDDEN
    match value:
        case str():
            return redact_text(value)
        case dict():
            items = cast(dict[object, object], value).items()
            return {str(name): redact(str(name), item) for name, item in items}
        case list() | tuple():
            return [redact(key, item) for item in cast(list[object], value)]
        case _:
            return value
