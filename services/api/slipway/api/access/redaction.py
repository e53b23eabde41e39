"""Removes names of other workspaces from sentences about a user's own work. Pure.

The scheduler writes such sentences into the object, for operators, and names others as `workspace/name`. A caller who
cannot see that workspace reads the same sentence without the name. Only our own words are changed, never the user's.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

SOMEBODY = "work of another workspace"
_OUR_WORDS = frozenset({"message", "by", "detail", "error", "reason", "reasons", "change", "helps", "warnings"})
_NAME = r"/[a-z0-9][-a-z0-9.]*"
Blinds = Callable[[bytes], bytes]


def blinds(hidden: Iterable[str]) -> Blinds:
    """What takes the names of work in these workspaces out of a JSON text."""
    names = "|".join(re.escape(name) for name in sorted(hidden, key=len, reverse=True))
    if not names:
        return lambda raw: raw
    pattern = re.compile(rf"(?<![-a-z0-9./])(?:{names}){_NAME}")
    maybe = re.compile(rf"(?:{names})/".encode())

    def drawn(raw: bytes) -> bytes:
        if maybe.search(raw) is None:
            return raw
        return msgspec.json.encode(_walked(msgspec.json.decode(raw), pattern, is_ours=False))

    return drawn


def _walked(value: Any, pattern: re.Pattern[str], *, is_ours: bool) -> Any:
    match value:
        case str():
            return pattern.sub(SOMEBODY, value) if is_ours else value
        case dict():
            items = cast("dict[str, Any]", value).items()
            # What a user wrote stands under `template` and `env`, whatever it is called there.
            return {
                name: item
                if name in ("template", "env", "files", "labels")
                else _walked(item, pattern, is_ours=name in _OUR_WORDS or (is_ours and not isinstance(item, str)))
                for name, item in items
            }
        case list():
            return [_walked(item, pattern, is_ours=is_ours) for item in cast("list[Any]", value)]
        case _:
            return value
