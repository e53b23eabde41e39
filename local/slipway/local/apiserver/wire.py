"""Protobuf bodies of the built-in kinds, which kubectl and other Go clients prefer to send.

Owns the decoding of the Kubernetes protobuf envelope into the JSON object, using the table of the built-in kinds'
fields. Answers are always JSON, which every client accepts. Pure. Invariant: a kind that the table lacks is refused; a
field that the table lacks is left out, never guessed.
"""

import base64
import struct
from typing import Any

import msgspec

from slipway.local.apiserver.fields.shapes import Shape, builtin_shapes
from slipway.local.apiserver.objects import Json, format_time
from slipway.local.apiserver.status import bad_request, unsupported_media
from slipway.model import times

MAGIC = b"k8s\x00"
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_OPTIONS = "DeleteOptions"
_META_VERSION = "meta.k8s.io/v1"
_TEXT_IS = 1
_ABSENT: Any = msgspec.UNSET
Parts = list[tuple[int, Any]]
"""(field number, raw value) in the order of the message."""


def decode(body: bytes) -> Json:
    """Return the JSON object in an envelope. Raises: StatusError 400, or 415 for a kind accepted only as JSON."""
    if not body.startswith(MAGIC):
        raise bad_request("the body is no Kubernetes protobuf envelope")
    try:
        envelope = dict(_parts(body[len(MAGIC) :]))
        names = {number: value.decode() for number, value in _parts(envelope.get(1, b""))}
        api_version, kind = names.get(1, ""), names.get(2, "")
        shape = builtin_shapes().of_kind(_META_VERSION if kind == _OPTIONS else api_version, kind)
        if shape is None:
            raise unsupported_media(["application/json", "application/yaml"])
        return {"apiVersion": api_version, "kind": kind, **_struct(shape, envelope.get(2, b""))}
    except (IndexError, UnicodeDecodeError, struct.error, TypeError, ValueError, AttributeError) as exc:
        raise bad_request(f"the protobuf body cannot be read: {exc}") from exc


def _struct(shape: Shape, raw: bytes) -> Json:
    by_number = {field.number: (name, field) for name, field in shape.fields.items() if field.number}
    found: Json = {}
    for number, value in _parts(raw):
        if number in shape.inline:
            found |= _struct(shape.inline[number], value)
        elif number in by_number:
            name, field = by_number[number]
            _put(found, name, field.shape, value)
    return found


def _put(found: Json, name: str, shape: Shape, value: Any) -> None:
    item = shape.item
    if shape.sort == "list" and item is not None:
        found.setdefault(name, []).append(_value(item, value))
    elif shape.sort == "map" and item is not None:
        entry = dict(_parts(value))
        content = entry.get(2, b"" if item.sort not in ("int32", "int64", "int", "bool") else 0)
        found.setdefault(name, {})[entry.get(1, b"").decode()] = _value(item, content)
    else:
        read = _value(shape, value)
        if read is not _ABSENT:
            found[name] = read


def _value(shape: Shape, value: Any) -> Any:
    match shape.sort:
        case "struct":
            return _struct(shape, value)
        case "list":
            # A list inside a map is encoded as a separate message.
            return [_value(shape.item, part) for _, part in _parts(value)] if shape.item is not None else []
        case "int32" | "int64" | "int":
            return value - 2**64 if value >= 2**63 else value
        case "bool":
            return bool(value)
        case "bytes":
            return base64.b64encode(value).decode()
        case "Quantity":
            return dict(_parts(value)).get(1, b"0").decode()
        case "IntOrString":
            return _int_or_string(dict(_parts(value)))
        case "Time" | "MicroTime":
            return _time(dict(_parts(value)), is_fine=shape.sort == "MicroTime")
        case "any":
            raw = dict(_parts(value)).get(1)
            return msgspec.json.decode(raw) if raw else _ABSENT
        case _:
            return value.decode()


def _int_or_string(parts: dict[int, Any]) -> Any:
    return parts.get(3, b"").decode() if parts.get(1) == _TEXT_IS else parts.get(2, 0)


def _time(parts: dict[int, Any], *, is_fine: bool) -> Any:
    if 1 not in parts:
        return _ABSENT
    if is_fine:
        return times.format_time(parts[1] + parts.get(2, 0) / 1e9, "microseconds")
    return format_time(parts[1])


def _parts(raw: bytes) -> Parts:
    found: Parts = []
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        value: int | bytes
        value, position = _raw_value(raw, position, tag & 7)
        found.append((tag >> 3, value))
    return found


def _raw_value(raw: bytes, position: int, wire_type: int) -> tuple[int | bytes, int]:
    match wire_type:
        case 0:
            return _varint(raw, position)
        case 1:
            return raw[position : position + 8], position + 8
        case 2:
            length, position = _varint(raw, position)
            end = position + length
            if end > len(raw):
                raise ValueError("a field is longer than the body")
            return raw[position:end], end
        case 5:
            return raw[position : position + 4], position + 4
        case _:
            raise ValueError(f"wire type {wire_type} is not known")


def _varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
