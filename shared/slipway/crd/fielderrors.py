"""Collecting what is wrong with an input: JSON pointers and messages, in the order of reading.

Knows nothing of what is being read. A message says what to change.
"""

from collections.abc import Mapping
from typing import Any, cast

from slipway.errors import FieldError

ERRORS_MAX = 50
"""An answer names so many at most."""
POINTER_MAX = 1024


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
        return tuple(self._errors)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings, each once, bounded."""
        return tuple(self._warnings)

    @property
    def is_full(self) -> bool:
        """Whether no more errors are noted: the search for them may stop."""
        return len(self._errors) >= ERRORS_MAX

    def has(self, at: str) -> bool:
        """Whether an error is noted at that very pointer."""
        bounded = _bounded(at)
        return any(error.pointer == bounded for error in self._errors)

    def refuse(self, at: str, detail: str) -> None:
        """Notes an error at the JSON pointer `at`."""
        if not self.is_full:
            self._errors[FieldError(_bounded(at), detail)] = None

    def warn(self, text: str) -> None:
        """Notes something that is no reason to refuse."""
        if len(self._warnings) < ERRORS_MAX:
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


def _bounded(at: str) -> str:
    """The pointer, as far as an answer shows it: a name of a client may be as long as its body."""
    return at if len(at) <= POINTER_MAX else f"{at[:POINTER_MAX]}..."
