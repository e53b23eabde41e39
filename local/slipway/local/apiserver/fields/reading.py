"""Reading: brings a client's document into the shape of a built-in kind, as decoding into a Go struct does.

Owns the treatment of unknown fields (dropped and reported), of values of a wrong type (refused), of nulls and empty
values (left out), and the form of quantities and times. Pure, except that it changes the given object. Invariants:
paths are reported in document order; a document that already has the shape stays equal.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from slipway.local.apiserver import objects
from slipway.local.apiserver.fields.shapes import Field, Shape
from slipway.local.apiserver.objects import Json
from slipway.model import times

_WHOLE = {"int32": 2**31, "int64": 2**63, "int": 2**63}
_WANTED: dict[str, type] = {
    "string": str, "types.UID": str, "bytes": str, "struct": dict, "list": list, "map": dict, "bool": bool,
    "int32": int, "int64": int, "int": int,
}  # fmt: skip
_GO_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}
_ZEROS: dict[str, Any] = {"string": "", "types.UID": "", "bool": False, "int32": 0, "int64": 0, "int": 0}
_QUANTITY_FORM = re.compile(r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$")
_QUANTITY_WORDS = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_SECONDS_LENGTH, _MICROS_LENGTH = 20, 27
_SMALL = 2**31
_type_of: Callable[[Any], Any] = type


class ShapeError(Exception):
    """A value cannot be decoded. The message is the one of the real server's decoder."""


def read(shape: Shape, value: Json) -> list[str]:
    """Bring `value` into shape in place. Return the paths that were dropped. Raises: ShapeError."""
    dropped = list[str]()
    if not _fits(shape, value):
        _read_struct(shape, value, "", "", dropped)
    return dropped


def _fits(shape: Shape, value: Json) -> bool:
    """Whether `value` already has the shape, apart from missing zeros, which are added.

    This is a fast path: it is true for nearly all documents that programs send.
    """
    fields = shape.fields
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            return False
        if _type_of(item) is field.plain:
            if (item or field.keeps_zero) and (field.plain is not int or -_SMALL <= item < _SMALL):
                continue
            return False
        if item is None and (name, None) in _always(shape):
            continue
        inner = field.shape
        if not (
            _fits_value(inner, item) and (inner.sort == "struct" or field.keeps_zero or inner.sort == "any" or item)
        ):
            return False
    for name, zero in _always(shape):
        if name not in value:
            value[name] = zero() if callable(zero) else zero
    return True


def _fits_value(shape: Shape, value: Any) -> bool:
    match shape.sort:
        case "struct":
            return _type_of(value) is dict and _fits(shape, value)
        case "list":
            inner = shape.item or shape
            return _type_of(value) is list and all(_fits_value(inner, item) for item in value)
        case "map":
            inner = shape.item or shape
            return _type_of(value) is dict and all(_fits_value(inner, item) for item in value.values())
        case "string" | "bytes":
            return _type_of(value) is str
        case "Quantity":
            return _type_of(value) is str and bool(_QUANTITY_FORM.match(value)) and _canonical(value) == value
        case "any":
            return value is not None
        case "IntOrString":
            return _type_of(value) in (int, str)
        case "Time":
            return _type_of(value) is str and len(value) == _SECONDS_LENGTH and value[-1] == "Z"
        case "MicroTime":
            return _type_of(value) is str and len(value) == _MICROS_LENGTH and value[-1] == "Z"
        case _:
            return False


def _read_struct(shape: Shape, value: Json, path: str, plain: str, dropped: list[str]) -> None:
    """Bring a struct into shape in place.

    `path` has list indexes and is used to report unknown fields. `plain` has no indexes and is used in type errors.
    """
    fields = shape.fields
    for name in list(value):
        field = fields.get(name)
        where = f"{path}.{name}" if path else name
        if field is None:
            dropped.append(where)
            del value[name]
            continue
        item = value[name]
        if item is not None:
            item = _read(field.shape, item, where, (shape.name, f"{plain}.{name}" if plain else name), dropped)
        if item is None or (field.empty_goes and _is_empty(field, item)):
            del value[name]
        else:
            value[name] = item
    for name, zero in _always(shape):
        if name not in value:
            value[name] = zero() if callable(zero) else zero


