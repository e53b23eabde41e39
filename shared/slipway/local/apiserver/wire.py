"""Protobuf bodies of the few built-in kinds that kubectl sends that way.

Owns the decoding of the Kubernetes protobuf envelope into the JSON object. Answers are always JSON, which every client
takes. Pure. Invariant: a kind or a field that the tables below do not name is refused or left out, never guessed.

Source: the generated.proto files of k8s.io/api and k8s.io/apimachinery (field numbers are part of the API).
"""

import base64
import struct
from typing import Any, TypeGuard

from slipway.local.apiserver.objects import Json, format_time
from slipway.local.apiserver.status import bad_request, unsupported_media

MAGIC = b"k8s\x00"
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

Field = tuple[str, Any]
"""(JSON name, what it holds): a scalar's name, a message's fields, or ("list" | "map", what it holds)."""
Message = dict[int, Field]

_STRINGS = ("list", "string")
_LABELS = ("map", "string")
_QUANTITY = "quantity"
_OWNER: Message = {
    1: ("kind", "string"),
    3: ("name", "string"),
    4: ("uid", "string"),
    5: ("apiVersion", "string"),
    6: ("controller", "bool"),
    7: ("blockOwnerDeletion", "bool"),
}
_META: Message = {
    1: ("name", "string"),
    2: ("generateName", "string"),
    3: ("namespace", "string"),
    5: ("uid", "string"),
    6: ("resourceVersion", "string"),
    8: ("creationTimestamp", "time"),
    11: ("labels", _LABELS),
    12: ("annotations", _LABELS),
    13: ("ownerReferences", ("list", _OWNER)),
    14: ("finalizers", _STRINGS),
}
_PRECONDITIONS: Message = {1: ("uid", "string"), 2: ("resourceVersion", "string")}
_DELETE_OPTIONS: Message = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", _PRECONDITIONS),
    3: ("orphanDependents", "bool"),
    4: ("propagationPolicy", "string"),
    5: ("dryRun", _STRINGS),
}
_RESOURCE_ATTRIBUTES: Message = {
    1: ("namespace", "string"),
    2: ("verb", "string"),
    3: ("group", "string"),
    4: ("version", "string"),
    5: ("resource", "string"),
    6: ("subresource", "string"),
    7: ("name", "string"),
}
_ACCESS: Message = {1: ("resourceAttributes", _RESOURCE_ATTRIBUTES)}
_SERVICE_PORT: Message = {
    1: ("name", "string"),
    2: ("protocol", "string"),
    3: ("port", "int"),
    4: ("targetPort", {1: ("type", "int"), 2: ("intVal", "int"), 3: ("strVal", "string")}),
    5: ("nodePort", "int"),
}
_SERVICE_SPEC: Message = {
    1: ("ports", ("list", _SERVICE_PORT)),
    2: ("selector", _LABELS),
    3: ("clusterIP", "string"),
    4: ("type", "string"),
    7: ("sessionAffinity", "string"),
}
_KINDS: dict[str, Message] = {
    "ConfigMap": {
        1: ("metadata", _META),
        2: ("data", _LABELS),
        3: ("binaryData", ("map", "bytes")),
        4: ("immutable", "bool"),
    },
    "DeleteOptions": _DELETE_OPTIONS,
    "Eviction": {1: ("metadata", _META), 2: ("deleteOptions", _DELETE_OPTIONS)},
    "Namespace": {1: ("metadata", _META)},
    "PriorityClass": {
        1: ("metadata", _META),
        2: ("value", "int"),
        3: ("globalDefault", "bool"),
        4: ("description", "string"),
        5: ("preemptionPolicy", "string"),
    },
    "ResourceQuota": {1: ("metadata", _META), 2: ("spec", {1: ("hard", ("map", _QUANTITY)), 2: ("scopes", _STRINGS)})},
    "Secret": {
        1: ("metadata", _META),
        2: ("data", ("map", "bytes")),
        3: ("type", "string"),
        4: ("stringData", _LABELS),
        5: ("immutable", "bool"),
    },
    "SelfSubjectAccessReview": {1: ("metadata", _META), 2: ("spec", _ACCESS)},
    "SelfSubjectReview": {1: ("metadata", _META)},
    "SelfSubjectRulesReview": {1: ("metadata", _META), 2: ("spec", {1: ("namespace", "string")})},
    "Service": {1: ("metadata", _META), 2: ("spec", _SERVICE_SPEC)},
    "ServiceAccount": {1: ("metadata", _META)},
}
_ENVELOPE: Message = {1: ("type", {1: ("apiVersion", "string"), 2: ("kind", "string")}), 2: ("raw", "raw")}


def decode(body: bytes) -> Json:
    """The JSON object in an envelope. Raises: StatusError 400, or 415 for a kind that is only taken as JSON."""
    if not body.startswith(MAGIC):
        raise bad_request("the body is no Kubernetes protobuf envelope")
    try:
        envelope = _message(body[len(MAGIC) :], _ENVELOPE)
        identity: Json = envelope.get("type", {})
        fields = _KINDS.get(str(identity.get("kind")))
        if fields is None:
            raise unsupported_media(["application/json", "application/yaml"])
        return {**identity, **_message(envelope.get("raw", b""), fields)}
    except (IndexError, UnicodeDecodeError, struct.error, ValueError) as exc:
        raise bad_request(f"the protobuf body can not be read: {exc}") from exc


def is_pair(shape: Any) -> TypeGuard[tuple[str, Any]]:
    return isinstance(shape, tuple)


def _message(raw: bytes, fields: Message) -> Json:
    found: Json = {}
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        value: int | bytes
        value, position = _value(raw, position, tag & 7)
        field = fields.get(tag >> 3)
        if field is not None:
            _put(found, field, value)
    return {name: value for name, value in found.items() if value not in ("", None)}


def _put(found: Json, field: Field, value: Any) -> None:
    name, shape = field
    if is_pair(shape):
        holder, inner = shape
        if holder == "list":
            found.setdefault(name, []).append(_convert(inner, value))
            return
        entry = _message(value, {1: ("key", "string"), 2: ("value", inner)})
        found.setdefault(name, {})[entry.get("key", "")] = entry.get("value", "")
    else:
        found[name] = _convert(shape, value)


def _convert(shape: Any, value: Any) -> Any:
    match shape:
        case "string":
            return value.decode()
        case "bytes":
            return base64.b64encode(value).decode()
        case "int":
            return value - 2**64 if value >= 2**63 else value
        case "bool":
            return bool(value)
        case "raw":
            return value
        case "quantity":
            return _message(value, {1: ("string", "string")}).get("string", "0")
        case "time":
            seconds = _message(value, {1: ("seconds", "int")}).get("seconds")
            return None if seconds is None else format_time(seconds)
        case _:
            return _int_or_string(_message(value, shape), shape)


def _int_or_string(value: Json, shape: Message) -> Any:
    """An IntOrString message is one value in JSON; any other message is itself."""
    if (2, ("intVal", "int")) not in shape.items():
        return value
    return value.get("strVal", "") if value.get("type") == 1 else value.get("intVal", 0)


def _value(raw: bytes, position: int, wire_type: int) -> tuple[int | bytes, int]:
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
