"""Shapes: the fields of a kind, their types, and how their lists and maps merge.

Owns one form for both sources: the table of the built-in kinds, made from the Go types that Kubernetes publishes
(`tests/conformance/builtin_fields.py` writes it), and the structural schemas of custom kinds. Knows no object.
Invariants: a finished shape is never changed; the table is read at the first use, not at import, and each of its
structs is turned into a shape at its first use.
"""

from functools import cache
from importlib import resources
from typing import Any

import msgspec

from slipway.local.apiserver.objects import Json
from slipway.local.apiserver.structural import Schema

_PLAIN: dict[str, type] = {
    "string": str, "types.UID": str, "bytes": str, "bool": bool, "int32": int, "int64": int, "int": int,
}  # fmt: skip


class Shape:
    """One type. `sort` is struct, map, list, any, or the name of a scalar; `name` is the type's name in Go.

    atomic: apply treats it as one value, so a writer that sets a part owns the whole. keys: the fields that distinguish
    the objects of a list. is_set: a list of different scalars. key_defaults: values of missing keys. always: the fields
    that Go writes even when they are not set; the reader fills it in. inline: {protobuf number: struct whose fields
    appear directly in this one in JSON}.
    """

    __slots__ = ("always", "atomic", "fields", "inline", "is_set", "item", "key_defaults", "keys", "name", "sort")

    def __init__(self, sort: str, name: str = "", *, atomic: bool = False) -> None:
        self.sort = sort
        self.name = name or sort
        self.atomic = atomic
        self.fields: dict[str, Field] = {}
        self.inline: dict[int, Shape] = {}
        self.item: Shape | None = None
        self.keys: tuple[str, ...] = ()
        self.is_set = False
        self.key_defaults: Json = {}
        self.always: list[tuple[str, Any]] | None = None

    @property
    def is_granular_list(self) -> bool:
        return self.sort == "list" and (bool(self.keys) or self.is_set)

    def child(self, name: str) -> "Shape":
        """Return the shape of a field or of an entry of a map."""
        field = self.fields.get(name)
        return field.shape if field is not None else self.item or ANY


class Field:
    """A field of a struct.

    empty_goes: an empty value is left out of JSON. is_pointer: a pointer in Go, so a zero is a set value. patch,
    merge_key: how a strategic merge patch treats a list here. plain: the Python type of a simple scalar, else None.
    keeps_zero: a zero stays in JSON. number: the protobuf field number, 0 for none.
    """

    __slots__ = ("empty_goes", "is_pointer", "keeps_zero", "merge_key", "number", "patch", "plain", "shape")

    def __init__(self, shape: Shape, *, empty_goes: bool, is_pointer: bool) -> None:
        self.shape = shape
        self.empty_goes = empty_goes
        self.is_pointer = is_pointer
        self.keeps_zero = is_pointer or not empty_goes
        self.plain = _PLAIN.get(shape.sort)
        self.patch: tuple[str, ...] = ()
        self.merge_key = ""
        self.number = 0


ANY = Shape("any")


class _Table(msgspec.Struct):
    kinds: dict[str, str]
    structs: dict[str, dict[str, list[Any]]]
    scalars: dict[str, str]
    atomic: list[str]
    inline: dict[str, dict[str, str]] = {}


