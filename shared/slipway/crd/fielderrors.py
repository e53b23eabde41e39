"""Collects the errors of an input as JSON pointers and messages, in the order of reading.

Does not depend on the kind of input. A message states what to change.
"""

from collections.abc import Mapping
from typing import Any, cast

from slipway.errors import FieldError

ERRORS_MAX = 50
"""A response contains at most this number of errors."""
POINTER_MAX = 1024


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of unescaped steps."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


class Findings:
    """The errors and warnings that were found so far."""

    def __init__(self) -> None:
        self._errors: dict[FieldError, None] = {}
        self._warnings: dict[str, None] = {}

    @property
    def errors(self) -> tuple[FieldError, ...]:
        """The errors without duplicates, at most `ERRORS_MAX`."""
        return tuple(self._errors)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings without duplicates, at most `ERRORS_MAX`."""
        return tuple(self._warnings)

    @property
    def is_full(self) -> bool:
        """Whether further errors are dropped, so that the check may stop."""
        return len(self._errors) >= ERRORS_MAX

    def has(self, at: str) -> bool:
        """Whether there is an error at exactly this pointer."""
        bounded = _bounded(at)
        return any(error.pointer == bounded for error in self._errors)

    def refuse(self, at: str, detail: str) -> None:
        """Add an error at the JSON pointer `at`."""
        if not self.is_full:
            self._errors[FieldError(_bounded(at), detail)] = None

    def warn(self, text: str) -> None:
        """Add a warning: it is no reason to refuse the input."""
        if len(self._warnings) < ERRORS_MAX:
            self._warnings[text] = None

    def mapping(self, value: Any, at: str) -> Mapping[str, Any]:
        """Return `value` if it is an object. None gives an empty object; any other value gives an error and an empty
        object."""
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return cast("Mapping[str, Any]", value)
        self.refuse(at, "must be an object")
        return {}

    def items(self, value: Any, at: str) -> list[Any]:
        """Return `value` if it is a list. None gives an empty list; any other value gives an error and an empty
        list."""
        if value is None:
            return []
        if isinstance(value, list):
            return cast("list[Any]", value)
        self.refuse(at, "must be a list")
        return []


def _bounded(at: str) -> str:
    """Return the pointer, shortened for a response: a name in it may be as long as the request body."""
    return at if len(at) <= POINTER_MAX else f"{at[:POINTER_MAX]}..."
