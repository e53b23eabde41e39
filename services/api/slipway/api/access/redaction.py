"""Removes names of other workspaces from sentences about a user's own work. Pure.

The scheduler writes such sentences into the object, for operators, and names other allocations as `workspace/name`. A
caller who cannot see that workspace reads the same sentence without the name. Only our own text is changed. Text that a
caller has sent is returned unchanged, so that a caller cannot test with it which workspaces exist.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

SOMEBODY = "work of another workspace"
_OUR_WORDS = frozenset({"message", "by", "detail", "change", "helps", "warnings"})
_NOT_OURS = frozenset({"template", "env", "files", "labels", "problem"})
"""Fields with text of a user, whatever the keys inside are, and refusals, which repeat what was sent."""
_BY = "by"
"""A field that contains the whole name of an allocation, and nothing else."""
_NAME = r"/[a-z0-9][-a-z0-9.]*"


class Redactor:
    """The filter for a caller who cannot see the `hidden` workspaces.

    `sees` returns for any name whether the caller may see that workspace: the field `by` can name a deleted workspace.
    """

    def __init__(self, hidden: Iterable[str], sees: Callable[[str], bool]) -> None:
        names = "|".join(re.escape(name) for name in sorted(hidden, key=len, reverse=True))
        self._sees = sees
        self._pattern = re.compile(rf"(?<![-a-z0-9./])(?:{names}){_NAME}") if names else None
        self._maybe = re.compile(rf'"{_BY}":"|(?:{names})/'.encode() if names else f'"{_BY}":"'.encode())

    def __call__(self, raw: bytes) -> bytes:
        """Return a JSON text without the hidden names."""
        if self._maybe.search(raw) is None:
            return raw
        return msgspec.json.encode(self._walked(msgspec.json.decode(raw), is_ours=False))

    def sentence(self, text: str) -> str:
        """Return a sentence of ours without the hidden names."""
        return self._pattern.sub(SOMEBODY, text) if self._pattern is not None else text

    def _walked(self, value: Any, *, is_ours: bool) -> Any:
        match value:
            case str():
                return self.sentence(value) if is_ours else value
            case dict():
                items = cast("dict[str, Any]", value).items()
                return {name: self._field(name, item, is_ours=is_ours) for name, item in items}
            case list():
                return [self._walked(item, is_ours=is_ours) for item in cast("list[Any]", value)]
            case _:
                return value

    def _field(self, name: str, item: Any, *, is_ours: bool) -> Any:
        if name in _NOT_OURS:
            return item
        if name == _BY and isinstance(item, str):
            where, slash, _ = item.partition("/")
            return SOMEBODY if slash and not self._sees(where) else item
        return self._walked(item, is_ours=name in _OUR_WORDS or (is_ours and not isinstance(item, str)))
