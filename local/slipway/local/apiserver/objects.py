"""JSON objects as the core stores them: plain dicts, with functions to read and copy them.

Knows no resource kind. Invariant: a stored object is never changed in place; code that changes an object starts from
`clone`.

Quantities as the API server stores them: `0.5` becomes `500m`, `1024Mi` becomes `1Gi`, `1000` becomes `1k`.

Owns only the canonical form; `slipway.model.resources` compares amounts. Pure. Invariant: the form changes, never the
amount; a text that is not a quantity stays unchanged, and validation refuses it.

Source: k8s.io/apimachinery/pkg/api/resource Quantity.CanonicalizeBytes.
"""

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, TypeGuard

from slipway.model import times

_TYPE_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}

Json = dict[str, Any]


_shape: Callable[[Any], Any] = type
_ATOMS = frozenset({str, int, bool, float, type(None)})


def clone(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    shape = _shape(value)
    if shape is dict:
        return {key: item if _shape(item) in _ATOMS else clone(item) for key, item in value.items()}
    if shape is list:
        return [item if _shape(item) in _ATOMS else clone(item) for item in value]
    return value


def type_name(value: Any) -> str:
    """Return the JSON name of a value's type."""
    return "null" if value is None else _TYPE_NAMES[type(value)]


def is_map(value: Any) -> TypeGuard[Json]:
    return isinstance(value, dict)


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def mapping(obj: Json, key: str) -> Json:
    """Return `obj[key]` when it is an object, else a new empty dict that is not part of `obj`."""
    value = obj.get(key)
    return value if is_map(value) else {}


def listing(obj: Json, key: str) -> list[Any]:
    value = obj.get(key)
    return value if is_list(value) else []


def maps(values: Iterable[Any]) -> list[Json]:
    """Return the elements that are objects."""
    return [value for value in values if is_map(value)]


def at_path(obj: Json, path: Iterable[str]) -> Any:
    """Return the value at a path of keys, or None when a key is missing."""
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
    """Return a time as RFC 3339 in UTC with whole seconds, the form of metav1.Time."""
    return times.format_time(now, "seconds")


def parse_time(text: Any) -> float | None:
    """Return the epoch seconds of an RFC 3339 time, or None for any other value."""
    try:
        return times.parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None


_FORM = re.compile(r"^(\+?(?:\d+(?:\.\d*)?|\.\d+))([numkMGTPE]|[KMGTPE]i)?$")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SMALLEST = Decimal("1e-9")


def canonical(value: Any) -> Any:
    """Return the server's form of a quantity. Other values, and quantities with an exponent, are returned unchanged."""
    match = _FORM.match(str(value)) if not isinstance(value, bool) else None
    if match is None:
        return value
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY[1:]:
        return _binary(number * 1024 ** _BINARY.index(suffix))
    return _decimal(number * Decimal(1000) ** (_DECIMAL.index(suffix) - 3))


def canonicalize(resources: Json) -> None:
    """Put the requests and limits of a container into the canonical form, in place."""
    for field in ("requests", "limits"):
        amounts = resources.get(field)
        if is_map(amounts):
            resources[field] = {name: canonical(value) for name, value in amounts.items()}


def _binary(amount: Decimal) -> str:
    """Return an amount with a binary suffix, or with a decimal suffix if it is not a whole number."""
    if amount != amount.to_integral_value():
        return _decimal(amount)
    whole, power = int(amount), 0
    while whole and whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole //= 1024
        power += 1
    return f"{whole}{_BINARY[power]}"


def _decimal(amount: Decimal) -> str:
    whole, power = int((amount / _SMALLEST).to_integral_value(rounding="ROUND_CEILING")), 0
    if not whole:
        return "0"
    while whole % 1000 == 0 and power < len(_DECIMAL) - 1:
        whole //= 1000
        power += 1
    return f"{whole}{_DECIMAL[power]}"