class BuiltinShapes:
    """The shapes of the built-in kinds."""

    def __init__(self, raw: bytes) -> None:
        self._table = msgspec.json.decode(raw, type=_Table)
        self._atomic = frozenset(self._table.atomic)
        self._structs: dict[str, Shape] = {}

    def of_kind(self, api_version: str, kind: str) -> Shape | None:
        name = self._table.kinds.get(f"{api_version}/{kind}")
        return self._struct(name) if name else None

    def struct_of_kind(self, api_version: str, kind: str) -> str:
        """Return the name of a kind's struct in the table, or "" for a kind that the table lacks."""
        return self._table.kinds.get(f"{api_version}/{kind}", "")

    def entries(self, struct: str) -> dict[str, list[Any]]:
        """Return {field: [Go type, marks]} of a struct in the table."""
        return self._table.structs[struct]

    def scalar(self, name: str) -> str:
        """Return the Go type that a named scalar type is based on."""
        return self._table.scalars.get(name, name)

    def meta(self) -> Shape:
        return self._struct("meta.ObjectMeta")

    def _struct(self, name: str) -> Shape:
        found = self._structs.get(name)
        if found is None:
            found = self._structs[name] = Shape("struct", _go_name(name), atomic=name in self._atomic)
            for field, entry in self._table.structs[name].items():
                found.fields[field] = self._field(entry)
            for number, inner in self._table.inline.get(name, {}).items():
                found.inline[int(number)] = self._struct(inner)
        return found

    def _field(self, entry: list[Any]) -> Field:
        text: str = entry[0]
        marks: dict[str, Any] = entry[1] if len(entry) > 1 else {}
        bare = text.lstrip("*")
        shape = self._shape(bare, marks)
        field = Field(shape, empty_goes="omit" in marks, is_pointer=bare != text)
        field.patch = tuple(marks.get("patch", "").split(",")) if marks.get("patch") else ()
        field.merge_key = marks.get("key", "")
        field.number = marks.get("n", 0)
        return field

    def _shape(self, text: str, marks: dict[str, Any]) -> Shape:
        if text.startswith("[]"):
            item = self._shape(text[2:].lstrip("*"), {})
            made = Shape("list", f"[]{item.name}", atomic=marks.get("list", "atomic") == "atomic")
            made.item = item
            made.keys = tuple(marks.get("keys", ()))
            made.is_set = marks.get("list") == "set"
            made.key_defaults = self._defaults(text[2:], made.keys)
            return made
        if text.startswith("map[string]"):
            item = self._shape(text.removeprefix("map[string]").lstrip("*"), {})
            made = Shape("map", f"map[string]{item.name}", atomic=marks.get("map") == "atomic")
            made.item = item
            return made
        if text in self._table.structs:
            return self._struct(text)
        return Shape(self._table.scalars.get(text, text), _go_name(text))

    def _defaults(self, struct: str, keys: tuple[str, ...]) -> Json:
        entries = self._table.structs.get(struct, {})
        marks = {key: entries[key][1] for key in keys if len(entries.get(key, ())) > 1}
        return {key: mark["default"] for key, mark in marks.items() if "default" in mark}


@cache
def builtin_shapes() -> BuiltinShapes:
    return BuiltinShapes(resources.files("slipway.local.apiserver.fields").joinpath("builtin.json").read_bytes())


def of_schema(schema: Schema, *, is_root: bool = True) -> Shape:
    """Return the shape of a custom kind, or of a part of its schema."""
    if schema.int_or_string or (not schema.type and not schema.properties):
        return ANY
    atomic = schema.source.get("x-kubernetes-map-type") == "atomic"
    if schema.type == "array":
        made = Shape("list", atomic=schema.list_type == "atomic")
        made.item = of_schema(schema.items, is_root=False) if schema.items is not None else ANY
        made.is_set = schema.list_type == "set"
        made.keys = schema.list_keys if schema.list_type == "map" else ()
        nodes = schema.items.properties if schema.items is not None else {}
        defaults = {key: nodes[key].default for key in made.keys if key in nodes}
        made.key_defaults = {key: value for key, value in defaults.items() if value is not msgspec.UNSET}
        return made
    if schema.type != "object":
        return Shape(schema.type)
    if schema.properties or is_root:
        made = Shape("struct", atomic=atomic)
        for name, node in schema.properties.items():
            made.fields[name] = Field(of_schema(node, is_root=False), empty_goes=False, is_pointer=True)
        made.item = ANY if schema.preserve else None
    else:
        made = Shape("map", atomic=atomic)
        made.item = of_schema(schema.additional, is_root=False) if schema.additional is not None else ANY
    if is_root or schema.embedded:
        for name in ("apiVersion", "kind"):
            made.fields[name] = Field(Shape("string"), empty_goes=False, is_pointer=True)
        made.fields["metadata"] = Field(builtin_shapes().meta(), empty_goes=True, is_pointer=False)
    return made


def _go_name(name: str) -> str:
    """Return a type's name as in the server's errors, where every package that we read is called v1."""
    package, dot, rest = name.partition(".")
    return f"v1.{rest}" if dot and package not in ("types", "resource") else name
