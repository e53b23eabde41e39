"""Numbers: the one spelling that is published, and readers of numbers that other programs write.

The API server stores 5.0 and returns 5. An event from an object before it was stored must equal the event from the
stored object.

`int` and `float` raise an error for some texts and numbers that pass a first look: `"\u00b2".isdigit()` is true,
`int` refuses a text of more than 4,300 digits, and `float` an integer of 400. The readers here refuse such input as
they refuse any other. Pure, and without imports that take time.
"""

from collections.abc import Mapping
from typing import Any, cast

DIGITS_MAX = 9
LONG_DIGITS_MAX = 18
"""Numbers of so many digits fit into 64 bits."""
SECONDS_MAX = 1e11
"""A larger number is no time, and no span of time: as a time it is the year 5138."""


def number_in(text: str, digits_max: int = DIGITS_MAX) -> int | None:
    """The number in a text of at most `digits_max` ASCII digits; None for any other text."""
    is_number = text.isascii() and text.isdigit() and len(text) <= digits_max
    return int(text) if is_number else None


def seconds_in(value: object) -> float | None:
    """The seconds in a decoded JSON value, such as the claim `exp` of a token.

    None when the value is no number, is negative, or is above SECONDS_MAX. `true` is not a number here.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        return None
    return float(value)


def lifetime_in(value: object) -> float | None:
    """The seconds in a value of an OAuth answer, such as `expires_in`, which some issuers write as text."""
    return seconds_in(number_in(value, LONG_DIGITS_MAX) if isinstance(value, str) else value)


def plain(value: Any) -> Any:
    """Return `value` with every float that is a whole number as an integer, at any depth."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value
