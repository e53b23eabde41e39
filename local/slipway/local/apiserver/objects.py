"""JSON objects as the core holds them: plain dicts, and the few ways of reading and copying them.

Knows no resource kind. Invariant: an object that has been stored is never changed in place; whoever wants to change
one starts from `clone`.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from slipway.model import times

_TYPE_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}

Json = dict[str, Any]


_shape: Callable[[Any], Any] = type
_ATOMS = frozenset({str, int, bool, float, type(None)})


def clone(value: Any) -> Any:
    """A deep copy of a JSON value."""
    shape = _shape(value)
    if shape is dict:
        return {key: item if _shape(item) in _ATOMS else clone(item) for key, item in value.items()}
    if shape is list:
        return [item if _shape(item) in _ATOMS else clone(item) for item in value]
    return value


def type_name(value: Any) -> str:
    """What JSON calls the type of a value."""
    return "null" if value is None else _TYPE_NAMES[type(value)]


def is_map(value: Any) -> TypeGuard[Json]:
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def mapping(obj: Json, key: str) -> Json:
    """`obj[key]` when it is an object, else an empty one that is not part of `obj`."""
    value = obj.get(key)
    return value if is_map(value) else {}


def listing(obj: Json, key: str) -> list[Any]:
    value = obj.get(key)
    return value if is_list(value) else []


def maps(values: Iterable[Any]) -> list[Json]:
    """The elements that are objects."""
    return [value for value in values if is_map(value)]


def at_path(obj: Json, path: Iterable[str]) -> Any:
    """The value under a chain of keys, None where the chain breaks."""
    value: Any = obj
    for key in path:
        if not is_map(value):
            return None
        value = value.get(key)
    return value


def metadata(obj: Json) -> Json:
    return mapping(obj, "metadata")


def name_of(obj: Json) -> str:
    return str(metadata(obj).get("name") or "")


def namespace_of(obj: Json) -> str:
    return str(metadata(obj).get("namespace") or "")


def uid_of(obj: Json) -> str:
    return str(metadata(obj).get("uid") or "")


def finalizers_of(obj: Json) -> list[str]:
    return [str(item) for item in listing(metadata(obj), "finalizers")]


def owners_of(obj: Json) -> list[Json]:
    return maps(listing(metadata(obj), "ownerReferences"))


def is_deleting(obj: Json) -> bool:
    return bool(metadata(obj).get("deletionTimestamp"))


def format_time(now: float) -> str:
    """RFC 3339 in UTC with whole seconds, as metav1.Time is written."""
    return times.format_time(now, "seconds")


def parse_time(text: Any) -> float | None:
    """Epoch seconds of an RFC 3339 time, None when it is not one."""
    try:
        return times.parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None
