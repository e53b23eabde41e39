"""One spelling of a number, so that an event that is published again has the same bytes.

The API server stores 5.0 and returns 5. An event from an object before it was stored must equal the event from the
stored object.
"""

from collections.abc import Mapping
from typing import Any, cast


def plain(value: Any) -> Any:
    """Return `value` with every float that is a whole number as an integer, at any depth."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    return value