def _read(shape: Shape, value: Any, path: str, at: tuple[str, str], dropped: list[str]) -> Any:
    """Return a value in shape. `at`: the struct that contains the field, and the field's path without indexes."""
    wanted = _WANTED.get(shape.sort)
    if wanted is None:
        return _read_special(shape, value, at)
    if not isinstance(value, wanted) or (wanted is int and not _is_whole(shape, value)):
        raise _mismatch(shape, value, at)
    match shape.sort:
        case "struct":
            _read_struct(shape, value, path, at[1], dropped)
        case "list":
            inner = shape.item or shape
            for index, item in enumerate(value):
                if item is not None:
                    value[index] = _read(inner, item, f"{path}[{index}]", at, dropped)
        case "map":
            _read_entries(shape.item or shape, value, path, at, dropped)
        case _:
            pass
    return value


def _read_entries(item: Shape, value: Json, path: str, at: tuple[str, str], dropped: list[str]) -> None:
    for name, entry in value.items():
        if entry is None:
            value[name] = {} if item.sort == "struct" else _ZEROS.get(item.sort, "0")
        else:
            value[name] = _read(item, entry, f"{path}.{name}", at, dropped)


def _read_special(shape: Shape, value: Any, at: tuple[str, str]) -> Any:
    match shape.sort:
        case "Quantity":
            return _quantity(value)
        case "Time" | "MicroTime":
            return _moment(shape, value, at)
        case "IntOrString":
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise _mismatch(shape, value, at)
        case "float64":
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _mismatch(shape, value, at)
        case _:
            pass
    return value


def _is_whole(shape: Shape, value: int) -> bool:
    bound = _WHOLE[shape.sort]
    return not isinstance(value, bool) and -bound <= value < bound


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not _QUANTITY_FORM.match(str(value)):
        raise ShapeError(_QUANTITY_WORDS)
    return _canonical(str(value))


@lru_cache(maxsize=4096)
def _canonical(text: str) -> Any:
    return objects.canonical(text)


def _moment(shape: Shape, value: Any, at: tuple[str, str]) -> str:
    """Return a time in the server's form: whole seconds for Time, six decimal digits for MicroTime."""
    if not isinstance(value, str):
        raise _mismatch(shape, value, at)
    is_micro = shape.sort == "MicroTime"
    if value.endswith("Z") and len(value) == (_MICROS_LENGTH if is_micro else _SECONDS_LENGTH):
        return value
    try:
        return times.format_time(times.parse_time(value), "microseconds" if is_micro else "seconds")
    except ValueError as exc:
        words = f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
        raise ShapeError(words) from exc


def _is_empty(field: Field, value: Any) -> bool:
    return not value and not field.is_pointer and field.shape.sort not in ("struct", "any")


def _always(shape: Shape) -> list[tuple[str, Any]]:
    """Return (field, zero or function that makes it) for each field that Go writes even when it is not set."""
    found = shape.always
    if found is None:
        found = shape.always = [
            (name, _zero(field.shape)) for name, field in shape.fields.items() if not field.is_pointer and _stays(field)
        ]
    return found


def _stays(field: Field) -> bool:
    if field.shape.sort == "struct":
        return field.shape.name != "v1.ListMeta"
    return not field.empty_goes and field.shape.sort in _ZEROS


def _zero(shape: Shape) -> Any:
    if shape.sort != "struct":
        return _ZEROS[shape.sort]

    def make() -> Json:
        return {name: zero() if callable(zero) else zero for name, zero in _always(shape)}

    return make


def go_name(value: Any) -> str:
    """Return the name that the server's decoder has for the type of a value."""
    return _GO_NAMES.get(_type_of(value), "value")


def _mismatch(shape: Shape, value: Any, at: tuple[str, str]) -> ShapeError:
    struct, path = at
    shown = go_name(value)
    if shown == "number" and shape.sort in _WHOLE:
        shown = f"number {value}"
    owner = struct.removeprefix("v1.")
    return ShapeError(f"json: cannot unmarshal {shown} into Go struct field {owner}.{path} of type {shape.name}")
