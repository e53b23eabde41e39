"""Structural schemas of custom resources: compiled once, then used to prune, default and find unknown fields.

Owns the parsing of `openAPIV3Schema` and the walk that brings an object into shape. Validation is `validation.py`.
Invariant: a compiled `Schema` is never changed; `shape` changes only the given object.
"""

import functools
import re
from typing import Any

import msgspec

from slipway.local.apiserver.objects import Json, clone, is_list, is_map, listing, mapping, maps


class CelRule(msgspec.Struct, frozen=True):
    """One entry of `x-kubernetes-validations`; a transition rule compares with the old value."""

    text: str
    message: str
    reason: str
    field_path: str
    is_transition: bool


class Schema(msgspec.Struct):
    """One node of a structural schema."""

    type: str = ""
    nullable: bool = False
    properties: dict[str, "Schema"] = {}
    additional: "Schema | None" = None
    items: "Schema | None" = None
    required: tuple[str, ...] = ()
    enum: list[Any] | None = None
    pattern: re.Pattern[str] | None = None
    format: str = ""
    limits: dict[str, float] = {}
    exclusive_min: bool = False
    exclusive_max: bool = False
    int_or_string: bool = False
    preserve: bool = False
    embedded: bool = False
    list_type: str = "atomic"
    list_keys: tuple[str, ...] = ()
    unique: bool = False
    default: Any = msgspec.UNSET
    rules: tuple[CelRule, ...] = ()
    all_of: tuple["Schema", ...] = ()
    any_of: tuple["Schema", ...] = ()
    one_of: tuple["Schema", ...] = ()
    negated: "Schema | None" = None
    source: Json = {}
    defaulted: "tuple[tuple[str, Schema], ...] | None" = None
    """The properties with a default, cached at the first use; None before."""


_LIMITS = (
    "minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
    "maxProperties",
)  # fmt: skip
COMPILED_MAX = 128
"""Maximum number of compiled schemas in the cache."""
_OLD = re.compile(r"\boldSelf\b")
TYPE_META: dict[str, Schema] = {"apiVersion": Schema(type="string"), "kind": Schema(type="string")}


def compile_schema(source: Json) -> Schema:
    """Return the compiled schema. Raises: ValueError for a schema that cannot be read, `re.error` for a bad pattern.

    The result is cached, because a definition is compiled when it is checked and again when its kinds are installed.
    This repeats at each start and in each core of a process.
    """
    return _compiled_text(msgspec.json.encode(source))


@functools.lru_cache(maxsize=COMPILED_MAX)
def _compiled_text(text: bytes) -> Schema:
    return _compiled(msgspec.json.decode(text))


def _compiled(source: Json) -> Schema:
    limits = {name: source[name] for name in _LIMITS if isinstance(source.get(name), int | float)}
    additional = source.get("additionalProperties")
    items = source.get("items")
    preserve = source.get("x-kubernetes-preserve-unknown-fields") is True or additional is True
    return Schema(
        type=str(source.get("type") or ""),
        nullable=source.get("nullable") is True,
        properties={name: _compiled(node) for name, node in mapping(source, "properties").items()},
        additional=_compiled(additional) if is_map(additional) else None,
        items=_compiled(items) if is_map(items) else None,
        required=tuple(listing(source, "required")),
        enum=source.get("enum"),
        pattern=re.compile(source["pattern"]) if source.get("pattern") else None,
        format=str(source.get("format") or ""),
        limits=limits,
        exclusive_min=source.get("exclusiveMinimum") is True,
        exclusive_max=source.get("exclusiveMaximum") is True,
        int_or_string=source.get("x-kubernetes-int-or-string") is True,
        preserve=preserve,
        embedded=source.get("x-kubernetes-embedded-resource") is True,
        list_type=str(source.get("x-kubernetes-list-type") or "atomic"),
        list_keys=tuple(listing(source, "x-kubernetes-list-map-keys")),
        unique=source.get("uniqueItems") is True,
        default=source.get("default", msgspec.UNSET),
        rules=tuple(_rule(entry) for entry in maps(listing(source, "x-kubernetes-validations"))),
        all_of=tuple(_compiled(node) for node in maps(listing(source, "allOf"))),
        any_of=tuple(_compiled(node) for node in maps(listing(source, "anyOf"))),
        one_of=tuple(_compiled(node) for node in maps(listing(source, "oneOf"))),
        negated=_compiled(source["not"]) if is_map(source.get("not")) else None,
        source=source,
    )


def rules_of(schema: Schema, path: str = "", *, correlated: bool = True) -> list[tuple[str, CelRule, bool]]:
    """Return (path, rule, whether the old value at this path can be found) of every rule in the tree."""
    found = [(path, rule, correlated) for rule in schema.rules]
    for name, node in schema.properties.items():
        found += rules_of(node, f"{path}.properties[{name}]", correlated=correlated)
    if schema.additional is not None:
        found += rules_of(schema.additional, f"{path}.additionalProperties", correlated=correlated)
    if schema.items is not None:
        found += rules_of(schema.items, f"{path}.items", correlated=correlated and schema.list_type == "map")
    return found


def shape(schema: Schema, value: Any, path: str = "", *, is_root: bool = False, keeps_nulls: bool = False) -> list[str]:
    """Prune unknown fields and set the defaults, in place. Return the pruned paths.

    Nulls of fields that are not nullable are dropped too, unless `keeps_nulls` leaves them for validation.
    """
    pruned = list[str]()
    if is_map(value):
        _shape_map(schema, value, path, pruned, is_root=is_root, keeps_nulls=keeps_nulls)
    elif is_list(value) and schema.items is not None:
        for index, item in enumerate(value):
            pruned += shape(schema.items, item, f"{path}[{index}]", keeps_nulls=keeps_nulls)
    return pruned


def fill_defaults(schema: Schema, value: Any) -> None:
    """Set only the defaults, as the server does when it reads an object from storage."""
    if is_map(value):
        _default(schema, value)
        for name, item in value.items():
            node = schema.properties.get(name) or schema.additional
            if node is not None:
                fill_defaults(node, item)
    elif is_list(value) and schema.items is not None:
        for item in value:
            fill_defaults(schema.items, item)


def _shape_map(schema: Schema, value: Json, path: str, pruned: list[str], *, is_root: bool, keeps_nulls: bool) -> None:
    _default(schema, value)
    keeps_meta = is_root or schema.embedded
    for name, item in list(value.items()):
        node = schema.properties.get(name) or schema.additional
        if keeps_meta and name in ("apiVersion", "kind", "metadata"):
            continue
        if node is not None:
            if item is None and not node.nullable and not keeps_nulls:
                del value[name]
            elif is_map(item) or is_list(item):
                pruned += shape(node, item, f"{path}.{name}" if path else name, keeps_nulls=keeps_nulls)
        elif not schema.preserve:
            del value[name]
            pruned.append(f"{path}.{name}" if path else name)


def _default(schema: Schema, value: Json) -> None:
    if schema.defaulted is None:
        schema.defaulted = tuple(
            (name, node) for name, node in schema.properties.items() if node.default is not msgspec.UNSET
        )
    for name, node in schema.defaulted:
        if name not in value or (value[name] is None and not node.nullable):
            value[name] = clone(node.default)


def _rule(entry: Json) -> CelRule:
    text = str(entry.get("rule") or "")
    return CelRule(
        text=text,
        message=str(entry.get("message") or f"failed rule: {' '.join(text.split())}"),
        reason=str(entry.get("reason") or "FieldValueInvalid"),
        field_path=str(entry.get("fieldPath") or ""),
        is_transition=bool(_OLD.search(text)),
    )
