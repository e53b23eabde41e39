"""Regular expressions of callers, searched in time that is proportional to the line, whatever the pattern.

Owns the bounds and the words of a refusal. The engine is RE2. The standard library's engine backtracks: a pattern such
as `(a+)+$` could block the whole process. RE2 has no backreferences and no lookaround.
"""

from typing import Any

import re2

_re2: Any = re2
"""The module has no type information."""
MEMORY_MAX = 1024 * 1024
"""Most bytes of memory for one compiled pattern and its cached states."""


class PatternError(ValueError):
    """The pattern cannot be used; the message says why."""


class Pattern:
    """A compiled pattern; `is_in` searches a line for it.

    Raises:
        PatternError: the text is no pattern, cannot be searched in linear time, or is too large.
    """

    def __init__(self, text: str) -> None:
        options = _re2.Options()
        options.max_mem = MEMORY_MAX
        options.log_errors = False
        try:
            self._compiled = _re2.compile(text, options)
        except _re2.error as error:
            raise PatternError(_said(error.args)) from error
        except UnicodeError as error:
            raise PatternError("it has characters that are not valid text") from error

    def is_in(self, line: str) -> bool:
        """Whether the pattern occurs in the line."""
        return self._compiled.search(line) is not None


def _said(args: tuple[Any, ...]) -> str:
    """Return the engine's message, which the engine gives as bytes."""
    said = args[0] if args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
