"""Collecting what is wrong with an input: JSON pointers and messages, in the order of reading.

Knows nothing of what is being read. A message says what to change.
"""

from collections.abc import Mapping
from typing import Any, cast

from slipway.errors import FieldError

ERRORS_MAX = 50
"""An answer names so many at most."""


def pointer(*steps: str | int) -> str:
    """A JSON pointer (RFC 6901) of plain steps."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


class Findings:
    """Errors and warnings so far."""

    def __init__(self) -> None:
        self._errors: dict[FieldError, None] = {}
        self._warnings: dict[str, None] = {}

    @property
    def errors(self) -> tuple[FieldError, ...]:
        """The errors, each once, bounded."""
        return tuple(self._errors)[:ERRORS_MAX]

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings, each once, bounded."""
        return tuple(self._warnings)[:ERRORS_MAX]

    def refuse(self, at: str, detail: str) -> None:
        """Notes an error at the JSON pointer `at`."""
        self._errors[FieldError(at, detail)] = None

    def warn(self, text: str) -> None:
        """Notes something that is no reason to refuse."""
        self._warnings[text] = None

    def mapping(self, value: Any, at: str) -> Mapping[str, Any]:
        """`value` as an object; an error and an empty one when it is something else. Absent is empty."""
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return cast("Mapping[str, Any]", value)
        self.refuse(at, "must be an object")
        return {}

    def items(self, value: Any, at: str) -> list[Any]:
        """`value` as a list; an error and an empty one when it is something else. Absent is empty."""
        if value is None:
            return []
        if isinstance(value, list):
            return cast("list[Any]", value)
        self.refuse(at, "must be a list")
        return []
