"""One spelling of a number, so that what is told first and what is told again are the same bytes.

The API server stores 5.0 and gives back 5. What is told of an object before it was stored must not differ from what is
told of it later.
"""

from collections.abc import Mapping
from typing import Any, cast


def plain(value: Any) -> Any:
    """`value` with every float that is a whole number as an integer, to any depth."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value
